"""Runs: plans, cases, placements, records, and the run folder with its lock and its resumption."""
