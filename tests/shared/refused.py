"""Expect an error by its code, not by its words."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from busbw.errors import BusbwError


@contextmanager
def refused(error: type[BusbwError], code: str) -> Iterator[pytest.ExceptionInfo[BusbwError]]:
    """What is done below raises just this error."""
    with pytest.raises(error) as caught:
        yield caught
    assert caught.value.code == code, caught.value
