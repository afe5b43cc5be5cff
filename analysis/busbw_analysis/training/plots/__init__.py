"""Figures of training."""
