"""The measured curves of one op on every number of ranks, all measured in the same way, and questions about them.

Runs with different numbers of ranks are combined here but never pooled. They must not differ in anything else of their
machines and settings.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from busbw.errors import AnalysisError, UnlikeRuns, UsageError, refuse_unknown
from busbw.ops import OF_TWO_RANKS, OPS, PAIRED
from busbw.ops.settings import TrafficSettings
from busbw.runs import store
from busbw.runs.placement import oversubscribed, oversubscribed_hosts
from busbw.runs.records import settings_in_words
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.kept import Summarised, summary_of
from busbw_analysis.data.likeness import differences
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.series import LIBRARY, Series, SeriesKey
from busbw_analysis.data.unavailable import UNKNOWN_OP, Unavailable
from busbw_analysis.models.choices import Calls, Library
from busbw_analysis.models.costs import MPI, Parameters
from busbw_analysis.models.results import Results, results_of
from busbw_analysis.models.select import algorithms
from busbw_analysis.predict.forecast import Extrapolation, Respect, Shape, beyond_sizes, on_a_host

_OF_A_SHAPE = frozenset({"ranks", "hosts", "placement of ranks on hosts", "binding of ranks to cores", "loop"})
"""Facts that may differ between runs with different numbers of ranks."""

_THREADS = "mpi.threads"
"""The MPI thread level may differ between ranks that share cores and ranks that do not: busbw requests it by that."""

_USUAL = {
    "mode": "isolated",
    "sync": "barrier",
    "cache": "warm",
    "pre_enqueue": False,
    "registered": False,
    "dtype": "float32",
    "redop": "sum",
    "settings": TrafficSettings(imbalance=0.5),
    "tool_op": None,
}
"""The default value of every setting."""

_SIZES: Final = 5
"""Number of sizes that are predicted if none is given."""


@dataclass(frozen=True, slots=True)
class PredictionQuery:
    """A question: ``op`` on ``ranks`` ranks over ``hosts`` hosts at each of ``sizes_bytes``; (0,) without a size."""

    op: str
    ranks: int
    hosts: int
    sizes_bytes: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """Ranks and hosts."""
        return self.ranks, self.hosts


@dataclass(frozen=True, slots=True)
class MeasuredCurves:
    """The curves of ``op`` with ``algorithm`` (None: the backend's own), measured in one way.

    ``curves``: at most one for each number of ranks and hosts.
    ``of_op``: every curve of the op, with any algorithm; at least one.
    ``of_library``: the curves of the backend's own algorithm, measured in the same way.
    ``cores``: usable cores of a host; None if unknown.
    ``messages``: α, β and R from messages inside a host (False) and between hosts (True), from the largest run that has
        them.
    ``libraries``: the MPI library of each run by its ranks and hosts; None for another backend.
    ``notes``: what was left out.
    """

    op: str
    algorithm: str | None
    curves: tuple[Series, ...]
    of_op: tuple[Series, ...]
    of_library: tuple[Series, ...]
    cores: int | None
    messages: Mapping[bool, Parameters | Unavailable]
    libraries: tuple[tuple[Shape, Library | Unavailable | None], ...]
    notes: tuple[str, ...]

    @property
    def key(self) -> SeriesKey:
        """The key of a curve; backend, family of cost models and device are those of all."""
        return self.of_op[0].key

    def curve(self, shape: Shape) -> Series | None:
        """The curve measured on these ranks and hosts, if any."""
        return next((curve for curve in self.curves if curve.shape == shape), None)

    def placed_like(self, shape: Shape) -> list[Series]:
        """The curves, or else those of the op with any algorithm, that are also on one host, or on several."""
        return [curve for curve in self.curves or self.of_op if (curve.key.hosts > 1) == (shape[1] > 1)]

    def oversubscribed(self, shape: Shape) -> bool:
        """Whether CPU ranks would have to share cores."""
        return self.key.device == "cpu" and self.cores is not None and oversubscribed(shape[0], self.cores, shape[1])

    def calls(self, shape: Shape) -> Calls | None:
        """How the MPI library is called on these ranks and hosts; None for another backend.

        Taken from the run with this shape, else preferably from one whose ranks share cores in the same way.
        """

        def unlike(other: Shape) -> tuple[bool, bool]:
            return other != shape, self.oversubscribed(other) != self.oversubscribed(shape)

        _, library = min(self.libraries, key=lambda entry: unlike(entry[0]))
        key = (self.curves or self.of_op)[0].key
        return None if library is None or key.cost_models != MPI else Calls(library, key.dtype, key.mode)

    def new_regime(self, shape: Shape) -> bool:
        """Whether ranks would share cores as in no such measurement, or have a core each as in none."""
        measured = {self.oversubscribed(curve.shape) for curve in self.placed_like(shape)}
        return bool(measured) and self.oversubscribed(shape) not in measured

    def extrapolations(self, asked: PredictionQuery, size_bytes: int) -> tuple[Extrapolation, ...]:
        """The respects in which the question lies outside the measurements."""
        curves = self.placed_like(asked.shape)
        sizes = sorted({point.size_bytes for curve in curves for point in curve.points if point.size_bytes})
        beyond = beyond_sizes(size_bytes, sizes[0], sizes[-1]) if sizes and size_bytes else []
        if self.curve(asked.shape) is not None or not curves:
            return tuple(beyond)
        amounts: tuple[tuple[Respect, int], ...] = (("ranks", asked.ranks), ("hosts", asked.hosts))
        for (what, amount), measured in zip(amounts, zip(*(curve.shape for curve in curves), strict=True), strict=True):
            if amount > max(measured):
                times = f"{amount / max(measured):.3g} × the most measured, {max(measured)}"
                beyond.append(Extrapolation(what, f"{amount} are {times}"))
            elif amount < min(measured):
                beyond.append(Extrapolation(what, f"{amount} are fewer than the fewest measured, {min(measured)}"))
        counts = sorted(on_a_host(curve.shape) for curve in curves)
        each, least, most = on_a_host(asked.shape), counts[0], counts[-1]
        sharing, of = self.oversubscribed(asked.shape), f"{each} ranks on a host of {self.cores} usable cores"
        if self.new_regime(asked.shape):
            how, before = "have a core each", "shared cores"
            if sharing:
                how, before = "share cores", "had a core each"
            beyond.append(Extrapolation("cores", f"{of} {how}, a new regime: the measured ranks {before}"))
        elif each > most and sharing:
            beyond.append(Extrapolation("cores", f"{of} share cores; at most {most} ranks on a host were measured"))
        elif each > most:
            beyond.append(Extrapolation("ranks per host", f"{each} are more than the most measured, {most}"))
        elif asked.hosts > 1 and each < least:
            beyond.append(Extrapolation("ranks per host", f"{each} are fewer than the fewest measured, {least}"))
        return tuple(beyond)


def query(
    data: MeasuredCurves,
    ranks: int,
    sizes_bytes: Sequence[int],
    *,
    hosts: int | None = None,
    ranks_per_host: int | None = None,
) -> PredictionQuery:
    """The question with defaults from ``data``: without ``sizes_bytes``, a few of the measured sizes, evenly spaced.

    Without ``hosts`` and ``ranks_per_host``, the hosts are those measured with as many ranks; otherwise each host gets
    as many ranks as were measured. Raises UsageError for an invalid question, AnalysisError if nothing was measured
    between hosts but the question needs it.
    """
    op = data.op
    if ranks < 2:
        raise UsageError(f"--ranks {ranks}: fewer than 2 ranks send nothing; give at least 2", code="one-rank")
    if op in OF_TWO_RANKS and ranks != 2:
        raise UsageError(f"--ranks {ranks}: {op} always runs between 2 ranks; give 2", code="two-ranks")
    sizes = sorted({point.size_bytes for curve in data.of_op for point in curve.points} - {0})
    if sizes_bytes and not sizes:
        raise UsageError(f"{op} has no size; omit --size", code="no-size")
    if sizes and not all(sizes_bytes):
        raise UsageError(f"size 0: {op} needs a size above 0 (--size 1MiB)", code="size")
    places = sorted({round((len(sizes) - 1) * step / (_SIZES - 1)) for step in range(_SIZES)})
    usual = tuple(sizes[place] for place in places) if sizes else (0,)
    return PredictionQuery(op, ranks, _hosts(data, ranks, hosts, ranks_per_host), tuple(sizes_bytes) or usual)


def _hosts(data: MeasuredCurves, ranks: int, hosts: int | None, ranks_per_host: int | None) -> int:
    shapes = [curve.shape for curve in data.of_op]
    far = [shape for shape in shapes if shape[1] > 1]
    if hosts is not None and ranks_per_host is not None:
        raise UsageError("--hosts and --ranks-per-host are alternatives; give only one of them", code="said-twice")
    if ranks_per_host is not None:
        if ranks_per_host < 1:
            raise UsageError(f"--ranks-per-host {ranks_per_host}: must be at least 1", code="ranks-per-host")
        hosts = -(-ranks // ranks_per_host)
    if hosts is None:
        same = [shape[1] for shape in shapes if shape[0] == ranks]
        most = max((-(-count // over) for count, over in far), default=ranks)
        hosts = same[0] if same else -(-ranks // most)
    if not 1 <= hosts <= ranks:
        raise UsageError(f"--hosts {hosts}: must be 1 to {ranks}, so that each host has a rank", code="hosts")
    if hosts > 1 and not far:
        raise AnalysisError(
            f"{ranks} ranks on {hosts} hosts need the network, but these runs have no measurement between hosts. "
            "Measure on two or more hosts, or ask for one host",
            code="between-hosts-not-measured",
        )
    if hosts == 1 and not any(shape[1] == 1 for shape in shapes):
        least = min(shape[1] for shape in shapes)
        raise AnalysisError(
            f"{ranks} ranks on 1 host: these runs have only measurements over {least} or more hosts, which do not "
            "determine the time inside a host; measure on one host, or predict for several with --hosts",
            code="within-host-not-measured",
        )
    return hosts


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


def read_groups(inputs: Sequence[store.StoredRun | Summarised], *, force: bool) -> tuple[Dataset, ...]:
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
    for stored in () if force else runs[1:]:
        # The thread level is compared with the first run whose ranks share cores, or not, like those of this one.
        alike = next(run for run in runs if _shares_cores(run) == _shares_cores(stored))
        unlike = [difference for difference in differences(runs[0], stored) if difference.key != _THREADS]
        unlike += [difference for difference in differences(alike, stored) if difference.key == _THREADS]
        unlike = [unlike for unlike in unlike if unlike.key not in _OF_A_SHAPE and unlike.unknown_in is None]
        if unlike:
            raise UnlikeRuns(
                f"these runs cannot be combined: {unlike[0].text}; use runs with the same machine and settings, "
                "or combine them with --force"
            )
    return tuple(pool(tuple(members), force=force) for _, members in sorted(shapes.items()))


def read_results(runs: Sequence[store.StoredRun | Summarised], *, force: bool = False) -> tuple[Results, ...]:
    """The results of runs pooled by their numbers of ranks and hosts, as ``read_groups`` does."""
    return tuple(map(results_of, read_groups(runs, force=force)))


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
        cores=min((cores for each in results for _, cores in each.facts.cores.values()), default=None),
        messages={far: _parameters(results, op, own, far=far) for far in (False, True)},
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
        together = "several groups of ranks at once, whose times are not those of one group"
        became = {f"{summary.state} ({'; '.join(summary.reasons) or together})" for summary in cases}
        states = ", ".join(sorted(became))
        how = f"measure one: busbw run --op {op} --sizes '8..16MiB*8'"
        raise AnalysisError(f"{op} has no usable curve in these runs: {states}; {how}", code="no-curve")
    there = ", ".join(sorted({series.key.op for series in alone})) or "no op with a curve"
    raise AnalysisError(
        f"{op} was not measured in these runs; they have {there}; give --from a run that has it", code="op-not-measured"
    )


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
