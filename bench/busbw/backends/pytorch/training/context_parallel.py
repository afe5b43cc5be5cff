"""Context parallelism: every rank has the whole model and a part of each sequence; only attention communicates."""

from abc import abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from busbw.backends.pytorch.training.network import causal, exchanged
from busbw.backends.pytorch.training.step import Step
from busbw.workloads.model_rows import attention_flop


class ContextParallel(Step):
    """Base class; gradients are averaged over ranks as over replicas, because each has the same number of tokens."""

    def make(self) -> nn.Module:
        """The whole model, with the positions of this rank's tokens."""
        network = self.build()
        self._group = self.messages("cp")
        places = self.places.to(self.device)
        if network.embedding is not None:
            network.embedding.places = places
        for layer in network.layers.values():
            attention: Any = layer.attention
            attention.attend, attention.places = self.attend, places
        return network

    @property
    @abstractmethod
    def places(self) -> torch.Tensor:
        """Positions of this rank's tokens in each sequence."""

    @abstractmethod
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Causal attention of this rank's tokens to all earlier ones."""

    def slice_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of the sequences of its replica."""
        return super().slice_of(whole)[:, self.places]


class Ulysses(ContextParallel):
    """In attention a rank has some heads of all tokens.

    There is one all_to_all each for queries, keys, values and results (Jacobs et al. 2023,
    https://arxiv.org/abs/2309.14509, section 3). With fewer key heads than ranks, each is sent to several ranks.
    """

    @property
    def places(self) -> torch.Tensor:
        """Consecutive parts of the sequence."""
        ranks, rank = self.shape.workload.cp, self.place("cp")
        return torch.arange(self.shape.model.sequence).chunk(ranks)[rank]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention with heads and tokens exchanged before and after it."""
        ranks = self.shape.workload.cp
        copies = max(1, ranks // key.shape[1])
        sent = (query, *(tensor.repeat_interleave(copies, dim=1) for tensor in (key, value)))
        seen = causal(*(self._all_to_all(tensor, 1, 2) for tensor in sent))
        return self._all_to_all(seen, 2, 1)

    def _all_to_all(self, tensor: torch.Tensor, cut: int, joined: int) -> torch.Tensor:
        """All_to_all that splits dimension ``cut`` over the ranks and completes dimension ``joined``."""
        ranks = self.shape.workload.cp
        parts = torch.stack(tensor.chunk(ranks, dim=cut))
        return torch.cat(exchanged(parts, [1] * ranks, [1] * ranks, self._group).unbind(), dim=joined)


class Ring(ContextParallel):
    """Ring attention: keys and values pass around a ring (Liu et al. 2023, https://arxiv.org/abs/2310.01889).

    Of 2 c parts of a sequence, rank r has parts r and 2 c − 1 − r, so that all ranks compute the same amount (Llama 3,
    https://arxiv.org/abs/2407.21783, section 3.3.2).
    """

    @property
    def places(self) -> torch.Tensor:
        """One early and one late part of the sequence."""
        ranks, rank = self.shape.workload.cp, self.place("cp")
        parts = torch.arange(self.shape.model.sequence).chunk(2 * ranks)
        return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention to each block of keys and values as it arrives."""
        seen: torch.Tensor = _RingAttention.apply(query, torch.cat((key, value), -1), self._group)  # type: ignore[no-untyped-call]
        return seen

    @property
    def flop(self) -> int:
        """FLOP of all ranks; of the c blocks of scores of a rank, c − 1 are computed only by half."""
        shape, ranks = self.shape, self.shape.workload.cp
        scores = 3 * shape.tokens * attention_flop(shape.model, shape.model.sequence, causal=False)
        return shape.flop - round(scores * (ranks - 1) / (2 * ranks))


class _RingAttention(torch.autograd.Function):
    """Partial results are combined by their sums of exponentials.

    Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867. Gradients of keys and values travel around the ring
    with them and end at the rank that owns these.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, own: torch.Tensor, group: Any) -> torch.Tensor:  # noqa: ANN401
        out = torch.zeros_like(query)
        total = query.new_full(query.shape[:-1], -torch.inf)
        pairs = own
        for hop in range(group.size()):
            coming = _shifted(pairs, group, 0) if hop < group.size() - 1 else None
            rows, columns = _block(hop, group, query.shape[2])
            key, value = _heads_of(pairs[:, :, columns], query)
            part, sums = attention(query[:, :, rows], key, value, causal=hop == 0)
            both = torch.logaddexp(total[:, :, rows], sums)
            before, now = ((log_sum - both).exp().unsqueeze(-1) for log_sum in (total[:, :, rows], sums))
            out[:, :, rows] = out[:, :, rows] * before + part * now
            total[:, :, rows] = both
            pairs = pairs if coming is None else coming()
        ctx.group = group
        ctx.save_for_backward(query, own, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # noqa: ANN401
        query, own, out, total = ctx.saved_tensors
        group, last = ctx.group, ctx.group.size() - 1
        of_query, of_own = torch.zeros_like(query), torch.zeros_like(own)
        pairs, arriving = own, None
        for hop in range(last + 1):
            coming = _shifted(pairs, group, 0) if hop < last else None
            rows, columns = _block(hop, group, query.shape[2])
            key, value = _heads_of(pairs[:, :, columns], query)
            parts = (gradient[:, :, rows], query[:, :, rows], key, value, out[:, :, rows], total[:, :, rows])
            gradients = attention_backward(*parts, causal=hop == 0)
            of_query[:, :, rows] += gradients[0]
            of_pairs = of_own if hop == 0 else torch.zeros_like(own) if arriving is None else arriving()
            of_pairs[:, :, columns] += (
                torch.stack(torch.cat(gradients[1:], -1).chunk(own.shape[1], 1)).sum(2).movedim(0, 1)
            )
            arriving = None if hop == 0 else _shifted(of_pairs, group, 1)
            pairs = pairs if coming is None else coming()
        return of_query, of_own if arriving is None else of_own + arriving(), None


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result of torch's fused kernel and the log-sum-exp of its scores; each device has one kernel for float32."""
    kernels = torch.ops.aten
    if query.device.type == "cpu":
        out, sums = kernels._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)  # noqa: SLF001
        return out, sums
    result = kernels._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, causal)  # noqa: SLF001
    return result[0], result[1][..., : query.shape[2]]


def attention_backward(*given: torch.Tensor, causal: bool) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys and values.

    given: gradient of the result, queries, keys, values, result, log-sum-exp.
    """
    kernels = torch.ops.aten
    if given[0].device.type == "cpu":
        gradients = kernels._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)  # noqa: SLF001
        return tuple(gradients)
    *tensors, out, sums = given
    # Padded to a multiple of 32 rows with zero weight, as the forward kernel returns them.
    padded = functional.pad(sums, (0, -sums.shape[-1] % 32), value=torch.inf)
    seed = torch.zeros((), dtype=torch.int64)  # for dropout, which is disabled
    gradients = kernels._scaled_dot_product_efficient_attention_backward(  # noqa: SLF001
        *tensors, None, out, padded, seed, seed, 0.0, [True, True, True, False], causal
    )
    return tuple(gradients[:3])


def _block(hop: int, group: Any, tokens: int) -> tuple[slice, slice]:  # noqa: ANN401
    """Rows (this rank's tokens) and columns (arrived tokens) with non-zero causal attention.

    After ``hop`` hops the tokens of rank − hop (modulo the number of ranks) have arrived. All tokens attend to the
    early part of a lower rank; only the late part attends to a higher rank, to all of it.
    """
    whole, half = slice(None), tokens // 2
    if hop == 0:
        return whole, whole
    return (whole, slice(half)) if hop <= group.rank() else (slice(half, None), whole)


def _heads_of(pairs: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, with heads repeated to the number of query heads."""
    pairs = pairs.repeat_interleave(query.shape[1] // pairs.shape[1], dim=1)
    return pairs[..., : query.shape[-1]], pairs[..., query.shape[-1] :]


def _shifted(tensor: torch.Tensor, group: Any, tag: int) -> Any:  # noqa: ANN401
    """Start to send ``tensor`` to the next rank; returns a function that waits for the previous rank's tensor."""
    ranks, rank = group.size(), group.rank()
    coming = torch.empty_like(tensor)
    # One call for both, because NCCL would deadlock if every rank first waited for its neighbour.
    sending = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks, tag=tag)
    receiving = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks, tag=tag)
    works = dist.batch_isend_irecv([sending, receiving])

    def arrived() -> torch.Tensor:
        for work in works:
            work.wait()
        return coming

    return arrived
