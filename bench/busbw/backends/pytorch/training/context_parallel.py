"""Context parallel: every rank has the whole model and a part of each sequence. Attention is what ranks do together."""

from abc import abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from busbw.backends.pytorch.training.exchange import exchanged
from busbw.backends.pytorch.training.network import causal
from busbw.backends.pytorch.training.step import Step
from busbw.workloads.model_rows import attention_flop


class ContextParallel(Step):
    """Gradients are averaged over ranks as of replicas: each has as many tokens."""

    def make(self) -> nn.Module:
        """The whole model, whose tokens know their place."""
        network = self.made.network()
        self._group = self.made.mesh("cp").get_group()
        places = self.places.to(self.made.device)
        if network.embedding is not None:
            network.embedding.places = places
        for layer in network.layers.values():
            attention: Any = layer.attention
            attention.attend, attention.places = self.attend, places
        return network

    @property
    @abstractmethod
    def places(self) -> torch.Tensor:
        """Of this rank's tokens in each sequence."""

    @property
    def all_places(self) -> torch.Tensor:
        """Of all tokens in each sequence."""
        return torch.arange(self.made.shape.model.sequence)

    @abstractmethod
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention of this rank's tokens to all earlier ones."""

    def slice_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of the sequences of its replica."""
        return self.made.slice_of(whole)[:, self.places]


class Ulysses(ContextParallel):
    """In attention a rank has some heads of all tokens (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509, section
    3): an all_to_all each of queries, keys, values and results. Keys of fewer heads than ranks are sent to several.
    """

    @property
    def places(self) -> torch.Tensor:
        """One part after another."""
        ranks, rank = self.made.shape.workload.cp, self.made.place("cp")
        return self.all_places.chunk(ranks)[rank]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """With heads and tokens exchanged before and behind it."""
        ranks = self.made.shape.workload.cp
        copies = max(1, ranks // key.shape[1])
        sent = (query, *(one.repeat_interleave(copies, dim=1) for one in (key, value)))
        seen = causal(*(self._exchanged(one, 1, 2) for one in sent))
        return self._exchanged(seen, 2, 1)

    def _exchanged(self, tensor: torch.Tensor, cut: int, joined: int) -> torch.Tensor:
        """Every rank gets a part of one dimension, and all of the other."""
        ranks = self.made.shape.workload.cp
        parts = torch.stack(tensor.chunk(ranks, dim=cut))
        return torch.cat(exchanged(parts, [1] * ranks, [1] * ranks, self._group).unbind(), dim=joined)


class Ring(ContextParallel):
    """Keys and values go around (Liu et al. 2023, https://arxiv.org/abs/2310.01889). Of 2 c parts of a sequence rank r
    has r and 2 c − 1 − r, so that all compute as much (Llama 3, https://arxiv.org/abs/2407.21783, section 3.3.2).
    """

    @property
    def places(self) -> torch.Tensor:
        """An early and a late part."""
        ranks, rank = self.made.shape.workload.cp, self.made.place("cp")
        parts = self.all_places.chunk(2 * ranks)
        return torch.cat((parts[rank], parts[2 * ranks - 1 - rank]))

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Part by part, as they come."""
        seen: torch.Tensor = _RingAttention.apply(query, torch.cat((key, value), -1), self._group)  # type: ignore[no-untyped-call]
        return seen

    @property
    def flop(self) -> int:
        """Of c blocks of scores that a rank has, c − 1 are computed by half."""
        shape, ranks = self.made.shape, self.made.shape.workload.cp
        scores = 3 * shape.tokens * attention_flop(shape.model, shape.model.sequence, causal=False)
        return shape.flop - round(scores * (ranks - 1) / (2 * ranks))


class _RingAttention(torch.autograd.Function):
    """Results of parts are added by their sums of exponentials (Milakov & Gimelshein 2018,
    https://arxiv.org/abs/1805.02867). Gradients of keys and values follow them, and end where these are from.
    """

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, own: torch.Tensor, group: Any) -> torch.Tensor:  # noqa: ANN401
        out = torch.zeros_like(query)
        total = query.new_full(query.shape[:-1], -torch.inf)
        pairs = own
        for hop in range(group.size()):
            coming = _passed_on(pairs, group, 0) if hop < group.size() - 1 else None
            rows, columns = _block(hop, group, query.shape[2])
            key, value = _heads_of(pairs[:, :, columns], query)
            part, sums = attention(query[:, :, rows], key, value, causal=hop == 0)
            both = torch.logaddexp(total[:, :, rows], sums)
            before, now = ((one - both).exp().unsqueeze(-1) for one in (total[:, :, rows], sums))
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
            coming = _passed_on(pairs, group, 0) if hop < last else None
            rows, columns = _block(hop, group, query.shape[2])
            key, value = _heads_of(pairs[:, :, columns], query)
            parts = (gradient[:, :, rows], query[:, :, rows], key, value, out[:, :, rows], total[:, :, rows])
            found = attention_backward(*parts, causal=hop == 0)
            of_query[:, :, rows] += found[0]
            of_pairs = of_own if hop == 0 else torch.zeros_like(own) if arriving is None else arriving()
            of_pairs[:, :, columns] += torch.stack(torch.cat(found[1:], -1).chunk(own.shape[1], 1)).sum(2).movedim(0, 1)
            arriving = None if hop == 0 else _passed_on(of_pairs, group, 1)
            pairs = pairs if coming is None else coming()
        return of_query, of_own if arriving is None else of_own + arriving(), None


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """What torch's fused kernel for the device gives, and logarithms of sums of exponentials; float32 has one each."""
    kernels = torch.ops.aten
    if query.device.type == "cpu":
        out, sums = kernels._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)  # noqa: SLF001
        return out, sums
    found = kernels._scaled_dot_product_efficient_attention(query, key, value, None, True, 0.0, causal)  # noqa: SLF001
    return found[0], found[1][..., : query.shape[2]]


def attention_backward(*given: torch.Tensor, causal: bool) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys and values; ``given``: that of the result, queries, keys, values, result and sums."""
    kernels = torch.ops.aten
    if given[0].device.type == "cpu":
        found = kernels._scaled_dot_product_flash_attention_for_cpu_backward(*given, 0.0, causal)  # noqa: SLF001
        return tuple(found)
    *tensors, out, sums = given
    # As the forward kernel leaves them: a multiple of 32 rows, of which those that are none weigh nothing.
    padded = functional.pad(sums, (0, -sums.shape[-1] % 32), value=torch.inf)
    seed = torch.zeros((), dtype=torch.int64)  # of dropout, of which there is none
    found = kernels._scaled_dot_product_efficient_attention_backward(  # noqa: SLF001
        *tensors, None, out, padded, seed, seed, 0.0, [True, True, True, False], causal
    )
    return tuple(found[:3])


def _block(hop: int, group: Any, tokens: int) -> tuple[slice, slice]:  # noqa: ANN401
    """Which of this rank's tokens see which of those that came: after ``hop`` hops of rank − hop, modulo all. Of a
    rank before this one its early part is seen by all, of a later one all by the late part.
    """
    whole, half = slice(None), tokens // 2
    if hop == 0:
        return whole, whole
    return (whole, slice(half)) if hop <= group.rank() else (slice(half, None), whole)


def _heads_of(pairs: torch.Tensor, query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, as many heads as there are of queries."""
    pairs = pairs.repeat_interleave(query.shape[1] // pairs.shape[1], dim=1)
    return pairs[..., : query.shape[-1]], pairs[..., query.shape[-1] :]


def _passed_on(tensor: torch.Tensor, group: Any, tag: int) -> Any:  # noqa: ANN401
    """Send it to the next rank of the ring; what is returned waits for what the previous one sends."""
    ranks, rank = group.size(), group.rank()
    coming = torch.empty_like(tensor)
    # NCCL wants both in one call: each would wait for what its neighbour has not begun.
    sending = dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % ranks, tag=tag)
    receiving = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks, tag=tag)
    works = dist.batch_isend_irecv([sending, receiving])

    def arrived() -> torch.Tensor:
        for work in works:
            work.wait()
        return coming

    return arrived
