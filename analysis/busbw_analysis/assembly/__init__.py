"""Core and slices together: the judgement, the page and the JSON of all of them."""
