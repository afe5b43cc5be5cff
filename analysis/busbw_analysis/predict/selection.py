"""The measured curves of one op on every number of ranks, all measured in the same way.

Runs with different numbers of ranks are combined here but never pooled. They must not differ in anything else of their
machines and settings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec import structs

from busbw.errors import AnalysisError, UnlikeRuns, UsageError, refuse_unknown
from busbw.ops import OPS, PAIRED
from busbw.ops.settings import TrafficSettings
from busbw.runs import store
from busbw.runs.placement import oversubscribed, oversubscribed_hosts
from busbw.runs.records import settings_in_words
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.kept import Summarised, summary_of
from busbw_analysis.data.likeness import Difference, differences
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.series import LIBRARY, Series, SeriesKey
from busbw_analysis.data.unavailable import UNKNOWN_OP, Unavailable
from busbw_analysis.models.choices import Calls, Library
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.families import MPI
from busbw_analysis.models.results import Results, results_of
from busbw_analysis.models.select import algorithms

Shape = tuple[int, int]
"""Numbers of ranks and hosts."""

_OF_A_SHAPE = frozenset({"ranks", "hosts", "placement of ranks on hosts", "binding of ranks to cores", "loop"})
"""Facts that may differ between runs with different numbers of ranks."""

_THREADS = "mpi.threads"
"""The MPI thread level may differ between ranks that share cores and ranks that do not: busbw requests it by that."""

_USUAL = {
    "mode": "isolated",
    "sync": "barrier",
    "cache": "warm",
    "pre_enqueue": False,
    "dtype": "float32",
    "redop": "sum",
    "settings": TrafficSettings(imbalance=0.5),
    "tool_op": None,
}
"""The default value of every setting."""


@dataclass(frozen=True, slots=True)
class MeasuredCurves:
    """The curves of ``op`` with ``algorithm`` (None: the backend's own), measured in one way.

    ``curves``: at most one for each number of ranks and hosts.
    ``of_op``: every curve of the op, with any algorithm; at least one.
    ``of_library``: the curves of the backend's own algorithm, measured in the same way.
    ``cores``: usable cores of a host; None if unknown.
    ``near``, ``far``: α, β and R from messages inside a host and between hosts, from the largest run that has them.
    ``libraries``: the MPI library of each run by its ranks and hosts; None for another backend.
    ``notes``: what was left out.
    """

    op: str
    algorithm: str | None
    curves: tuple[Series, ...]
    of_op: tuple[Series, ...]
    of_library: tuple[Series, ...]
    cores: int | None
    near: Parameters | Unavailable
    far: Parameters | Unavailable
    libraries: tuple[tuple[Shape, Library | Unavailable | None], ...]
    notes: tuple[str, ...]

    @property
    def key(self) -> SeriesKey:
        """The key of a curve; backend, family of cost models and device are those of all."""
        return self.of_op[0].key

    def curve(self, ranks: int, hosts: int) -> Series | None:
        """The curve measured on ``ranks`` ranks and ``hosts`` hosts, if any."""
        return next((curve for curve in self.curves if curve.shape == (ranks, hosts)), None)

    def parameters(self, *, far: bool) -> Parameters | Unavailable:
        """α, β and R from messages inside a host (``far``: between hosts)."""
        return self.far if far else self.near

    def oversubscribed(self, ranks: int, hosts: int) -> bool:
        """Whether CPU ranks would have to share cores."""
        return self.key.device == "cpu" and self.cores is not None and oversubscribed(ranks, self.cores, hosts)

    def calls(self, ranks: int, hosts: int) -> Calls | None:
        """How the MPI library is called on ``ranks`` ranks and ``hosts`` hosts; None for another backend.

        Taken from the run with this shape, else preferably from one whose ranks share cores in the same way.
        """

        def unlike(shape: Shape) -> tuple[bool, bool]:
            return shape != (ranks, hosts), self.oversubscribed(*shape) != self.oversubscribed(ranks, hosts)

        _, library = min(self.libraries, key=lambda entry: unlike(entry[0]))
        key = (self.curves or self.of_op)[0].key
        return None if library is None or key.cost_models != MPI else Calls(library, key.dtype, key.mode)


def _parameters(
    results: Sequence[Results], op: str, curves: Sequence[Series], *, far: bool
) -> Parameters | Unavailable:
    """α, β and R for ``op`` from messages inside a host or between hosts, preferably as for one of ``curves``."""
    why: Unavailable | None = None
    for each in sorted(results, key=lambda each: -len(each.facts.hosts)):
        of_op = [series for series in each.series if series.key.op == op and (series.key.hosts > 1) == far]
        if of_op:
            parameters = each.messages.parameters_for(min(of_op, key=lambda series: series not in curves))
            if isinstance(parameters, Parameters):
                return parameters
            why = why or parameters
    return why or Unavailable("not-measured", f"{op} was not measured {'between hosts' if far else 'inside a host'}")


def _shape_of_run(stored: store.StoredRun) -> Shape:
    """Ranks and hosts of a run."""
    return len(stored.run.hosts), len(set(stored.run.hosts))


def read_groups(inputs: Sequence[store.StoredRun | Summarised], *, force: bool = False) -> tuple[Dataset, ...]:
    """Runs pooled by their numbers of ranks and hosts.

    Raises UnlikeRuns, with the key and both values, if two of them differ in more than that, unless ``force``;
    AnalysisError if a run is given twice.
    """
    summarised = list(map(summary_of, inputs))
    runs = [run.stored for run in summarised]
    names = [stored.run.id for stored in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AnalysisError(f"run {twice} was given more than once; give each run once", code="given-twice")
    shapes = grouped(summarised, lambda run: _shape_of_run(run.stored))
    for stored in runs[1:]:
        unlike = _unlike(runs, stored)
        if unlike and not force:
            raise UnlikeRuns(
                f"these runs cannot be combined: {unlike[0].text}; use runs with the same machine and settings, "
                "or combine them with --force"
            )
    return tuple(pool(tuple(members), force=force) for _, members in sorted(shapes.items()))


def read_results(runs: Sequence[store.StoredRun | Summarised], *, force: bool = False) -> tuple[Results, ...]:
    """The results of runs pooled by their numbers of ranks and hosts, as ``read_groups`` does."""
    return tuple(map(results_of, read_groups(runs, force=force)))


def _unlike(runs: Sequence[store.StoredRun], stored: store.StoredRun) -> list[Difference]:
    """Differences that forbid combining ``stored`` with ``runs``: from the first run, except that the thread level is
    compared with the first run whose ranks share cores, or not, like its own.
    """
    first = runs[0]
    alike = next(run for run in runs if _shares_cores(run) == _shares_cores(stored))
    unlike = [difference for difference in differences(first, stored) if difference.key != _THREADS or alike is first]
    if alike is not first:
        unlike += [difference for difference in differences(alike, stored) if difference.key == _THREADS]
    return [difference for difference in unlike if difference.key not in _OF_A_SHAPE and difference.unknown_in is None]


def _shares_cores(stored: store.StoredRun) -> bool:
    """Whether some host has more ranks than usable cores."""
    return bool(oversubscribed_hosts(stored.run.hosts, stored.run.environments))


def measured_curves(
    results: Sequence[Results], op: str, algorithm: str | None = None, **way: str | float | None
) -> MeasuredCurves:
    """The curves of ``op`` in ``results`` that were measured with the values in ``way`` (``dtype``, ``mode``,
    ``imbalance``), and otherwise as close to the default settings as the data allow.

    Raises UsageError for an unknown op or algorithm; AnalysisError, with what the runs have, if they lack it.
    """
    alone = [curve for each in results for curve in _alone(each)]
    explicit = None if algorithm == LIBRARY else algorithm
    of_op = _of_op(alone, results, op)
    names = _known(of_op, op)
    if (explicit or LIBRARY) not in names:
        message = f"--algorithm {explicit!r} is unknown for {op}; known: {', '.join(names)}"
        raise UsageError(message, code="algorithm-not-known")
    asked = {name: value for name, value in way.items() if value is not None}
    fitting = [curve for curve in of_op if all(getattr(curve.key, name) == value for name, value in asked.items())]
    if not fitting:
        there = {name: sorted({_formatted(getattr(curve.key, name)) for curve in of_op}) for name in asked}
        without = [name for name in asked if all(getattr(curve.key, name) is None for curve in of_op)]
        if without:
            raise UsageError(f"{op} has no {without[0]}; omit --{without[0]}", code="no-such-setting")
        has = "; ".join(f"{name}: {', '.join(values)}" for name, values in there.items())
        pairs = " and ".join(f"{name} {_formatted(value)}" for name, value in asked.items())
        raise AnalysisError(f"{op} was not measured with {pairs}; these runs have {has}", code="way-not-measured")
    usual = min((_settings_of(curve.key) for curve in fitting), key=_unusual)
    curves: dict[str | None, dict[tuple[int, int], Series]] = {explicit: {}, None: {}}
    for curve in sorted(fitting, key=lambda curve: (curve.key.group != "all", -len(curve.points))):
        if _settings_of(curve.key) == usual and curve.key.algorithm in curves:
            curves[curve.key.algorithm].setdefault(curve.shape, curve)
    own, of_library = (tuple(curves[name][shape] for shape in sorted(curves[name])) for name in (explicit, None))
    left_out = len({_settings_of(curve.key) for curve in of_op}) - 1
    notes = [f"{op} was measured with {left_out + 1} sets of settings; used here: {_named(usual)}"] if left_out else []
    missing = sorted({curve.shape for curve in of_op if curve.key.algorithm == explicit} - curves[explicit].keys())
    if missing:
        where = [f"{ranks} ranks{f' on {hosts} hosts' if hosts > 1 else ''}" for ranks, hosts in missing]
        notes.append(f"left out: {op} on {', '.join(where)}, which was not measured with these settings")
    return MeasuredCurves(
        op=op,
        algorithm=explicit,
        curves=own,
        of_op=tuple(of_op),
        of_library=of_library,
        cores=_cores(results),
        near=_parameters(results, op, own, far=False),
        far=_parameters(results, op, own, far=True),
        libraries=tuple((_shape_of_run(each.runs[0]), each.library) for each in results),
        notes=tuple(notes),
    )


def _alone(results: Results) -> list[Series]:
    """The curves of groups that ran alone; the time of concurrent groups is a different quantity."""
    many = {summary.index for summary in results.cases if len(summary.groups) > 1}
    return [series for series in results.series if not any(point.case in many for point in series.points)]


def _of_op(alone: Sequence[Series], results: Iterable[Results], op: str) -> list[Series]:
    of_op = [series for series in alone if series.key.op == op]
    if of_op:
        return of_op
    cases = [summary for each in results for summary in each.cases if summary.case.op == op]
    if op not in OPS and not cases:
        refuse_unknown("--op", op, sorted(OPS), code=UNKNOWN_OP.code)
    if cases:
        if op in PAIRED:
            why = f"{op} has a time for each pair of ranks, not a curve over sizes and ranks; predict ping_pong instead"
            raise AnalysisError(why, code="no-curve")
        became = {f"{summary.state} ({'; '.join(summary.reasons) or 'no curve'})" for summary in cases}
        states = ", ".join(sorted(became))
        raise AnalysisError(f"{op} has no usable curve in these runs: {states}", code="no-curve")
    there = ", ".join(sorted({series.key.op for series in alone})) or "no op with a curve"
    raise AnalysisError(f"{op} was not measured in these runs; they have {there}", code="op-not-measured")


def _known(of_op: Iterable[Series], op: str) -> list[str]:
    named = [name for family in {curve.key.cost_models for curve in of_op} for name in algorithms(op, family)]
    return list(dict.fromkeys([LIBRARY, *named, *(curve.key.algorithm or LIBRARY for curve in of_op)]))


def _settings_of(key: SeriesKey) -> SeriesKey:
    """The settings of a curve: its key without op, ranks, hosts and explicit algorithm."""
    return structs.replace(key.of_library, op="", ranks=(), group="", hosts=0)


def _unusual(way: SeriesKey) -> tuple[tuple[bool, ...], str]:
    return tuple(getattr(way, name, None) not in {usual, None} for name, usual in _USUAL.items()), str(way)


def _named(way: SeriesKey) -> str:
    placed = "in place" if way.in_place else "out of place"
    named = way.backend, way.dtype, way.redop, way.mode, way.sync, way.cache, placed, way.root
    values = [str(value) for value in named if value is not None]
    return ", ".join(values + settings_in_words(way))


def _formatted(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cores(results: Iterable[Results]) -> int | None:
    """The fewest usable cores of any host; None if unknown for all hosts."""
    return min((cores for each in results for _, cores in each.facts.cores.values()), default=None)
