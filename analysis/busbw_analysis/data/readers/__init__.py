"""Results of other tools, read from their logs."""
