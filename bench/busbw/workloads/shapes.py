"""Shape of a training step: scaled model, share of a rank, impossible combinations, rough time."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Final

import msgspec

from busbw.errors import UsageError
from busbw.ops import STRATEGIES
from busbw.ops.base import first_reason
from busbw.ops.training import EXCHANGE, LEAST_SQUARES, SAMPLES, STEPS, Workload, problem_width
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model

DROPPED = -1


def routed(tokens: int, experts: int, top_k: int, ranks: int, imbalance: float, capacity: float | None) -> list[int]:
    """The expert of choice j of token i, at index j · tokens + i; the same on every rank with this many tokens.

    Chosen in advance, so that load and dropped tokens are as specified. Megatron-LM forces balanced load in benchmarks
    likewise (``--moe-router-force-load-balancing``). A router still computes the weights of the chosen experts.

    imbalance: load of the experts on the first of ``ranks`` ranks, over an even share; the others share the rest evenly
    capacity: most tokens of an expert, over its even share of a rank's tokens; excess tokens are ``DROPPED``
        (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668, section 2.2)
    The choices of a token differ as long as imbalance · top_k ≤ experts.
    """
    pairs, busy = tokens * top_k, experts // ranks
    each = pairs / experts
    rest = (pairs - imbalance * each * busy) / max(1, experts - busy)
    ends = [round(imbalance * each * min(count, busy) + rest * max(0, count - busy)) for count in range(experts + 1)]
    most = pairs if capacity is None else ceil(capacity * each)
    return [
        expert if place < most else DROPPED
        for expert in range(experts)
        for place in range(ends[expert + 1] - ends[expert])
    ]


@dataclass(frozen=True)
class StepShape:
    """A workload with its model. Raises UsageError for an unknown model."""

    workload: Workload

    @cached_property
    def model(self) -> Model:
        """The scaled row, with float32 weights and gradients. In a pipeline the embedding and the output matrix are
        on different stages, so they are not tied.
        """
        row = model_rows.named(model_rows.models(), self.workload.model)
        tied = row.tied and self.workload.pp == 1
        return msgspec.structs.replace(model_rows.scaled(row, self.workload.scale), dtype="float32", tied=tied)

    @property
    def tokens(self) -> int:
        """Tokens of a step, over all replicas."""
        return self.model.batch * self.model.sequence

    @property
    def least_bytes(self) -> int:
        """Least memory of a rank: weights, gradients and outputs of the whole model, needed to verify its step; for
        least squares, samples and targets of all ranks.
        """
        workload = self.workload
        if workload.model == LEAST_SQUARES:
            return 2 * DTYPE_BYTES["float64"] * SAMPLES * workload.dp * problem_width(workload.scale) ** 2
        outputs = self.tokens * (self.model.vocabulary or self.model.hidden)
        return DTYPE_BYTES["float32"] * (2 * model_rows.parameters(self.model) + outputs)

    @property
    def flop(self) -> int:
        """FLOP of the matrix products of a step, over all ranks; attention without a causal mask, as kernels count."""
        whole = round(self.tokens * model_rows.flop_per_token(self.model, self.model.sequence, causal=False))
        return whole - 6 * self.dropped * model_rows.one_expert(self.model)

    @cached_property
    def choice(self) -> list[int]:
        """The experts of the tokens of a rank's micro-batch (``routed``); empty without experts."""
        model, workload = self.model, self.workload
        tokens = self.tokens // (workload.dp * workload.micro_batches)
        if not model.experts:
            return []
        return routed(tokens, model.experts, model.top_k, workload.ep, workload.expert_imbalance, workload.capacity)

    @property
    def dropped(self) -> int:
        """Number of times in a step that an expert drops a token."""
        workload = self.workload
        return self.choice.count(DROPPED) * workload.dp * workload.micro_batches * self.model.expert_layers

    def refuse(self, op: str) -> str | None:
        """Why ``op`` cannot run this step; None if it can."""
        if op == EXCHANGE or self.workload.model == LEAST_SQUARES:
            return refuse_exchange(op, self.workload)
        model, workload = self.model, self.workload
        imbalance, most = workload.expert_imbalance, min(workload.ep, model.experts / max(1, model.top_k))
        tp, cp, sequence = ("tp", workload.tp), ("cp", workload.cp), f"a sequence of {model.sequence} is"
        sequences, ulysses = op == "train_sequence", op == "train_ulysses"
        return first_reason(
            (model.experts and workload.ep == 1, f"{model.name} has experts; use train_experts"),
            (
                workload.shard == workload.dp > 1,
                f"all {workload.dp} ranks shard the weights, but at least two replicas are needed",
            ),
            (workload.ep > 1 and not model.experts, f"{model.name} has no experts for ep ranks to divide"),
            _uneven(model.experts, f"{model.experts} experts are", ("ep", workload.ep)),
            (
                workload.ep > 1 and imbalance > most,
                f"an expert imbalance of {imbalance:g} is more than {most:g}, the limit from ep and top-k",
            ),
            (
                model.kv_rank and (workload.tp > 1 or workload.cp > 1),
                f"{model.name} has latent attention, which tp and cp ranks cannot divide here",
            ),
            _uneven(
                model.batch,
                f"a batch of {model.batch} is",
                ("dp · micro-batches", workload.dp * workload.micro_batches),
            ),
            _uneven(
                model.layers, f"{model.layers} layers are", ("pp · chunks per stage", workload.pp * workload.interleave)
            ),
            (
                workload.interleave > 1 and workload.micro_batches % workload.pp,
                f"micro-batches must be a multiple of pp = {workload.pp}",
            ),
            _uneven(model.ffn, f"an ffn of {model.ffn} is", tp),
            _uneven(model.kv_heads, f"{model.kv_heads} kv_heads are", tp),
            _uneven(model.vocabulary, f"a vocabulary of {model.vocabulary} is", tp),
            _uneven(sequences and model.sequence, sequence, tp),
            (
                sequences and model.positions,
                f"{model.name} learns positions, whose gradients ranks with part of the tokens would have to add up",
            ),
            (workload.cp > 1 and not model.heads, f"{model.name} has no attention for cp ranks to divide"),
            _uneven(workload.cp > 1 and model.sequence, sequence, ("2 cp", 2 * workload.cp)),
            _uneven(ulysses and model.heads, f"{model.heads} heads are", cp),
            (
                ulysses and model.kv_heads % workload.cp and workload.cp % model.kv_heads,
                f"cp = {workload.cp} is neither a multiple nor a divisor of {model.kv_heads} kv_heads",
            ),
        )


def _uneven(number: int, whole: str, parts: tuple[str, int]) -> tuple[object, str]:
    """(whether ``parts`` do not divide ``number`` evenly, the reason in words); ``whole`` begins that sentence."""
    name, count = parts
    return number % count, f"{whole} not divisible by {name} = {count}"


def refuse_exchange(op: str, workload: Workload) -> str | None:
    """Why ``op`` cannot train least squares; None if it can."""
    return first_reason(
        (
            op != EXCHANGE or workload.model != LEAST_SQUARES,
            f"{EXCHANGE} trains only {LEAST_SQUARES}, and no other op does",
        ),
        (workload.dp < 2, f"{EXCHANGE} needs at least two ranks, to have something to exchange"),
        (workload.micro_batches > 1, f"{EXCHANGE} does not support micro-batches"),
    )


def model_name(given: str) -> str:
    """The model's canonical name; ``given`` may differ in case, spaces and dashes. Raises UsageError if unknown."""
    if given == LEAST_SQUARES:
        return given
    try:
        return model_rows.named(model_rows.models(), given).name
    except UsageError as error:
        raise UsageError(f"key 'models': {error}") from error


# --- rough time, for the estimated duration of a run --------------------------------------------------------------


_FLOP_PER_SECOND: Final = 5e10
"""Rate of a core in the products of a step."""
_BYTES_PER_SECOND: Final = 1e9
"""Rate at which all ranks of a host send together."""
_LAYER_SECONDS: Final = 1e-3
"""Time of one layer in one micro-batch, or of one exchange, besides its products. All three were measured with Gloo on
two cores of a virtual machine that was otherwise idle.
"""
_GPU: Final = 500.0
"""A GPU is taken to be this much faster in all three; none was measured."""


def step_seconds(case: Case, cores: int) -> float:
    """Seconds of one call of a training step whose ranks share ``cores`` usable cores on each host; 0 for other ops."""
    workload = case.settings
    if not isinstance(workload, Workload):
        return 0.0
    per_host = -(-case.ranks // case.nodes)
    flop, sent, layers = _least_squares(workload) if workload.model == LEAST_SQUARES else _of_model(case.op, workload)
    at_work, faster = (max(1, min(per_host, cores)), 1.0) if case.device == "cpu" else (per_host, _GPU)
    computing = flop / (at_work * case.nodes * _FLOP_PER_SECOND) if workload.wait_ns is None else workload.wait_ns / 1e9
    late = (workload.slow_ns or 0) / 1e9
    return (computing + per_host * sent / _BYTES_PER_SECOND + layers * _LAYER_SECONDS) / faster + late


def _least_squares(workload: Workload) -> tuple[float, float, int]:
    """FLOP of all ranks, bytes sent by each, and exchanges: a gradient is two products of a rank's samples."""
    width = problem_width(workload.scale)
    return STEPS * workload.dp * 4.0 * SAMPLES * width**3, STEPS * 2.0 * DTYPE_BYTES["float32"] * width**2, STEPS


def _of_model(op: str, workload: Workload) -> tuple[float, float, int]:
    """FLOP of all ranks, bytes sent by each, and its layers times micro-batches.

    Replicas exchange their part of the weights about twice, or three times with zero 3. Ranks that divide layers,
    sequences or experts exchange the activations of a layer about eight times.
    """
    shape = StepShape(workload)
    weights = DTYPE_BYTES["float32"] * model_rows.parameters(shape.model) / (workload.pp * workload.tp)
    layers = -(-shape.model.layers // workload.pp)
    activations = DTYPE_BYTES["float32"] * shape.tokens / (workload.dp * workload.cp) * shape.model.hidden
    replicated = (3 if STRATEGIES[op].zero == 3 else 2) * weights * (workload.dp * workload.cp > 1)
    divided = 8 * layers * activations * (workload.tp * workload.cp * workload.ep > 1)
    return shape.flop, replicated + divided + 2 * activations * (workload.pp > 1), layers * workload.micro_batches
