"""Facts about the storage below a plan's path on each host, and why a case cannot have its files there.

All checks precede any writing, and every rank reaches the same result from the facts of all ranks.
"""

import errno
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

import psutil

from busbw.errors import UsageError
from busbw.ops import OPS
from busbw.ops.storage import GRAIN_BYTES, Way
from busbw.runs.records import JSON, Case
from busbw.units import about_size, format_size

PREFIX = "busbw-files-"
"""Prefix of the folders that runs create below their paths; identifies what a killed run left behind."""

_MARGIN = 0.05
_LEAST_MARGIN_BYTES = 16 << 20

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_OF_ALL_HOSTS = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "orangefs", "wekafs", "glusterfs")

_WAYS: tuple[Way, ...] = get_args(Way)

_Facts = Mapping[str, JSON]


def files_folder(path: str | None, run: str) -> Path | None:
    """The folder in which the run named ``run`` creates its files below ``path``; None if it creates none."""
    return None if path is None else Path(path).absolute() / f"{PREFIX}{run}"


def remove_files(folder: Path | None) -> None:
    """Remove ``folder`` if it exists. Does not raise, so that an earlier error is reported instead."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def storage_facts(path: str | None) -> dict[str, JSON]:
    """The storage below ``path`` as this host sees it, under ``storage``. Unknown values are None; ``error``: why files
    cannot be created there. Empty without a path.
    """
    if path is None:
        return {}
    folder = Path(path).absolute()
    facts: dict[str, JSON] = {"path": str(folder), "error": _error(folder)}
    if facts["error"] is None:
        try:
            facts |= {**_mount(folder), **_space(folder)}
            facts["way"], facts["no_direct"] = _way(folder, facts["type"])
        except OSError as error:
            facts["error"] = f"{folder} on {socket.gethostname()} cannot be examined: {error.strerror}"
    return {"storage": facts}


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


def _mount(folder: Path) -> dict[str, JSON]:
    """The file system of ``folder``: the last one mounted at the longest path above it."""
    resolved = folder.resolve()
    above = [one for one in psutil.disk_partitions(all=True) if resolved.is_relative_to(one.mountpoint)]
    found = max(reversed(above), key=lambda one: len(Path(one.mountpoint).parts), default=None)
    if found is None:
        return {"type": None, "device": None, "mount": None, "options": None}
    return {"type": found.fstype, "device": found.device, "mount": found.mountpoint, "options": found.opts}


def _space(folder: Path) -> dict[str, JSON]:
    stats = os.statvfs(folder)
    free, total = stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize
    return {"free_bytes": free, "total_bytes": total, "number": folder.stat().st_dev}


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
    storage = _storage(storage_facts(path))
    reason = storage["error"] or _no_room(storage, socket.gethostname(), ranks, size_bytes)
    if reason is not None:
        raise UsageError(f"--path: files cannot be created: {reason}")


# --- of all ranks --------------------------------------------------------------------------------------------------


def way_of_all(facts: Sequence[_Facts]) -> Way:
    """How all ranks bypass the page cache, from the facts of each: the worst way of any rank."""
    known = [cast("Way", storage["way"]) for storage in map(_storage, facts) if storage.get("way") in _WAYS]
    return max(known, key=_WAYS.index, default="direct")


def obstacle(case: Case, facts: Sequence[_Facts]) -> str | None:
    """Why ``case`` cannot have its files below the path, from the facts of every rank: not accessible, or too small.

    The files of all ranks on one file system must fit together.
    """
    if not OPS[case.op].stores:
        return None
    errors = [(fact, str(storage["error"])) for fact in facts if (storage := _storage(fact)).get("error")]
    if errors:
        hosts = sorted({str(fact.get("host")) for fact, _ in errors})
        others = f"; a similar problem on {', '.join(hosts[1:])}" if len(hosts) > 1 else ""
        return f"files cannot be created: {errors[0][1]}{others}"
    by_system: dict[tuple[object, ...], list[_Facts]] = {}
    for fact in facts:
        by_system.setdefault(_system(fact), []).append(fact)
    for ranks in by_system.values():
        storage = min(map(_storage, ranks), key=lambda one: int(one["free_bytes"]))
        reason = _no_room(storage, ranks[0].get("host"), len(ranks), case.size_bytes)
        if reason is not None:
            return reason
    return None


def _no_room(storage: _Facts, host: JSON, ranks: int, size_bytes: int) -> str | None:
    """Why a file system has no room for ``ranks`` files of ``size_bytes``; a margin is left for other users."""
    free = int(storage["free_bytes"])
    bare = ranks * size_bytes
    needed = bare + max(round(_MARGIN * bare), _LEAST_MARGIN_BYTES)
    if needed <= free:
        return None
    return (
        f"too little space: {storage['path']} on {host} ({storage['device']}) has {about_size(free)} free, "
        f"but {about_size(needed)} are needed ({ranks} ranks × {format_size(size_bytes)} and a "
        "margin); free some space, or use smaller --sizes, fewer --ranks or another --path"
    )


def cautions(facts: Mapping[str, _Facts]) -> tuple[str, ...]:
    """Warnings about storage measurements, one line each, from the facts of every host."""
    of_a_way = {
        "memory": "data written and read there never leave memory",
        "dropped": "files are dropped from the page cache before they are read",
    }
    cached = [one for one in map(_storage, facts.values()) if one.get("way") in of_a_way]
    return tuple(dict.fromkeys(f"{one['path']}: {one['no_direct']}; {of_a_way[one['way']]}" for one in cached))


def _storage(fact: _Facts) -> _Facts:
    found: _Facts = fact.get("storage") or {}
    return found


def _system(fact: _Facts) -> tuple[object, ...]:
    """Identifies the file system of a rank."""
    storage = _storage(fact)
    if storage.get("type") in _OF_ALL_HOSTS or ":" in str(storage.get("device")):
        return (storage.get("type"), storage.get("device"))
    return (fact.get("boot_id"), fact.get("host"), storage.get("number"))
