"""Tables of training layouts."""
