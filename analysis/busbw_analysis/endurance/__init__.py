"""Runs with a duration as a slice: drift, steps and periodic slow spells over time."""
