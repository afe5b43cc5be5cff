"""The compiled loop: back-to-back calls without Python between them, as in a C program.

A backend can describe a bound call as C functions with their arguments (``Native``). A small loop, compiled by LLVM in
each process that needs it (0.02 s), calls them from a table. Without llvmlite, or where it cannot compile, Python makes
the calls. The loop releases the GIL, so other Python threads run meanwhile.
"""

import ctypes
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

_MOST_ARGUMENTS = 12
"""Arguments with which every function is called; MPI_Sendrecv needs them all."""

_WIDTH = 1 + _MOST_ARGUMENTS

_MACHINES = {"x86_64", "aarch64"}
"""Machines on which a function may be called with surplus arguments, each widened to 64 bits: in their Linux calling
conventions (System V ABI; AAPCS64) the caller both passes and removes the arguments.
"""

_PLACES = range(1, _WIDTH)
_LOADS = "".join(
    f"  %place{n} = getelementptr i64, ptr %step, i64 {n}\n  %argument{n} = load i64, ptr %place{n}\n" for n in _PLACES
)
_ARGUMENTS = ", ".join(f"i64 %argument{n}" for n in _PLACES)

_LOOP = f"""
; %turns: the table, its length, the first step (updated to the next one), and the number of steps to make.
; Returns 0, or the first code that is not 0.
%turns = type {{ ptr, i64, i64, i64 }}

define i32 @row(ptr %turns) {{
begin:
  %table = load ptr, ptr %turns
  %length_place = getelementptr %turns, ptr %turns, i64 0, i32 1
  %length = load i64, ptr %length_place
  %at = getelementptr %turns, ptr %turns, i64 0, i32 2
  %first = load i64, ptr %at
  %count_place = getelementptr %turns, ptr %turns, i64 0, i32 3
  %count = load i64, ptr %count_place
  br label %call
call:
  %place = phi i64 [ %first, %begin ], [ %next, %good ]
  %left = phi i64 [ %count, %begin ], [ %fewer, %good ]
  %step = getelementptr [{_WIDTH} x i64], ptr %table, i64 %place
  %function = load ptr, ptr %step
{_LOADS}  %code = call i32 %function({_ARGUMENTS})
  %went_well = icmp eq i32 %code, 0
  br i1 %went_well, label %good, label %end
good:
  %following = add i64 %place, 1
  %is_last = icmp eq i64 %following, %length
  %next = select i1 %is_last, i64 0, i64 %following
  %fewer = sub i64 %left, 1
  %is_done = icmp eq i64 %fewer, 0
  br i1 %is_done, label %end, label %call
end:
  %stopped = phi i64 [ %place, %call ], [ %next, %good ]
  store i64 %stopped, ptr %at
  ret i32 %code
}}

define i32 @nothing() {{
  ret i32 0
}}
"""


@dataclass(frozen=True, slots=True)
class Native:
    """A call as a sequence of C functions that return 0 on success.

    steps: address of each function and its arguments (integers and addresses).
    error: makes an exception from a code that is not 0.
    keeps: objects that the addresses refer to, kept alive as long as this record.
    """

    steps: tuple[tuple[int, ...], ...]
    error: Callable[[int], Exception]
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Back-to-back calls of several ``Native`` in turn.

    of: given a number of calls (at least 1), returns a function that makes them, continuing where the last one stopped.
        It returns 0, or the code of the first failed call. All returned functions share one state: each makes as many
        calls as the latest ``of`` asked for.
    error: makes an exception from a code that is not 0.
    keeps: objects that must stay alive as long as this record.
    """

    of: Callable[[int], Callable[[], int]]
    error: Callable[[int], Exception]
    keeps: tuple[object, ...] = ()


def missing() -> str | None:
    """Reason why there is no compiled loop in this process, or None."""
    return _library().missing


def row_of(natives: Sequence[Native | None]) -> Row | None:
    """Back-to-back calls of ``natives`` in turn; None without a compiled loop, or if any of them is None.

    Raises ValueError if a step has too many arguments, or the calls have different numbers of steps.
    """
    there = [native for native in natives if native is not None]
    if not there or len(there) < len(natives) or missing() is not None:
        return None
    library = _library()
    steps = [step for native in there for step in native.steps]
    (each,) = {len(native.steps) for native in there}
    table = np.zeros((len(steps), _WIDTH), dtype=np.uint64)
    for line, step in zip(table, steps, strict=True):
        line[: len(step)] = [value % (1 << 64) for value in step]
    turns = np.asarray([table.ctypes.data, len(steps), 0, each], dtype=np.int64)
    # Not PYFUNCTYPE, which keeps the GIL: a backend's watchdog thread must run while a call waits in the library.
    row = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(library.of("row"))
    go = partial(row, turns.ctypes.data)  # one argument, because each costs ctypes 50 ns

    def of(calls: int) -> Callable[[], int]:
        turns[-1] = calls * each
        return go

    return Row(of, there[0].error, (table, library, *there))


def nothing() -> Native | None:
    """A call without any effect; None without a compiled loop."""
    if missing() is not None:
        return None
    return Native(((_library().of("nothing"),),), lambda code: ValueError(str(code)))


@cache
def _library() -> "Compiled":
    """The compiled loop."""
    return compiled(_LOOP)


def unsupported_platform() -> str | None:
    """Reason why code cannot be compiled for this platform, or None."""
    if platform.system() == "Linux" and platform.machine() in _MACHINES:
        return None
    return f"compiled code supports Linux on x86_64 and aarch64, not {platform.system()} on {platform.machine()}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled functions.

    addresses: name → address.
    optimised: optimised LLVM assembly.
    engine: owner of the memory that holds the functions.
    missing: reason why there are none (None: there are).
    """

    addresses: dict[str, int] = field(default_factory=dict)
    optimised: str = ""
    engine: object = None
    missing: str | None = None

    def of(self, name: str, dtype: str | None = None) -> int:
        """Address of function ``name``, in its version for ``dtype`` if given."""
        return self.addresses[name if dtype is None else f"{name}_{dtype}"]


def compiled(source: str, *, for_this_processor: bool = False) -> Compiled:
    """Compile LLVM assembly.

    for_this_processor: use all features of this CPU, with vectorised and unrolled loops.
    """
    if reason := unsupported_platform():
        return Compiled(missing=reason)
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - takes 0.1 s, so only when needed
    except ImportError as error:
        return Compiled(missing=f"llvmlite cannot be imported: {error}")
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module, triple = llvm.parse_assembly(source), llvm.Target.from_default_triple()
        module.verify()  # otherwise a phi without its branch is silently miscompiled
        if for_this_processor:
            target = triple.create_target_machine(
                cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
            )
            module.triple = target.triple
            module.data_layout = str(target.target_data)
            tuning = llvm.create_pipeline_tuning_options(speed_level=3)
            tuning.loop_vectorization = tuning.loop_interleaving = tuning.loop_unrolling = True
            builder = llvm.create_pass_builder(target, tuning)
            builder.getModulePassManager().run(module, builder)
        else:
            target = triple.create_target_machine(opt=2)
        optimised = str(module)
        functions = [function for function in module.functions if not function.is_declaration]
        names = [function.name for function in functions if function.linkage is llvm.Linkage.external]
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        return Compiled({name: engine.get_function_address(name) for name in names}, optimised, engine)
    except (RuntimeError, OSError) as error:  # executable memory is forbidden, or this LLVM has another syntax
        return Compiled(missing=f"LLVM cannot compile it: {error}")
