"""Slurm: jobs that run busbw, written as a pure function, submitted, followed, and found again beside their runs."""
