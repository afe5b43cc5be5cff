"""Kernels in host memory, compiled by LLVM for this CPU, and the loop in which threads wait for them.

A kernel is a plain loop as in STREAM, vectorised by LLVM. LLVM is kept from replacing it by memcpy or memset of the C
library, which bypass the caches for large arrays; that copy is a separate kernel. The threads of a team wait in
``serve`` until ``run`` distributes work, without Python in between.
"""

import mmap
import platform
from functools import cache
from importlib import resources
from string import Template

from busbw.backends.compiled_loop import Compiled, compiled, unsupported_platform
from busbw.ops.local import SCALAR

LINE_BYTES = 128
"""Distance between data that different threads write: two cache lines, because CPUs prefetch them in pairs."""

_SPINS = 50_000
"""Polls for work before a thread sleeps: about a millisecond, longer than most starts take."""

_PATIENCE = 1_000
"""Polls between two sched_yield calls: some 20 to 40 µs."""

_FLOATS = {"float32": ("float", "i32", 4), "float64": ("double", "i64", 8)}
"""Type → LLVM's names of the type and of the integer of the same size, and bytes."""

_SCALAR_BITS = f"{SCALAR:e}"

_MACHINES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()", 202),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)", 98),
}
"""Machine → declaration and call of a pause instruction, and number of the system call futex."""

_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129


def _loop(name: str, element: str, body: str, *, before: str = "", step: int = 1, behind: str = "") -> str:
    """A kernel that runs ``body`` at every ``step``-th element.

    before: values carried from one iteration to the next. behind: code after the loop.
    """
    return f"""
define i32 @{name}(ptr noalias %out, ptr noalias readonly %left, ptr noalias readonly %right, i64 %count) #0 {{
begin:
  %nothing = icmp eq i64 %count, 0
  br i1 %nothing, label %end, label %turn
turn:
  %at = phi i64 [ 0, %begin ], [ %next, %turn ]
  {before}
  %one_place = getelementptr inbounds {element}, ptr %left, i64 %at
  %other_place = getelementptr inbounds {element}, ptr %right, i64 %at
  %place = getelementptr inbounds {element}, ptr %out, i64 %at
  {body}
  %next = add nuw nsw i64 %at, {step}
  %more = icmp ult i64 %next, %count
  br i1 %more, label %turn, label %end
end:
  {behind}
  ret i32 0
}}
"""


_ONE = "%one = load {type}, ptr %one_place, align {bytes}"
_OTHER = "%other = load {type}, ptr %other_place, align {bytes}"
_THREE_TIMES = "%scaled = fmul contract {type} {scalar},"

_BODIES = {
    "stream_copy": (_ONE, "%one"),
    "stream_scale": (_ONE, f"{_THREE_TIMES} %one", "%scaled"),
    "stream_add": (_ONE, _OTHER, "%sum = fadd {type} %one, %other", "%sum"),
    "stream_triad": (_ONE, _OTHER, f"{_THREE_TIMES} %other", "%sum = fadd contract {type} %one, %scaled", "%sum"),
    "memory_write": ("{scalar}",),
}
"""Instructions of each kernel; the last entry is the value that is stored."""


def _of_floats(dtype: str) -> str:
    """The kernels for elements of type ``dtype``."""
    name, bits, size = _FLOATS[dtype]
    loops = []
    for op, lines in _BODIES.items():
        body = "\n  ".join([*lines[:-1], f"store {{type}} {lines[-1]}, ptr %place, align {{bytes}}"])
        loops.append(_loop(f"{op}_{dtype}", name, body.format(type=name, bytes=size, scalar=_SCALAR_BITS)))
    added = f"%value = load {bits}, ptr %one_place, align {size}\n  %after = add {bits} %before, %value"
    so_far = f"phi {bits} [ 0, %begin ], [ %after, %turn ]"
    stored = f"%total = {so_far}\n  store {bits} %total, ptr %out, align {size}"
    touched = f"store volatile {name} {_SCALAR_BITS}, ptr %place, align 1"
    loops.append(_loop(f"memory_read_{dtype}", name, added, before=f"%before = {so_far}", behind=stored))
    return "".join((*loops, _loop(f"memory_touch_{dtype}", "i8", touched, step=mmap.PAGESIZE)))


def _team(machine: str) -> str:
    """Kernels without an element type, and the loop in which threads wait for work."""
    pause_declared, pause, futex = _MACHINES[machine]
    return Template((resources.files(__package__) / "team.ll").read_text(encoding="utf-8")).substitute(
        pause_declared=pause_declared,
        pause=pause,
        futex=futex,
        line=LINE_BYTES,
        spins=_SPINS,
        patience=_PATIENCE,
        wait=_WAIT_PRIVATE,
        wake=_WAKE_PRIVATE,
    )


def missing() -> str | None:
    """Reason why there are no compiled kernels in this process, or None."""
    return kernels().missing


@cache
def kernels() -> Compiled:
    """The kernels."""
    if reason := unsupported_platform():
        return Compiled(missing=reason)
    cleared = _loop("place", "i8", "store volatile i8 0, ptr %place, align 1", step=mmap.PAGESIZE)
    parts = (*map(_of_floats, _FLOATS), cleared, _team(platform.machine()))
    library = compiled("".join(parts), for_this_processor=True)
    return library if library.missing is None else Compiled(missing=f"memory kernels need llvmlite: {library.missing}")
