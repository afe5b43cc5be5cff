"""Sections of the report on training."""
