"""Beside what is measured: what ranks of a world that breaks say to each other over a store that the launcher keeps."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from busbw.errors import BackendError

_FAILED_KEY = "busbw/failed/{rank}"
_ANSWER_GRACE_SECONDS = 3.0
_ANSWER_POLL_SECONDS = 0.05
_INTERNET = (socket.AF_INET, socket.AF_INET6)


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


def hang_up(kept_port: int) -> None:
    """Shut every TCP connection of this process but those to or from ``kept_port``, the launcher's store.

    For a rank that gives up: a rank that waits for it in the library sees nothing until its connections close, would
    stay silent while the others listen, and be taken for lost. Nothing else of this process is of use any more.
    """
    for name in _open_files():
        copy = -1
        try:
            copy = os.dup(int(name))
            one = socket.socket(fileno=copy)
        except OSError:  # closed meanwhile, or not a socket
            if copy >= 0:
                os.close(copy)
            continue
        with one, contextlib.suppress(OSError):  # not connected
            if one.family in _INTERNET and kept_port not in {one.getsockname()[1], one.getpeername()[1]}:
                one.shutdown(socket.SHUT_RDWR)


def _open_files() -> list[str]:
    """The numbers of this process's open files; none where the system does not list them."""
    try:
        return [path.name for path in Path("/proc/self/fd").iterdir()]
    except OSError:
        return []


def answers(
    store: dist.Store, size: int, mine: dict[int, str], leave: Callable[[], None] | None = None
) -> dict[int, str]:
    """Post ``mine`` and collect what the ranks of a failed world say, until all have spoken or a grace is over.

    ``leave`` is called in between: what wakes the ranks that still wait for this one.
    """
    heard = dict(mine)
    try:
        for rank, text in mine.items():
            store.set(_FAILED_KEY.format(rank=rank), text)
        if leave is not None:
            leave()
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
