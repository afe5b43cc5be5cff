"""Runs: plans, cases, placement, records, and the run folder with its lock and resumption."""
