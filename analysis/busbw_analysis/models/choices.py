"""MPI algorithm selection: the default decision tables of Open MPI and MPICH by ranks and size.

The tables are from the source of one version, for predefined commutative reductions, with the names of the library.
They are only defaults: control variables and rule files override them, Open MPI's ``han`` and MPICH's compositions
replace them on several hosts, and shared-memory collectives send no messages. In these cases nothing is predicted, and
the reason is given.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from busbw.ops import OPS
from busbw.runs.facts import UNKNOWN_HOST, MpiFacts
from busbw.runs.placement import Variable, variables_of
from busbw.runs.records import CASE_DTYPE_BYTES
from busbw.units import parse_size
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import MPI, CostModel
from busbw_analysis.models.library_algorithms import formula_of, one_after_another
from busbw_analysis.models.textbook import core, is_power

OPEN_MPI_SOURCE: Final = (
    "ompi/mca/coll/tuned/coll_tuned_decision_fixed.c (4.1 to 5.0; its general table is the same on main, 8efebee)"
)
MPICH_SOURCE: Final = "the selection tables (JSON) inside the library of MPICH 5.0.2; src/mpi/coll/coll_selection.json"

_OPEN_MPI: Final = "Open MPI"
_MPICH: Final = "MPICH"


def _table(name: str) -> dict[str, dict[str, str]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


TABLES: Final = {_OPEN_MPI: _table("open_mpi.toml"), _MPICH: _table("mpich.toml")}
"""Library → op → upper limit of ranks → an algorithm, the bytes below which it is used, the next one, and so on; the
last one is used for all larger sizes.
"""

BY_BLOCK: Final = {
    _OPEN_MPI: {name for name, op in OPS.items() if op.in_blocks and not op.uneven},
    _MPICH: {"all_to_all"},
}
"""Library → ops whose sizes in its table are the bytes of one rank's block, S/n; for the others they are S."""

_TOO_FEW_ELEMENTS: Final = {
    ("all_reduce", "ring"): "recursive_doubling",
    ("all_reduce", "segmented_ring"): "recursive_doubling",
    ("all_reduce", "rabenseifner"): "basic_linear",
    ("all_reduce", "reduce_scatter_allgather"): "recursive_doubling",
    ("reduce", "rabenseifner"): "linear",
    ("reduce", "reduce_scatter_gather"): "binomial",
}
"""The fallback with fewer elements than the algorithm has blocks. A ring needs one element per rank, halving one per
rank of its core, the largest power of two (Open MPI: ompi/mca/coll/base).
"""
_RINGS: Final = frozenset({"ring", "segmented_ring"})


def selected(library: str, op: str, ranks: int, size_bytes: int, elements: int) -> str:
    """The algorithm that ``library`` selects by its table, by the library's name."""
    size = size_bytes / ranks if op in BY_BLOCK[library] else size_bytes
    words = next(line for limit, line in TABLES[library][op].items() if _applies(limit, ranks)).split()
    bounds = zip(words[::2], words[1::2], strict=False)
    name = next((name for name, bound in bounds if size < _bytes(bound)), words[-1])
    blocks = ranks if name in _RINGS else core(ranks)
    return _TOO_FEW_ELEMENTS.get((op, name), name) if elements < blocks else name


def _applies(limit: str, ranks: int) -> bool:
    if limit == "power-of-two":
        return is_power(ranks)
    return limit == "more" or ranks < int(limit)


def _bytes(text: str) -> int:
    return parse_size(text if text.isdecimal() else f"{text}iB")


@dataclass(frozen=True, slots=True)
class Library:
    """An MPI library as recorded by a run.

    ``name``: one of those in ``TABLES``.
    ``shared``: whether calls may use shared-memory collectives; MPICH does, except with the thread level "multiple".
    ``by_messages``: ops for which a variable disables these.
    ``overrides``: other variables of the run that change the selection.
    """

    name: str
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
        """The source of its selection tables."""
        return f"default choice of {self.called}: {OPEN_MPI_SOURCE if self.name == _OPEN_MPI else MPICH_SOURCE}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm that a library selects for a call.

    ``name``: the library's name for it.
    ``row``: its cost model.
    ``model``: the same cost model with the names of the library.
    """

    name: str
    row: CostModel
    model: CostModel


@dataclass(frozen=True, slots=True)
class Calls:
    """How an MPI library was called: the library, the data type and the mode."""

    library: Library | Unavailable
    dtype: str | None
    mode: str = "isolated"

    def choice(self, op: str, ranks: int, hosts: int, size_bytes: float) -> Choice | Unavailable:
        """The algorithm that the library runs by default for one call, or why it is unknown."""
        return _choice(self, op, ranks, hosts, int(size_bytes))


def library_of_run(facts: Facts) -> Library | Unavailable | None:
    """The MPI library of a run; None if the backend is not MPI."""
    if facts.backend.cost_models != MPI:
        return None
    host = facts.environment(facts.hosts[0]) if facts.hosts else UNKNOWN_HOST
    return library_of(host.mpi, variables_of(host))


def library_of(facts: MpiFacts | None, variables: Mapping[Variable, str]) -> Library | Unavailable:
    """The library of a run from its facts (``mpi`` of a host) and its recorded environment variables."""
    if facts is None or facts.library is None:
        return Unavailable(
            "library-not-recorded",
            "the run did not record its MPI library; each library has its own selection tables",
        )
    match = _LIBRARY.match(facts.library)
    if match is None:
        reason = f"{facts.library!r} is an unknown library; tables exist for Open MPI and MPICH"
        return Unavailable("library-not-known", reason)
    of_ops = {op: Variable(_INTRA_NODE.format(name)) for op, name in _IN_SHARED_MEMORY.items()}
    by_messages = {op for op, variable in of_ops.items() if variables.get(variable) == "mpir"}
    harmless = {of_ops[op] for op in by_messages}
    overriding = {variable for variable in variables if _OVERRIDE.match(variable.name)} - harmless
    return Library(
        match["name"],
        tuple(int(part) for part in match["version"].split(".")),
        facts.device,
        facts.threads != "multiple",
        frozenset(by_messages),
        tuple(sorted(variable.in_words for variable in overriding)),
    )


_LIBRARY: Final = re.compile(r"(?P<name>Open MPI|MPICH)(?: v| Version:?\s*)(?P<version>\d+(?:\.\d+)+)")
"""The start of the version string of a library: ``Open MPI v5.0.8``, ``MPICH Version: 5.0.2``."""
_INTRA_NODE: Final = "MPIR_CVAR_{}_POSIX_INTRA_ALGORITHM"
_OVERRIDE: Final = re.compile(
    r"OMPI_MCA_coll(_|$)|(MPIR_CVAR|MPIR_PARAM|MPICH)_\w*(ALGORITHM|COLL|COMPOSITION|SELECTION)"
)


@lru_cache(maxsize=1 << 14)  # a fit asks for the same few hundred calls repeatedly
def _choice(calls: Calls, op: str, ranks: int, hosts: int, size_bytes: int) -> Choice | Unavailable:
    library = calls.library
    if isinstance(library, Unavailable):
        return library
    refused = next(_refusals(library, calls.mode, op, ranks, hosts, size_bytes), None)
    if refused is not None:
        return Unavailable(*refused)
    if op not in TABLES[library.name]:
        return Unavailable("op-not-in-table", f"the table of {library.called} for {op} is unknown")
    name = selected(library.name, op, ranks, size_bytes, size_bytes // CASE_DTYPE_BYTES[calls.dtype or "uint8"])
    parts = _TWO_CALLS.get((library.name, op, name))
    if parts is None:
        row = formula_of(library.name, op, name, ranks)
    else:
        row = _of_two_calls(op, *(calls.choice(part, ranks, hosts, size_bytes) for part in parts))
    if row is None:
        return Unavailable(
            "formula-not-known",
            f"{library.called} selects {name} for {op} of {size_bytes} B on {ranks} ranks, which has no known formula",
        )
    named = f"{row.algorithm} ({name} of {library.called})"
    label = f"{row.label} ({name} of {library.called})"
    return Choice(name, row, replace(row, algorithm=named, own_label=label, source=f"{library.source}; {row.source}"))


def _of_two_calls(op: str, first: Choice | Unavailable, second: Choice | Unavailable) -> CostModel | None:
    if isinstance(first, Unavailable) or isinstance(second, Unavailable):
        return None
    return one_after_another(op, first.row, second.row, f"{first.row.op}, then {second.row.op}")


_TWO_CALLS: Final = {
    (_OPEN_MPI, "all_reduce", "nonoverlapping"): ("reduce", "broadcast"),
    (_OPEN_MPI, "reduce_scatter", "basic_linear"): ("reduce", "scatter"),
}
"""Algorithms that consist of two successive collectives, each selected separately."""


def _refusals(
    library: Library, mode: str, op: str, ranks: int, hosts: int, size_bytes: int
) -> Iterator[tuple[str, str]]:
    """Code and text of every reason why the selection is unknown."""
    called, two_levels = library.called, 1 < hosts < ranks
    if mode == "persistent":
        yield (
            "persistent-not-known",
            f"{called} uses another table for persistent collectives, which is unknown here",
        )
    if library.overrides:
        yield "table-overridden", f"this run set {', '.join(library.overrides)}, so the default table does not apply"
    if library.name == _OPEN_MPI:
        if not (4, 1) <= library.version[:2] <= (5, 0):
            yield "version-not-known", f"the table of {called} is unknown; those of Open MPI 4.1 to 5.0 are known"
        if two_levels and library.version >= (5,):  # han has the higher priority
            yield (
                "two-levels-not-known",
                f"on several hosts {called} runs collectives in two levels (han), whose cost is unknown",
            )
        return
    device = library.device or "device unknown"
    if library.version[0] != 5 or not device.startswith("ch4"):
        yield "version-not-known", f"the table of {called} ({device}) is unknown; that of MPICH 5 on ch4 is known"
    if op not in _IN_SHARED_MEMORY or hosts == ranks:
        return
    if two_levels:
        yield "two-levels-not-known", f"on several hosts {called} runs {op} in two levels, whose cost is unknown"
    # A long broadcast to 8 ranks or more uses the general table even within a host.
    long = (512 if is_power(ranks) else 12) << 10
    past = op == "broadcast" and ranks >= 8 and size_bytes >= long
    if library.shared and op not in library.by_messages and not past:
        yield (
            "shared-memory",
            (
                f"{called} runs {op} within a host in shared memory (release and gather), without messages; "
                f"set {_INTRA_NODE.format(_IN_SHARED_MEMORY[op])}=mpir to use messages"
            ),
        )


_IN_SHARED_MEMORY: Final = {
    "all_reduce": "ALLREDUCE",
    "reduce": "REDUCE",
    "broadcast": "BCAST",
    "barrier": "BARRIER",
}
"""Ops that MPICH runs in shared memory of a host, once five of them have been called; their names in its variables."""
