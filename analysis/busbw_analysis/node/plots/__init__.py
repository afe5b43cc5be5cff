"""Figures of one node."""
