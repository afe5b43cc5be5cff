"""Training steps: forward pass, backward pass, communication and weight update.

A step has no size S: it makes several collectives of several sizes, which a measurement counts
(``records.StepParts``). It therefore has a time, but neither algbw nor busbw.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from busbw.errors import UsageError, refuse_unknown
from busbw.ops import limits
from busbw.ops.base import Op, Split, Strategy, nothing
from busbw.ops.settings import CaseSettings
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
    exchange: how ranks that train least squares exchange gradients or weights (``METHODS``)
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
        splits: tuple[Split, ...] = ("dp", "shard", "ep", "cp", "tp", "pp")
        return {split: getattr(self, split) for split in splits}

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


# --- exchange of gradients or weights between data-parallel ranks: every step or less often, exact or compressed -----

STEPS: Final = 48
"""One call trains for this many steps; its time is divided evenly among them."""


@dataclass(frozen=True, slots=True)
class Method:
    """An exchange method. ``number``: default of its parameter (None: it has none); ``allowed``: allowed values."""

    summary: str
    source: str
    number: int | None = None
    allowed: Sequence[int] = ()


METHODS: Final = {
    "exact": Method("all_reduce of gradients in every step", "DistributedDataParallel"),
    "local_sgd": Method(
        "each rank trains on its own; weights are averaged every K steps",
        "Stich 2019, https://arxiv.org/abs/1805.09767",
        4,
        tuple(steps for steps in range(2, STEPS + 1) if STEPS % steps == 0),
    ),
    "server": Method(
        "rank 0 applies gradients as they arrive; no worker is more than K steps ahead of another",
        "Ho et al. 2013, https://proceedings.neurips.cc/paper/2013/hash/b7bb35b9c6ca2aee2df08cf09d7016c2-Abstract.html",
        2,
        range(STEPS + 1),
    ),
    "int8": Method(
        "all_gather of gradients quantized to 255 levels; the rounding error is added to the next gradient",
        "Karimireddy et al. 2019, https://arxiv.org/abs/1901.09847",
    ),
}
"""Methods by name. The first one is the reference."""

_WRITTEN = re.compile(r"(?P<name>[a-z0-9_]{1,20})(:(?P<number>[0-9]{1,4}))?")


def parse_exchange(text: str) -> tuple[str, int]:
    """Name of a method and its parameter, 0 if it has none. Raises UsageError."""
    written = _WRITTEN.fullmatch(text)
    if written is None or written["name"] not in METHODS:
        refuse_unknown("exchange", text, METHODS)
    method = METHODS[written["name"]]
    if written["number"] is None:
        return written["name"], method.number or 0
    number = int(written["number"])
    if number not in method.allowed:
        allowed = method.allowed
        span = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else ", ".join(map(str, allowed))
        raise UsageError(f"exchange {text!r}: {number} is not allowed; allowed: {span or 'no number'}")
    return written["name"], number


def exchange_in_words(name: str, number: int) -> str:
    """The method as users write it, always with its parameter."""
    return name if METHODS[name].number is None else f"{name}:{number}"


EVERY_EXCHANGE: Final = tuple(exchange_in_words(name, method.number or 0) for name, method in METHODS.items())
"""All methods, with their default parameters."""


# --- the steps -----------------------------------------------------------------------------------------------------


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


_SUMMED: Final = "a plan adds up all gradients in one all_reduce, and this step makes one per gradient"
_DATA, _PIPELINE = "data parallel", "pipeline parallel"
_NO_MODEL: Final = "it trains least squares, and plans are for models"


def _step(
    name: str,
    summary: str,
    *splits: Split,
    zero: Literal[0, 1, 2, 3] = 0,
    trips: int = 1,
    **strategy: Any,  # noqa: ANN401 - fields of Strategy
) -> Op:
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
        strategy=Strategy(splits=splits, zero=zero, **strategy),
    )


TRAINING = (
    _step("train_all_reduce", f"{_DATA}: one all_reduce per gradient after the backward pass", "dp", unplanned=_SUMMED),
    _step("train_ddp", f"{_DATA} with DistributedDataParallel: buckets overlap the backward pass", "dp", bucketed=True),
    _step("train_zero1", f"{_DATA}, optimizer states sharded: reduce_scatter, update, all_gather", "dp", zero=1),
    _step("train_fsdp", "weights sharded by fully_shard and gathered for each pass of a layer", "dp", zero=3),
    _step(
        "train_fsdp_kept",
        "train_fsdp, but weights stay gathered from forward to backward pass",
        "dp",
        zero=3,
        reshard=False,
    ),
    _step(
        "train_fsdp_prefetch", "train_fsdp, with the next layer's weights prefetched in the forward pass", "dp", zero=3
    ),
    _step(
        "train_hsdp",
        "weights sharded within groups of ranks, gradients all-reduced between groups",
        "dp",
        "shard",
        zero=3,
    ),
    _step("train_tensor", "tensor parallel by columns, then rows: two all_reduce per layer and pass", "tp"),
    _step("train_columns", "tensor parallel by columns only: outputs are gathered", "tp", columns=True),
    _step(
        "train_sequence",
        "train_tensor with sequence parallelism: tokens divided between its layer halves",
        "tp",
        sequence_parallel=True,
        keep_inputs=True,
    ),
    _step("train_ring", "context parallel: keys and values go around a ring", "cp"),
    _step(
        "train_ulysses",
        "context parallel: an all_to_all before and after attention switches to heads",
        "cp",
        context="ulysses",
    ),
    _step("train_experts", "expert parallel: tokens go to their experts and back by all_to_all", "dp", "ep"),
    _step("train_gpipe", f"{_PIPELINE}: all forward passes, then all backward passes", "pp", schedule="gpipe"),
    _step("train_1f1b", f"{_PIPELINE}: one forward pass and one backward pass in turn", "pp"),
    _step("train_3d", f"{_PIPELINE} with {STAGE} tensor-parallel ranks per stage", "pp", "tp"),
    _step(
        EXCHANGE,
        "least squares with exact, compressed, less frequent or late gradients",
        "dp",
        trips=STEPS,
        unplanned=_NO_MODEL,
    ),
    _step(INTERLEAVED, f"{_PIPELINE}, interleaved 1F1B with {PARTS} model chunks per rank", "pp"),
)
