"""Facts about the storage below a plan's path on each host, and why a case cannot have its files there.

All checks precede any writing, and every rank reaches the same result from the facts of all ranks.
"""

import errno
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import psutil

from busbw.errors import UsageError
from busbw.ops import OPS
from busbw.ops.settings import GRAIN_BYTES, Way
from busbw.runs.facts import HostFacts, StorageFacts
from busbw.runs.records import Case
from busbw.units import about_size, format_size

PREFIX = "busbw-files-"
"""Prefix of the folders that runs create below their paths; identifies what a killed run left behind."""

_MARGIN = 0.05
_LEAST_MARGIN_BYTES = 16 << 20

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_OF_ALL_HOSTS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "orangefs", "wekafs", "glusterfs")

_WAYS: tuple[Way, ...] = get_args(Way)


def files_folder(path: str | None, run: str) -> Path | None:
    """The folder in which the run named ``run`` creates its files below ``path``; None if it creates none."""
    return None if path is None else Path(path).absolute() / f"{PREFIX}{run}"


def remove_files(folder: Path | None) -> None:
    """Remove ``folder`` if it exists. Does not raise, so that an earlier error is reported instead."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def storage_facts(path: str | None) -> StorageFacts | None:
    """The storage below ``path`` as this host sees it; None without a path."""
    if path is None:
        return None
    folder = Path(path).absolute()
    reason = _error(folder)
    if reason is None:
        try:
            return _examined(folder)
        except OSError as error:
            reason = f"{folder} on {socket.gethostname()} cannot be examined: {error.strerror}"
    return StorageFacts(path=str(folder), error=reason)


def _error(folder: Path) -> str | None:
    """Why files cannot be created in ``folder``."""
    where = f"{folder} on {socket.gethostname()}"
    try:
        if not folder.exists():
            return f"{where} does not exist; create it, or use another --path: a folder that exists on every host"
        if not folder.is_dir():
            return f"{where} is a file; --path must be a folder"
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        if error.errno == errno.EROFS:
            return f"{where} is on a read-only file system; use another --path"
        if isinstance(error, PermissionError):
            return f"{where} is not writable for this user ({error.strerror}); use another --path"
        return f"{where} accepts no file: {error.strerror}; use another --path"


def _examined(folder: Path) -> StorageFacts:
    """The file system of ``folder``: the last one mounted at the longest path above it."""
    resolved = folder.resolve()
    above = [
        partition for partition in psutil.disk_partitions(all=True) if resolved.is_relative_to(partition.mountpoint)
    ]
    mount = max(reversed(above), key=lambda partition: len(Path(partition.mountpoint).parts), default=None)
    stats = os.statvfs(folder)
    way, no_direct = _way(folder, None if mount is None else mount.fstype)
    return StorageFacts(
        path=str(folder),
        type=None if mount is None else mount.fstype,
        device=None if mount is None else mount.device,
        mount=None if mount is None else mount.mountpoint,
        options=None if mount is None else mount.opts,
        free_bytes=stats.f_bavail * stats.f_frsize,
        total_bytes=stats.f_blocks * stats.f_frsize,
        number=folder.stat().st_dev,
        way=way,
        no_direct=no_direct,
    )


def _way(folder: Path, kind: str | None) -> tuple[Way, str | None]:
    """How the page cache can be bypassed in ``folder``, and why O_DIRECT is not possible."""
    if kind in _IN_MEMORY:
        return "memory", f"{kind} is in memory"
    block = mmap.mmap(-1, GRAIN_BYTES)  # O_DIRECT requires an aligned buffer; this one starts at a page
    with tempfile.NamedTemporaryFile(dir=folder, prefix="busbw-") as file:
        try:
            opened = os.open(file.name, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            return "dropped", f"O_DIRECT is not possible there: {error.strerror}"
        try:
            os.pwrite(opened, block, 0)
            os.preadv(opened, [block], 0)
        except OSError as error:
            return "dropped", f"O_DIRECT with blocks of {GRAIN_BYTES} B is not possible there: {error.strerror}"
        finally:
            os.close(opened)
    return "direct", None


def refuse_path(path: str, ranks: int, size_bytes: int) -> None:
    """Raise UsageError if ``ranks`` ranks of this host cannot have files of ``size_bytes`` each below ``path``.

    Problems of other hosts are found only once their ranks run: ``obstacle``.
    """
    storage = storage_facts(path)
    reason = storage and (storage.error or _no_room(storage, socket.gethostname(), ranks, size_bytes))
    if reason is not None:
        raise UsageError(f"--path: files cannot be created: {reason}")


# --- of all ranks --------------------------------------------------------------------------------------------------


def way_of_all(storages: Iterable[StorageFacts | None]) -> Way:
    """How all ranks bypass the page cache, from the storage of each: the worst way of any rank."""
    ways = [storage.way for storage in storages if storage is not None and storage.way is not None]
    return max(ways, key=_WAYS.index, default="direct")


def obstacle(case: Case, facts: Sequence[HostFacts]) -> str | None:
    """Why ``case`` cannot have its files below the path, from the facts of every rank: not accessible, or too small.

    The files of all ranks on one file system must fit together.
    """
    if not OPS[case.op].stores:
        return None
    storages = [(own, own.storage) for own in facts if own.storage is not None]
    errors = [(str(own.host), storage.error) for own, storage in storages if storage.error]
    if errors:
        hosts = sorted({host for host, _ in errors})
        others = f"; a similar problem on {', '.join(hosts[1:])}" if len(hosts) > 1 else ""
        return f"files cannot be created: {errors[0][1]}{others}"
    by_system: dict[tuple[object, ...], list[tuple[HostFacts, StorageFacts]]] = {}
    for own, storage in storages:
        by_system.setdefault(_system(own, storage), []).append((own, storage))
    for ranks in by_system.values():
        least = min((storage for _, storage in ranks), key=_free_bytes)
        reason = _no_room(least, ranks[0][0].host, len(ranks), case.size_bytes)
        if reason is not None:
            return reason
    return None


def _free_bytes(storage: StorageFacts) -> int:
    return storage.free_bytes or 0


def _no_room(storage: StorageFacts, host: str | None, ranks: int, size_bytes: int) -> str | None:
    """Why a file system has no room for ``ranks`` files of ``size_bytes``; a margin is left for other users."""
    free = _free_bytes(storage)
    bare = ranks * size_bytes
    needed = bare + max(round(_MARGIN * bare), _LEAST_MARGIN_BYTES)
    if needed <= free:
        return None
    return (
        f"too little space: {storage.path} on {host} ({storage.device}) has {about_size(free)} free, "
        f"but {about_size(needed)} are needed ({ranks} ranks × {format_size(size_bytes)} and a "
        "margin); free some space, or use smaller --sizes, fewer --ranks or another --path"
    )


def cautions(facts: Mapping[str, HostFacts]) -> tuple[str, ...]:
    """Warnings about storage measurements, one line each, from the facts of every host."""
    of_a_way = {
        "memory": "data written and read there never leave memory",
        "dropped": "files are dropped from the page cache before they are read",
    }
    storages = [host.storage for host in facts.values() if host.storage is not None]
    cached = [(storage, of_a_way[storage.way]) for storage in storages if storage.way in of_a_way]
    return tuple(dict.fromkeys(f"{storage.path}: {storage.no_direct}; {effect}" for storage, effect in cached))


def _system(own: HostFacts, storage: StorageFacts) -> tuple[object, ...]:
    """Identifies the file system of a rank."""
    if storage.type in _OF_ALL_HOSTS or ":" in str(storage.device):
        return (storage.type, storage.device)
    return (own.boot_id, own.host, storage.number)
