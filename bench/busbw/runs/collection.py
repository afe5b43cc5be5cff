"""Garbage collection, paused while modules are loaded or the records of thousands of runs are made: none of them is
garbage, but Python would look through all of them again and again, for a fifth of the time.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused(*, until_exit: bool = False, kept: bool = False) -> Iterator[None]:
    """Collect no cycles in the block, or in the function that this decorates. Other memory is freed as ever.

    until_exit: nor what is there when the process exits, where Python would look through all of it three times
    kept: what is there at the end of the block is never looked through, neither here nor in ranks that are forked
    """
    if until_exit:
        atexit.register(gc.freeze)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if kept:
            gc.freeze()
        if was_enabled:
            gc.enable()
