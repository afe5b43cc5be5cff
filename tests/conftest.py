"""What all tests share."""

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from exhaustive import EXAMPLES
from hypothesis import settings

# No deadline: a busy machine is no failure.
settings.register_profile("busbw", max_examples=EXAMPLES, deadline=None)
settings.load_profile("busbw")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage once, and then among what tests make: the 700,000 objects of all tests stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def as_wide_as_a_file() -> None:
    """The width of the terminal in which the tests run is not that of what they print."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Children inherit it when Ctrl-C is ignored, as it is below ``nohup`` and some CI; a handler is not inherited."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
