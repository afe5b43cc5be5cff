"""Kernels in host memory, compiled by LLVM for this CPU, and the loop in which threads wait for them.

A kernel is a plain loop as in STREAM, vectorised by LLVM. LLVM is kept from replacing it by memcpy or memset of the C
library, which bypass the caches for large arrays; that copy is a separate kernel. The threads of a team wait in
``serve`` until ``run`` distributes work, without Python in between.
"""

import mmap
import platform
from functools import cache

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


_HEAD = f"""\
  %sleepers = getelementptr i8, ptr %number, i64 {LINE_BYTES}
  %unfinished = getelementptr i8, ptr %number, i64 {2 * LINE_BYTES}
  %kernel_place = getelementptr i8, ptr %number, i64 {3 * LINE_BYTES}
  %pieces_place = getelementptr ptr, ptr %kernel_place, i64 1
"""


def _team(machine: str) -> str:
    """Kernels without an element type, and the loop in which threads wait for work."""
    pause_declared, pause, futex = _MACHINES[machine]
    return f"""
attributes #0 = {{ nounwind "no-builtins" }}

declare ptr @memcpy(ptr, ptr, i64)
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
{pause_declared}

define i32 @memory_copy(ptr %out, ptr %left, ptr %right, i64 %count) {{
  %copied = call ptr @memcpy(ptr %out, ptr %left, i64 %count) nobuiltin
  ret i32 0
}}

define i32 @nothing(ptr %out, ptr %left, ptr %right, i64 %count) {{
  ret i32 0
}}

; State of a team, each field on its own line: the number of the latest work item, the number of sleeping threads, the
; number of unfinished threads, and the work: a kernel (null: end) and one piece for each thread.

define private void @do(ptr %kernel, ptr %piece) {{
  %out = load ptr, ptr %piece
  %left_place = getelementptr ptr, ptr %piece, i64 1
  %left = load ptr, ptr %left_place
  %right_place = getelementptr ptr, ptr %piece, i64 2
  %right = load ptr, ptr %right_place
  %count_place = getelementptr i64, ptr %piece, i64 3
  %count = load i64, ptr %count_place
  %code = call i32 %kernel(ptr %out, ptr %left, ptr %right, i64 %count)
  ret void
}}

define i32 @serve(ptr %number, i64 %member) {{
begin:
{_HEAD}
  %offset = mul i64 %member, {LINE_BYTES}
  br label %wait
wait:
  %seen = phi i32 [ 0, %begin ], [ %given, %work ], [ %seen, %awake ]
  br label %look
look:
  %turn = phi i64 [ 0, %wait ], [ %next, %linger ], [ %next, %offer ]
  %given = load atomic i32, ptr %number acquire, align 4
  %is_new = icmp ne i32 %given, %seen
  br i1 %is_new, label %given_out, label %idle
idle:
  {pause}
  %next = add i64 %turn, 1
  %is_tired = icmp eq i64 %next, {_SPINS}
  br i1 %is_tired, label %lie_down, label %linger
linger:
  %part = urem i64 %next, {_PATIENCE}
  %is_time = icmp eq i64 %part, 0
  br i1 %is_time, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
lie_down:
  ; Either this thread sees the new number, or the distributing thread sees that one sleeps.
  %others = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %at_last = load atomic i32, ptr %number seq_cst, align 4
  %is_same = icmp eq i32 %at_last, %seen
  br i1 %is_same, label %sleep, label %awake
sleep:
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %number, i64 {_WAIT_PRIVATE}, i32 %seen, ptr null)
  br label %awake
awake:
  %fewer = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %wait
given_out:
  %kernel = load ptr, ptr %kernel_place
  %is_end = icmp eq ptr %kernel, null
  br i1 %is_end, label %end, label %work
work:
  %pieces = load ptr, ptr %pieces_place
  %piece = getelementptr i8, ptr %pieces, i64 %offset
  call void @do(ptr %kernel, ptr %piece)
  %finished = atomicrmw sub ptr %unfinished, i32 1 release
  br label %wait
end:
  %ended = atomicrmw sub ptr %unfinished, i32 1 release
  ret i32 0
}}

define i32 @run(ptr %number, ptr %kernel, ptr %pieces, i64 %others) {{
begin:
{_HEAD}
  store ptr %kernel, ptr %kernel_place
  store ptr %pieces, ptr %pieces_place
  %all = trunc i64 %others to i32
  store atomic i32 %all, ptr %unfinished release, align 4
  %before = atomicrmw add ptr %number, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %is_quiet = icmp eq i32 %asleep, 0
  br i1 %is_quiet, label %ready, label %wake
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr %number, i64 {_WAKE_PRIVATE}, i32 2147483647)
  br label %ready
ready:
  %is_end = icmp eq ptr %kernel, null
  br i1 %is_end, label %wait, label %work
work:
  call void @do(ptr %kernel, ptr %pieces)
  br label %wait
wait:
  br label %look
look:
  %turn = phi i64 [ 0, %wait ], [ %next, %idle ], [ %turn, %offer ]
  %left = load atomic i32, ptr %unfinished acquire, align 4
  %is_done = icmp eq i32 %left, 0
  br i1 %is_done, label %end, label %idle
idle:
  {pause}
  %next = add i64 %turn, 1
  %is_impatient = icmp ugt i64 %next, {_PATIENCE}
  br i1 %is_impatient, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
end:
  ret i32 0
}}
"""


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
