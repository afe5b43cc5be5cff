"""Beside what is measured: what ranks of a world that breaks say to each other over a store that the launcher keeps."""

import re
import time
from typing import Protocol

import torch.distributed as dist

from busbw.errors import BackendError

_FAILED_KEY = "busbw/failed/{rank}"
_ANSWER_GRACE_SECONDS = 3.0
_ANSWER_POLL_SECONDS = 0.05


class Pending(Protocol):
    """An operation under way, as torch.distributed has it."""

    def is_completed(self) -> bool:
        """Whether it is finished here."""

    def wait(self) -> object:
        """Finish it."""


def wait_warily(work: Pending, store: dist.Store, size: int) -> None:
    """Wait for ``work``, but no longer than until a rank of the world gives up.

    Raises BackendError then, and RuntimeError when the work itself fails. A rank whose operation has just run into the
    timeout would wait for a second one here, while the others have long heard each other out and gone.
    """
    while not work.is_completed():
        for rank in range(size):
            if store.check([_FAILED_KEY.format(rank=rank)]):
                message = f"rank {rank} has given up"
                raise BackendError(message)
        time.sleep(_ANSWER_POLL_SECONDS)
    work.wait()


def answers(store: dist.Store, size: int, mine: dict[int, str]) -> dict[int, str]:
    """Post ``mine`` and collect what the ranks of a failed world say, until all have spoken or a grace is over."""
    heard = dict(mine)
    try:
        for rank, text in mine.items():
            store.set(_FAILED_KEY.format(rank=rank), text)
        deadline = time.monotonic() + _ANSWER_GRACE_SECONDS
        while len(heard) < size and time.monotonic() < deadline:
            for rank in set(range(size)) - set(heard):
                key = _FAILED_KEY.format(rank=rank)
                if store.check([key]):
                    heard[rank] = store.get(key).decode()
            time.sleep(_ANSWER_POLL_SECONDS)
    except (RuntimeError, OSError):
        # The store went down with whoever held it; what was heard until then is all there is.
        return heard
    return heard


def first_line(error: Exception) -> str:
    """What a torch error says, without the path of its source file and without its advice."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", lines[0]).partition(" This is typically ")[0]
