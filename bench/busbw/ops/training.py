"""Training steps: forward pass, backward pass, communication and weight update.

A step has no size S: it makes several collectives of several sizes, which a measurement counts
(``records.StepParts``). It therefore has a time, but neither algbw nor busbw.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Annotated, Final, Literal

import msgspec

from busbw.errors import UsageError
from busbw.ops import limits
from busbw.ops.base import Op, Split, Strategy, nothing
from busbw.ops.exchanges import EVERY as EVERY_EXCHANGE
from busbw.ops.exchanges import STEPS, exchange_in_words, parse_exchange
from busbw.ops.settings import CaseSettings, Key, Ranks, SweepSettings, not_empty, within
from busbw.units import format_time

LARGEST_WAIT_NS: Final = 600 * 10**9

_WaitNs = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_WAIT_NS)]


class Workload(CaseSettings, frozen=True, kw_only=True, tag="training"):
    """The model that is trained, and how ranks divide the work.

    model: a row of ``busbw training models``
    scale: factor on its widths, layers, sequence and batch (``workloads.model_rows.scaled``)
    dp, tp, pp, cp: ranks that divide the batch, each layer, the layers, each sequence; their product is the world
    ep, shard: how many of the dp ranks divide the experts of a layer, or all weights; 1: the op's default
    expert_imbalance, capacity: distribution of tokens over experts, as in ``shapes.routed``
    micro_batches: per step and replica
    interleave: model chunks per pipeline stage
    wait_ns: instead of computing matrix products, wait this long per step and rank, scaled by the rank's share of the
        work; None: compute them
    slow_rank, slow_ns: this rank starts every step this many ns late; None: no rank does
    exchange: how ranks that train least squares exchange gradients or weights (``ops.exchanges``)
    """

    model: str
    scale: Annotated[float, msgspec.Meta(ge=limits.LEAST_SCALE, le=1)]
    dp: int
    tp: int
    pp: int
    micro_batches: Annotated[int, msgspec.Meta(ge=1, le=limits.MOST_MICRO_BATCHES)]
    interleave: Annotated[int, msgspec.Meta(ge=1, le=limits.MOST_RANKS)]
    wait_ns: _WaitNs | None = None
    cp: int = 1
    ep: int = 1
    shard: int = 1
    expert_imbalance: Annotated[float, msgspec.Meta(ge=1, le=limits.MOST_RANKS)] = 1.0
    capacity: Annotated[float, msgspec.Meta(ge=1, le=limits.MOST_RANKS)] | None = None
    slow_rank: int | None = None
    slow_ns: _WaitNs | None = None
    exchange: str | None = None

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        return {"workload": workload_in_words(self)}

    @property
    def degrees(self) -> dict[Split, int]:
        """How many ranks divide the work in each way."""
        return {
            "dp": self.dp,
            "shard": self.shard,
            "ep": self.ep,
            "cp": self.cp,
            "tp": self.tp,
            "pp": self.pp,
        }

    def flaws(self, ranks: int) -> Iterator[str]:
        """As in the base class."""
        degrees = {"dp": self.dp, "tp": self.tp, "pp": self.pp, "cp": self.cp}
        if min(degrees.values()) < 1 or math.prod(degrees.values()) != ranks:
            yield f"a workload divides {ranks} ranks by {degrees}; want degrees whose product is {ranks}"
            return
        for name, number in (("ep", self.ep), ("shard", self.shard)):
            if number < 1 or self.dp % number:
                yield f"{name} of a workload is {number}; want a divisor of dp, {self.dp}"
        if (self.slow_rank is None) != (self.slow_ns is None) or not 0 <= (self.slow_rank or 0) < ranks:
            yield f"slow_rank is {self.slow_rank} of {ranks} ranks, with slow_ns {self.slow_ns}; want both or neither"


def workload_in_words(workload: Workload) -> str:
    """The workload as tables show it."""
    how = [] if workload.exchange is None else [workload.exchange]
    degrees = (f"{split} {number}" for split, number in workload.degrees.items() if number > 1)
    micro = [] if workload.micro_batches == 1 else [f"{workload.micro_batches} micro-batches"]
    parts = [] if workload.interleave == 1 else [f"{workload.interleave} parts a stage"]
    scale = [] if workload.scale == 1 else [f"scale {workload.scale:g}"]
    uneven = [] if workload.expert_imbalance == 1 else [f"expert imbalance {workload.expert_imbalance:g}"]
    room = [] if workload.capacity is None else [f"capacity {workload.capacity:g}"]
    wait = [] if workload.wait_ns is None else [f"compute waits {format_time(workload.wait_ns)}"]
    slow = [] if workload.slow_ns is None else [f"rank {workload.slow_rank} late by {format_time(workload.slow_ns)}"]
    return ", ".join([workload.model, *how, *scale, *degrees, *micro, *parts, *uneven, *room, *wait, *slow])


_TIME = re.compile(r"(?P<what>wait|[0-9]{1,9})=(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)(?P<unit>us|ms|s)")
_UNIT_NS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9}


def parse_compute(text: str) -> int | None:
    """How matrix products are done: ``real`` (None), or ``wait=20ms`` in ns. Raises UsageError."""
    if text == "real":
        return None
    what, wait_ns = _timed(text)
    if what != "wait":
        message = f"compute {text!r} is not allowed; use real, or wait=TIME from 1us to 600s, such as wait=20ms"
        raise UsageError(message)
    return wait_ns


def parse_slow(text: str) -> tuple[int, int]:
    """Rank that starts every step late, and the delay in ns: ``1=20ms``. Raises UsageError."""
    what, slow_ns = _timed(text)
    if not what.isdecimal():
        message = f"slow rank {text!r} is not allowed; use RANK=TIME from 1us to 600s, such as 1=20ms"
        raise UsageError(message)
    return int(what), slow_ns


def _timed(text: str) -> tuple[str, int]:
    """The text before ``=``, and the time after it in ns; the text is empty if the time is invalid or too long."""
    match = _TIME.fullmatch(text)
    time_ns = round(float(match["number"]) * _UNIT_NS[match["unit"]]) if match else 0
    return (match["what"] if match and 1 <= time_ns <= LARGEST_WAIT_NS else ""), time_ns


def _step(name: str, summary: str, strategy: Strategy, trips: int = 1) -> Op:
    return Op(
        name=name,
        summary=summary,
        size_meaning="none: a step makes several collectives, which are counted",
        layout=nothing,
        sized=False,
        synchronising=True,
        computed=True,
        fresh=True,
        trips=trips,
        strategy=strategy,
    )


EXCHANGE: Final = "train_exchange"
LEAST_SQUARES: Final = "least squares"
"""What :data:`EXCHANGE` trains instead of a model."""
MODEL: Final = "MLP 1024"
OTHER_MODELS: Final = {
    **dict.fromkeys(("train_sequence", "train_ring", "train_ulysses"), "Llama 3 8B"),
    "train_experts": "Mixtral 8x7B",
    EXCHANGE: LEAST_SQUARES,
}
"""Steps that need another model than :data:`MODEL` → their default model."""
SCALES: Final = {MODEL: 1.0, LEAST_SQUARES: 0.25, "DeepSeek-V3": 0.004}
SCALE: Final = 0.01
"""Default scale of these and of all other models: a step takes a moment."""
SAMPLES: Final = 2
"""Samples per rank for every row of the least-squares weights."""
_WIDEST: Final = 1024


def problem_width(scale: float) -> int:
    """Rows and columns of the weights of :data:`LEAST_SQUARES`, a multiple of 8."""
    return max(1, round(_WIDEST * scale / 8)) * 8


INTERLEAVED: Final = "train_interleaved"
STAGE: Final = 2
"""Ranks per pipeline stage if stages are tensor parallel."""
PARTS: Final = 2
"""Model chunks per stage of an interleaved pipeline."""


class TrainingSweep(SweepSettings, frozen=True):
    """Models of training steps, and how ranks divide the work.

    models: rows of ``busbw training models``; None: :data:`MODEL` or :data:`OTHER_MODELS`
    scale: of the models; None: :data:`SCALES`
    micro_batches: per step and replica; None: two per pipeline stage, else one
    replicas: of the model, if ranks divide more than the batch; None: one, or two if groups of ranks shard weights
    expert_imbalance, capacity: as in ``shapes.routed``
    compute: as in :func:`parse_compute`
    slow_ranks: further cases with one rank late by a known time, such as ``1=20ms``
    exchanges: how ranks exchange gradients or weights, as in ``ops.exchanges``
    """

    models: Annotated[tuple[str, ...] | None, Key(not_empty, option="--model")] = None
    scale: Annotated[float | None, Key(within(limits.LEAST_SCALE, 1))] = None
    micro_batches: Annotated[tuple[int, ...] | None, Key(lambda given: _positive(given, limits.MOST_MICRO_BATCHES))] = (
        None
    )
    replicas: Annotated[
        tuple[int, ...] | None,
        Key(lambda given: _positive(given, limits.MOST_RANKS), taken_by=lambda op: op.splits not in {(), ("dp",)}),
    ] = None
    expert_imbalance: Annotated[float, Key(within(1, limits.MOST_RANKS), taken_by=lambda op: "ep" in op.splits)] = 1.0
    capacity: Annotated[float | None, Key(within(1, limits.MOST_RANKS), taken_by=lambda op: "ep" in op.splits)] = None
    compute: Annotated[str, Key(parse_compute)] = "real"
    slow_ranks: Annotated[tuple[str, ...], Key(lambda ranks: list(map(parse_slow, ranks)), option="--slow-rank")] = ()
    exchanges: Annotated[
        tuple[str, ...],
        Key(
            lambda names: not_empty([*map(parse_exchange, names)]),
            taken_by=lambda op: op.name == EXCHANGE,
            option="--exchange",
        ),
    ] = EVERY_EXCHANGE

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """As in the base class."""
        return bool(op.splits)

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:
        """The workloads on all ranks, with those of the requested ``replicas`` that divide the ranks.

        Raises UsageError if none of them does, and for a slow rank that does not exist.
        """
        default = 2 if "shard" in op.splits and ranks.size % 2 == 0 else 1
        requested = (default,) if self.replicas is None else self.replicas
        dividing = [replicas for replicas in requested if ranks.size % replicas == 0]
        if not dividing:
            raise UsageError(
                f"key 'replicas': {', '.join(map(str, requested))} does not divide {ranks.size} ranks; use a divisor"
            )
        slow = list(map(parse_slow, self.slow_ranks))
        if (beyond := max((rank for rank, _ in slow), default=0)) >= ranks.size:
            raise UsageError(f"key 'slow_ranks': rank {beyond} does not exist; use 0 to {ranks.size - 1}")
        methods = map(parse_exchange, self.exchanges if op.name == EXCHANGE else ())
        exchanges: list[str | None] = [*(exchange_in_words(*method) for method in methods)] or [None]
        models = (OTHER_MODELS.get(op.name, MODEL),) if self.models is None else self.models
        for model, replicas in product(models, dividing if op.splits != ("dp",) else [ranks.size]):
            workload = self._undelayed(op, model, ranks.size, replicas)
            filled = (2 * workload.pp if "pp" in op.splits else 1,)
            micro = filled if self.micro_batches is None else self.micro_batches
            for micro_batches, exchange, (slow_rank, slow_ns) in product(micro, exchanges, ((None, None), *slow)):
                yield msgspec.structs.replace(
                    workload, micro_batches=micro_batches, exchange=exchange, slow_rank=slow_rank, slow_ns=slow_ns
                )

    def _undelayed(self, op: Op, model: str, ranks: int, replicas: int) -> Workload:
        """The workload of ``replicas`` replicas in one micro-batch."""
        sharing = ranks // replicas
        degrees = {**dict.fromkeys(op.splits, sharing), "dp": ranks if "dp" in op.splits else replicas}
        if op.splits == ("pp", "tp"):
            degrees |= {"pp": sharing // STAGE, "tp": STAGE} if sharing % STAGE == 0 else {"tp": 1}
        return Workload(
            model=model,
            scale=SCALES.get(model, SCALE) if self.scale is None else self.scale,
            dp=degrees["dp"],
            tp=degrees.get("tp", 1),
            pp=degrees.get("pp", 1),
            cp=degrees.get("cp", 1),
            ep=degrees.get("ep", 1),
            shard=degrees.get("shard", 1),
            micro_batches=1,
            interleave=PARTS if op.name == INTERLEAVED else 1,
            wait_ns=parse_compute(self.compute),
            expert_imbalance=self.expert_imbalance if "ep" in op.splits else 1.0,
            capacity=self.capacity if "ep" in op.splits else None,
        )


def _positive(given: tuple[int, ...], most: int) -> None:
    """Raise UsageError for an empty list, or a number outside 1 to ``most``."""
    not_empty(given)
    within(1, most)(given)


_SUMMED: Final = "a plan adds up all gradients in one all_reduce, and this step makes one per gradient"
_NO_MODEL: Final = "it trains least squares, and plans are for models"


def _data(*, zero: Literal[0, 1, 2, 3], reshard: bool = True, bucketed: bool = False, unplanned: str = "") -> Strategy:
    """The batch is divided."""
    return Strategy(splits=("dp",), zero=zero, reshard=reshard, bucketed=bucketed, unplanned=unplanned)


_TENSOR: Final = Strategy(splits=("tp",), zero=0)
_CONTEXT: Final = Strategy(splits=("cp",), zero=0)
_PIPELINE: Final = Strategy(splits=("pp",), zero=0)

TRAINING = (
    _step(
        "train_all_reduce",
        "data parallel: one all_reduce per gradient after the backward pass",
        _data(zero=0, unplanned=_SUMMED),
    ),
    _step(
        "train_ddp",
        "data parallel with DistributedDataParallel: buckets overlap the backward pass",
        _data(zero=0, bucketed=True),
    ),
    _step("train_zero1", "data parallel, optimizer states sharded: reduce_scatter, update, all_gather", _data(zero=1)),
    _step("train_fsdp", "weights sharded by fully_shard and gathered for each pass of a layer", _data(zero=3)),
    _step(
        "train_fsdp_kept",
        "train_fsdp, but weights stay gathered from forward to backward pass",
        _data(zero=3, reshard=False),
    ),
    _step(
        "train_fsdp_prefetch",
        "train_fsdp, with the next layer's weights prefetched in the forward pass",
        _data(zero=3),
    ),
    _step(
        "train_hsdp",
        "weights sharded within groups of ranks, gradients all-reduced between groups",
        Strategy(splits=("dp", "shard"), zero=3),
    ),
    _step("train_tensor", "tensor parallel by columns, then rows: two all_reduce per layer and pass", _TENSOR),
    _step("train_columns", "tensor parallel by columns only: outputs are gathered", replace(_TENSOR, columns=True)),
    _step(
        "train_sequence",
        "train_tensor with sequence parallelism: tokens divided between its layer halves",
        replace(_TENSOR, sequence_parallel=True, keep_inputs=True),
    ),
    _step("train_ring", "context parallel: keys and values go around a ring", _CONTEXT),
    _step(
        "train_ulysses",
        "context parallel: an all_to_all before and after attention switches to heads",
        replace(_CONTEXT, context="ulysses"),
    ),
    _step(
        "train_experts",
        "expert parallel: tokens go to their experts and back by all_to_all",
        Strategy(splits=("dp", "ep"), zero=0),
    ),
    _step(
        "train_gpipe",
        "pipeline parallel: all forward passes, then all backward passes",
        replace(_PIPELINE, schedule="gpipe"),
    ),
    _step("train_1f1b", "pipeline parallel: one forward pass and one backward pass in turn", _PIPELINE),
    _step(
        "train_3d",
        f"pipeline parallel with {STAGE} tensor-parallel ranks per stage",
        Strategy(splits=("pp", "tp"), zero=0),
    ),
    _step(
        EXCHANGE,
        "least squares with exact, compressed, less frequent or late gradients",
        _data(zero=0, unplanned=_NO_MODEL),
        trips=STEPS,
    ),
    _step(INTERLEAVED, f"pipeline parallel, interleaved 1F1B with {PARTS} model chunks per rank", _PIPELINE),
)
