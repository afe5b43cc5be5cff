"""Puts memory of this process on a NUMA node, by the kernel's own calls: no library of it need be there.

Without it pages lie where they were touched first, and a rank's own node is all that it can measure. The calls are
mbind(2) and its siblings, which glibc has no functions for (libnuma has); numbers of calls differ by processor.
"""

import ctypes
import mmap
import os
import platform
from collections.abc import Callable

from busbw.errors import BackendError
from busbw.ops.numa_nodes import MOST_NODES

_MBIND = {"x86_64": 237, "aarch64": 235, "riscv64": 235, "ppc64le": 259}
"""Processor → the number of mbind: Linux, arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h,
arch/powerpc/kernel/syscalls/syscall.tbl.
"""
_DEFAULT, _BIND = 0, 2
_STRICT, _MOVE = 1, 2

Syscall = Callable[..., int]

_madvise = ctypes.CDLL(None, use_errno=True).madvise if hasattr(mmap, "MADV_DONTNEED") else None


def _kernel(number: int, *arguments: object) -> int:
    """0, or the error number."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return 0 if call(ctypes.c_long(number), *arguments) == 0 else ctypes.get_errno()


def missing() -> str | None:
    """Why memory cannot be put on a node here; None when it can, as far as that is known before it is tried."""
    if platform.system() != "Linux":
        return f"memory is put on NUMA nodes by Linux; this is {platform.system()}"
    if platform.machine() not in _MBIND:
        known = ", ".join(_MBIND)
        return f"the number of mbind is not known for the processor {platform.machine()}; it is for {known}"
    return None


def bind(address: int, length: int, node: int, call: Syscall = _kernel) -> None:
    """Put the pages from ``address`` on, ``length`` bytes of them, on ``node``: those that are there move, and those
    that are touched later come from it. Raises BackendError where the kernel does not, or not with all of them.
    """
    if (why := missing()) is not None:
        raise BackendError(why)
    mask = (ctypes.c_ulong * (MOST_NODES // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask[node // width] = 1 << node % width
    pages, flags = _pages(address, length), ctypes.c_uint(_STRICT | _MOVE)
    code = call(_MBIND[platform.machine()], *pages, ctypes.c_int(_BIND), mask, ctypes.c_ulong(MOST_NODES + 1), flags)
    if code:
        raise BackendError(f"{length} B cannot be put on NUMA node {node}: {os.strerror(code)}")


def release(address: int, length: int, call: Syscall = _kernel) -> None:
    """Let the pages be touched first again, and give back those that lie inside: whoever gets this memory next must
    not inherit a node. What was in them is lost. Never fails.
    """
    if missing() is None:
        pages = _pages(address, length)
        call(_MBIND[platform.machine()], *pages, ctypes.c_int(_DEFAULT), None, ctypes.c_ulong(0), ctypes.c_uint(0))
    # The policy is of pages that are touched later; an allocator hands those that are there to the next buffer.
    give_pages_back(address, length)


def give_pages_back(address: int, length: int) -> None:
    """Give the whole pages inside these bytes back to the system, which clears them and finds new ones when they are
    touched next. Where it does not take them they stay where they are.
    """
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE
    if _madvise is not None and last > first:
        _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _pages(address: int, length: int) -> tuple[ctypes.c_void_p, ctypes.c_ulong]:
    """The whole pages that hold these bytes."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    last = -(-(address + length) // mmap.PAGESIZE) * mmap.PAGESIZE
    return ctypes.c_void_p(first), ctypes.c_ulong(last - first)
