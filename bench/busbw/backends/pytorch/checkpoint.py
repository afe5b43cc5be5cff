"""A checkpoint of all ranks by torch.distributed.checkpoint: one tensor, of which every rank holds and saves its shard.

Every save is a new checkpoint, as in training; the one before it is removed outside of the time.
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

from busbw.backends.base import Operation, Wait
from busbw.backends.local.files import FULL, MAKE_ROOM
from busbw.backends.pytorch.bound import Bound
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError
from busbw.ops.base import first_reason
from busbw.runs.records import Case

_POSTED = ("isolated", "overlap")


def refuse(case: Case) -> str | None:
    """Why ``case`` cannot run, the same on every rank."""
    return first_reason(
        (case.mode not in _POSTED, f"checkpoint_save is timed save by save, in modes {' and '.join(_POSTED)}"),
        (case.group != "all", "a checkpoint is of all ranks; groups want to be all"),
        (case.sync in {"none", "window"}, "a save waits until all ranks have removed the one before; want a barrier"),
        (case.cache != "warm", "caches of the processor say nothing of storage; want cache warm"),
        (case.pre_enqueue, "files are not handed to a device's stream"),
    )


class _Checkpoint:
    """The state in ``bound.send`` and where it is saved. A save that fails says so when its data are asked for: raising
    between two samples would leave other ranks waiting for the next one.
    """

    def __init__(self, bound: Bound) -> None:
        if bound.folder is None:
            raise BackendError(f"{bound.case.op} was not told where: give --path DIR, or 'path' in the plan")
        # They take half a second to load, and nobody else needs them.
        import torch.distributed.checkpoint as library  # noqa: PLC0415
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

        try:
            from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415
        except ImportError:  # public from torch 2.5 on
            from torch.distributed._tensor import DTensor, Shard  # type: ignore[attr-defined] # noqa: PLC0415

        self._library: Any = library  # it exports by import, not by name
        self._bound = bound
        self._folder = bound.folder / "checkpoint"
        self._number = 0
        self._failed: str | None = None
        group: Any = bound.process_group
        mesh = DeviceMesh.from_group(group, bound.send.device.type)

        def state(shard: torch.Tensor) -> dict[str, Any]:
            return {"state": DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)}

        self._state, self._loaded = state(bound.send), state(bound.receive)

    def prepare(self) -> None:
        """There is no checkpoint any more, once all ranks are through with it."""
        dist.barrier(group=self._bound.process_group)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._number += 1

    def save(self) -> None:
        """The call: return when all of it is on the device."""
        self._try(lambda: self._library.save(self._state, **self._options()))
        self._try(self._sync_folders)

    def post(self) -> Wait:
        """The same, beside what this rank does then: return when the state may change again."""
        found: list[Any] = []
        self._try(lambda: found.append(self._library.async_save(self._state, **self._options())))

        def wait() -> None:
            for future in found:
                # A newer torch tells apart when the state was copied and when it was saved.
                self._try(getattr(future, "upload_completion", future).result)
            self._try(self._sync_folders)

        return wait

    def wrong(self) -> int:
        """Load what was saved, and count what is not as it was. Raises BackendError when any save, or this, failed."""
        reader = self._library.FileSystemReader(self._here)
        self._try(
            lambda: self._library.load(self._loaded, storage_reader=reader, process_group=self._bound.process_group)
        )
        failed, self._failed = self._failed, None
        if failed is not None:
            raise BackendError(failed)
        return int(torch.count_nonzero(self._bound.receive != self._bound.send))

    def free(self) -> None:
        """Nothing of it is left."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _here(self) -> Path:
        return self._folder / f"step-{self._number}"

    def _options(self) -> dict[str, Any]:
        writer = self._library.FileSystemWriter(self._here, sync_files=True)
        return {"storage_writer": writer, "process_group": self._bound.process_group}

    def _sync_folders(self) -> None:
        """A new file is lasting only once its name is: the library does without this."""
        for folder in (self._here, self._folder):
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def _try(self, what: Callable[[], object]) -> None:
        """Also after a failure: the other ranks may not have seen it, and wait for this one in the next save."""
        try:
            what()
        except (OSError, RuntimeError, ValueError, self._library.CheckpointException) as error:
            if self._failed is None:
                self._failed = in_words(error, self._folder, self._bound.case.size_bytes)


def in_words(error: BaseException, folder: Path, size_bytes: int) -> str:
    """Why a checkpoint in ``folder`` with shards of ``size_bytes`` failed, and what can be done about it."""
    said, number = _reason(error)
    if number is None and (number := _no_room(folder, size_bytes)) is not None:
        said = f"{said} ({os.strerror(number)})"
    return f"a checkpoint in {folder}: {said}{f'; {MAKE_ROOM}' if number in FULL else ''}"


def _reason(error: BaseException) -> tuple[str, int | None]:
    """The first rank's reason, of those that torch gathers (it comes with the call stacks of all ranks), and the number
    that the system gave it; None where torch does not tell.
    """
    failures: dict[int, tuple[BaseException, object]] = getattr(error, "failures", {})
    if failures:
        rank = min(failures)
        said, number = _reason(failures[rank][0])
        return f"rank {rank} says: {said}", number
    if isinstance(error, OSError):
        return error.strerror or str(error), error.errno
    return first_line(error) if isinstance(error, Exception) else type(error).__name__, None


def _no_room(folder: Path, size_bytes: int) -> int | None:
    """What the system would say of one more file of so many bytes, which torch does not pass on: its writer tells only
    that the file is shorter than it ought to be. None where there is room.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < size_bytes:
        return errno.EFBIG
    try:
        told = os.statvfs(next(path for path in (folder, *folder.parents) if path.exists()))
    except OSError:
        return None  # what the library said is all there is to say then
    return errno.ENOSPC if told.f_bavail * told.f_frsize < size_bytes else None


def bind(bound: Bound) -> Operation:
    """A checkpoint of what ``bound`` sends; ``bound.process_group`` brings the ranks together, on the hosts."""
    one = _Checkpoint(bound)
    return Operation(one.save, one.post, prepare=one.prepare, wrong=one.wrong, free=one.free)
