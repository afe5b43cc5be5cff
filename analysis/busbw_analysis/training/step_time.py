"""How long a step of training takes in a layout: computation, the pipeline's bubble, and communication that is exposed.

Every stage works through m micro-batches, each a forward and a backward pass with the calls that computation waits for;
the slowest stage decides, and the others fill and drain the pipeline (Narayanan et al. 2021, arXiv:2104.04473, section
2.2). Calls that can go on beside computation are hidden as far as there is enough of it, and as far as overlap reaches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from busbw_analysis.training.layout import Step
from busbw_analysis.training.prices import Group, Price, Prices, group_of
from busbw_analysis.training.roofline import optimizer_work, products_of, scores_of
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, Traffic, traffic

End = Literal["value", "low", "high"]
_Seconds = Callable[[Traffic], float]
_Rows = tuple[Traffic, ...]
_Parts = dict[Dimension, float]


@dataclass(frozen=True, slots=True)
class Machine:
    """What computes and what carries: FLOP/s that a rank achieves in matrix products, B/s of its memory for the
    optimizer (None: not counted), ranks of a host, the prices of calls, the share of a call that computation beside it
    hides, and the factor by which computation takes longer meanwhile.
    """

    flop_per_second: float
    per_host: int
    prices: Prices
    overlap: float = 1.0
    memory_bytes_per_second: float | None = None
    causal: bool = True
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A machine with other speeds, or one ``end`` of the intervals of its prices. ``latency_of``: the dimension whose
    latency alone is another (None: that of all).
    """

    name: str = "as it is"
    compute: float = 1.0
    between: float = 1.0
    inside: float = 1.0
    latency: float = 1.0
    latency_of: Dimension | None = None
    overlap: float | None = None
    end: End = "value"

    def seconds(self, price: Price, dimension: Dimension) -> float:
        """Of one call."""
        if self.end != "value":
            end = price.low if self.end == "low" else price.high
            return price.seconds if end is None else end
        latency = self.latency if self.latency_of in {None, dimension} else 1.0
        return price.latency * latency + price.moving / (self.between if price.far else self.inside)


AS_IT_IS: Final = Scenario()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step and its parts, which add up: ``compute`` of the slowest stage, ``bubble`` in which it waits for
    the pipeline to fill and drain, ``exposed`` communication by dimension, ``optimizer``. ``hidden``: communication
    beside computation. ``prices``: of all kinds of calls.
    """

    compute: float
    bubble: float
    optimizer: float
    exposed: Mapping[Dimension, float]
    hidden: Mapping[Dimension, float]
    prices: tuple[Price, ...] = field(repr=False)

    @property
    def communication(self) -> float:
        """All that is exposed."""
        return sum(self.exposed.values())

    @property
    def total(self) -> float:
        """Of the step."""
        return self.compute + self.bubble + self.optimizer + self.communication

    @property
    def parts(self) -> dict[str, float]:
        """All of them by name."""
        own = {"compute": self.compute, "bubble": self.bubble, "optimizer": self.optimizer}
        return {**own, **{one: self.exposed.get(one, 0.0) for one in DIMENSIONS}}

    @property
    def binds(self) -> str:
        """The longest part but computation where that is less than half of the step; else compute."""
        parts = self.parts
        rest = {name: seconds for name, seconds in parts.items() if name != "compute"}
        return "compute" if 2 * self.compute >= self.total else max(rest, key=lambda name: rest[name])


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage in one micro-batch: forward pass, backward pass with what is computed again, of both the attention, and
    seconds by dimension of what computation waits for.
    """

    forward: float
    backward: float
    attention: tuple[float, float]
    waits: Mapping[Dimension, float]

    @property
    def compute(self) -> float:
        return self.forward + self.backward

    @property
    def seconds(self) -> float:
        return self.compute + sum(self.waits.values())


def step_time(step: Step, machine: Machine, scenario: Scenario = AS_IT_IS) -> StepTime:
    """Of a step. T = m t + (Σ t_r − t)/v with the stages' t_r and the slowest one's t; behind it what could not be
    hidden. Raises AnalysisError where a call has no price.
    """
    layout, m = step.layout, step.layout.micro_batches
    told: dict[tuple[str, int, Group], Price] = {}

    def seconds(row: Traffic) -> float:
        key = row.op, row.size_bytes, group_of(layout, row, machine.per_host)
        if key not in told:
            told[key] = machine.prices.price(*key)
        return scenario.seconds(told[key], row.dimension)

    rows = {stage: traffic(step, stage) for stage in step.kinds}
    stages = {stage: _stage(step, stage, machine, scenario, rows[stage], seconds) for stage in rows}
    slowest = max(stages, key=lambda stage: stages[stage].seconds)
    busy = stages[slowest]
    together = sum(count * stages[stage].seconds for stage, count in step.kinds.items())
    bubble = max(0.0, together - busy.seconds) / layout.interleave
    exposed = {one: m * taken for one, taken in busy.waits.items()}
    messages = [row for row in rows[slowest] if row.dimension == "pp" and row.op == "send_recv"]
    if messages:
        exposed["pp"] = exposed.get("pp", 0.0) + hops_in_a_row(step) * max(map(seconds, messages))
    share = machine.overlap if scenario.overlap is None else scenario.overlap
    late, hidden = _beside(step, busy, rows[slowest], share, seconds)
    for one, taken in late.items():
        exposed[one] = exposed.get(one, 0.0) + taken
    compute = m * busy.compute + (machine.slowdown - 1) * sum(hidden.values())
    memory = machine.memory_bytes_per_second
    optimizer = 0.0 if memory is None else optimizer_work(step, slowest)[1] / memory
    return StepTime(compute, bubble, optimizer, exposed, hidden, tuple(told.values()))


def hops_in_a_row(step: Step) -> float:
    """Messages between stages that a step waits for one after the other, counted in played schedules: those that fill
    and drain the pipeline, 2(p−1), or 2(p v − 1) with v parts; with 1F1B and one part a stage has no pass to do in
    between, and waits in nearly every micro-batch: 2(p−1) m/p + 2(p−2), exact for m a multiple of p.
    """
    p, m, v = step.layout.pp, step.layout.micro_batches, step.layout.interleave
    if v > 1:
        return 2 * (p * v - 1)
    once = 2 * (p - 1)
    return once if step.layout.schedule == "gpipe" else max(once, once * m / p + 2 * (p - 2))


def _stage(step: Step, stage: int, machine: Machine, scenario: Scenario, rows: _Rows, seconds: _Seconds) -> _Stage:
    rate = machine.flop_per_second * scenario.compute
    products, _ = products_of(step, stage)
    scores = scores_of(step, stage, causal=machine.causal) / rate
    forward = 2 * products / rate + scores
    again = {"none": 0.0, "selective": scores, "full": forward}[step.layout.recompute]
    waits: dict[Dimension, float] = {}
    for row in rows:
        if not row.hideable:
            taken = row.messages * seconds(row) / step.layout.micro_batches
            waits[row.dimension] = waits.get(row.dimension, 0.0) + taken
    return _Stage(forward, 2 * forward + again, (scores, 2 * scores), waits)


def _beside(step: Step, busy: _Stage, rows: _Rows, share: float, seconds: _Seconds) -> tuple[_Parts, _Parts]:
    """What of the calls that can be hidden is exposed, and what is hidden: computation of their pass, which each takes
    away from the next. Of gradients that are reduced once that is the last micro-batch's backward pass, of weights
    gathered once the first one's forward pass; keys and values of ring attention have the attention alone. Messages of
    a pipeline are counted by hops.
    """
    m = step.layout.micro_batches
    left = {"forward": m * busy.forward, "backward": m * busy.backward}
    exposed: dict[Dimension, float] = {}
    hidden: dict[Dimension, float] = {}
    order: tuple[Dimension, ...] = ("cp", "tp", "ep", "dp")
    beside = [row for row in rows if row.hideable and row.dimension in order]
    for row in sorted(beside, key=lambda row: order.index(row.dimension)):
        side = "backward" if row.phase == "backward" else "forward"
        taken = row.messages * seconds(row)
        whole = busy.backward if side == "backward" else busy.forward
        if row.dimension == "cp":
            window = m * busy.attention[side == "backward"]
        elif row.dimension == "dp" and (row.phase == "optimizer" or step.layout.reduces == 1):
            window = whole
        else:
            window = m * whole
        covered = share * min(taken, window, left[side])
        left[side] -= covered
        hidden[row.dimension] = hidden.get(row.dimension, 0.0) + covered
        exposed[row.dimension] = exposed.get(row.dimension, 0.0) + taken - covered
    return exposed, hidden
