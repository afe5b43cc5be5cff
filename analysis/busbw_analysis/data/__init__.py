"""Runs as they are analysed: loaded, pooled, summarised."""
