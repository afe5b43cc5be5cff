"""What runs say about one op: its curves on every number of ranks that was measured, all taken in one way.

Runs of different numbers of ranks are never pooled; they stand beside each other here, after it was checked that
nothing else of their machines and settings differs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

from busbw.errors import AnalysisError, UnlikeRuns, UsageError, refuse_unknown
from busbw.runs import store
from busbw.runs.facts import fact
from busbw.runs.records import SETTINGS, settings_in_words
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.load import Dataset, Difference, differences, pool
from busbw_analysis.data.series import Series, SeriesKey, series_of
from busbw_analysis.data.summary import summarise
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.design import Observation
from busbw_analysis.fitting.joint import OneRegime, fit_regimes
from busbw_analysis.models.choices import Calls, library_of_run
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.families import MPI
from busbw_analysis.models.gloo import MODELS, UNMODELLED
from busbw_analysis.models.parameters import parameters_for
from busbw_analysis.models.select import algorithms

LIBRARY = "library"
"""The name of what the backend runs by itself."""

_OF_A_SHAPE = frozenset({"ranks", "hosts", "placement of ranks on hosts", "binding of ranks to cores", "loop"})
"""What may differ between runs of different numbers of ranks."""

_THREADS = "mpi.threads"
"""The level of threads may differ between ranks that share cores and ranks that do not: busbw asks for it by that."""

_USUAL = {
    "mode": "isolated",
    "sync": "barrier",
    "cache": "warm",
    "pre_enqueue": False,
    "dtype": "float32",
    "redop": "sum",
    **dict.fromkeys(SETTINGS),
    "imbalance": 0.5,
}
_NO_WAY = frozenset({"op", "ranks", "group", "hosts", "algorithm"})
_UNTOLD = frozenset({"cost_models", "transport", "pre_enqueue", "device", *SETTINGS, *_NO_WAY})


@dataclass(frozen=True, slots=True)
class MeasuredCurves:
    """All that is known of ``op`` measured in one way, by ``algorithm`` (``library``: the backend's own).

    ``curves`` has at most one for each number of ranks and hosts, ``of_op`` is every curve of the op, by whatever
    algorithm; ``everything`` has one for each op, algorithm, number of ranks and of hosts, timed in the same way.
    ``cores`` are those of a host that ranks may use. ``notes`` say what was left out.
    """

    op: str
    backend: str
    cost_models: str
    device: str
    algorithm: str
    curves: tuple[Series, ...]
    of_op: tuple[Series, ...]
    everything: tuple[Series, ...]
    cores: int | None
    notes: tuple[str, ...]
    _datasets: tuple[Dataset, ...]

    def curve(self, ranks: int, hosts: int) -> Series | None:
        """What was measured on so many ranks and hosts."""
        return next((one for one in self.curves if shape_of(one) == (ranks, hosts)), None)

    def parameters(self, *, far: bool) -> Parameters | Unavailable:
        """α, β and R from messages inside a host, or ``far``: between hosts; of the largest run that has them."""
        why: Unavailable | None = None
        for dataset in sorted(self._datasets, key=lambda one: -len(one.hosts)):
            found = [one for one in series_of(dataset) if one.key.op == self.op and (one.key.hosts > 1) == far]
            if found:
                like = min(found, key=lambda one: one not in self.curves)
                told = parameters_for(dataset, like)
                if isinstance(told, Parameters):
                    return told
                why = why or told
        where = "between hosts" if far else "inside a host"
        return why or Unavailable("not-measured", f"{self.op} was not measured {where}")

    def oversubscribed(self, ranks: int, hosts: int) -> bool:
        """Whether so many ranks have to share cores, where ranks need one each."""
        return self.device == "cpu" and self.cores is not None and -(-ranks // hosts) > self.cores

    def calls(self, ranks: int, hosts: int) -> Calls | None:
        """How the MPI library is called on so many ranks and hosts: as it was there, else as it was where ranks share
        cores like those; None over another backend.
        """

        def unlike(dataset: Dataset) -> tuple[bool, bool]:
            shape = _shape_of_run(dataset.runs[0])
            return shape != (ranks, hosts), self.oversubscribed(*shape) != self.oversubscribed(ranks, hosts)

        return _calls_of(min(self._datasets, key=unlike), (self.curves or self.of_op)[0].key)

    def observations(self) -> tuple[Observation, ...]:
        """Every measured point of every op, for a fit over all of them."""
        return tuple(
            Observation(
                op=one.key.op,
                backend=one.key.backend,
                cost_models=one.key.cost_models,
                ranks=len(one.key.ranks),
                hosts=one.key.hosts,
                size_bytes=point.size_bytes,
                seconds=point.time_ns / 1e9,
                launches=tuple(median / 1e9 for median in point.launch_medians_ns),
                algorithm=None if algorithm_of(one.key) == LIBRARY else algorithm_of(one.key),
                oversubscribed=self.oversubscribed(*shape_of(one)),
                # What the launches of one group of runs had in common, all of its curves have.
                launch_set=f"{place}",
                launch_keys=point.launch_keys,
                calls=_calls_of(dataset, one.key),
            )
            for one in self.everything
            for place, dataset in [next((at, of) for at, of in enumerate(self._datasets) if one in series_of(of))]
            for point in one.points
        )


def _calls_of(dataset: Dataset, key: SeriesKey) -> Calls | None:
    library = library_of_run(dataset)
    return None if library is None or key.cost_models != MPI else Calls(library, key.dtype, key.mode)


def _shape_of_run(stored: store.StoredRun) -> tuple[int, int]:
    """Ranks and hosts of a run."""
    return len(stored.run.hosts), len(set(stored.run.hosts))


def shape_of(series: Series) -> tuple[int, int]:
    """Ranks and hosts of a curve."""
    return len(series.key.ranks), series.key.hosts


def algorithm_of(key: SeriesKey) -> str:
    """The algorithm that was run over send/recv, or ``library`` for the backend's own."""
    return key.algorithm or LIBRARY


def read_groups(runs: Sequence[store.StoredRun], *, force: bool = False) -> tuple[Dataset, ...]:
    """``runs`` pooled by their numbers of ranks and hosts. Raises UnlikeRuns when two of them differ in more than that,
    naming the key and both values (``force`` takes them together all the same), AnalysisError when one is given twice.
    """
    names = [stored.run.id for stored in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise AnalysisError(f"run {twice} was given more than once; its launches would count twice", code="given-twice")
    shapes = grouped(runs, _shape_of_run)
    for stored in runs[1:]:
        found = _unlike(runs, stored)
        if found and not force:
            raise UnlikeRuns(
                f"these runs may not be used together: {found[0].text}; take runs of one machine and setting, "
                "or overrule it with --force"
            )
    return tuple(pool(tuple(members), force=force) for _, members in sorted(shapes.items()))


def _unlike(runs: Sequence[store.StoredRun], stored: store.StoredRun) -> list[Difference]:
    """What forbids to set ``stored`` beside ``runs``: differences from the first of all, and in the level of threads
    from the first whose ranks share cores, or do not, as its own.
    """
    first = runs[0]
    alike = next(one for one in runs if _shares_cores(one) == _shares_cores(stored))
    found = [one for one in differences(first, stored) if one.key != _THREADS or alike is first]
    if alike is not first:
        found += [one for one in differences(alike, stored) if one.key == _THREADS]
    return [one for one in found if one.key not in _OF_A_SHAPE and one.unknown_in is None]


def _shares_cores(stored: store.StoredRun) -> bool:
    """Whether some host has more ranks than cores that they may use."""
    hosts, environments = stored.run.hosts, stored.run.environments
    cores = {host: fact(environments.get(host, {}), "cpu.usable_cores") for host in hosts}
    return any(isinstance(count, int) and hosts.count(host) > count for host, count in cores.items())


def measured_curves(
    datasets: Sequence[Dataset], op: str, algorithm: str | None = None, **way: str | float | None
) -> MeasuredCurves:
    """What ``datasets`` know of ``op``, measured in the most usual way of those that they have, or in the one that
    ``way`` (``dtype``, ``mode``, ``imbalance``) asks for. Raises UsageError for an op or algorithm that is unknown,
    AnalysisError, with what there is, where the runs have nothing of it.
    """
    alone = [one for dataset in datasets for one in _alone(dataset)]
    wanted = algorithm or LIBRARY
    of_op = _of_op(alone, datasets, op)
    known = _known(of_op, op)
    if wanted not in known:
        message = f"--algorithm {wanted!r} is unknown for {op}; known: {', '.join(known)}"
        raise UsageError(message, code="algorithm-not-known")
    asked = {name: value for name, value in way.items() if value is not None}
    fitting = [one for one in of_op if all(getattr(one.key, name) == value for name, value in asked.items())]
    if not fitting:
        there = {name: sorted({_said(getattr(one.key, name)) for one in of_op}) for name in asked}
        has = "; ".join(f"{name}: {', '.join(values)}" for name, values in there.items())
        pairs = " and ".join(f"{name} {_said(value)}" for name, value in asked.items())
        raise AnalysisError(f"{op} was not measured with {pairs}; these runs have {has}", code="way-not-measured")
    usual = min((_way(one.key) for one in fitting), key=_unusual)
    curves: dict[tuple[int, int], Series] = {}
    for one in sorted(fitting, key=lambda one: (one.key.group != "all", -len(one.points))):
        if _way(one.key) == usual and algorithm_of(one.key) == wanted:
            curves.setdefault(shape_of(one), one)
    left_out = len({_way(one.key) for one in of_op}) - 1
    notes = [f"{op} was measured in {left_out + 1} ways; this is {_named(usual)}"] if left_out else []
    like: dict[tuple[object, ...], Series] = {(op, wanted, *shape): one for shape, one in curves.items()}
    ways, differ = _beside(alone, op, usual)
    for one in alone:
        if _way(one.key) == ways.get(one.key.op):
            like.setdefault((one.key.op, algorithm_of(one.key), *shape_of(one)), one)
    missing = sorted({shape_of(one) for one in of_op if algorithm_of(one.key) == wanted} - curves.keys())
    if missing:
        where = [f"{ranks} ranks{f' on {hosts} hosts' if hosts > 1 else ''}" for ranks, hosts in missing]
        notes.append(f"left out: {op} on {', '.join(where)}, which was not measured in that way")
    notes += differ
    key = of_op[0].key
    return MeasuredCurves(
        op=op,
        backend=key.backend,
        cost_models=key.cost_models,
        device=key.device,
        algorithm=wanted,
        curves=tuple(curves[shape] for shape in sorted(curves)),
        of_op=tuple(of_op),
        everything=tuple(like.values()),
        cores=_cores(datasets),
        notes=tuple(notes),
        _datasets=tuple(datasets),
    )


def _alone(dataset: Dataset) -> list[Series]:
    """The curves of groups beside which nobody else ran: what several at once take is another question."""
    many = {summary.index for summary in summarise(dataset) if len(summary.groups) > 1}
    return [one for one in series_of(dataset) if not any(point.case in many for point in one.points)]


def _of_op(alone: Sequence[Series], datasets: Iterable[Dataset], op: str) -> list[Series]:
    found = [one for one in alone if one.key.op == op]
    if found:
        return found
    known = {*UNMODELLED, *(model.op for model in MODELS)}
    if op not in known:
        refuse_unknown("--op", op, sorted(known), code="op-not-known")
    cases = [summary for dataset in datasets for summary in summarise(dataset) if summary.case.op == op]
    if cases:
        became = {f"{summary.state} ({'; '.join(summary.reasons) or 'no curve'})" for summary in cases}
        states = ", ".join(sorted(became))
        raise AnalysisError(f"{op} has no curve to predict from in these runs: {states}", code="no-curve")
    there = ", ".join(sorted({one.key.op for one in alone})) or "no op with a curve"
    raise AnalysisError(f"{op} was not measured in these runs; they have {there}", code="op-not-measured")


def _known(of_op: Iterable[Series], op: str) -> list[str]:
    named = [name for family in {one.key.cost_models for one in of_op} for name in algorithms(op, family)]
    return list(dict.fromkeys([LIBRARY, *named, *(algorithm_of(one.key) for one in of_op)]))


def _way(key: SeriesKey) -> SeriesKey:
    """How a curve was measured: its key without what it is of. Which algorithm was run over send/recv is no part of it,
    any other setting is.
    """
    return replace(key, op="", ranks=(), group="", hosts=0, algorithm=None)


def _beside(alone: Iterable[Series], op: str, usual: SeriesKey) -> tuple[dict[str, SeriesKey], list[str]]:
    """The way of each op that may stand beside ``op`` in its ``usual`` one, and what differs: all are timed alike, and
    each in one way on all ranks. Bytes are bytes; but what adds them up takes as long as its data type does.
    """
    others = [one.key for one in alone if one.key.op != op]
    timed = usual.mode, usual.sync, usual.cache
    timed_alike = [key for key in others if (key.mode, key.sync, key.cache) == timed]
    ways, notes = {op: usual}, []
    for other, keys in grouped(timed_alike, lambda key: key.op).items():
        best = min(keys, key=lambda key: (key.dtype != usual.dtype, _unusual(_way(key))))
        if None not in {best.dtype, usual.dtype} and best.dtype != usual.dtype and other not in UNMODELLED:
            adds = best.redop is not None and usual.redop is not None
            notes.append(f"{'left out: ' * adds}{other}{', which' * adds} was measured with {best.dtype} alone")
            if adds:
                continue
        ways[other] = _way(best)
    return ways, notes


def _unusual(way: SeriesKey) -> tuple[tuple[bool, ...], str]:
    return tuple(getattr(way, name, None) not in {usual, None} for name, usual in _USUAL.items()), str(way)


def _named(way: SeriesKey) -> str:
    named = {field.name: getattr(way, field.name) for field in fields(way) if field.name not in _UNTOLD}
    named["in_place"] = "in place" if way.in_place else "out of place"
    told = [str(value) for value in named.values() if value is not None]
    return ", ".join(told + settings_in_words(way))


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cores(datasets: Iterable[Dataset]) -> int | None:
    """The fewest cores that ranks may use on any host; None when no host tells."""
    found = [
        cores
        for dataset in datasets
        for host in set(dataset.hosts)
        if isinstance(cores := fact(dataset.environment(host), "cpu.usable_cores"), int)
    ]
    return min(found, default=None)


def joint_fits_of(datasets: Sequence[Dataset]) -> tuple[OneRegime, ...]:
    """A joint fit for every regime that ``datasets`` (one for each shape of world) have messages in, of all that was
    timed as the op is that was measured on most numbers of ranks; none for runs in which nothing was sent.
    """
    ops = Counter(
        op
        for dataset in datasets
        for op in dict.fromkeys(row.case.op for row in dataset.cases if row.state == "measured")
        if op not in UNMODELLED
    )
    for op, _ in ops.most_common():
        with suppress(AnalysisError):  # it was measured by several groups at once alone, of which no fit is made
            data = measured_curves(datasets, op)
            return fit_regimes([one for one in data.observations() if one.op not in UNMODELLED])
    return ()
