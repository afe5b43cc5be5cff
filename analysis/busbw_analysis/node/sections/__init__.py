"""Sections of the report on one node."""
