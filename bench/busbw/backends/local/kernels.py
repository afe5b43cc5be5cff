"""Kernels in host memory, compiled by LLVM for this very processor, and the loop in which threads wait for them.

A kernel is a plain loop, as in STREAM: LLVM vectorises it for all that the processor has, and is kept from making the
library's memcpy or memset of it, which write past the caches when an array is large. The library's copy is there beside
them. A thread of a team waits in ``serve`` and works when ``run`` gives out work: no Python is between them.
"""

import mmap
import platform
from functools import cache

from busbw.backends.compiled_loop import Compiled, compiled
from busbw.ops.copies import SCALAR

LINE_BYTES = 128
"""What different threads write lies so far apart: two lines of a cache, which processors like to fetch in pairs."""

_SPINS = 50_000
"""How often a thread looks for work before it sleeps: for about a millisecond, longer than most starts take."""

_PATIENCE = 1_000
"""How often a thread looks before it offers its core to others: some 20 to 40 µs."""

_FLOATS = {"float32": ("float", "i32", 4), "float64": ("double", "i64", 8)}
"""Type → LLVM's name of it, of its bits as a whole number, and bytes."""

_SCALAR_BITS = f"{SCALAR:e}"

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}
_FUTEX = {"x86_64": 202, "aarch64": 98}
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129

_LOOP = """
define i32 @{name}(ptr noalias %out, ptr noalias readonly %left, ptr noalias readonly %right, i64 %count) #0 {{
begin:
  %nothing = icmp eq i64 %count, 0
  br i1 %nothing, label %end, label %turn
turn:
  %at = phi i64 [ 0, %begin ], [ %next, %turn ]
  %one_place = getelementptr inbounds {type}, ptr %left, i64 %at
  %other_place = getelementptr inbounds {type}, ptr %right, i64 %at
  %place = getelementptr inbounds {type}, ptr %out, i64 %at
  {body}
  %next = add nuw nsw i64 %at, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %turn, label %end
end:
  ret i32 0
}}
"""

_ONE = "%one = load {type}, ptr %one_place, align {bytes}"
_OTHER = "%other = load {type}, ptr %other_place, align {bytes}"
_THREE_TIMES = "fmul contract {type} {scalar},"
_STORE = "store {type} {what}, ptr %place, align {bytes}"

_BODIES = {
    "stream_copy": (_ONE, _STORE.replace("{what}", "%one")),
    "stream_scale": (_ONE, f"%scaled = {_THREE_TIMES} %one", _STORE.replace("{what}", "%scaled")),
    "stream_add": (_ONE, _OTHER, "%sum = fadd {type} %one, %other", _STORE.replace("{what}", "%sum")),
    "stream_triad": (
        _ONE,
        _OTHER,
        f"%scaled = {_THREE_TIMES} %other",
        "%sum = fadd contract {type} %one, %scaled",
        _STORE.replace("{what}", "%sum"),
    ),
    "memory_write": (_STORE.replace("{what}", "{scalar}"),),
}

_READ = """
define i32 @memory_read_{dtype}(ptr noalias %out, ptr noalias readonly %left, ptr %right, i64 %count) #0 {{
begin:
  %nothing = icmp eq i64 %count, 0
  br i1 %nothing, label %end, label %turn
turn:
  %at = phi i64 [ 0, %begin ], [ %next, %turn ]
  %before = phi {bits} [ 0, %begin ], [ %after, %turn ]
  %place = getelementptr inbounds {bits}, ptr %left, i64 %at
  %value = load {bits}, ptr %place, align {bytes}
  %after = add {bits} %before, %value
  %next = add nuw nsw i64 %at, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %turn, label %end
end:
  %total = phi {bits} [ 0, %begin ], [ %after, %turn ]
  store {bits} %total, ptr %out, align {bytes}
  ret i32 0
}}
"""

_TOUCH = """
define i32 @{name}(ptr %out, ptr %left, ptr %right, i64 %count) #0 {{
begin:
  %nothing = icmp eq i64 %count, 0
  br i1 %nothing, label %end, label %turn
turn:
  %at = phi i64 [ 0, %begin ], [ %next, %turn ]
  %place = getelementptr inbounds i8, ptr %out, i64 %at
  store volatile {type} {value}, ptr %place, align 1
  %next = add nuw nsw i64 %at, {page}
  %more = icmp ult i64 %next, %count
  br i1 %more, label %turn, label %end
end:
  ret i32 0
}}
"""

_REST = """
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

; A team: the number of the work that was given out last, how many of its threads sleep, how many have not finished, and
; the work: a kernel (null: to end) and the pieces, one for each thread. Each begins a line of its own.

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
  %sleepers = getelementptr i8, ptr %number, i64 {line}
  %unfinished = getelementptr i8, ptr %number, i64 {two_lines}
  %kernel_place = getelementptr i8, ptr %number, i64 {three_lines}
  %pieces_place = getelementptr ptr, ptr %kernel_place, i64 1
  %offset = mul i64 %member, {line}
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
  %is_tired = icmp eq i64 %next, {spins}
  br i1 %is_tired, label %lie_down, label %linger
linger:
  %part = urem i64 %next, {patience}
  %is_time = icmp eq i64 %part, 0
  br i1 %is_time, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
lie_down:
  ; Either this thread sees the new number, or who gave it out sees that somebody sleeps.
  %others = atomicrmw add ptr %sleepers, i32 1 seq_cst
  %at_last = load atomic i32, ptr %number seq_cst, align 4
  %is_same = icmp eq i32 %at_last, %seen
  br i1 %is_same, label %sleep, label %awake
sleep:
  %slept = call i64 (i64, ...) @syscall(i64 {futex}, ptr %number, i64 {wait}, i32 %seen, ptr null)
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
  %sleepers = getelementptr i8, ptr %number, i64 {line}
  %unfinished = getelementptr i8, ptr %number, i64 {two_lines}
  %kernel_place = getelementptr i8, ptr %number, i64 {three_lines}
  %pieces_place = getelementptr ptr, ptr %kernel_place, i64 1
  store ptr %kernel, ptr %kernel_place
  store ptr %pieces, ptr %pieces_place
  %all = trunc i64 %others to i32
  store atomic i32 %all, ptr %unfinished release, align 4
  %before = atomicrmw add ptr %number, i32 1 seq_cst
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %is_quiet = icmp eq i32 %asleep, 0
  br i1 %is_quiet, label %ready, label %wake
wake:
  %woken = call i64 (i64, ...) @syscall(i64 {futex}, ptr %number, i64 {wakes}, i32 2147483647)
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
  %is_impatient = icmp ugt i64 %next, {patience}
  br i1 %is_impatient, label %offer, label %look
offer:
  %offered = call i32 @sched_yield()
  br label %look
end:
  ret i32 0
}}
"""


class Kernels(Compiled):
    """The kernels as they were compiled."""

    def of(self, op: str, dtype: str | None = None) -> int:
        """The kernel of ``op``, for elements of ``dtype`` where it knows elements."""
        return self.addresses[op if dtype is None else f"{op}_{dtype}"]


def missing() -> str | None:
    """Why there are no compiled kernels in this process; None when there are."""
    made = kernels()
    return made if isinstance(made, str) else None


@cache
def kernels() -> Kernels | str:
    """The kernels, or why there are none."""
    machine = platform.machine()
    if platform.system() != "Linux" or machine not in _FUTEX:
        return (
            f"kernels in memory are compiled for Linux on x86_64 and aarch64, not for {platform.system()} on {machine}"
        )
    made = compiled(_source(machine), for_this_processor=True)
    if isinstance(made, str):
        return f"kernels in memory are compiled with llvmlite: {made}"
    return Kernels(made.addresses, made.optimised, made.engine)


def _source(machine: str) -> str:
    parts = []
    for dtype, (name, bits, size) in _FLOATS.items():
        words = {"type": name, "bytes": size, "scalar": _SCALAR_BITS}
        for op, lines in _BODIES.items():
            body = "\n  ".join(lines).format(**words)
            parts.append(_LOOP.format(name=f"{op}_{dtype}", type=name, body=body))
        parts.append(_READ.format(dtype=dtype, bits=bits, bytes=size))
        parts.append(_TOUCH.format(name=f"memory_touch_{dtype}", type=name, value=_SCALAR_BITS, page=mmap.PAGESIZE))
    parts.append(_TOUCH.format(name="place", type="i8", value="0", page=mmap.PAGESIZE))
    declared, pause = _PAUSES[machine]
    parts.append(
        _REST.format(
            pause_declared=declared,
            pause=pause,
            line=LINE_BYTES,
            two_lines=2 * LINE_BYTES,
            three_lines=3 * LINE_BYTES,
            spins=_SPINS,
            patience=_PATIENCE,
            futex=_FUTEX[machine],
            wait=_WAIT_PRIVATE,
            wakes=_WAKE_PRIVATE,
        )
    )
    return "".join(parts)
