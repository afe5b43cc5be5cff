"""Shape of a training step: the scaled model, the share of a rank, and which combinations are impossible."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import first_reason
from busbw.ops.training import EXCHANGE, LEAST_SQUARES, SAMPLES, Workload, problem_width
from busbw.runs.records import DTYPE_BYTES
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model
from busbw.workloads.routing import DROPPED, routed


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
        """The experts of the tokens of a rank's micro-batch (``routing.routed``); empty without experts."""
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
