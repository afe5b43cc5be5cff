"""Garbage collection, paused while modules are loaded or the records of thousands of runs are made: none of them is
garbage, but Python would look through all of them again and again, for a fifth of the time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect no cycles in the block, or in the function that this decorates. Other memory is freed as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
