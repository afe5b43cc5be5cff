"""Memory of a rank in training: weights, gradients, optimizer, activations, buffers; and checkpoints.

Parameters: Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054), section 3 and figure 1. Activations: Korthikanti
et al. 2022 (https://arxiv.org/abs/2205.05198), section 4, whose model (four times as wide inside, as many heads of keys
as of queries, dropout, 2 bytes) gives s b h (34 + 5 a s/h) per layer; here the same tensors are summed for any model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Final, Literal

from busbw.errors import UsageError
from busbw.system.catalog import Gpu, catalogue
from busbw.units import counted
from busbw.workloads import model_rows
from busbw.workloads.model_rows import parameters
from busbw_analysis.models.results import Results
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import (
    Layout,
    Recompute,
    Step,
    Unit,
    assumed_notes,
    gigabytes,
    layout_text,
    layouts,
    percent_of,
    step_words,
)

Optimizer = Literal["adam", "momentum", "sgd"]
Kernels = Literal["scores", "flash", "eager"]

_STATES: Final[dict[str, int]] = {"adam": 2, "momentum": 1, "sgd": 0}
"""float32 numbers that an optimizer keeps per parameter, in addition to a float32 copy of narrower weights."""
_WIDE: Final = 4
_RESERVED: Final = 0.05
"""Assumed share of a GPU's memory that is not for tensors."""

CHECKPOINT_BYTES: Final = {14: "with weights and optimizer", 12: "the optimizer", 2: "the weights, in 16 bits"}
"""Bytes per parameter; the optimizer: the float32 copy of weights and both Adam states."""


@dataclass(frozen=True, slots=True)
class PerParameter:
    """Mean bytes per parameter on a rank of a group of n: weights, gradients and optimizer, depending on zero."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All three: 16, 4 + 12/n, 2 + 14/n and 16/n for zero 0 to 3 with Adam in 16 bits."""
        return self.weights + self.gradients + self.optimizer


def per_parameter(width: int, gradient: int, optimizer: Optimizer, zero: int, ranks: int) -> PerParameter:
    """Bytes of one parameter. The float32 copy of 2-byte weights counts as optimizer: Adam 12, momentum 8, plain
    descent 4.

    See section 3.1. Gradients in float32 make 18 of 16.
    """
    states = _WIDE * (_STATES[optimizer] + (width < _WIDE))
    return PerParameter(
        width / (ranks if zero >= 3 else 1), gradient / (ranks if zero >= 2 else 1), states / (ranks if zero else 1)
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank of a pipeline stage.

    activations: of all micro-batches in flight, and what a layer computes with.
    under_way: number of micro-batches in flight.
    """

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    under_way: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def memory(step: Step, optimizer: Optimizer = "adam", kernels: Kernels | None = None) -> Memory:
    """Memory of the rank that needs most; among equal stages the first has most in flight.

    kernels: how attention and norms keep activations. scores: attention keeps its scores. flash: it recomputes them
    block by block. eager: as flash, with norms and gates as single operations, like torch without a compiler. Default:
    scores for models with dropout, whose training was described that way, flash for others.
    """
    chosen: Kernels = ("scores" if step.model.dropout else "flash") if kernels is None else kernels
    return max((_of_stage(step, stage, optimizer, chosen) for stage in step.kinds), key=lambda needed: needed.total)


def _of_stage(step: Step, stage: int, optimizer: Optimizer, kernels: Kernels) -> Memory:
    """Memory of a rank of a stage.

    Without resharding, a rank has whole weights beside its part. If only the last micro-batch reduces gradients, they
    are whole until then.
    """
    layout, width = step.layout, step.model.width_bytes
    weights = gradients = states = 0.0
    for unit in step.units(stage):
        each = per_parameter(width, step.gradient_bytes, optimizer, layout.zero, step.shards(unit))
        weights += (each.weights + width * (layout.zero == 3 and not layout.reshard)) * unit.total
        gradients += (float(step.gradient_bytes) if layout.accumulates else each.gradients) * unit.total
        states += each.optimizer * unit.total
    count = under_way(layout, stage)
    kept = count * sum(_kept_layers(step, stage, kernels)) + _ends(step, stage, count, kernels)
    if kernels == "eager" and layout.pp > 1:
        given = _given(step, stage, count)
        kept = max(kept + given, 2 * given)  # after a step the last stage joins its outputs
    kept += _passing(step, stage, kernels)
    return Memory(stage, weights, gradients, states, kept, _buffers(step, stage, kernels), count)


def under_way(layout: Layout, stage: int) -> float:
    """Micro-batches with activations on a stage at the same time, in units of all its layers.

    m with GPipe, min(m, p − r) with 1F1B. Interleaved: 2(p − r − 1) + (v − 1) p + 1 of v parts, so that the first stage
    keeps 1 + (p−1)/(p v) times as much as without (arXiv:2205.05198, section 4.2.3; arXiv:2104.04473, section 2.2).
    """
    p, m, v = layout.pp, layout.micro_batches, layout.vpp
    if layout.schedule == "gpipe":
        return m
    if v == 1:
        return min(m, p - stage)
    return min(m * v, 2 * (p - stage - 1) + (v - 1) * p + 1) / v


def _kept_layers(step: Step, stage: int, kernels: Kernels) -> Iterator[float]:
    """Bytes of one micro-batch in all layers of a stage.

    With full recomputation only the input of a layer, 2 s b h (arXiv:2205.05198, table 2), which sequence parallelism
    divides by t.
    """
    inputs = step.own_tokens * step.model.hidden * step.model.width_bytes
    counts = zip(step.layers_of(stage), step.recomputed(stage), (False, True), strict=True)
    for count, again, experts in counts:
        kept = count - again
        yield again * inputs + (kept and kept * layer_bytes(step, kernels, experts=experts))


def layer_bytes(step: Step, kernels: Kernels, *, experts: bool) -> float:
    """Bytes that one layer keeps of one micro-batch on one rank for its backward pass.

    Split over tensor ranks: queries, keys, values, the output of attention, scores, and the inside of the feed-forward
    network. Whole on each, unless sequence parallelism splits them: the inputs of norms, of attention and of the
    feed-forward network, and masks of dropout. This gives s b h (10 + 24/t + 5 a s/(h t)) without and (34 + 5 a s/h)/t
    with sequence parallelism (sections 4.1, 4.2). Selective recomputation omits the scores (section 5), or with fused
    attention the outputs of norms and of activations, and queries, keys and values that come from a narrower tensor
    (https://arxiv.org/abs/2412.19437, section 3.2.3). In float8 fused kernels keep inputs of products and of
    activations (section 3.3.3). Weights of experts multiply their inner tensors if fused, so that outputs of experts
    are not kept (``TEGroupedMLP`` in
    https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/moe/experts.py).

    A gated network keeps two inner tensors and their product. Single operations also keep what their derivatives need:
    the gate's activation, the output of an RMS norm before its weight, keys and values repeated for all heads, and
    attention's output in order of tokens; and with sequence parallelism gathered inputs that are not gathered again.
    """
    layout, model = step.layout, step.model
    width, tokens, h = model.width_bytes, step.tokens, model.hidden
    whole = split = 0.0
    again = layout.recompute == "selective" and kernels == "flash"
    normed = model.norm != "none" and not again
    narrow = 1 if layout.fp8 and kernels == "flash" else width
    if model.heads:
        q, v = model.heads * model.key_dim, model.heads * model.head_value_dim
        keys = model.heads if model.kv_rank else model.kv_heads
        made = not (again and model.kv_rank)
        split += width * tokens * ((q + keys * (model.key_dim + model.head_value_dim)) * made + v)
        whole += tokens * (h * (width + narrow * normed) + width * (model.q_rank + model.kv_rank))
        whole += tokens * h * model.dropout
        pairs = float(tokens) * step.sequence * model.heads
        if kernels == "scores" and layout.recompute != "selective":
            split += pairs * (2 * width + 1 if model.dropout else width)
        elif kernels != "scores":
            split += 4.0 * tokens * model.heads
        if kernels == "eager" and model.kv_rank:
            # On CPUs there is no fused kernel for values narrower or wider than keys: scores are kept.
            unequal = model.key_dim != model.head_value_dim
            split += pairs * width * (unequal and layout.recompute != "selective")
            whole += width * tokens * (h + model.q_rank + model.kv_rank + model.rope_dim)
        elif kernels == "eager":
            repeated = (model.heads - keys) * (model.key_dim + model.head_value_dim)
            split += width * tokens * (repeated + v)
            whole += width * tokens * h * (model.norm == "rms")
    inner = 2 + model.gated * (2 if kernels == "eager" else 1) - again
    whole += width * tokens * h * (kernels == "eager" and model.norm == "rms")
    whole += tokens * h * (width + narrow * normed) + tokens * h * model.dropout
    if experts:
        routed = tokens * model.top_k * step.imbalance
        split += narrow * inner * model.expert_ffn * (routed + tokens * model.shared_experts)
        # Inputs of experts, and of separate operations outputs; torch also keeps the weighted results.
        whole += routed * h * {"flash": narrow, "scores": 2 * width, "eager": 3 * width}[kernels]
        whole += _WIDE * tokens * model.experts
    else:
        split += narrow * inner * model.ffn * tokens
    if layout.sequence_parallel:
        gathered = width * tokens * h * (1 + bool(model.heads)) * layout.keep_inputs
        whole = (whole - gathered) / layout.tp + gathered
    return split / layout.tp + whole


def _ends(step: Step, stage: int, count: float, kernels: Kernels) -> float:
    """Memory of the first and last stage outside the layers.

    First: a mask of dropout after the embedding for each micro-batch in flight. Last: the inputs of the last norm and
    of the head, and logits in float32, 4 s b h (1 + V/h)/t for one micro-batch (section 4.3). With single operations a
    loss over divided logits keeps four tensors of them (torch's ``loss_parallel``).
    """
    layout, model = step.layout, step.model
    split = layout.tp if layout.sequence_parallel else 1
    masks = count if layout.vpp == 1 else min(layout.micro_batches, 2 * layout.pp - 1)
    first = step.own_tokens * model.hidden * model.dropout * masks if stage == 0 else 0.0
    if stage < layout.pp - 1 or not model.vocabulary:
        return first
    ends = 2 * model.width_bytes * step.tokens * model.hidden / split
    logits = 4 if kernels == "eager" and layout.tp > 1 else 0 if kernels == "flash" else 1
    return first + ends + logits * _logits(step)


def _logits(step: Step) -> float:
    """Bytes of one rank's logits of a micro-batch in float32."""
    return float(_WIDE * step.tokens * -(-step.model.vocabulary // step.layout.tp))


def _passing(step: Step, stage: int, kernels: Kernels) -> float:
    """Tensors that live for a moment between fused kernels.

    The larger of the logits and of a layer's backward pass: gradients of the inside of the feed-forward network and its
    product once more, and four tensors as wide as the model, whole on each rank (inputs and gradients). Fused kernels
    that add to gradients also leave an empty gradient for each shape of weights (in SimuMax, "dummy wgrad").
    """
    if kernels != "flash":
        return 0.0
    layout, model = step.layout, step.model
    last = stage == layout.pp - 1 and model.vocabulary > 0
    dense, expert = step.layers_of(stage)
    inner = model.ffn if dense else 0
    if expert:
        inner = max(inner, model.expert_ffn * (round(model.top_k * step.imbalance) + model.shared_experts))
    backward = model.width_bytes * step.tokens * ((2 + 2 * model.gated) * inner / layout.tp + 4 * model.hidden)
    if layout.zero == 3:
        return max(backward, last * _logits(step))
    attention = model_rows.attention(model).split
    around = model_rows.dense_ffn(model).split if dense else 0
    experts = model.experts // layout.ep * model_rows.one_expert(model) if expert else 0
    head = model.vocabulary * model.hidden if last else 0
    empty = model.width_bytes * (attention + around + experts + head) / layout.tp
    return max(backward, last * _logits(step)) + empty


def _given(step: Step, stage: int, count: float) -> float:
    """Outputs of a stage kept by torch's ``PipelineStage``: of micro-batches in flight, on the last stage of all."""
    model, layout = step.model, step.layout
    last = stage == layout.pp - 1
    width = -(-model.vocabulary // layout.tp) if last and model.vocabulary else model.hidden
    return model.width_bytes * step.tokens * width * (layout.micro_batches if last else count)


def _buffers(step: Step, stage: int, kernels: Kernels) -> float:
    """Short-lived buffers.

    With zero 3 the weights of two units, one in use and one being gathered, and the gradients of one before they are
    divided (arXiv:2304.11277, section 3.4), unless they are kept whole. With full recomputation the activations of a
    layer. Single operations compute the gradient of a matrix before adding it to that of earlier micro-batches or of
    its unit, and with zero 1 a rank's shares of gradients and new weights are separate tensors.
    """
    layout, units = step.layout, step.units(stage)
    total = 0.0
    if kernels == "eager":
        total += step.gradient_bytes * _largest_matrix(step, stage) * (layout.micro_batches > 1 or layout.zero == 3)
        together = sum(unit.total / step.shards(unit) for unit in units)
        total += (step.gradient_bytes + step.model.width_bytes) * together * (layout.zero == 1)
    if layout.zero == 3:
        largest = max(_parameters_together(units))
        total += largest * 2 * step.model.width_bytes * layout.reshard
        total += largest * step.gradient_bytes * (not layout.accumulates)
    if layout.recompute == "full":
        dense, expert = step.layers_of(stage)
        kinds = [experts for count, experts in ((dense, False), (expert, True)) if count]
        total += max(layer_bytes(step, kernels, experts=experts) for experts in kinds)
    return total


def _largest_matrix(step: Step, stage: int) -> float:
    """Parameters of a rank's largest matrix."""
    model, layout = step.model, step.layout
    ends = model.vocabulary * (stage in {0, layout.pp - 1})
    sides = (model.ffn, model.expert_ffn * layout.tp, model.heads * model.key_dim, ends)
    return model.hidden * max(sides) / layout.tp


def _parameters_together(units: tuple[Unit, ...]) -> list[int]:
    """Parameters that are gathered together: experts with the layer around them."""
    experts = sum(unit.parameters for unit in units if unit.name == "experts")
    around = {"layers around experts": experts}
    return [unit.parameters + around.get(unit.name, 0) for unit in units if unit.name != "experts"]


# --- layouts that fit ----------------------------------------------------------------------------------------------


def what_fits(step: Step, room: float, kernels: Kernels | None) -> Step | None:
    """The same step in another layout on the same number of GPUs that needs at most ``room`` bytes; None if none does.

    Changes that cost least time come first (``_cost``), then degrees up to 64 with sequence parallelism.
    """
    return next((changed for changed in _changes(step) if memory(changed, kernels=kernels).total <= room), None)


def _cost(step: Step) -> tuple[int, ...]:
    """What a layout costs in time, the dearest first.

    Weights or gradients that are sent in every micro-batch of a pipeline; a second forward pass; the same messages
    without a pipeline; attention once more; more and smaller micro-batches. ZeRO 1 and sequence parallelism send no
    more bytes.
    """
    layout = step.layout
    sends = layout.zero == 3 or (layout.zero == 2 and layout.micro_batches > 1)
    recompute = layout.recompute
    often = (sends and layout.pp > 1, recompute == "full", sends, recompute == "selective", layout.micro_batches)
    return (*map(int, often), layout.zero, int(layout.sequence_parallel))


def _changes(step: Step) -> Iterator[Step]:
    base = step.layout
    smallest = step.batch // base.dp
    more: dict[Recompute, tuple[Recompute, ...]] = {"none": ("selective", "full"), "selective": ("full",), "full": ()}
    ways = (base.recompute, *more[base.recompute])
    pieces = dict.fromkeys((base.micro_batches, smallest))
    splits = base.tp > 1 and step.sequence % (base.tp * base.cp) == 0
    split = dict.fromkeys((base.sequence_parallel, base.sequence_parallel or splits))
    same = [
        replace(
            step,
            layout=replace(base, zero=zero, recompute=again, micro_batches=count, sequence_parallel=parallel),
        )
        for again, count, zero, parallel in product(ways, pieces, range(base.zero, 4), split)
    ]
    yield from sorted(same, key=_cost)
    whole = replace(base, zero=3, recompute="full", vpp=1, shard=None, context="ring", scatter_gather=False)
    for layout in layouts(step.model, base.gpus, whole, degrees=64):
        if step.batch % layout.dp:
            continue
        changed = replace(layout, sequence_parallel=layout.tp > 1, micro_batches=step.batch // layout.dp)
        with suppress(UsageError):  # cp may not divide the sequence
            yield replace(step, layout=changed, imbalance=min(step.imbalance, layout.ep), ranks_per_host=None)


def least_gpus(step: Step, room: float) -> str:
    """The number of GPUs of ``room`` bytes that can hold all parameters, in words: a lower bound for any layout."""
    bytes_ = per_parameter(step.model.width_bytes, step.gradient_bytes, "adam", 0, 1).total
    least = -(-int(bytes_ * parameters(step.model)) // max(1, int(room)))
    return (
        f"weights, gradients and optimizer, {bytes_:g} B per parameter, need {counted(least, 'GPU')} without "
        "activations, with them more"
    )


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a GPU in bytes, what it is of, and whether its driver or its datasheet says so."""

    bytes: float
    what: str
    source: str

    @property
    def usable(self) -> float:
        """Bytes for tensors: without CUDA's context, NCCL's buffers, and the gaps of an allocator."""
        return (1 - _RESERVED) * self.bytes

    @property
    def in_words(self) -> str:
        """``H100 SXM5, as its driver reports``."""
        return f"{self.what}, {self.source}"


def memory_of_gpu(gpu: Gpu) -> Room:
    """What its driver reports, part of which it reserves, else the datasheet's decimal GB.

    Raises UsageError for a row without memory_bytes.
    """
    if gpu.memory_bytes is None:
        raise UsageError(f"the row of {gpu.name} has no memory_bytes; add it, or give --gpu-memory", code="gpu")
    return Room(
        gpu.memory_bytes, gpu.name, "by its datasheet" if gpu.memory_source is None else "as its driver reports"
    )


def least_memory(gpus: Iterable[Gpu]) -> Gpu | None:
    """The one with least memory; None without GPUs."""
    return min(gpus, key=lambda gpu: inf if gpu.memory_bytes is None else gpu.memory_bytes, default=None)


def gpu_of_runs(results: Iterable[Results]) -> Gpu | None:
    """The GPU of the runs' ranks; with several kinds, the one with least memory.

    None if the ranks ran on CPUs, or if no row of the catalogue matches.
    """
    rows = catalogue()
    gpus: list[Gpu] = []
    for of_run in results:
        if all(row.case.device == "cpu" for row in of_run.cases):
            continue
        for host in {host for stored in of_run.runs for host in stored.run.hosts}:
            gpus += [row for gpu in of_run.facts.environment(host).pci.gpus if (row := rows.known(gpu).row) is not None]
    return least_memory(gpus)


def memory_headline(step: Step, needed: Memory, room: Room | None, other: Step | None, kernels: Kernels | None) -> str:
    """Whether a rank fits into ``room``, its largest part, and a layout that fits (``other``)."""
    parts = ("weights", "gradients", "optimizer", "activations", "buffers")
    most = max(parts, key=lambda name: getattr(needed, name))
    of_it = f"{gigabytes(needed.total)} ({percent_of(getattr(needed, most) / needed.total)} % {most})"
    if room is None:
        return f"A rank needs {of_it}; give --gpu to check whether it fits"
    share = _share_of_room(needed.total / room.usable)
    whole = f"{gigabytes(room.bytes)} of {room.in_words}, less {100 * _RESERVED:.0f} % for libraries"
    of_room = f"a rank needs {of_it}, {share} {gigabytes(room.usable)} ({whole})"
    if needed.total <= room.usable:
        return f"Fits: {of_room}"
    if other is None:
        gpus = counted(step.layout.gpus, "GPU")
        return f"Does not fit: {of_room}; no layout on {gpus} fits: {least_gpus(step, room.usable)}"
    less = gigabytes(memory(other, kernels=kernels).total)
    return f"Does not fit: {of_room}; it needs {less} with --layout {layout_text(other)}"


def _share_of_room(share: float) -> str:
    """``125 % of`` or ``17.9 times``; 100 % only if it is exactly that, near it with as many digits as it takes."""
    if share >= 10:
        return f"{share:.3g} times"
    digits = 3 if share == 1 else next(count for count in range(3, 18) if float(f"{share * 100:.{count}g}") != 100)
    return f"{share * 100:.{digits}g} % of"


def memory_table(
    step: Step, needed: Memory, by_zero: Sequence[float], saved: dict[int, int], assumed: Mapping[str, str]
) -> Table:
    """The memory of the rank that needs most, by part."""
    undivided = step.layout.zero == 2 and step.layout.accumulates
    columns: tuple[Column[str], ...] = (
        Column("what", lambda name: name),
        Column("bytes", lambda name: getattr(needed, name), gigabytes),
        Column("share", lambda name: getattr(needed, name) / needed.total, percent_of, "%"),
    )
    return table(
        step_words(step),
        columns,
        ("weights", "gradients", "optimizer", "activations", "buffers", "total"),
        f"a rank of pipeline stage {needed.stage}, which needs most; {needed.under_way:g} micro-batches in flight",
        "zero 2 divides gradients only if every micro-batch reduces them (sync=every)" if undivided else "",
        f"dense weights, gradients, optimizer by zero 0 to 3: {', '.join(map('{:.4g}'.format, by_zero))} B a parameter",
        f"checkpoint: {', '.join(f'{gigabytes(saved[per])} {what}' for per, what in CHECKPOINT_BYTES.items())}",
        *assumed_notes(assumed),
    )
