"""Places memory of this process on a NUMA node with system calls, so that no library is needed, and binds its cores.

By default pages are allocated where they are first touched, so a rank could measure only its own node. mbind(2) has no
wrapper in glibc (libnuma has one), and its number depends on the processor.
"""

import ctypes
import mmap
import os
import platform
from contextlib import suppress
from pathlib import Path

from busbw.errors import BackendError
from busbw.ops.settings import MOST_NODES
from busbw.system.sysfs import SYSFS, text_of
from busbw.units import numbers_in

VARIABLE = "BUSBW_BIND"
"""``0``: ranks are not bound to the cores of their GPUs."""

_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259}
"""Processor → system call number of mbind: Linux, arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h, arch/powerpc/kernel/syscalls/syscall.tbl.
"""
_DEFAULT, _BIND = 0, 2
_STRICT, _MOVE = 1, 2

_madvise = ctypes.CDLL(None, use_errno=True).madvise


def stay_near(address: str | None, sysfs: Path = SYSFS) -> None:
    """Bind this thread, and those that it will start, to the cores near the PCI device at ``address``.

    Only cores that it may use already are kept: without one of them near the device, and with ``VARIABLE`` 0, nothing
    changes.
    """
    if address is None or os.environ.get(VARIABLE) == "0":
        return
    near = numbers_in(text_of(sysfs / "bus/pci/devices" / address / "local_cpulist") or "") or ()
    if cores := os.sched_getaffinity(0).intersection(near):
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


def _kernel(number: int, *arguments: object) -> int:
    """0, or the error number."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return 0 if call(ctypes.c_long(number), *arguments) == 0 else ctypes.get_errno()


def bind(address: int, length: int, node: int) -> None:
    """Place ``length`` bytes of pages from ``address`` on ``node``: existing pages move, and pages touched later are
    allocated there. Raises BackendError if the kernel refuses, or cannot move all pages.
    """
    machine = platform.machine()
    if machine not in _MBIND:
        processors = ", ".join(_MBIND)
        raise BackendError(f"the number of mbind is unknown for the processor {machine}; supported are {processors}")
    mask = (1 << node).to_bytes(MOST_NODES // 8, "little")  # as are all of these processors
    pages, flags = _pages(address, length), ctypes.c_uint(_STRICT | _MOVE)
    code = _kernel(_MBIND[machine], *pages, ctypes.c_int(_BIND), mask, ctypes.c_ulong(MOST_NODES + 1), flags)
    if code:
        raise BackendError(f"{length} B cannot be placed on NUMA node {node}: {os.strerror(code)}")


def release(address: int, length: int) -> None:
    """Reset the policy of these pages and free the whole pages inside them, so that the next user of this memory does
    not inherit a node. Their contents are lost. Never fails.
    """
    if platform.machine() in _MBIND:
        pages = _pages(address, length)
        _kernel(_MBIND[platform.machine()], *pages, ctypes.c_int(_DEFAULT), None, ctypes.c_ulong(0), ctypes.c_uint(0))
    # The policy applies to pages touched later; an allocator would reuse the existing pages for the next buffer.
    give_pages_back(address, length)


def give_pages_back(address: int, length: int) -> None:
    """Return the whole pages inside these bytes to the system, which clears and reallocates them when they are touched
    next. If the system refuses, the pages stay.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _pages(address: int, length: int) -> tuple[ctypes.c_void_p, ctypes.c_ulong]:
    """The whole pages that contain these bytes."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    last = -(-(address + length) // mmap.PAGESIZE) * mmap.PAGESIZE
    return ctypes.c_void_p(first), ctypes.c_ulong(last - first)
