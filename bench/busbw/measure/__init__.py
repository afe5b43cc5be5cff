"""Measuring: timing loops, sampling, stopping, synchronisation of ranks and clocks."""
