"""Readers of other tools' logs."""
