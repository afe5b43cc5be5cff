"""Peaks: what 100 % is."""
