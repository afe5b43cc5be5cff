"""Training steps: how much of a step is computation, exposed communication, and waiting.

Exposed time is that of the step minus computation alone. Hidden is the share of communication alone that is not
exposed. All of them are measured after the samples of a block (``records.StepParts``), in turns, with the same
instrumentation, on the same ranks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import msgspec

from busbw.ops import FLOP, OPS, STRATEGIES, bus_factor
from busbw.ops.training import Workload
from busbw.runs.records import RankMemory, Sent, StepParts
from busbw.workloads.model_rows import Model
from busbw.workloads.shapes import StepShape
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.summary import CaseSummary, DataCheck
from busbw_analysis.models.results import Results
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.memory import Memory, memory
from busbw_analysis.training.timelines import CallTime, RankTime, call_times, rank_times

_OF_WORKLOAD: Final = ("dp", "tp", "pp", "cp", "ep", "micro_batches")
_OF_STRATEGY: Final = ("zero", "reshard", "columns", "sequence_parallel", "keep_inputs", "context", "schedule")
"""Fields of a layout that a workload and a step's row of the table of operations have, too."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One measured case. Times are ns of a step, medians; rates are of all ranks together.

    step_ns: the step with the same instrumentation as computation and communication alone.
    sent: by all ``steps`` of a call.
    timeline, calls: one additional step by rank and by call; empty if none was recorded.
    tries_ns: every timing of ``step_ns``, which is their median.
    gaps: as in ``records.StepParts``.
    product_rate: FLOP/s of matrix products that all ranks reached in the same run; None if not measured.
    """

    op: str
    case: int
    workload: Workload
    ranks: int
    time_ns: float
    low_ns: float | None
    high_ns: float | None
    step_ns: float
    compute_ns: float
    communication_ns: float
    sent: tuple[Sent, ...]
    parameters: int
    flop: int
    tokens: int
    dropped: int
    product_rate: float | None
    check: DataCheck
    timeline: tuple[RankTime, ...] = ()
    calls: tuple[CallTime, ...] = ()
    memory: tuple[RankMemory, ...] = ()
    steps: int = 1
    gaps: tuple[float, ...] = ()
    device: str = "cpu"
    tries_ns: tuple[float, ...] = ()

    @property
    def fullest(self) -> RankMemory | None:
        """The rank whose tensors need most memory; None if memory was not measured."""
        return max(self.memory, key=lambda rank: rank.peak_bytes, default=None)

    @property
    def computed_memory(self) -> Memory | None:
        """Memory by formula, of the rank that needs most; None without a model.

        Plain gradient descent has no optimizer state, and torch runs norms and gates as single operations. On CPUs,
        torch's Gloo copies the input of reduce_scatter: with ZeRO-1, all gradients.
        """
        if self.workload.exchange is not None or self.op not in STRATEGIES:
            return None
        step = step_of(self.op, self.workload)
        computed = memory(step, "sgd", "eager")
        copied = computed.gradients if self.device == "cpu" and step.layout.zero == 1 else 0.0
        return replace(computed, buffers=computed.buffers + copied)

    @property
    def in_turns(self) -> float:
        """``step_ns`` over ``time_ns``."""
        return self.step_ns / self.time_ns

    @property
    def exposed_ns(self) -> float:
        """The part of the step that is not computation: communication that is not hidden, and waiting."""
        return max(0.0, self.step_ns - self.compute_ns)

    @property
    def hidden(self) -> float | None:
        """The share of communication that overlaps with computation; None for a pipeline, whose stages also wait for
        each other.
        """
        if self.workload.pp > 1 or not self.communication_ns:
            return None
        return max(0.0, 1 - self.exposed_ns / self.communication_ns)

    @property
    def exposed_share(self) -> float:
        """Share of the step."""
        return self.exposed_ns / self.step_ns

    @property
    def waiting_share(self) -> float | None:
        """Share of the step that is waiting for other ranks: the bubble of a pipeline; otherwise, of the exposed share,
        as much as the recorded step waited for the last rank to arrive. None if it was not recorded.
        """
        if self.workload.pp > 1:
            return self.bubble_ns / self.step_ns
        late = [rank.waiting_for_last_ns for rank in self.timeline if rank.waiting_for_last_ns is not None]
        waited = sum(rank.waiting_ns for rank in self.timeline)
        if len(late) < len(self.timeline) or not waited:
            return None
        return self.exposed_share * min(1.0, sum(late) / waited)

    @property
    def of_matmul(self) -> float | None:
        """Rate of the products in computation alone, over the rate of matmul alone; None if either is unknown."""
        if self.workload.wait_ns is not None or self.product_rate is None or not self.compute_ns:
            return None
        return self.flop / self.compute_ns * 1e9 / self.product_rate

    @property
    def bubble(self) -> float | None:
        """The share of a step that a pipeline stage waits for others if only matrix products take time: (p−1)/(m v +
        p−1) (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2).
        """
        workload = self.workload
        rounds = workload.micro_batches * workload.interleave
        return None if workload.pp == 1 else (workload.pp - 1) / (rounds + workload.pp - 1)

    @property
    def bubble_ns(self) -> float:
        """The time that a stage waits for others, (p−1)/(m v) of its own computation, but at most what is exposed; 0
        without a pipeline. The rest of the exposed time is communication.
        """
        workload = self.workload
        rounds = workload.micro_batches * workload.interleave
        return min(self.exposed_ns, self.compute_ns * (workload.pp - 1) / rounds)

    @property
    def waits_for(self) -> tuple[str, float]:
        """The largest part of the step besides computation, and its ns: the bubble, or communication of the parallel
        dimensions of the layout.
        """
        communication = self.exposed_ns - self.bubble_ns
        if self.bubble_ns > communication:
            return "bubble", self.bubble_ns
        dimensions = (name for name in ("dp", "tp", "pp", "cp", "ep") if self.workload.degrees[name] > 1)
        return ", ".join(dimensions), communication

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.time_ns * 1e9

    @property
    def flop_per_second(self) -> float | None:
        """Of matrix products; None if computation was emulated by waiting."""
        return None if self.workload.wait_ns is not None else self.flop / self.time_ns * 1e9

    @property
    def product_share(self) -> float | None:
        """Model FLOP utilisation, relative to the rate of matrix products alone on this machine."""
        rate = self.flop_per_second
        return None if rate is None or self.product_rate is None else rate / self.product_rate

    @property
    def sent_bytes(self) -> float | None:
        """Bytes per step of the rank that sends most: S × bus factor of each call. None if a call is of an op that this
        version does not know.
        """
        if not OPS.keys() >= {call.op for call in self.sent}:
            return None
        by_rank: dict[int, float] = {}
        for call in self.sent:
            for rank in call.ranks:
                factor = bus_factor(call.op, call.group) or 0.0
                by_rank[rank] = by_rank.get(rank, 0.0) + call.calls * call.size_bytes * factor
        return max(by_rank.values(), default=0.0) / self.steps


def step_of(op: str, workload: Workload) -> Step:
    """A measured step as the plan describes it."""
    model = StepShape(workload).model
    layout = Layout(
        **{name: getattr(workload, name) for name in _OF_WORKLOAD},
        **{name: getattr(STRATEGIES[op], name) for name in _OF_STRATEGY},
        vpp=workload.interleave,
        shard=None if workload.shard == 1 else workload.shard,
    )
    # Tokens beyond an expert's capacity are not sent.
    busiest = (
        workload.expert_imbalance if workload.capacity is None else min(workload.expert_imbalance, workload.capacity)
    )
    return Step(model, layout, model.batch, model.sequence, imbalance=busiest)


_WIDTHS: Final = ("hidden", "heads", "ffn", "expert_ffn", "dtype")


def steps_like(model: Model, measured: Iterable[Trained]) -> Iterator[tuple[Step, float]]:
    """The measured steps, and their seconds, that say how fast layers of ``model`` are: of its widths, without waits
    and delays, in layouts that a plan describes. Scaled models do not: their kernels are too small.
    """
    for trained in measured:
        as_planned = trained.op in STRATEGIES and not STRATEGIES[trained.op].unplanned
        if as_planned and trained.workload.wait_ns is None and trained.workload.slow_ns is None:
            step = step_of(trained.op, trained.workload)
            if all(getattr(step.model, width) == getattr(model, width) for width in _WIDTHS):
                yield step, trained.step_ns / 1e9


def steps_of(results: Results) -> tuple[Trained, ...]:
    """Every measured step, in the order of the plan."""
    summaries = results.cases
    parts = by_key(
        (row.case, row.supplement)
        for stored in results.runs
        for row in stored.measurements
        if isinstance(row.supplement, StepParts)
    )
    rate = _product_rate(summaries)
    return tuple(
        _trained(summary, workload, group, parts[summary.case], rate)
        for summary in summaries
        if isinstance(workload := summary.case.settings, Workload)
        and summary.state == "measured"
        and summary.case in parts
        for group in summary.groups
    )


@dataclass(frozen=True, slots=True)
class Ranked:
    """A step compared with those of the same model, scale and wait on the same number of ranks. ``times``: its time
    over that of the fastest.
    """

    step: Trained
    times: float


def ranked(steps: Iterable[Trained]) -> tuple[Ranked, ...]:
    """Every step without an artificial straggler that has comparable ones, the fastest of each group first."""
    alike = grouped(
        (step for step in steps if step.workload.slow_ns is None),
        lambda step: (step.workload.model, step.workload.scale, step.workload.wait_ns, step.ranks),
    )
    ordered = [sorted(group, key=lambda step: step.time_ns) for group in alike.values() if len(group) > 1]
    return tuple(Ranked(step, step.time_ns / group[0].time_ns) for group in ordered for step in group)


def _product_rate(summaries: Iterable[CaseSummary]) -> float | None:
    """FLOP/s of all ranks together, in the largest measured float32 product."""
    rates = [
        (
            summary.case.size_bytes,
            # Every rank of a group multiplies its own matrices.
            sum(
                len(group.ranks) * FLOP["matmul"](summary.case.count) / group.time_ns * 1e9 for group in summary.groups
            ),
        )
        for summary in summaries
        if (summary.case.op, summary.case.dtype, summary.state) == ("matmul", "float32", "measured")
    ]
    return None if not rates else max(rates)[1]


def _trained(
    summary: CaseSummary, workload: Workload, group: GroupSummary, parts: list[StepParts], rate: float | None
) -> Trained:
    last = parts[-1]
    tries = tuple(ns / last.steps for part in parts for ns in part.step_ns)
    return Trained(
        op=summary.case.op,
        case=summary.index,
        workload=workload,
        ranks=len(group.ranks),
        time_ns=group.time_ns,
        low_ns=group.interval.low_ns,
        high_ns=group.interval.high_ns,
        step_ns=median(tries),
        tries_ns=tries,
        compute_ns=median(ns for part in parts for ns in part.compute_ns) / last.steps,
        communication_ns=median(ns for part in parts for ns in part.communication_ns) / last.steps,
        sent=last.sent,
        timeline=rank_times(last.timeline, last.sent),
        calls=call_times(last.timeline),
        memory=last.memory,
        parameters=last.parameters,
        flop=last.flop,
        tokens=last.tokens,
        dropped=last.dropped,
        steps=last.steps,
        gaps=last.gaps,
        device=summary.case.device,
        product_rate=rate,
        check=summary.check,
    )


@dataclass(frozen=True, slots=True)
class Slowed:
    """A step with one artificially delayed rank, compared with ``usual``, the same step without the delay."""

    step: Trained
    usual: Trained

    @property
    def longer_ns(self) -> float:
        """How much longer the delayed step takes."""
        return self.step.time_ns - self.usual.time_ns

    @property
    def longer_low_ns(self) -> float | None:
        """Lower bound, by the nearest ends of both intervals; None if an interval is missing."""
        return _less(self.step.low_ns, self.usual.high_ns)

    @property
    def longer_high_ns(self) -> float | None:
        """Upper bound, by the farthest ends."""
        return _less(self.step.high_ns, self.usual.low_ns)

    @property
    def expected_ns(self) -> float:
        """The expected delay of the step by a simple model.

        If all others wait for the rank, the step is delayed by all of its delay. A pipeline stage has slack for as long
        as the forward passes before it take: 1/(3 m v) of the computation per stage.
        """
        workload = self.step.workload
        stage = (workload.slow_rank or 0) % (self.step.ranks // workload.dp) // workload.tp if workload.pp > 1 else 0
        forward_ns = self.usual.compute_ns / (3 * workload.micro_batches * workload.interleave)
        return max(0.0, (workload.slow_ns or 0) - stage * forward_ns)


def _less(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def slowed(steps: Iterable[Trained]) -> tuple[Slowed, ...]:
    """Every step with a delayed rank that was also measured without, in the order of ``steps``."""
    measured = list(steps)
    usual = {(step.op, step.workload): step for step in measured}
    return tuple(
        Slowed(step, usual[key])
        for step in measured
        if step.workload.slow_ns is not None
        and (key := (step.op, msgspec.structs.replace(step.workload, slow_rank=None, slow_ns=None))) in usual
    )
