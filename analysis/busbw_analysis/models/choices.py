"""Which algorithm an MPI library runs by default: the decision tables of Open MPI and MPICH by ranks and size.

The tables are facts about one version, read in its source, and they are only defaults: variables of control and files
of rules override them, Open MPI's ``han`` and MPICH's compositions replace them on several hosts, and collectives in
shared memory send no messages at all. Where any of that is so, nothing is predicted and the reason is given. They are
of commutative reductions that the library knows, with the names of the library.
"""

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from busbw.runs.placement import variables_of
from busbw.runs.records import CASE_DTYPE_BYTES
from busbw_analysis.data.load import Dataset, once
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.families import MPI
from busbw_analysis.models.library_algorithms import formula_of, one_after_another
from busbw_analysis.models.textbook import is_power

OPEN_MPI_SOURCE: Final = (
    "ompi/mca/coll/tuned/coll_tuned_decision_fixed.c (4.1 to 5.0; its general table is the same on main, 8efebee)"
)
MPICH_SOURCE: Final = "the selection tables (JSON) inside the library of MPICH 5.0.2; src/mpi/coll/coll_selection.json"

_KIB: Final = 1 << 10
_TABLE: Final = Path(__file__).with_name("open_mpi.toml")


def of_open_mpi(op: str, ranks: int, size_bytes: int, elements: int) -> str | None:
    """What ``tuned`` of Open MPI takes by its fixed rules; None for an op that has no table here. ``elements`` are
    those of S: what cannot be cut into one piece a rank goes another way, whatever the rule says.
    """
    rows = OPEN_MPI.get(op)
    if rows is None:
        return None
    size = size_bytes / ranks if op in BY_BLOCK else size_bytes
    words = next(line for below, line in rows if ranks < below).split()
    bounds = zip(words[::2], words[1::2], strict=False)
    name = next((name for name, bound in bounds if size < _bytes(bound)), words[-1])
    pieces = ranks if "ring" in name else 1 << (ranks.bit_length() - 1)
    return _TOO_FEW_ELEMENTS.get((op, name), name) if elements < pieces else name


_TOO_FEW_ELEMENTS: Final = {
    ("all_reduce", "ring"): "recursive_doubling",
    ("all_reduce", "segmented_ring"): "recursive_doubling",
    ("all_reduce", "rabenseifner"): "basic_linear",
    ("reduce", "rabenseifner"): "linear",
}
"""ompi/mca/coll/base: a ring needs an element for each rank, halving one for each of its core (a power of two)."""


def _bytes(text: str) -> int:
    units = {"K": _KIB, "M": _KIB**2}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


BY_BLOCK: Final = frozenset({"all_gather", "all_to_all", "reduce_scatter", "gather", "scatter"})
"""Ops for which Open MPI goes by the bytes of one rank's block, S/n; for the others by S."""


def _rows(table: Mapping[str, str]) -> tuple[tuple[float, str], ...]:
    return tuple((math.inf if below == "more" else int(below), line) for below, line in table.items())


OPEN_MPI: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    op: _rows(table) for op, table in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""Op → below so many ranks → an algorithm, the bytes below which it is taken, the next, and so on; the last one takes
the rest.
"""


# --- MPICH -----------------------------------------------------------------------------------------------------


def of_mpich(op: str, ranks: int, size_bytes: int, elements: int) -> str | None:
    """What the general table of MPICH takes; None for an op that has none here. ``elements`` are those of S."""
    rule = MPICH.get(op)
    return None if rule is None else rule(ranks, size_bytes, elements)


MANY: Final = 8
SHORT_BROADCAST: Final = 12 * _KIB
LONG: Final = 512 * _KIB
_SHORT_GATHER: Final = 80 * _KIB
_SHORT_REDUCE: Final = 2 * _KIB
_SHORT_BLOCK: Final = 256
_LONG_BLOCK: Final = 32 * _KIB
_ONE_NUMBER: Final = 8


def _scattered(ranks: int, elements: int) -> bool:
    """Fewer elements than ranks in the core (the largest power of two) cannot be scattered over it."""
    return elements >= 1 << (ranks.bit_length() - 1)


def _all_reduce(ranks: int, size: int, elements: int) -> str:
    long = size > _ONE_NUMBER and _scattered(ranks, elements)
    return "reduce_scatter_allgather" if long else "recursive_doubling"


def _reduce(ranks: int, size: int, elements: int) -> str:
    return "reduce_scatter_gather" if size > _SHORT_REDUCE and _scattered(ranks, elements) else "binomial"


def _broadcast(ranks: int, size: int, _elements: int) -> str:
    if ranks < MANY or size <= SHORT_BROADCAST:
        return "binomial"
    return "scatter_recursive_doubling_allgather" if is_power(ranks) and size <= LONG else "scatter_ring_allgather"


def _all_gather(ranks: int, size: int, _elements: int) -> str:
    if is_power(ranks):
        return "recursive_doubling" if size < LONG else "ring"
    return "brucks" if size < _SHORT_GATHER else "ring"


def _all_to_all(ranks: int, size: int, _elements: int) -> str:
    block = size / ranks
    if ranks >= MANY and block <= _SHORT_BLOCK:
        return "brucks"
    return "scattered" if block <= _LONG_BLOCK else "pairwise"


MPICH: Final[dict[str, Callable[[int, int, int], str]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter": lambda _ranks, size, _elements: "recursive_halving" if size < LONG else "pairwise",
    "gather": lambda _ranks, _size, _elements: "binomial",
    "scatter": lambda _ranks, _size, _elements: "binomial",
    "barrier": lambda _ranks, _size, _elements: "k_dissemination",
}
"""Op → what n, S and the elements of S decide. ``reduce_scatter`` is MPI_Reduce_scatter_block."""


_OPEN_MPI: Final = "Open MPI"
_MPICH: Final = "MPICH"


@dataclass(frozen=True, slots=True)
class Library:
    """An MPI library as a run recorded it. ``shared``: whether its calls may use collectives in shared memory, which
    MPICH does unless threads may call it at the same time; ``by_messages`` are ops that a variable keeps from it.
    ``overrides`` are other variables of the run that change choices.
    """

    name: Literal["Open MPI", "MPICH"]
    version: tuple[int, ...]
    device: str | None = None
    shared: bool = False
    by_messages: frozenset[str] = frozenset()
    overrides: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """Name and version."""
        return f"{self.name} {'.'.join(map(str, self.version))}"

    @property
    def source(self) -> str:
        """Where its choices are from."""
        return f"default choice of {self.called}: {OPEN_MPI_SOURCE if self.name == _OPEN_MPI else MPICH_SOURCE}"


@dataclass(frozen=True, slots=True)
class Call:
    """What a library decides by: the op, its ranks, on how many hosts, S and the type of the elements."""

    op: str
    ranks: int
    hosts: int
    size_bytes: int
    dtype: str | None = None
    mode: str = "isolated"

    @property
    def elements(self) -> int:
        """Those of S."""
        return self.size_bytes // CASE_DTYPE_BYTES[self.dtype or "uint8"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm that a library runs for a call: its own ``name`` for it, the ``row`` of what it costs, and that as
    a ``model`` with the library's names.
    """

    name: str
    row: CostModel
    model: CostModel


@dataclass(frozen=True, slots=True)
class Calls:
    """How an MPI library was called: which it was, with elements of what type and in which mode."""

    library: Library | Unavailable
    dtype: str | None = None
    mode: str = "isolated"

    def choice(self, op: str, ranks: int, hosts: int, size_bytes: float) -> Choice | Unavailable:
        """What the library runs for one of them, or why that is not known."""
        return _choice(self, op, ranks, hosts, int(size_bytes))


@lru_cache(maxsize=1 << 14)  # a fit asks for the same few hundred calls again and again
def _choice(calls: Calls, op: str, ranks: int, hosts: int, size_bytes: int) -> Choice | Unavailable:
    if isinstance(calls.library, Unavailable):
        return calls.library
    return choose(calls.library, Call(op, ranks, hosts, size_bytes, calls.dtype, calls.mode))


def library_in(text: str) -> tuple[Literal["Open MPI", "MPICH"], tuple[int, ...]] | None:
    """Name and version in what a library calls itself (``Open MPI v5.0.8``, ``MPICH Version: 5.0.2``)."""
    found = re.match(r"(Open MPI) v(\d+(?:\.\d+)+)|(MPICH) Version:?\s*(\d+(?:\.\d+)+)", text)
    if found is None:
        return None
    version = tuple(int(part) for part in (found[2] or found[4]).split("."))
    return (_OPEN_MPI, version) if found[1] else (_MPICH, version)


@once
def library_of_run(dataset: Dataset) -> Library | Unavailable | None:
    """The MPI library of the first run (pooled runs used the same); None where no case ran over MPI."""
    run = dataset.runs[0].run
    if dataset.backend.cost_models != MPI:
        return None
    environment = run.environments.get(run.hosts[0], {}) if run.hosts else {}
    return library_of(environment.get("mpi"), variables_of(environment))


def library_of(facts: object, variables: Mapping[str, str]) -> Library | Unavailable:
    """The library of a run from its facts (``mpi`` of an environment) and the variables that were recorded."""
    text = facts.get("library") if isinstance(facts, Mapping) else None
    if not isinstance(facts, Mapping) or not isinstance(text, str):
        return Unavailable(
            "library-not-told", "the run does not say which MPI library it used, and each chooses by tables of its own"
        )
    known = library_in(text)
    if known is None:
        return Unavailable("library-not-known", f"no table is known of {text!r}; known are those of Open MPI and MPICH")
    name, version = known
    device = facts.get("device")
    by_messages = {op for op, told in _IN_SHARED_MEMORY.items() if variables.get(_KEPT_FROM_IT.format(told)) == "mpir"}
    meant = {_KEPT_FROM_IT.format(_IN_SHARED_MEMORY[op]) for op in by_messages}
    return Library(
        name,
        version,
        device if isinstance(device, str) else None,
        facts.get("threads") != "multiple",
        frozenset(by_messages),
        tuple(sorted(one for one in variables if _OVERRIDE.match(one) and one not in meant)),
    )


_KEPT_FROM_IT: Final = "MPIR_CVAR_{}_POSIX_INTRA_ALGORITHM"
_OVERRIDE: Final = re.compile(
    r"OMPI_MCA_coll(_|$)|(MPIR_CVAR|MPIR_PARAM|MPICH)_\w*(ALGORITHM|COLL|COMPOSITION|SELECTION)"
)


def choose(library: Library, call: Call) -> Choice | Unavailable:
    """The algorithm that ``library`` runs by default for ``call``, or why that is not known."""
    if call.mode == "persistent":
        return Unavailable(
            "persistent-not-known",
            f"{library.called} chooses for persistent collectives by another table, which is not known here",
        )
    if library.overrides:
        return Unavailable(
            "table-overridden", f"the default table does not hold: {', '.join(library.overrides)} was set in this run"
        )
    name = (_of_open_mpi if library.name == _OPEN_MPI else _of_mpich)(library, call)
    if isinstance(name, Unavailable):
        return name
    row = _cost(library, call, name)
    if row is None:
        return Unavailable(
            "formula-not-known",
            f"{library.called} chooses {name} for {call.op} of {call.size_bytes} B on {call.ranks} ranks, of which no "
            "formula is known",
        )
    named = f"{row.algorithm} ({name} of {library.called})"
    return Choice(name, row, replace(row, algorithm=named, source=f"{library.source}; {row.source}"))


def _cost(library: Library, call: Call, name: str) -> CostModel | None:
    parts = _TWO_CALLS.get((library.name, call.op, name))
    if parts is None:
        return formula_of(library.name, call.op, name, call.ranks)
    first, second = (choose(library, replace(call, op=op)) for op in parts)
    if isinstance(first, Unavailable) or isinstance(second, Unavailable):
        return None
    return one_after_another(call.op, first.row, second.row, f"{parts[0]}, then {parts[1]}")


_TWO_CALLS: Final = {
    (_OPEN_MPI, "all_reduce", "nonoverlapping"): ("reduce", "broadcast"),
    (_OPEN_MPI, "reduce_scatter", "basic_linear"): ("reduce", "scatter"),
}
"""Algorithms that are two collectives one after the other, each chosen for itself."""


def _of_open_mpi(library: Library, call: Call) -> str | Unavailable:
    if not (4, 1) <= library.version[:2] <= (5, 0):
        return Unavailable(
            "version-not-known", f"the table of {library.called} is not known; known are those of Open MPI 4.1 to 5.0"
        )
    if 1 < call.hosts < call.ranks and library.version >= _HAN_COMES_FIRST:
        return Unavailable(
            "two-levels-not-known",
            f"on several hosts {library.called} runs collectives in two levels (han), whose cost is not known",
        )
    name = of_open_mpi(call.op, call.ranks, call.size_bytes, call.elements)
    return (
        Unavailable("op-not-in-table", f"no table of {library.called} is known for {call.op}") if name is None else name
    )


_HAN_COMES_FIRST: Final = (5,)

_IN_SHARED_MEMORY: Final = {
    "all_reduce": "ALLREDUCE",
    "reduce": "REDUCE",
    "broadcast": "BCAST",
    "barrier": "BARRIER",
}
"""Ops that MPICH does in memory that the ranks of a host share, once five of them have been called, and their names in
its variables."""


def _of_mpich(library: Library, call: Call) -> str | Unavailable:
    if library.version[0] != _MPICH_READ or not (library.device or "").startswith("ch4"):
        device = library.device or "device unknown"
        return Unavailable(
            "version-not-known",
            f"the table of {library.called} ({device}) is not known; known is that of MPICH 5 on ch4",
        )
    if call.op in _IN_SHARED_MEMORY and call.hosts < call.ranks:
        if call.hosts > 1:
            return Unavailable(
                "two-levels-not-known",
                f"on several hosts {library.called} does {call.op} in two levels, whose cost is not known",
            )
        if library.shared and call.op not in library.by_messages and not _past_shared_memory(call):
            return Unavailable(
                "shared-memory",
                f"{library.called} does {call.op} within a host in shared memory (release and gather) and sends no "
                f"messages; MPIR_CVAR_{_IN_SHARED_MEMORY[call.op]}_POSIX_INTRA_ALGORITHM=mpir makes it send them",
            )
    name = of_mpich(call.op, call.ranks, call.size_bytes, call.elements)
    return (
        Unavailable("op-not-in-table", f"no table of {library.called} is known for {call.op}") if name is None else name
    )


_MPICH_READ: Final = 5


def _past_shared_memory(call: Call) -> bool:
    """A long broadcast to 8 ranks or more goes through the general table even within a host."""
    long = LONG if is_power(call.ranks) else SHORT_BROADCAST
    return call.op == "broadcast" and call.ranks >= MANY and call.size_bytes >= long
