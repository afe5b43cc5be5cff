"""Predictions of what was not measured: other sizes, ranks and hosts."""
