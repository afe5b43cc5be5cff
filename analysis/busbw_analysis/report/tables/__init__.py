"""Tables of the commands."""
