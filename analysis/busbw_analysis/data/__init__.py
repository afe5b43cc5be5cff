"""The data under analysis: runs loaded, pooled and summarised."""
