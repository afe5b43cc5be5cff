"""A compiled loop: a row of calls without Python between them, as a program in C would make it.

What a backend binds to its buffers may come as functions of C with their arguments (``Native``). One small loop,
compiled by LLVM in each process that needs it (0.02 s), goes through a table of them. Without llvmlite, or where it
cannot compile, there is no such loop, and Python makes the calls. While it runs, other threads of Python run too.
"""

import ctypes
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

_MOST_ARGUMENTS = 12
"""Of a step; MPI_Sendrecv has as many. Every function is called with so many."""

_WIDTH = 1 + _MOST_ARGUMENTS

_MACHINES = {"x86_64", "aarch64"}
"""Where a function may be called with more arguments than it takes, each in 64 bits whatever its own width: by the
calling conventions of Linux on these (System V ABI; AAPCS64) the caller alone lays them down and removes them.
"""

_PLACES = range(1, _WIDTH)
_LOADS = "".join(
    f"  %place{n} = getelementptr i64, ptr %step, i64 {n}\n  %argument{n} = load i64, ptr %place{n}\n" for n in _PLACES
)
_ARGUMENTS = ", ".join(f"i64 %argument{n}" for n in _PLACES)

_LOOP = f"""
; The table, its length, the step to begin with (then the next one), how many steps to take. 0, or the first other code.
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
    """A call as functions of C, one after the other: each of ``steps`` is the address of a function and its arguments,
    whole numbers and addresses. It returns 0 when all went well; ``error`` makes an exception of anything
    else. ``keeps`` is whatever the addresses are of: it lives as long as this does.
    """

    steps: tuple[tuple[int, ...], ...]
    error: Callable[[int], Exception]
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Calls of several ``Native`` in turns. ``of`` gives what makes so many calls, at least one: it goes on where the
    one before stopped, and returns 0 or the code of the call that failed, which ends the row; ``error`` says what that
    means. There is one row at a time: what an earlier ``of`` gave makes as many calls as the last one was asked for.
    """

    of: Callable[[int], Callable[[], int]]
    error: Callable[[int], Exception]
    keeps: tuple[object, ...] = ()


def missing() -> str | None:
    """Why there is no compiled loop in this process; None when there is."""
    made = _library()
    return made if isinstance(made, str) else None


def row_of(natives: Sequence[Native | None]) -> Row | None:
    """Calls of ``natives`` in turns, made by the compiled loop; None where there is none, or one of them is not native.

    Raises ValueError for a step that has more arguments than there is room for, or calls of unlike numbers of steps.
    """
    there = [native for native in natives if native is not None]
    made = _library() if there and len(there) == len(natives) else ""
    if isinstance(made, str):
        return None
    steps = [step for native in there for step in native.steps]
    (each,) = {len(native.steps) for native in there}
    table = np.zeros((len(steps), _WIDTH), dtype=np.uint64)
    for line, step in zip(table, steps, strict=True):
        line[: len(step)] = [value % (1 << 64) for value in step]
    turns = np.asarray([table.ctypes.data, len(steps), 0, each], dtype=np.int64)
    # Not PYFUNCTYPE: the watch of a backend looks from another thread while the row waits in the library.
    row = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(made.of("row"))
    go = partial(row, turns.ctypes.data)  # one argument: each takes ctypes 50 ns

    def of(calls: int) -> Callable[[], int]:
        turns[-1] = calls * each
        return go

    return Row(of, there[0].error, (table, made, *there))


def nothing() -> Native | None:
    """A call that does nothing; None where there is no compiled loop."""
    made = _library()
    return None if isinstance(made, str) else Native(((made.of("nothing"),),), lambda code: ValueError(str(code)))


@cache
def _library() -> "Compiled | str":
    """The compiled loop, or why there is none."""
    machine = f"{platform.system()} on {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return f"how functions are called is not known to be simple enough on {machine}"
    return compiled(_LOOP)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was compiled: the address of each function, and what LLVM made of them before it wrote them for the
    processor. ``engine`` owns the memory that they are in.
    """

    addresses: dict[str, int]
    optimised: str
    engine: object

    def of(self, name: str, dtype: str | None = None) -> int:
        """The function of that name, for elements of ``dtype`` where it knows elements."""
        return self.addresses[name if dtype is None else f"{name}_{dtype}"]


def compiled(source: str, *, for_this_processor: bool = False) -> Compiled | str:
    """The functions in ``source``, LLVM's assembly, or why they cannot be compiled here. ``for_this_processor``: with
    all that it has, loops made vectors of and unrolled.
    """
    try:
        import llvmlite.binding as llvm  # noqa: PLC0415 - 0.1 s; only where there is something to be compiled for
    except ImportError as error:
        return f"llvmlite is not there: {error}"
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module, triple = llvm.parse_assembly(source), llvm.Target.from_default_triple()
        module.verify()  # a branch that fits no phi is compiled into anything else
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
        functions = [one for one in module.functions if not one.is_declaration]
        names = [one.name for one in functions if one.linkage is llvm.Linkage.external]
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        return Compiled({name: engine.get_function_address(name) for name in names}, optimised, engine)
    except (RuntimeError, OSError) as error:  # no memory may be made executable here, or an LLVM that wants other words
        return f"LLVM cannot compile it: {error}"
