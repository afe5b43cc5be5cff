"""The time of a training step in a layout: computation, the pipeline's bubble, and exposed communication.

Every stage processes m micro-batches, each a forward and a backward pass with the calls that computation waits for. The
slowest stage decides; the others fill and drain the pipeline (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
Calls that can overlap are hidden as far as there is enough computation, and as far as ``overlap`` allows: gradients by
the last micro-batch's backward pass, weights that zero 1 and 2 gather by the first one's forward pass, ring attention
by attention. Of the hops of a pipeline, 2(p−1) are in a row with GPipe, 2(p−1) m/p + 2(p−2) with 1F1B, 2(p v − 1) with
interleaved parts; all others are hidden.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from busbw_analysis.training.kernels import Block, Pass, Speed, head, layer, shape_of
from busbw_analysis.training.layout import Step
from busbw_analysis.training.prices import Group, Price, Prices, group_of
from busbw_analysis.training.roofline import optimizer_work
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, Traffic, traffic

End = Literal["value", "low", "high"]
_Seconds = Callable[[Traffic], float]
_Rows = tuple[Traffic, ...]
_Parts = dict[Dimension, float]


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds of a machine.

    speed: of a rank in kernels.
    per_host: ranks per host.
    prices: times of calls.
    overlap: share of a call that concurrent computation hides.
    slowdown: factor by which computation takes longer meanwhile.
    gpu: whose datasheet ``speed`` is of (None: it was measured or given).
    deviation: standard deviation of the logarithm of a step, once measured steps have calibrated it.
    """

    speed: Speed
    per_host: int
    prices: Prices
    overlap: float = 1.0
    causal: bool = True
    slowdown: float = 1.0
    gpu: str | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A machine with other speeds, given as factors, or one ``end`` of the intervals of its prices.

    latency_of: the dimension whose latency changes (None: all).
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
        """Seconds of one call."""
        if self.end != "value":
            end = price.low if self.end == "low" else price.high
            return price.seconds if end is None else end
        latency = self.latency if self.latency_of in {None, dimension} else 1.0
        return price.latency * latency + price.moving / (self.between if price.far else self.inside)


_LEFT: Final = 1 / 3
"""Share of a bubble that gradients of weights do not fill, with passes for inputs and weights as long as forward."""
_SENDING: Final = 20 / 132
"""Share of the processors that send tokens to experts meanwhile (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2)."""
AS_IT_IS: Final = Scenario()


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step and its parts, which add up.

    compute: of the slowest stage.
    bubble: waiting for the pipeline to fill and drain.
    exposed: communication by dimension.
    hidden: communication that overlaps with computation.
    prices: of all kinds of calls.
    """

    compute: float
    bubble: float
    optimizer: float
    exposed: Mapping[Dimension, float]
    hidden: Mapping[Dimension, float]
    prices: tuple[Price, ...] = field(repr=False)

    @property
    def communication(self) -> float:
        """All exposed communication."""
        return sum(self.exposed.values())

    @property
    def total(self) -> float:
        """Seconds of the step."""
        return self.compute + self.bubble + self.optimizer + self.communication

    @property
    def parts(self) -> dict[str, float]:
        """All parts by name."""
        own = {"compute": self.compute, "bubble": self.bubble, "optimizer": self.optimizer}
        return {**own, **{dimension: self.exposed.get(dimension, 0.0) for dimension in DIMENSIONS}}

    @property
    def binds(self) -> str:
        """What limits the step: "compute" if it is at least half of the step, else the longest other part."""
        parts = self.parts
        rest = {name: seconds for name, seconds in parts.items() if name != "compute"}
        return "compute" if 2 * self.compute >= self.total else max(rest, key=lambda name: rest[name])


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage in one micro-batch.

    backward: with recomputation.
    attention: its part of the forward and of the backward pass.
    waits: seconds by dimension of calls that computation waits for.
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
    """The time of a step: T = m t + (Σ t_r − t)/v with the stages' t_r and the slowest one's t, plus exposed
    overlapping calls.

    Raises AnalysisError if a call has no price.
    """
    layout, m = step.layout, step.layout.micro_batches
    prices: dict[tuple[str, int, Group], Price] = {}

    def seconds(row: Traffic) -> float:
        key = row.op, row.size_bytes, group_of(layout, row, machine.per_host)
        if key not in prices:
            prices[key] = machine.prices.price(*key)
        return scenario.seconds(prices[key], row.dimension)

    rows = {stage: traffic(step, stage) for stage in step.kinds}
    stages = {stage: _stage(step, stage, machine, scenario, rows[stage], seconds) for stage in rows}
    slowest = max(stages, key=lambda stage: stages[stage].seconds)
    busy = stages[slowest]
    together = sum(count * stages[stage].seconds for stage, count in step.kinds.items())
    bubble = max(0.0, together - busy.seconds) / layout.vpp * (_LEFT if layout.zero_bubble else 1.0)
    exposed = {dimension: m * taken for dimension, taken in busy.waits.items()}
    messages = [row for row in rows[slowest] if row.dimension == "pp" and row.op == "send_recv"]
    if messages:
        exposed["pp"] = exposed.get("pp", 0.0) + hops_in_a_row(step) * max(map(seconds, messages))
    share = machine.overlap if scenario.overlap is None else scenario.overlap
    late, hidden = _overlapped(step, busy, rows[slowest], share, seconds)
    for dimension, taken in late.items():
        exposed[dimension] = exposed.get(dimension, 0.0) + taken
    compute = m * busy.compute + (machine.slowdown - 1) * sum(hidden.values())
    optimizer = machine.speed.moved(optimizer_work(step, slowest)[1])
    return StepTime(compute, bubble, optimizer, exposed, hidden, tuple(prices.values()))


def hops_in_a_row(step: Step) -> float:
    """Messages between stages that a step waits for one after the other, counted in simulated schedules.

    Filling and draining the pipeline takes 2(p−1), or 2(p v − 1) with v parts. With 1F1B and one part per stage there
    is no pass to compute in between, and nearly every micro-batch waits: 2(p−1) m/p + 2(p−2), exact for m a multiple of
    p.
    """
    p, m, v = step.layout.pp, step.layout.micro_batches, step.layout.vpp
    if v > 1:
        return 2 * (p * v - 1)
    once = 2 * (p - 1)
    return once if step.layout.schedule == "gpipe" else max(once, once * m / p + 2 * (p - 2))


def _stage(step: Step, stage: int, machine: Machine, scenario: Scenario, rows: _Rows, seconds: _Seconds) -> _Stage:
    speed, layout, model = machine.speed, step.layout, step.model
    at = shape_of(step, fused=not model.dropout, causal=machine.causal)
    forward = backward = light = repeated = Pass()
    scores = [Pass(), Pass()]
    for count, again, experts in zip(step.layers_of(stage), step.recomputed(stage), (False, True), strict=True):
        if count:
            block = layer(model, at, speed, experts)
            light, repeated = light.and_then(block.light, count), repeated.and_then(block.forward, again)
            forward, backward = forward.and_then(block.forward, count), backward.and_then(block.backward, count)
            scores = [whole.and_then(own, count) for whole, own in zip(scores, block.attention, strict=True)]
    again_of = {"none": Pass(), "selective": scores[0] if model.dropout else light, "full": repeated}
    backward = backward.and_then(again_of[layout.recompute])
    ends = head(model, at, speed) if stage == layout.pp - 1 else Block(Pass(), Pass())

    waits: dict[Dimension, float] = {}
    calls = {"forward": Pass(), "backward": Pass()}
    for row in rows:
        side = "backward" if row.phase == "backward" else "forward"
        if not row.hideable:
            each = row.messages / layout.micro_batches
            taken = each * seconds(row)
            waits[row.dimension] = waits.get(row.dimension, 0.0) + taken
            calls[side] = calls[side].and_then(Pass(taken, each))

    def seconds_of(*parts: Pass, side: str = "") -> float:
        """The GPU computes one part after the other, none before the host begins it or ends before the host does.
        Meanwhile the host goes on, also while the calls of ``side``, which are kernels, are waited for.
        """
        begun, ended = -calls[side].seconds if side else 0.0, 0.0
        for part in parts:
            on_gpu = part.seconds / (1 - _SENDING * layout.hide_experts) + part.kernels * speed.started
            ended = max(begun, ended) + on_gpu / scenario.compute
            begun += part.kernels * speed.launch
            ended = max(begun, ended)
        return ended

    forward = forward.and_then(Pass(0.0, calls["forward"].kernels))
    backward = backward.and_then(Pass(0.0, calls["backward"].kernels))
    return _Stage(
        seconds_of(forward, ends.forward, side="forward"),
        seconds_of(ends.backward, backward, side="backward"),
        (seconds_of(scores[0]), seconds_of(scores[1])),
        waits,
    )


def _overlapped(step: Step, busy: _Stage, rows: _Rows, share: float, seconds: _Seconds) -> tuple[_Parts, _Parts]:
    """Exposed and hidden seconds of the calls that can overlap.

    Each call hides behind computation of its pass, which is then no longer available to the next. Gradients reduced
    once can use only the last micro-batch's backward pass, weights gathered once only the first one's forward pass;
    keys and values of ring attention only the attention. Messages of a pipeline are counted by hops.
    """
    m = step.layout.micro_batches
    left = {"forward": m * busy.forward, "backward": m * busy.backward}
    exposed: dict[Dimension, float] = {}
    hidden: dict[Dimension, float] = {}
    order: tuple[Dimension, ...] = ("cp", "tp", "ep", "dp")
    hideable = [row for row in rows if row.hideable and row.dimension in order]
    for row in sorted(hideable, key=lambda row: order.index(row.dimension)):
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
