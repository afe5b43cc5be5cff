"""What a step of training is of: the model at its scale, the part of it that is a rank's, and which cannot be."""

from dataclasses import dataclass
from functools import cached_property

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import first_reason
from busbw.ops.exchanges import EVERY, parse_exchange
from busbw.ops.training import EXCHANGE, LEAST_SQUARES, SAMPLES, Workload, problem_width
from busbw.runs.records import DTYPE_BYTES
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model
from busbw.workloads.routing import DROPPED, routed


@dataclass(frozen=True)
class StepShape:
    """A workload with its model. Raises UsageError for a model that is not known."""

    workload: Workload

    @cached_property
    def model(self) -> Model:
        """The row at its scale; weights and gradients are float32. The first and the last stage of a pipeline have a
        matrix of their own each.
        """
        row = model_rows.named(model_rows.models(), self.workload.model)
        tied = row.tied and self.workload.pp == 1
        return msgspec.structs.replace(model_rows.scaled(row, self.workload.scale), dtype="float32", tied=tied)

    @property
    def tokens(self) -> int:
        """Of a step, all replicas together."""
        return self.model.batch * self.model.sequence

    @property
    def least_bytes(self) -> int:
        """What a rank needs at least: weights, gradients and outputs of the whole model, which it holds its step
        against; of least squares, samples and targets of all ranks.
        """
        one = self.workload
        if one.model == LEAST_SQUARES:
            return 2 * DTYPE_BYTES["float64"] * SAMPLES * one.dp * problem_width(one.scale) ** 2
        outputs = self.tokens * (self.model.vocabulary or self.model.hidden)
        return DTYPE_BYTES["float32"] * (2 * model_rows.parameters(self.model) + outputs)

    @property
    def flop(self) -> int:
        """Of matrix products of a step, all ranks together; attention to all tokens, as kernels are counted."""
        whole = round(self.tokens * model_rows.flop_per_token(self.model, self.model.sequence, causal=False))
        return whole - 6 * self.dropped * model_rows.one_expert(self.model)

    @cached_property
    def choice(self) -> list[int]:
        """The experts of the tokens of a rank's micro-batch (``routing.routed``); empty without experts."""
        model, one = self.model, self.workload
        tokens = self.tokens // (one.dp * one.micro_batches)
        if not model.experts:
            return []
        return routed(tokens, model.experts, model.top_k, one.ep, one.expert_imbalance, one.capacity)

    @property
    def dropped(self) -> int:
        """How often in a step an expert has no room for a token."""
        one = self.workload
        return self.choice.count(DROPPED) * one.dp * one.micro_batches * self.model.expert_layers

    def refuse(self, op: str) -> str | None:
        """Why there is no such step of ``op``; None when there is."""
        if op == EXCHANGE or self.workload.model == LEAST_SQUARES:
            return refuse_exchange(op, self.workload)
        model, one = self.model, self.workload
        most = min(one.ep, model.experts / max(1, model.top_k))
        tp, cp, sequence = ("tp", one.tp), ("cp", one.cp), f"a sequence of {model.sequence} is"
        sequences, ulysses = op == "train_sequence", op == "train_ulysses"
        return first_reason(
            (model.experts and one.ep == 1, f"{model.name} has experts, which train_experts divides"),
            (one.shard == one.dp > 1, f"all {one.dp} ranks divide the weights, where two replicas or more are wanted"),
            (one.ep > 1 and not model.experts, f"{model.name} has no experts, which ep ranks divide"),
            _uneven(model.experts, f"{model.experts} experts are", ("ep", one.ep)),
            (
                one.ep > 1 and one.expert_imbalance > most,
                f"an expert imbalance of {one.expert_imbalance:g} is more than ep and experts / top-k allow, {most:g}",
            ),
            (
                model.kv_rank and (one.tp > 1 or one.cp > 1),
                f"{model.name} has latent attention, which neither tp nor cp ranks divide here",
            ),
            _uneven(model.batch, f"a batch of {model.batch} is", ("dp · micro-batches", one.dp * one.micro_batches)),
            _uneven(model.layers, f"{model.layers} layers are", ("pp · parts of a stage", one.pp * one.interleave)),
            (one.interleave > 1 and one.micro_batches % one.pp, f"micro-batches want a multiple of pp = {one.pp}"),
            _uneven(model.ffn, f"an ffn of {model.ffn} is", tp),
            _uneven(model.kv_heads, f"{model.kv_heads} kv_heads are", tp),
            _uneven(model.vocabulary, f"a vocabulary of {model.vocabulary} is", tp),
            _uneven(sequences and model.sequence, sequence, tp),
            (
                sequences and model.positions,
                f"{model.name} learns positions, which ranks with some of the tokens each would have to add up",
            ),
            (one.cp > 1 and not model.heads, f"{model.name} has no attention, which is what cp ranks do together"),
            _uneven(one.cp > 1 and model.sequence, sequence, ("2 cp", 2 * one.cp)),
            _uneven(ulysses and model.heads, f"{model.heads} heads are", cp),
            (
                ulysses and model.kv_heads % one.cp and one.cp % model.kv_heads,
                f"cp = {one.cp} is no multiple and no part of {model.kv_heads} kv_heads",
            ),
        )


def _uneven(number: int, whole: str, parts: tuple[str, int]) -> tuple[object, str]:
    """Whether, and in words that, ``parts`` do not divide the ``number`` of the ``whole``."""
    name, count = parts
    return number % count, f"{whole} not cut evenly by {name} = {count}"


def refuse_exchange(op: str, one: Workload) -> str | None:
    """Why least squares cannot be trained by ``op``; None when they can."""
    name, number = parse_exchange(one.exchange or EVERY[0])
    width = problem_width(one.scale)
    return first_reason(
        (op != EXCHANGE or one.model != LEAST_SQUARES, f"{LEAST_SQUARES} is what {EXCHANGE} trains, and nothing else"),
        (one.dp < 2, f"{EXCHANGE} wants two ranks or more, which have something to exchange"),
        (one.micro_batches > 1, f"{EXCHANGE} knows no micro-batches"),
        # Below that the library sends gradients as they are.
        (name == "powersgd" and 4 * number >= width, f"rank {number} of width {width} is not half as many numbers"),
    )


def model_name(given: str) -> str:
    """What the model is called that is ``given`` in whatever letters, spaces and dashes. Raises UsageError where there
    is none.
    """
    if given == LEAST_SQUARES:
        return given
    try:
        return model_rows.named(model_rows.models(), given).name
    except UsageError as error:
        raise UsageError(f"key 'models': {error}") from error
