"""Steps of training: forward and backward pass, what ranks tell each other for it, and the update of weights.

A step has no size S: what it communicates is several collectives of several sizes, which a measurement counts
(``records.StepParts``). So it has a time, and neither algbw nor busbw.
"""

import re
from typing import Final, get_args

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import Op, Split, nothing
from busbw.ops.exchanges import STEPS
from busbw.units import format_time

LARGEST_WAIT_NS: Final = 600 * 10**9


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained, and how ranks share it.

    model: a row of ``busbw training models``. scale: its widths, layers, sequence and batch times this one
    (``workloads.model_rows.scaled``).
    dp, tp, pp, cp: ranks that divide the batch, each layer, the layers, or each sequence; their product is the number
    of ranks. ep, shard: how many of the dp ranks divide the experts of a layer, or all weights; 1: as the op has it.
    expert_imbalance, capacity: which experts tokens go to, as in ``workloads.routing``.
    micro_batches: of a step and replica. interleave: parts of the layers that a pipeline stage has.
    wait_ns: matrix products are not computed but waited for: so long in a step on every rank, if all ranks share the
    work evenly. None: they are computed.
    slow_rank begins every step so many slow_ns late. None: no rank does.
    exchange: how ranks that train least squares exchange gradients or weights (``ops.exchanges``).
    """

    model: str
    scale: float
    dp: int
    tp: int
    pp: int
    micro_batches: int
    interleave: int
    wait_ns: int | None = None
    cp: int = 1
    ep: int = 1
    shard: int = 1
    expert_imbalance: float = 1.0
    capacity: float | None = None
    slow_rank: int | None = None
    slow_ns: int | None = None
    exchange: str | None = None


def workload_in_words(one: Workload) -> str:
    """As tables show it."""
    how = [] if one.exchange is None else [one.exchange]
    degrees = (f"{name} {number}" for name in get_args(Split) if (number := getattr(one, name)) > 1)
    micro = [] if one.micro_batches == 1 else [f"{one.micro_batches} micro-batches"]
    parts = [] if one.interleave == 1 else [f"{one.interleave} parts a stage"]
    scale = [] if one.scale == 1 else [f"scale {one.scale:g}"]
    uneven = [] if one.expert_imbalance == 1 else [f"expert imbalance {one.expert_imbalance:g}"]
    room = [] if one.capacity is None else [f"capacity {one.capacity:g}"]
    wait = [] if one.wait_ns is None else [f"compute waits {format_time(one.wait_ns)}"]
    slow = [] if one.slow_ns is None else [f"rank {one.slow_rank} late by {format_time(one.slow_ns)}"]
    return ", ".join([one.model, *how, *scale, *degrees, *micro, *parts, *uneven, *room, *wait, *slow])


_TIME = re.compile(r"(?P<what>wait|[0-9]{1,9})=(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)(?P<unit>us|ms|s)")
_UNIT_NS: Final = {"us": 10**3, "ms": 10**6, "s": 10**9}


def parse_compute(text: str) -> int | None:
    """How products are done: ``real`` (None), or ``wait=20ms`` as ns. Raises UsageError."""
    if text == "real":
        return None
    what, wait_ns = _timed(text)
    if what != "wait":
        message = f"compute {text!r} is not allowed; want real, or wait=TIME of 1us to 600s, such as wait=20ms"
        raise UsageError(message)
    return wait_ns


def parse_slow(text: str) -> tuple[int, int]:
    """Which rank is late in every step, and by how many ns: ``1=20ms``. Raises UsageError."""
    what, slow_ns = _timed(text)
    if not what.isdecimal():
        message = f"slow rank {text!r} is not allowed; want RANK=TIME of 1us to 600s, such as 1=20ms"
        raise UsageError(message)
    return int(what), slow_ns


def _timed(text: str) -> tuple[str, int]:
    """What is before ``=``, and the time behind it as ns; no text where it is no such time, or too long a one."""
    match = _TIME.fullmatch(text)
    time_ns = round(float(match["number"]) * _UNIT_NS[match["unit"]]) if match else 0
    return (match["what"] if match and 1 <= time_ns <= LARGEST_WAIT_NS else ""), time_ns


def _step(name: str, summary: str, *splits: Split, trips: int = 1) -> Op:
    return Op(
        name=name,
        summary=summary,
        size_meaning="none: a step is several collectives, which are counted",
        layout=nothing,
        sized=False,
        synchronising=True,
        computed=True,
        fresh=True,
        trips=trips,
        splits=splits,
    )


EXCHANGE: Final = "train_exchange"
LEAST_SQUARES: Final = "least squares"
"""What :data:`EXCHANGE` trains, in place of a model."""
MODEL: Final = "MLP 1024"
OTHER_MODELS: Final = {
    **dict.fromkeys(("train_sequence", "train_ring", "train_ulysses"), "Llama 3 8B"),
    "train_experts": "Mixtral 8x7B",
    EXCHANGE: LEAST_SQUARES,
}
"""Steps that :data:`MODEL` has nothing for → what they train unless told."""
SCALES: Final = {MODEL: 1.0, LEAST_SQUARES: 0.25, "DeepSeek-V3": 0.004}
SCALE: Final = 0.01
"""Of these and of every other model unless told: a step of a moment."""
SAMPLES: Final = 2
"""Of a rank, for every row of these weights."""
_WIDEST: Final = 1024


def problem_width(scale: float) -> int:
    """Rows and columns of the weights of :data:`LEAST_SQUARES`, a multiple of 8."""
    return max(1, round(_WIDEST * scale / 8)) * 8


INTERLEAVED: Final = "train_interleaved"
STAGE: Final = 2
"""Ranks of a stage, where stages are tensor parallel."""
PARTS: Final = 2
"""Parts of the layers that a stage of an interleaved pipeline has."""

TRAINING = (
    _step("train_all_reduce", "data parallel by hand: an all_reduce of every gradient behind the backward pass", "dp"),
    _step("train_ddp", "data parallel by DistributedDataParallel: buckets, beside the backward pass", "dp"),
    _step("train_zero1", "data parallel, optimizer states divided: reduce_scatter, update, all_gather", "dp"),
    _step("train_fsdp", "weights divided by fully_shard, gathered for each pass of a layer", "dp"),
    _step("train_fsdp_kept", "the same, weights kept from the forward to the backward pass", "dp"),
    _step("train_fsdp_prefetch", "as train_fsdp, the next layer's weights gathered ahead in the forward pass", "dp"),
    _step("train_hsdp", "weights divided within groups of ranks, gradients added up between them", "dp", "shard"),
    _step("train_tensor", "every layer split by columns and rows: two all_reduce in each direction", "tp"),
    _step("train_columns", "every layer split by columns alone: outputs are gathered", "tp"),
    _step("train_sequence", "as train_tensor, tokens divided between halves of a layer", "tp"),
    _step("train_ring", "sequences divided: keys and values go around a ring", "cp"),
    _step("train_ulysses", "sequences divided, in attention heads: an all_to_all before and behind it", "cp"),
    _step("train_experts", "experts divided: tokens go to them and back by all_to_all", "dp", "ep"),
    _step("train_gpipe", "a pipeline of layers: all forward passes, then all backward passes", "pp"),
    _step("train_1f1b", "a pipeline of layers: one forward, one backward pass in turns", "pp"),
    _step("train_3d", f"a pipeline whose stages are {STAGE} tensor parallel ranks each", "pp", "tp"),
    _step(EXCHANGE, "least squares with exact, compressed, rarer or late exchange of gradients", "dp", trips=STEPS),
    _step(INTERLEAVED, f"the same, {PARTS} parts of the layers on every rank", "pp"),
)
