"""The layouts of a model that divide it and fit in memory, the fastest first; their sensitivity, scaling and tables."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from busbw.errors import AnalysisError, UsageError
from busbw.units import counted, format_seconds
from busbw.workloads.model_rows import Model, flop_per_token
from busbw_analysis.predict import Questions
from busbw_analysis.report.document import Block, Column, Paragraph, Table, table
from busbw_analysis.report.plots import save
from busbw_analysis.training.calibration import calibrate
from busbw_analysis.training.held import interval, never_held
from busbw_analysis.training.layout import (
    AS_FRAMEWORKS,
    Layout,
    Recompute,
    Step,
    default_gradients,
    divisors,
    gigabytes,
    layout_text,
    layouts,
    percent_of,
)
from busbw_analysis.training.machine import machine_of
from busbw_analysis.training.memory import Kernels, Memory, least_gpus, memory
from busbw_analysis.training.prices import Measured, group_of
from busbw_analysis.training.step_time import Machine, Scenario, StepTime, step_time
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, sent, traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SCALED: Final = 65536
SAID: Final = "TP > CP > PP > DP"
_SAID_ORDER: Final[tuple[Dimension, ...]] = ("tp", "cp", "pp", "dp")
FIXED: Final = ("dp", "tp", "pp", "cp", "ep", "zero", "vpp", "micro_batch")
"""Settings that are searched unless ``Wanted.fixed`` has them."""
LIKE: Final = ("recompute", "schedule", "context", "fp8", "hide_experts", "zero_bubble")
"""Settings that are the same in every layout of a plan."""
_PARTS: Final = (1, 2, 3, 4, 6, 8)
_SMALL_BUBBLE: Final = 0.02
"""Interleaved parts of a stage to try; once the bubble is below this share, more parts are not tried, because they send
more.
"""
_SEQUENCES: Final = (1, 2, 4)
"""Sequences per micro-batch to try."""
OF_SEQUENCE: Final = 8192
"""Least tokens of a sequence on a rank with cp: what Llama 3 has in its longest (arXiv:2407.21783, table 4). Shorter
sequences are divided by nobody, because ranks then wait for each other in every layer.
"""
_MOST_NOTES: Final = 6
_TOP: Final = 5
"""Layouts of a plan in a report."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to plan: a model on ``gpus`` GPUs, with ``batch`` sequences of ``sequence`` tokens per step.

    like: all settings that are not searched.
    fixed: degrees that the user gave.
    sequence_parallel: use it wherever tp is 2 or more.
    room: memory of a GPU in bytes; None: memory is not checked.
    of_sequence: least tokens of a sequence on a rank with cp, unless cp is fixed or nothing else fits.
    """

    model: Model
    gpus: int
    batch: int
    sequence: int
    like: Layout
    fixed: Mapping[str, int]
    sequence_parallel: bool = True
    room: float | None = None
    of_sequence: int = OF_SEQUENCE
    kernels: Kernels | None = None
    gradients: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A layout with its step time and the memory of a rank."""

    step: Step
    memory: Memory
    time: StepTime

    def share_of_peak(self, flop_per_second: float, *, causal: bool) -> float:
        """Model FLOP utilisation: FLOP that training needs, without recomputation, over the peak of all GPUs."""
        flop = flop_per_token(self.step.model, self.step.sequence, causal=causal) * self.step.batch * self.step.sequence
        return flop / (self.time.total * self.step.layout.gpus * flop_per_second)

    def ends(self, machine: Machine) -> tuple[float, float] | None:
        """The 95 % interval of the step time: all calls at the low or high end of theirs, or as far as such steps were
        from measured ones; None if neither is known.
        """
        if machine.deviation is not None or any(price.low is None or price.high is None for price in self.time.prices):
            return interval(self.step, machine, self.time.total)
        if not self.time.prices:
            return None
        low, high = (step_time(self.step, machine, Scenario(end=end)).total for end in ("low", "high"))
        return low, high

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Which calls lie outside the measured range, and how; the most frequent first."""
        counts = Counter(words for price in self.time.prices for words in price.extrapolated)
        return tuple(words for words, _ in counts.most_common())

    @property
    def not_validated(self) -> int:
        """Kinds of calls whose prediction failed validation on held-out data."""
        return sum(not price.validated for price in self.time.prices)


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts, the fastest first, one for each choice of degrees.

    tried: steps that were timed.
    too_large: steps that do not fit in memory.
    refused: reasons why other steps have no time, with their counts.
    """

    layouts: tuple[Planned, ...]
    tried: int
    too_large: int
    refused: Mapping[str, int]


class _Search:
    """Results of a search so far: the fastest step for every choice of degrees, and the step with least memory."""

    def __init__(self, request: Wanted, machine: Machine) -> None:
        self.request, self.machine = request, machine
        self.best: dict[tuple[int, ...], Planned] = {}
        self.refused: Counter[str] = Counter()
        self.tried = self.too_large = 0
        self.least: Memory | None = None
        self.smallest: Step | None = None

    def among(self, choices: Sequence[Step]) -> None:
        """Time ``choices``, from most to least memory and least to most time: usually only the first that fits."""
        least = memory(choices[-1], kernels=self.request.kernels)
        room = math.inf if self.request.room is None else self.request.room
        if self.least is None or least.total < self.least.total:
            self.least, self.smallest = least, choices[-1]
        if least.total - least.buffers > room:
            self.too_large += len(choices)
            return
        for step in choices:
            needs = memory(step, kernels=self.request.kernels)
            if needs.total > room:
                self.too_large += 1
                continue
            self.tried += 1
            try:
                planned = Planned(step, needs, step_time(step, self.machine))
            except AnalysisError as error:
                self.refused[str(error)] += 1
                return
            layout = step.layout
            key = tuple(getattr(layout, name) for name in DIMENSIONS)
            if key not in self.best or planned.time.total < self.best[key].time.total:
                self.best[key] = planned
            if layout.zero == 1 or (layout.zero == 0 and layout.replicas == 1):
                return  # more zero sends more without saving work; more recomputation computes more


def assumed_settings(request: Wanted) -> dict[str, str]:
    """Settings that a plan chooses by itself, by key of a layout, in words."""
    return {"sync": "every with zero=2, to divide gradients"} if request.fixed.get("zero", 2) == 2 else {}


def plan(request: Wanted, machine: Machine) -> Plan:
    """Time every layout. Raises UsageError if none divides the model, AnalysisError if none fits or has a price."""
    search = _Search(request, machine)
    for choices in _choices(request, machine.per_host):
        search.among(choices)
    if not search.best and "cp" not in request.fixed:
        for choices in _choices(request, machine.per_host, short=True):
            search.among(choices)
    what = f"{request.model.name} on {request.gpus} GPUs"
    if search.least is None or search.smallest is None:
        fixed = ", ".join(f"{name} {value}" for name, value in request.fixed.items())
        raise UsageError(
            f"no layout of {what}{f' with {fixed}' if fixed else ''} divides its layers, heads, and a batch of "
            f"{request.batch} sequences of {request.sequence}; use {_suggest(request)}",
            code="divides",
        )
    if not search.best and search.refused:
        raise AnalysisError(
            f"no layout of {what} can be timed: {next(iter(search.refused))}; give the missing rates by --network",
            code="no-price",
        )
    if not search.best:
        degrees = ", ".join(f"{name} {getattr(search.smallest.layout, name)}" for name in DIMENSIONS)
        room, least = (f"{bytes_ / 1e9:.4g} GB" for bytes_ in (request.room or 0.0, search.least.total))
        raise AnalysisError(
            f"no layout of {what} fits {room}; the least, {least}, has {degrees}; use more GPUs, or more memory: "
            f"{least_gpus(search.smallest, request.room or 0.0)}",
            code="never-fits",
        )
    order = sorted(search.best.values(), key=lambda planned: planned.time.total)
    return Plan(tuple(order), search.tried, search.too_large, dict(search.refused))


def _suggest(request: Wanted) -> str:
    """Values that divide, for fixed degrees that no layout has; else another batch."""
    possible = list(_dividing(request))
    for name in DIMENSIONS:
        degrees = {getattr(layout, name) for layout in possible}
        if degrees and request.fixed.get(name, min(degrees)) not in degrees:
            return f"{name} of {', '.join(map(str, sorted(degrees)))}"
    product = math.prod(degree for name, degree in request.fixed.items() if name in DIMENSIONS and name != "ep")
    if request.gpus % product:
        return f"degrees whose product divides {request.gpus}, which {product} does not"
    sequences = request.fixed.get("micro_batch")
    dividing = {divisor for layout in possible for divisor in divisors(request.batch // layout.dp)}
    if sequences is not None and dividing and sequences not in dividing:
        return f"micro-batch of {', '.join(map(str, sorted(dividing)[:24]))}"
    return f"another --batch ({request.gpus}), or other degrees with the product {request.gpus}"


def _dividing(request: Wanted) -> Iterator[Layout]:
    """All layouts whose replicas share the batch evenly."""
    model = msgspec.structs.replace(request.model, sequence=request.sequence)
    base = replace(request.like, uneven=True, zero=0, micro_batches=1, vpp=1)
    return (layout for layout in layouts(model, request.gpus, base) if request.batch % layout.dp == 0)


def _choices(request: Wanted, per_host: int, *, short: bool = False) -> Iterator[list[Step]]:
    """Steps for every choice of degrees, micro-batch and interleaved parts.

    Each list has more and more recomputation and zero, and needs less and less memory. short: only those in which cp
    leaves a rank less than ``of_sequence`` tokens of a sequence, which are tried if nothing else fits.
    """
    most = None if "cp" in request.fixed else max(1, request.sequence // request.of_sequence)
    fixed = {name: value for name, value in request.fixed.items() if name in DIMENSIONS}
    for layout in _dividing(request):
        if any(getattr(layout, name) != value for name, value in fixed.items()):
            continue
        if most is not None and (layout.cp > most) != short:
            continue
        whole = request.batch // layout.dp
        for sequences in _given(request.fixed.get("micro_batch"), _SEQUENCES):
            if whole % sequences == 0:
                for parts in _given(request.fixed.get("vpp"), _PARTS):
                    if steps := list(_steps(request, layout, per_host, whole // sequences, parts)):
                        yield steps
                        if steps[0].layout.bubble_share < _SMALL_BUBBLE:
                            break


def _given(value: int | None, otherwise: Sequence[int]) -> Sequence[int]:
    return otherwise if value is None else (value,)


def _steps(request: Wanted, layout: Layout, per_host: int, micro_batches: int, parts: int) -> Iterator[Step]:
    model, pp = request.model, layout.pp
    if parts > 1 and (pp == 1 or micro_batches % pp or pp * parts > model.layers or layout.schedule == "gpipe"):
        return
    stages: tuple[Recompute, ...] = (
        ("none", "selective", "full") if request.like.recompute == "none" else (request.like.recompute,)
    )
    split = request.sequence_parallel and layout.tp > 1 and request.sequence % (layout.tp * layout.cp) == 0
    limited = layout.ep % max(1, per_host // layout.tp) == 0  # else a host would have a part of a group
    uneven, hosts = model.layers % (pp * parts) > 0, per_host if limited else None
    arranged = replace(layout, micro_batches=micro_batches, vpp=parts, sequence_parallel=split, uneven=uneven)
    for recompute, zero in product(stages, _given(request.fixed.get("zero"), (0, 1, 2, 3))):
        sync = "every" if zero == 2 else request.like.sync  # otherwise gradients stay whole until the last micro-batch
        with suppress(UsageError):
            divided = replace(arranged, zero=zero, sync=sync, recompute=recompute)
            yield Step(model, divided, request.batch, request.sequence, request.gradients, 1.0, hosts)


# --- sensitivity ---------------------------------------------------------------------------------------------------


SCENARIOS: Final = (
    Scenario("twice the rate between hosts", between=2.0),
    Scenario("twice the rate inside hosts", inside=2.0),
    Scenario("half the latency", latency=0.5),
    Scenario("twice the compute", compute=2.0),
    Scenario("all possible overlap", overlap=1.0),
    Scenario("no overlap", overlap=0.0),
)


def sensitivity(planned: Planned, machine: Machine) -> dict[str, float]:
    """Relative change of the step time in the same layout if one property of the machine changes.

    Without any latency, as on a network that is described without delay, that of the latency is left out.
    """
    now, has_latency = planned.time.total, any(price.latency for price in planned.time.prices)
    scenarios = [scenario for scenario in SCENARIOS if has_latency or scenario.latency == 1]
    return {scenario.name: step_time(planned.step, machine, scenario).total / now - 1 for scenario in scenarios}


@dataclass(frozen=True, slots=True)
class Closing:
    """What to know of the fastest layout.

    low_seconds, high_seconds: its 95 % interval (None: unknown). gains: relative change of its time with twice the
    network, memory rate or GPU. narrowed_seconds: half of the interval, once a step of it is measured.
    """

    low_seconds: float | None
    high_seconds: float | None
    gains: Mapping[str, float]
    narrowed_seconds: float
    never_held: Sequence[str]


def closing(best: Planned, machine: Machine) -> Closing:
    """What limits the fastest layout, what would make it faster, and what one measured step of it would tell."""
    step, now = best.step, best.time.total
    low, high = best.ends(machine) or (None, None)
    memory_rate = machine.speed.memory
    wider = replace(machine.speed, memory=None if memory_rate is None else 2 * memory_rate)
    times = {
        "network": step_time(step, machine, Scenario("", between=2.0, inside=2.0, latency=0.5)),
        "memory": step_time(step, replace(machine, speed=wider)),
        "GPU": step_time(step, machine, Scenario("", compute=2.0)),
    }
    once = interval(step, calibrate(machine, [(step, now)]).machine, now)
    return Closing(
        low,
        high,
        {name: time.total / now - 1 for name, time in times.items()},
        0.0 if once is None else (once[1] - once[0]) / 2,
        tuple(never_held(step, machine)),
    )


def closing_words(best: Planned, summary: Closing) -> str:
    """``summary`` as one sentence."""
    layout, now = short_words(best.step.layout, best.step.micro_batch), best.time.total
    low, high = summary.low_seconds, summary.high_seconds
    within = "" if low is None or high is None else f" ({format_seconds(low)} to {format_seconds(high)})"
    gains = ", ".join(
        f"{name} {format_seconds(now * (1 + change))} ({change:+.0%})" for name, change in summary.gains.items()
    )
    narrowed = f"± {format_seconds(summary.narrowed_seconds)} (± {summary.narrowed_seconds / now:.0%})"
    never = f"; no step {' or '.join(summary.never_held)} was ever held against a measurement" * bool(
        summary.never_held
    )
    return (
        f"{layout} takes {format_seconds(now)}{within}, limited by {best.time.binds}; with twice the {gains}; one "
        f"measured step of it (--measured) would narrow that to {narrowed}{never}."
    )


@dataclass(frozen=True, slots=True)
class Order:
    """The dimensions of a layout, sorted by one measure. Without ``values`` it cannot be told."""

    by: str
    values: Mapping[Dimension, float]

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """All dimensions, the largest first."""
        return tuple(sorted(self.values, key=lambda dimension: -self.values[dimension]))

    @property
    def holds(self) -> bool | None:
        """Whether TP > CP > PP > DP holds for the dimensions used; None for fewer than two."""
        ordered = [self.values[dimension] for dimension in _SAID_ORDER if dimension in self.values]
        return None if len(ordered) < 2 else all(value > other for value, other in pairwise(ordered))


def compare_rules(planned: Planned, machine: Machine) -> tuple[Order, ...]:
    """The dimensions that a layout uses, by bytes, messages, exposed time, and the cost of twice the latency.

    The last cannot be told if the latency of one of them is unknown, as on a network that is described without delay.
    """
    step = planned.step
    rows = traffic(step)
    used = [dimension for dimension in _SAID_ORDER if sent(rows, dimension)]
    latencies: dict[Dimension, float] = {}
    for row in rows:
        price = machine.prices.price(row.op, row.size_bytes, group_of(step.layout, row, machine.per_host))
        latencies[row.dimension] = latencies.get(row.dimension, 0.0) + price.latency
    has_latency = all(latencies[dimension] for dimension in used)
    measures: dict[str, Callable[[Dimension], float]] = {
        "bytes": lambda dimension: sent(rows, dimension),
        "messages": lambda dimension: sum(row.messages for row in rows if row.dimension == dimension),
        "exposed time": lambda dimension: planned.time.exposed.get(dimension, 0.0),
        "twice the latency": lambda dimension: (
            step_time(step, machine, Scenario(latency=2.0, latency_of=dimension)).total - planned.time.total
        ),
    }
    return tuple(
        Order(name, {dimension: measure(dimension) for dimension in used if has_latency or name != "twice the latency"})
        for name, measure in measures.items()
    )


def with_most_dimensions(plan: Plan) -> Planned:
    """The fastest layout among those that use most of tp, cp, pp and dp, because rules on their order need several."""

    def used(planned: Planned) -> int:
        return sum(getattr(planned.step.layout, name) > 1 for name in _SAID_ORDER)

    return max(plan.layouts, key=lambda planned: (used(planned), -planned.time.total))


# --- scaling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scaled:
    """The same degrees except dp on other numbers of GPUs.

    points: (GPUs, step time).
    """

    kind: str
    points: tuple[tuple[int, StepTime], ...]

    @property
    def takes_over(self) -> int | None:
        """The fewest GPUs for which exposed communication takes longer than computation; None if there are none."""
        return next((gpus for gpus, time in self.points if time.communication > time.compute), None)


def scaling(
    planned: Planned, machine: Machine, room: float | None = None, kernels: Kernels | None = None
) -> tuple[Scaled, Scaled]:
    """Weak scaling, where the batch grows with the GPUs, and strong scaling, where it is fixed.

    GPUs double from one replica to 65,536. In strong scaling, micro-batches decrease to one; then cp splits each
    sequence over more ranks. Steps that need more than ``room`` bytes are left out (None: memory is not checked).
    """
    step, layout = planned.step, planned.step.layout
    one_replica = layout.tp * layout.pp * layout.cp
    dp = next((degree for degree in divisors(layout.dp) if degree * layout.cp % layout.ep == 0), layout.dp)
    replicas = [dp << more for more in range((MOST_SCALED // (dp * one_replica)).bit_length())]
    weak = [(replace(layout, dp=dp), step.batch * dp // layout.dp) for dp in replicas]
    strong = [(layout, step.batch) for layout in _of_one_batch(step, replicas)]

    def timed(steps: list[tuple[Layout, int]]) -> Iterator[tuple[int, StepTime]]:
        for grown, batch in steps:
            with suppress(UsageError, AnalysisError):
                scaled = replace(step, layout=grown, batch=batch)
                if room is None or memory(scaled, kernels=kernels).total <= room:
                    yield grown.gpus, step_time(scaled, machine)

    return Scaled("weak", tuple(timed(weak))), Scaled("strong", tuple(timed(strong)))


def _of_one_batch(step: Step, replicas: Sequence[int]) -> Iterator[Layout]:
    """Layouts on more and more GPUs for a fixed batch: fewer micro-batches, then more cp."""
    last: Layout | None = None
    for dp in replicas:
        whole, left = divmod(step.batch, dp * step.micro_batch)
        if whole and not left:
            parts = step.layout.vpp if whole % step.layout.pp == 0 else 1
            last = replace(step.layout, dp=dp, micro_batches=whole, vpp=parts)
            yield last
    while last is not None and 2 * last.gpus <= MOST_SCALED:
        last = replace(last, cp=2 * last.cp)
        yield last


def dimensions_used(layouts: Sequence[Planned]) -> tuple[Dimension, ...]:
    """Dimensions with exposed communication in any of these layouts."""
    return tuple(
        dimension for dimension in DIMENSIONS if any(planned.time.exposed.get(dimension) for planned in layouts)
    )


# --- tables and figure ---------------------------------------------------------------------------------------------


def short_words(layout: Layout, micro_batch: int) -> str:
    """``dp 64, tp 8, pp 4, 2 parts a stage, ZeRO 1; 16 micro-batches of 1``: degrees above 1, and a replica's."""
    degrees = [f"{name} {value}" for name in ("dp", "tp", "pp", "cp", "ep") if (value := getattr(layout, name)) > 1]
    parts = [f"{layout.vpp} parts a stage"] if layout.vpp > 1 else []
    zero = [f"ZeRO {layout.zero}"] if layout.zero else []
    again = [f"recompute {layout.recompute}"] if layout.recompute != "none" else []
    computed = f"{counted(layout.micro_batches, 'micro-batch', 'micro-batches')} of {micro_batch}"
    return f"{', '.join([*(degrees or ['dp 1']), *parts, *zero, *again])}; {computed}"


def plan_headline(plan: Plan, machine: Machine, peak: float) -> str:
    """The fastest layout, its step time with the interval, its limit, and whether to trust it."""
    best = plan.layouts[0]
    ends, calls = best.ends(machine), len(best.time.prices)
    interval = "no interval" if ends is None else f"{format_seconds(ends[0])} to {format_seconds(ends[1])}, 95 %"
    share = percent_of(best.share_of_peak(peak, causal=machine.causal))
    of_peak = f"{share} % of the peak, " if peak != machine.speed.flop_per_second else ""
    layout = short_words(best.step.layout, best.step.micro_batch)
    trust = []
    if best.not_validated:
        trust.append(f"{best.not_validated} of {calls} kinds of calls NOT VALIDATED")
    if best.extrapolated:
        trust.append("EXTRAPOLATED")
    step = f"{layout}: {format_seconds(best.time.total)} a step ({interval}), {of_peak}bound by {best.time.binds}"
    return f"Fastest: {'; '.join([step, *trust])}"


def plan_tables(
    request: Wanted, plan: Plan, kept: Sequence[Planned], machine: Machine, peak: float, assumed: Mapping[str, str]
) -> Iterator[Table]:
    """The fastest layouts with the parts of their steps."""

    def interval(planned: Planned) -> str | None:
        ends = planned.ends(machine)
        return None if ends is None else f"{format_seconds(ends[0])} to {format_seconds(ends[1])}"

    def exposed(name: str) -> Column[Planned]:
        return Column(name, lambda planned: planned.time.parts[name] or None, format_seconds)

    columns: tuple[Column[Planned], ...] = (
        Column("layout", lambda planned: short_words(planned.step.layout, planned.step.micro_batch)),
        Column("step", lambda planned: planned.time.total, format_seconds),
        *([Column("95 %", interval, str)] if any(map(interval, kept)) else []),
        Column("compute", lambda planned: planned.time.compute, format_seconds),
        exposed("bubble"),
        *map(exposed, dimensions_used(kept)),
        Column("binds", lambda planned: planned.time.binds),
        Column("of peak", lambda planned: planned.share_of_peak(peak, causal=machine.causal), percent_of, "%"),
        Column("a rank", lambda planned: planned.memory.total, gigabytes),
    )
    best = kept[0]
    origins = ", ".join(sorted({price.origin for price in best.time.prices}))
    extrapolated = best.extrapolated
    by_what = "the datasheet" if peak != machine.speed.flop_per_second else "the rate below"
    notes = [
        f"{plan.tried} steps were timed, {plan.too_large} do not fit; one layout is shown per choice of degrees",
        *(f"left out, {count} times: {why}" for why, count in list(plan.refused.items())[:_MOST_NOTES]),
        f"first layout in other commands: --layout {layout_text(best.step)}",
        f"dp to ep: exposed communication; of peak: model FLOP over those possible on all GPUs by {by_what}",
        *(f"{name}: {words}" for name, words in assumed.items()),
        f"first layout: {best.not_validated} of {len(best.time.prices)} kinds of calls not validated; by {origins}"
        if origins
        else "the first layout sends nothing",
        *(f"extrapolated: {words}" for words in extrapolated[:_MOST_NOTES]),
        f"extrapolated: and {len(extrapolated) - _MOST_NOTES} more" if len(extrapolated) > _MOST_NOTES else "",
    ]
    title = f"{request.model.name} on {request.gpus} GPUs; batch {request.batch}, sequence {request.sequence}"
    yield table(title, columns, kept, *notes)


def change_tables(changes: Mapping[str, float], grown: Sequence[Scaled], best: Planned) -> Iterator[Table]:
    """The sensitivity of the first layout, and its scaling."""
    columns: tuple[Column[tuple[str, float]], ...] = (
        Column("first layout with", lambda row: row[0]),
        Column("step", lambda row: row[1], "{:+.1%}".format),
    )
    yield table("", columns, list(changes.items()))
    points: tuple[Column[tuple[str, int, StepTime]], ...] = (
        Column("scaling", lambda row: row[0]),
        Column("GPUs", lambda row: row[1], str),
        Column("step", lambda row: row[2].total, format_seconds),
        Column("compute", lambda row: row[2].compute, format_seconds),
        Column("bubble", lambda row: row[2].bubble or None, format_seconds),
        Column("exposed", lambda row: row[2].communication, format_seconds),
    )
    rows = [(scaled.kind, gpus, time) for scaled in grown for gpus, time in scaled.points]
    takes = [
        f"{scaled.kind}: communication takes longer than computation "
        + (f"from {scaled.takes_over} GPUs on" if scaled.takes_over else f"nowhere up to {scaled.points[-1][0]} GPUs")
        for scaled in grown
        if scaled.points
    ]
    words = short_words(best.step.layout, best.step.micro_batch)
    yield table(
        "",
        points,
        rows,
        f"{words}, with other dp, if it fits in memory",
        "weak: the batch grows with the GPUs; strong: it is fixed, and cp grows once every replica has one micro-batch",
        *takes,
    )


def rules_tables(compared: Planned, orders: Sequence[Order]) -> Iterator[Table]:
    """For which measures TP > CP > PP > DP holds."""
    columns: tuple[Column[Order], ...] = (
        Column("by", lambda order: order.by),
        Column("order", lambda order: " > ".join(name.upper() for name in order.dimensions) or "unknown"),
        Column(SAID, lambda order: {None: "–", True: "holds", False: "no"}[order.holds]),
        Column(
            "values", lambda order: ", ".join(f"{name} {value:.3g}" for name, value in order.values.items()) or None
        ),
    )
    yield table(
        "",
        columns,
        orders,
        f"for {compared.step.layout.gpus} GPUs, {layout_text(compared.step)}: the fastest layout with most dimensions",
        "bytes and messages: of a rank in a step; times: exposed seconds, and seconds added by twice the latency",
        ""
        if all(order.values for order in orders)
        else "unknown: the network is described without a delay of these calls",
    )


def save_plan(path: Path, planned: Sequence[Planned], grown: Sequence[Scaled]) -> None:
    """Write the figure in the format given by the suffix. Raises UsageError if it cannot be written."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - heavy

    figure = Figure(figsize=(10, 3 + 0.3 * len(planned) + 3.5), layout="constrained")
    rows = figure.add_gridspec(2, 2, height_ratios=(2 + 0.3 * len(planned), 3.5))
    _layouts(figure.add_subplot(rows[0, :]), planned)
    for place, scaled in enumerate(grown):
        _over_gpus(figure.add_subplot(rows[1, place]), scaled)
    save(figure, path)


def _colours(times: Sequence[StepTime]) -> dict[str, str]:
    """A colour for each part with time, the same in all panels."""
    names = times[0].parts if times else ()
    return {name: f"C{number}" for number, name in enumerate(names) if any(time.parts[name] for time in times)}


def _layouts(axes: "Axes", planned: Sequence[Planned]) -> None:
    """A bar for each layout, the fastest at the top: compute, bubble, and exposed communication by dimension."""
    names = [short_words(entry.step.layout, entry.step.micro_batch) for entry in planned][::-1]
    left = [0.0] * len(planned)
    for name, colour in _colours([entry.time for entry in planned]).items():
        wide = [entry.time.parts[name] for entry in planned][::-1]
        axes.barh(range(len(names)), wide, left=left, label=name, color=colour)
        left = [start + more for start, more in zip(left, wide, strict=True)]
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    axes.set(xlabel="time of a step (s)")
    axes.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=8, frameon=False)


def _over_gpus(axes: "Axes", scaled: Scaled) -> None:
    """Shares of the step over GPUs, and the number of GPUs from which communication dominates."""
    gpus = [count for count, _ in scaled.points]
    times = [time for _, time in scaled.points]
    colours = _colours(times)
    shares = [[100 * time.parts[name] / time.total for time in times] for name in colours]
    if gpus:
        axes.stackplot(gpus, shares, colors=list(colours.values()))
    if scaled.takes_over is not None:
        axes.axvline(scaled.takes_over, color="white", linewidth=1.0, linestyle=":")
        words = f"{scaled.takes_over:,} GPUs: communication takes over"
        axes.text(scaled.takes_over, 50, words, rotation=90, ha="right", va="center", color="white", fontsize="small")
    axes.set(xscale="log", xlim=(gpus[0] if gpus else 1, MOST_SCALED), ylim=(0, 100))
    axes.set(xlabel=f"GPUs, {scaled.kind} scaling", ylabel="share of a step (%)")


def planned_model(questions: Questions, model: Model) -> Iterator[Block]:
    """The fastest layouts of a model on the run's number of ranks."""
    ranks = max(len(results.facts.hosts) for results in questions.results)
    dtype = next((name for name in (model.dtype, "float32") if Measured(questions).flop_per_second(name)), model.dtype)
    gradients = default_gradients(model)
    try:
        on = machine_of(dtype, ranks, questions)
        request = Wanted(model, ranks, model.batch, model.sequence, Layout(), {}, room=on.room, gradients=gradients)
        planned = plan(request, on.machine)
    except (AnalysisError, UsageError) as error:
        yield Paragraph(f"{model.name}: {error}. See busbw training plan --from RUN.")
        return
    assumed = {**on.assumed, "gradients": f"{gradients}, {AS_FRAMEWORKS}", **assumed_settings(request)}
    best, peak = planned.layouts[0], on.peak or on.machine.speed.flop_per_second
    yield Paragraph(plan_headline(planned, on.machine, peak))
    yield from plan_tables(request, planned, planned.layouts[:_TOP], on.machine, peak, assumed)
    yield from change_tables(sensitivity(best, on.machine), scaling(best, on.machine, on.room), best)
