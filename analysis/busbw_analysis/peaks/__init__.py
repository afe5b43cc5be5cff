"""Peaks of the hardware: the rates that count as 100 %."""
