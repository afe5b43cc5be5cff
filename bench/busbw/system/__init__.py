"""The machine: what is there, and what its hardware can do at most."""
