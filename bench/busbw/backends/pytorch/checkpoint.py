"""A checkpoint of all ranks with torch.distributed.checkpoint: one tensor, of which every rank saves its shard.

Every save is a new checkpoint, as in training; the previous one is removed outside the timed region.
"""

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from busbw.backends.base import Bound, Limits, Operation, Wait
from busbw.backends.local.storage import FULL, MAKE_ROOM
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError

LIMITS = Limits(modes=("isolated", "overlap"), caches=("warm",), groups=("all",), syncs=("barrier", "dissemination"))
"""The syncs are barriers, because all ranks must have removed the previous save."""


class _Checkpoint:
    """The state in ``bound.send`` and the folder in which it is saved.

    The error of a failed save is raised when its data are checked; raising between two samples would leave the other
    ranks waiting.
    """

    def __init__(self, bound: Bound) -> None:
        # Importing these takes half a second, and nothing else needs them.
        import torch.distributed.checkpoint as library  # noqa: PLC0415
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

        try:
            from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415
        except ImportError:  # public from torch 2.5 on
            from torch.distributed._tensor import DTensor, Shard  # type: ignore[attr-defined] # noqa: PLC0415

        self._library: Any = library  # untyped, because it does not declare its exports
        self._bound = bound
        self._folder = bound.path / "checkpoint"
        self._number = 0
        self._failed: str | None = None
        group: Any = bound.comm
        mesh = DeviceMesh.from_group(group, bound.send.device.type)

        def state(shard: torch.Tensor) -> dict[str, Any]:
            return {"state": DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)}

        self._state, self._loaded = state(bound.send), state(bound.receive)

    def prepare(self) -> None:
        """Remove the previous checkpoint after all ranks have finished with it."""
        dist.barrier(group=self._bound.comm)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number += 1

    def save(self) -> None:
        """Save, and return when all data are on the device (the timed call)."""
        self._try(lambda: self._library.save(self._state, **self._options()))
        self._try(self._sync_folders)

    def post(self) -> Wait:
        """Start an asynchronous save; returns when the state may be modified again."""
        futures: list[Any] = []
        self._try(lambda: futures.append(self._library.async_save(self._state, **self._options())))

        def wait() -> None:
            for future in futures:
                # Newer versions of torch distinguish the end of copying the state from the end of saving it.
                self._try(getattr(future, "upload_completion", future).result)
            self._try(self._sync_folders)

        return wait

    def wrong(self) -> int:
        """Load the checkpoint and count wrong elements. Raises BackendError if any save or this load failed."""
        reader = self._library.FileSystemReader(self._here)
        self._try(lambda: self._library.load(self._loaded, storage_reader=reader, process_group=self._bound.comm))
        failed, self._failed = self._failed, None
        if failed is not None:
            raise BackendError(failed)
        return int(torch.count_nonzero(self._bound.receive != self._bound.send))

    def free(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _here(self) -> Path:
        return self._folder / f"step-{self._number}"

    def _options(self) -> dict[str, Any]:
        writer = self._library.FileSystemWriter(self._here, sync_files=True)
        return {"storage_writer": writer, "process_group": self._bound.comm}

    def _sync_folders(self) -> None:
        """Sync the folders: a new file is durable only once its name is, which the library does not ensure."""
        for folder in (self._here, self._folder):
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def _try(self, what: Callable[[], object]) -> None:
        """Call ``what`` and keep the first error.

        It is called even after a failure, because other ranks may not have noticed it and wait in the next save.
        """
        try:
            what()
        except (OSError, RuntimeError, ValueError, self._library.CheckpointException) as error:
            if self._failed is None:
                self._failed = in_words(error, self._folder, self._bound.case.size_bytes)


def in_words(error: BaseException, folder: Path, size_bytes: int) -> str:
    """Message for a failed checkpoint in ``folder`` with shards of ``size_bytes``, with advice."""
    message, number = _reason(error)
    if number is None and (number := _no_room(folder, size_bytes)) is not None:
        message = f"{message} ({os.strerror(number)})"
    return f"a checkpoint in {folder}: {message}{f'; {MAKE_ROOM}' if number in FULL else ''}"


def _reason(error: BaseException) -> tuple[str, int | None]:
    """The error of the lowest failed rank among those that torch gathers, and its errno (None: unknown).

    torch's own message contains the call stacks of all ranks.
    """
    failures: dict[int, tuple[BaseException, object]] = getattr(error, "failures", {})
    if failures:
        rank = min(failures)
        message, number = _reason(failures[rank][0])
        return f"rank {rank} says: {message}", number
    if isinstance(error, OSError):
        return error.strerror or str(error), error.errno
    return first_line(error) if isinstance(error, Exception) else type(error).__name__, None


def _no_room(folder: Path, size_bytes: int) -> int | None:
    """The errno that another file of ``size_bytes`` would cause, or None if there is room.

    torch does not pass it on: its writer reports only that the file is shorter than expected.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < size_bytes:
        return errno.EFBIG
    try:
        free = os.statvfs(next(path for path in (folder, *folder.parents) if path.exists()))
    except OSError:
        return None  # then only the library's message is known
    return errno.ENOSPC if free.f_bavail * free.f_frsize < size_bytes else None


def bind(bound: Bound) -> Operation:
    """Bind a checkpoint of the data that ``bound`` sends; ``bound.comm`` connects the hosts' CPUs."""
    checkpoint = _Checkpoint(bound)
    return Operation(
        checkpoint.save, checkpoint.post, prepare=checkpoint.prepare, wrong=checkpoint.wrong, free=checkpoint.free
    )
