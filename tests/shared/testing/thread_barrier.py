"""Where ranks that are threads meet: everybody brings a value, and nobody goes before all have come."""

import threading
from typing import Generic, TypeVar

from busbw.errors import BackendError
from busbw.ops.groups import Ranks

T = TypeVar("T")


class Meeting(Generic[T]):
    """Where members exchange one value each and nobody leaves before all have come; a wait ends when one is gone."""

    def __init__(
        self, members: Ranks, gone: dict[int, None], changed: threading.Condition, patience_seconds: float
    ) -> None:
        self._members = members
        self._gone = gone
        self._changed = changed
        self._patience_seconds = patience_seconds
        self._values: dict[int, T] = {}
        self._last: list[T] = []
        self._round = 0

    def exchange(self, rank: int, value: T) -> list[T]:
        """Everyone's value, in the order of the members. Raises BackendError when a member will not come."""
        with self._changed:
            number = self._round
            self._values[rank] = value
            if len(self._values) == len(self._members):
                # A round that is complete stays so, even if a member is gone before the others have looked.
                self._last = [self._values[member] for member in self._members]
                self._values = {}
                self._round += 1
                self._changed.notify_all()
                return self._last
            self._changed.wait_for(
                lambda: self._round > number or self._first_gone() is not None, self._patience_seconds
            )
            if self._round > number:
                return self._last
            gone = self._first_gone()
            missing = [member for member in self._members if member not in self._values]
            reason = f"rank {gone} is gone" if gone is not None else f"ranks {missing} do not come"
            message = f"rank {rank} waits in vain: {reason}"
            raise BackendError(message)

    def _first_gone(self) -> int | None:
        """The first of the ranks that are gone and missing here: the others may have gone because of it."""
        missing = set(self._members) - self._values.keys()
        return next((rank for rank in self._gone if rank in missing), None)
