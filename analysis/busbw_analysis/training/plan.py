"""The layouts of a model that divide it and fit in memory, the fastest first; their sensitivity and scaling."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product
from statistics import median
from typing import Any, Final, TypeVar, get_args

import msgspec

from busbw.errors import AnalysisError, UsageError
from busbw.key_values import written
from busbw.units import counted
from busbw.workloads.model_rows import Model, flop_per_token
from busbw_analysis.training.calibration import calibrate
from busbw_analysis.training.held import MOST_MEMORY, interval, never_held
from busbw_analysis.training.layout import Layout, Recompute, Step, divisors, layouts, setting_text
from busbw_analysis.training.memory import Kernels, Memory, least_gpus, memory
from busbw_analysis.training.prices import Price, group_of
from busbw_analysis.training.step_time import Machine, Scenario, StepTime, step_time
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, Traffic, sent, traffic

MOST_SCALED: Final = 65536
SAID: Final = "TP > CP > PP > DP"
_SAID_ORDER: Final[tuple[Dimension, ...]] = ("tp", "cp", "pp", "dp")
_CHOSEN: Final = {*DIMENSIONS, "micro_batch", "vpp", "zero", "recompute", "imbalance", "gradients"}
"""Settings that are no fields of a layout which every layout of a plan has alike."""
_PARTS: Final = (1, 2, 3, 4, 6, 8)
_SMALL_BUBBLE: Final = 0.02
"""Interleaved parts of a stage to try; once the bubble is below this share, more parts are not tried, because they send
more.
"""
_SEQUENCES: Final = (1, 2, 4)
"""Sequences per micro-batch to try."""
_STAGES: Final = get_args(Recompute)
"""Recomputation to try: more and more."""
_Value = TypeVar("_Value")
OF_SEQUENCE: Final = 8192
"""Least tokens of a sequence on a rank with cp: what Llama 3 has in its longest (arXiv:2407.21783, table 4). Shorter
sequences are divided by nobody, because ranks then wait for each other in every layer.
"""
_MORE_HOSTS: Final = 32
"""More hosts to try if no layout fits."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to plan: a model on ``gpus`` GPUs, with ``batch`` sequences of ``sequence`` tokens per step.

    settings: of a layout, by key, that the user gave; others are searched, or have their default. Layouts that cannot
    have them are left out. ``gradients`` are given alone.
    room: memory of a GPU in bytes; None: memory is not checked.
    of_sequence: least tokens of a sequence on a rank with cp, unless cp is fixed, or nothing else fits or computes for
    half of the step.
    """

    model: Model
    gpus: int
    batch: int
    sequence: int
    settings: Mapping[str, Any]
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

    def share_of_peak(self, flop_per_second: float, *, causal: bool, seconds: float | None = None) -> float:
        """Model FLOP utilisation: FLOP that training needs, without recomputation, over the peak of all GPUs; of a step
        of so many ``seconds``, by default as predicted.
        """
        flop = flop_per_token(self.step.model, self.step.sequence, causal=causal) * self.step.batch * self.step.sequence
        return flop / ((seconds or self.time.total) * self.step.layout.gpus * flop_per_second)

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
    short: whether layouts with fewer than ``of_sequence`` tokens on a rank were left out.
    """

    layouts: tuple[Planned, ...]
    tried: int
    too_large: int
    refused: Mapping[str, int]
    short: bool = False


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
    chosen = request.settings.get("zero", 2) == 2 and "sync" not in request.settings
    return {"sync": "every micro-batch with ZeRO 2, to divide gradients"} if chosen else {}


def plan(request: Wanted, machine: Machine) -> Plan:
    """Time every layout. Raises UsageError if none divides the model, AnalysisError if none fits or has a price."""
    search = _Search(request, machine)
    refusals: list[UsageError] = []
    for choices in _choices(request, machine.per_host, refusals):
        search.among(choices)
    short = _choices(request, machine.per_host, refusals, short=True)
    if not search.best or min(search.best.values(), key=lambda planned: planned.time.total).time.binds != "compute":
        for choices in short:
            search.among(choices)
    what = f"{request.model.name} on {counted(request.gpus, 'GPU')}"
    if search.least is None or search.smallest is None:
        given = ", ".join(f"{written(name)} {setting_text(value)}" for name, value in request.settings.items())
        if refusals:  # degrees divide the model, but no layout can have the other settings
            raise UsageError(f"no layout of {what} is possible with {given}: {refusals[0]}", code="layout")
        raise UsageError(
            f"no layout of {what}{f' with {given}' if given else ''} divides its layers, heads, and a batch of "
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
        more = f"more GPUs, or more memory: {least_gpus(search.smallest, request.room or 0.0)}"
        more = next((f"{gpus} GPUs, or more memory" for gpus in _enough(request, machine.per_host)), more)
        raise AnalysisError(
            f"no layout of {what} fits {room}; the least, {least}, has {degrees}; use {more}", code="never-fits"
        )
    order = sorted(search.best.values(), key=lambda planned: planned.time.total)
    return Plan(tuple(order), search.tried, search.too_large, dict(search.refused), any(short))


def _enough(request: Wanted, per_host: int) -> Iterator[int]:
    """Numbers of GPUs of the next whole hosts that can hold the model."""
    first = request.gpus // per_host + 1
    for gpus in range(first * per_host, (first + _MORE_HOSTS) * per_host, per_host):
        more = replace(request, gpus=gpus)
        steps = chain(_choices(more, per_host, []), _choices(more, per_host, [], short=True))
        if any(memory(choices[-1], kernels=request.kernels).total <= (request.room or 0.0) for choices in steps):
            yield gpus


def with_reserve(request: Wanted, machine: Machine) -> Planned | None:
    """The fastest layout that fits even if it needs ``MOST_MEMORY`` times the computed memory; None if none does."""
    with suppress(UsageError, AnalysisError):
        return plan(replace(request, room=(request.room or 0.0) / MOST_MEMORY), machine).layouts[0]
    return None


def _suggest(request: Wanted) -> str:
    """Values that divide, for fixed degrees that no layout has; else another batch."""
    possible = list(_dividing(request))
    for name in DIMENSIONS:
        degrees = {getattr(layout, name) for layout in possible}
        if degrees and request.settings.get(name, min(degrees)) not in degrees:
            return f"{name} of {', '.join(map(str, sorted(degrees)))}"
    product = math.prod(degree for name, degree in request.settings.items() if name in DIMENSIONS and name != "ep")
    if request.gpus % product:
        return f"degrees whose product divides {request.gpus}, which {product} does not"
    sequences = request.settings.get("micro_batch")
    dividing = {divisor for layout in possible for divisor in divisors(request.batch // layout.dp)}
    if sequences is not None and dividing and sequences not in dividing:
        return f"micro-batch of {', '.join(map(str, sorted(dividing)[:24]))}"
    return f"another --batch ({request.gpus}), or other degrees with the product {request.gpus}"


def _dividing(request: Wanted) -> Iterator[Layout]:
    """All layouts whose replicas share the batch evenly."""
    model = msgspec.structs.replace(request.model, sequence=request.sequence)
    base = Layout(uneven=True, context=request.settings.get("context", "ring"))
    return (layout for layout in layouts(model, request.gpus, base) if request.batch % layout.dp == 0)


def _choices(
    request: Wanted, per_host: int, refusals: list[UsageError], *, short: bool = False
) -> Iterator[list[Step]]:
    """Steps for every choice of degrees, micro-batch and interleaved parts.

    Each list has more and more recomputation and zero, and needs less and less memory. short: only those in which cp
    leaves a rank less than ``of_sequence`` tokens of a sequence; none if cp is given. refusals: gets the first
    reason why other steps are impossible.
    """
    if short and "cp" in request.settings:
        return
    most = None if "cp" in request.settings else max(1, request.sequence // request.of_sequence)
    fixed = {name: value for name, value in request.settings.items() if name in DIMENSIONS}
    for layout in _dividing(request):
        if any(getattr(layout, name) != value for name, value in fixed.items()):
            continue
        if most is not None and (layout.cp > most) != short:
            continue
        whole = request.batch // layout.dp
        for sequences in _given(request.settings.get("micro_batch"), _SEQUENCES):
            if whole % sequences == 0:
                for parts in _given(request.settings.get("vpp"), _PARTS):
                    if steps := list(_steps(request, layout, per_host, (whole // sequences, parts), refusals)):
                        yield steps
                        if steps[0].layout.bubble_share < _SMALL_BUBBLE:
                            break


def _alike(layers: int, parts: int) -> bool:
    """Whether all parts have as many layers, or the first and the last one less for embedding and head, as in Llama 3.
    Parts of several lengths wait for each other longer than the formula says: 8 of 12 layers on 8 stages 3 %.
    """
    return layers % parts == 0 or (layers + 2) % parts == 0


def _given(value: _Value | None, otherwise: Sequence[_Value]) -> Sequence[_Value]:
    return otherwise if value is None else (value,)


def _steps(
    request: Wanted, layout: Layout, per_host: int, pieces: tuple[int, int], refusals: list[UsageError]
) -> Iterator[Step]:
    """The steps with so many micro-batches and parts of a stage (``pieces``)."""
    model, pp, given = request.model, layout.pp, request.settings
    micro_batches, parts = pieces
    possible = "vpp" in given or _alike(model.layers, pp * parts)
    if parts > 1 and (pp == 1 or micro_batches % pp or not possible):
        return
    split = layout.tp > 1 and request.sequence % (layout.tp * layout.cp) == 0
    limited = layout.ep % max(1, per_host // layout.tp) == 0  # else a host would have a part of a group
    uneven, hosts = model.layers % (pp * parts) > 0, per_host if limited else None
    alike = {"sequence_parallel": split, "uneven": uneven}
    alike |= {name: value for name, value in given.items() if name not in _CHOSEN}
    imbalance = given.get("imbalance", 1.0)
    if model.experts and "ep" not in given:
        imbalance = min(imbalance, layout.ep)  # a rank with all experts has the mean, whatever the routing
    stages = _given(given.get("recompute"), _STAGES)
    for recompute, zero in product(stages, _given(given.get("zero"), (0, 1, 2, 3))):
        sync = "every" if zero == 2 else None  # otherwise gradients stay whole until the last micro-batch
        try:
            divided = replace(
                layout,
                **{"micro_batches": micro_batches, "vpp": parts, "zero": zero, "recompute": recompute, "sync": sync}
                | alike,
            )
            yield Step(model, divided, request.batch, request.sequence, request.gradients, imbalance, hosts)
        except UsageError as error:
            if not refusals:
                refusals.append(error)


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

    low_seconds, high_seconds: its predicted 95 % interval (None: unknown). measured_seconds: of its steps (None: not
    measured, or too far from predictions). gains: relative change of its time with twice the network, memory rate or
    GPU. narrowed_seconds: half of the interval of such a layout, once a step is measured. not_validated:
    operations whose calls were not measured, or failed validation; the largest has S = largest_bytes. memory_share: of
    a GPU's memory (None: unknown).
    """

    low_seconds: float | None
    high_seconds: float | None
    measured_seconds: float | None
    gains: Mapping[str, float]
    narrowed_seconds: float
    never_held: Sequence[str]
    not_validated: Sequence[str]
    largest_bytes: int
    memory_share: float | None

    @property
    def tight(self) -> bool:
        """Whether the memory may not suffice, by the errors of its computation."""
        return (self.memory_share or 0.0) * MOST_MEMORY > 1


TimedSteps = Sequence[tuple[Step, float]]
"""Measured steps and their seconds."""


def measured_seconds(step: Step, measured: TimedSteps) -> float | None:
    """The median of the measured times of ``step``; None if it was not measured."""
    same = [seconds for other, seconds in measured if replace(other, ranks_per_host=step.ranks_per_host) == step]
    return median(same) if same else None


def closing(best: Planned, machine: Machine, measured: TimedSteps = (), room: float | None = None) -> Closing:
    """What limits the fastest layout, what would make it faster, and what one measured step of it would tell if it is
    not among those ``measured``. room: bytes of a GPU.
    """
    step, now = best.step, best.time.total
    low, high = best.ends(machine) or (None, None)
    memory_rate = machine.speed.memory
    wider = replace(machine.speed, memory=None if memory_rate is None else 2 * memory_rate)
    times = {
        "network": step_time(step, machine, Scenario("", between=2.0, inside=2.0, latency=0.5)),
        "memory": step_time(step, replace(machine, speed=wider)),
        "GPU": step_time(step, machine, Scenario("", compute=2.0)),
    }
    known = measured_seconds(step, measured)
    once = interval(step, calibrate(machine, [(step, now)]).machine if known is None else machine, now)
    rows = [row for stage in step.kinds for row in traffic(step, stage)]
    doubtful = [row for row in rows if not _price(machine, step.layout, row).validated]
    return Closing(
        low,
        high,
        known,
        {name: time.total / now - 1 for name, time in times.items()},
        0.0 if once is None else (once[1] - once[0]) / 2,
        tuple(never_held(step, machine)),
        sorted({row.op for row in doubtful}),
        max((row.size_bytes for row in doubtful), default=0),
        None if room is None else best.memory.total / room,
    )


def _price(machine: Machine, layout: Layout, row: Traffic) -> Price:
    return machine.prices.price(row.op, row.size_bytes, group_of(layout, row, machine.per_host))


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
        latency = _price(machine, step.layout, row).latency
        latencies[row.dimension] = latencies.get(row.dimension, 0.0) + latency
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
    dp = next(
        (degree for degree in divisors(layout.dp) if degree * layout.cp % (layout.shard or layout.ep) == 0), layout.dp
    )
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
