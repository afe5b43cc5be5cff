"""Slurm: write, submit and follow jobs that run busbw, and find the jobs that belong to a run."""
