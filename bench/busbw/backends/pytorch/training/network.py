"""A row of the model table as a torch module: embedding, layers of attention and feed-forward network, head.

Weights and data are generated from a seed, the same on every rank; a part of a model has the same weights as the whole.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from busbw.workloads.model_rows import Model
from busbw.workloads.shapes import DROPPED


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
        ctx.rows, ctx.group = (received, sent), group
        return _sent(tensor, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        received, sent = ctx.rows
        return _sent(gradient, received, sent, ctx.group), None, None, None


def _sent(tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
    out = tensor.new_empty((sum(received), *tensor.shape[1:]))
    dist.all_to_all_single(out, tensor.contiguous(), received, sent, group=group)
    return out


def exchanged(tensor: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:  # noqa: ANN401
    """All_to_all of rows: ``sent`` and ``received`` are the numbers of rows to and from each rank of the group."""
    out: torch.Tensor = _Exchange.apply(tensor, sent, received, group)  # type: ignore[no-untyped-call]
    return out


_ROTARY_BASE = 10_000.0


class Attention(nn.Module):
    """Causal attention with its projections; heads are derived from widths, because a rank may have a part of them.

    attend: attention function of queries, keys and values, each (sequences, heads, tokens, width).
    places: positions of the tokens in their sequence (None: consecutive).
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._head_dim = model.head_dim
        self._rotary = not model.positions
        self.attend = causal
        self.places: torch.Tensor | None = None
        wide, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.query = nn.Linear(model.hidden, wide, bias=model.biases)
        self.key = nn.Linear(model.hidden, narrow, bias=model.biases)
        self.value = nn.Linear(model.hidden, narrow, bias=model.biases)
        self.out = nn.Linear(wide, model.hidden, bias=model.biases)
        self.query_norm = nn.RMSNorm(model.head_dim) if model.qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(model.head_dim) if model.qk_norm else nn.Identity()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens, hidden)."""
        query, key, value = (self._heads(projection(hidden)) for projection in (self.query, self.key, self.value))
        query, key = self.query_norm(query), self.key_norm(key)
        if self._rotary:
            query, key = _rotated(query, self.places), _rotated(key, self.places)
        out: torch.Tensor = self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))
        return out

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.view(*projected.shape[:-1], -1, self._head_dim).transpose(1, 2)


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 2.1.1).

    Keys and values of all heads are projected from one narrow vector, and queries from another. Rotary positions apply
    to ``rope_dim`` additional elements of each query, and of one key that all heads share.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self.query_down = nn.Linear(model.hidden, model.q_rank, bias=False) if model.q_rank else nn.Identity()
        self.query_norm = nn.RMSNorm(model.q_rank) if model.q_rank else nn.Identity()
        self.query = nn.Linear(model.q_rank or model.hidden, model.heads * model.key_dim, bias=False)
        self.down = nn.Linear(model.hidden, model.kv_rank + model.rope_dim, bias=False)
        self.down_norm = nn.RMSNorm(model.kv_rank)
        self.up = nn.Linear(model.kv_rank, model.heads * (model.head_dim + model.value_dim), bias=False)
        self.out = nn.Linear(model.heads * model.value_dim, model.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens, hidden)."""
        model = self._model
        query, turned = self._heads(self.query(self.query_norm(self.query_down(hidden))), model.rope_dim)
        narrow, shared = self.down(hidden).split((model.kv_rank, model.rope_dim), -1)
        key, value = self._heads(self.up(self.down_norm(narrow)), model.value_dim)
        turned, shared = _rotated(turned, None), _rotated(shared.unsqueeze(1), None)
        query, key = torch.cat((query, turned), -1), torch.cat((key, shared.expand(-1, model.heads, -1, -1)), -1)
        out: torch.Tensor = self.out(causal(query, key, value).transpose(1, 2).flatten(2))
        return out

    def _heads(self, projected: torch.Tensor, more: int) -> tuple[torch.Tensor, ...]:
        """Split each head into ``head_dim`` and ``more`` elements."""
        heads = projected.view(*projected.shape[:-1], self._model.heads, -1).transpose(1, 2)
        return torch.split(heads, [self._model.head_dim, more], -1)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention to all earlier tokens; several query heads may share a key and a value head (grouped-query attention,
    https://arxiv.org/abs/2305.13245).
    """
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, dim=1) for tensor in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _rotated(heads: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Rotary positions (Su et al. 2021, https://arxiv.org/abs/2104.09864, section 3.4.2)."""
    half = heads.shape[-1] // 2
    rates = _ROTARY_BASE ** -(torch.arange(half, device=heads.device) / half)
    positions = torch.arange(heads.shape[-2], device=heads.device) if places is None else places
    angles = torch.outer(positions, rates).to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class FeedForward(nn.Module):
    """Two matrices, or three including a gate (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(self, model: Model, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(model.hidden, width, bias=model.biases)
        self.gate = nn.Linear(model.hidden, width, bias=model.biases) if model.gated else None
        self.down = nn.Linear(width, model.hidden, bias=model.biases)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (…, hidden)."""
        wide = self.up(hidden)
        inner = functional.gelu(wide) if self.gate is None else functional.silu(self.gate(hidden)) * wide
        out: torch.Tensor = self.down(inner)
        return out


class Experts(nn.Module):
    """Mixture of experts: each token uses some feed-forward networks, weighted by a softmax over these.

    Jiang et al. 2024, https://arxiv.org/abs/2401.04088, section 2.1. A dropped token gets nothing from that expert.
    Shared experts process every token and are one network of their combined width.
    own: experts on this rank.
    group: ranks that have all experts together, the same number each (None: all are here).
    """

    def __init__(self, model: Model, choice: Sequence[int], own: range) -> None:
        super().__init__()
        self.router = nn.Linear(model.hidden, model.experts, bias=False)
        self.experts = nn.ModuleDict({str(number): FeedForward(model, model.expert_ffn) for number in own})
        self.shared = FeedForward(model, model.shared_experts * model.expert_ffn) if model.shared_experts else None
        self.group: Any = None
        self._choice = torch.tensor(choice).view(model.top_k, -1).T

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens, hidden), whose tokens are one or more repetitions of those in ``choice``."""
        rows = hidden.flatten(0, 1)
        choice = self._choice.repeat(len(rows) // len(self._choice), 1)
        gates = self.router(rows).gather(1, choice.clamp(min=0).to(rows.device)).softmax(-1).flatten()
        chosen = choice.flatten()  # on the host, so that it need not wait for the device
        order = chosen.argsort(stable=True)[int((chosen == DROPPED).sum()) :]
        counts = chosen[order].bincount(minlength=self.router.out_features).tolist()
        order = order.to(rows.device)
        token = order // choice.shape[1]
        worked = self._worked(rows[token], counts) * gates[order].unsqueeze(-1)
        base = torch.zeros_like(rows) if self.shared is None else self.shared(rows)
        return base.index_add(0, token, worked).view_as(hidden)

    def _worked(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Apply the experts to ``rows``, which are sorted by expert with ``counts`` rows each."""
        ranks, own = 1 if self.group is None else self.group.size(), len(self.experts)
        local = [counts[int(number)] for number in self.experts]
        sent = [sum(counts[first : first + own]) for first in range(0, len(counts), own)]
        received = [sum(local)] * ranks
        came = rows if self.group is None else exchanged(rows, sent, received, self.group)
        parts = torch.split(came, local * ranks)
        results = [expert(torch.cat(parts[place::own])) for place, expert in enumerate(self.experts.values())]
        by_source = zip(*(result.tensor_split(ranks) for result in results), strict=True)
        back = torch.cat([part for source in by_source for part in source])
        return back if self.group is None else exchanged(back, received, sent, self.group)


class Layer(nn.Module):
    """Attention (if the model has it) and feed-forward network or experts, each with a residual connection."""

    def __init__(self, model: Model, number: int, choice: Sequence[int], experts: range) -> None:
        super().__init__()
        self.attention_norm = _norm(model) if model.heads else None
        kind = LatentAttention if model.kv_rank else Attention
        self.attention = kind(model) if model.heads else None
        self.ffn_norm = _norm(model)
        mixed = model.experts and number >= model.dense_layers
        self.ffn = Experts(model, choice, experts) if mixed else FeedForward(model, model.ffn)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens, hidden)."""
        if self.attention is not None and self.attention_norm is not None:
            hidden = hidden + self.attention(self.attention_norm(hidden))
        out: torch.Tensor = hidden + self.ffn(self.ffn_norm(hidden))
        return out


class Embedding(nn.Module):
    """Token embedding, plus learned positions if the model has them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.hidden)
        self.positions = nn.Embedding(model.positions, model.hidden) if model.positions else None
        self.places: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens)."""
        looked_up: torch.Tensor = self.tokens(tokens)
        if self.positions is None:
            return looked_up
        places = torch.arange(tokens.shape[1], device=tokens.device) if self.places is None else self.places
        placed: torch.Tensor = looked_up + self.positions(places)
        return placed


class Head(nn.Module):
    """The norm after the last layer, and the output matrix."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.norm = _norm(model)
        self.out = nn.Linear(model.hidden, model.vocabulary, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to (sequences, tokens, hidden)."""
        out: torch.Tensor = self.out(self.norm(hidden))
        return out


class Network(nn.Module):
    """The given ``layers`` of ``model``, with embedding or head if they include the first or last layer.

    Weights are generated from ``seed``. Parameters have the same names as in the whole model.
    choice: experts of the tokens, as in ``shapes.routed``.
    experts: experts of each layer on this rank (None: all).
    """

    def __init__(
        self,
        model: Model,
        seed: int,
        layers: range | None = None,
        *,
        choice: Sequence[int] = (),
        experts: range | None = None,
    ) -> None:
        super().__init__()
        mine = range(model.layers) if layers is None else layers
        first, last = mine.start == 0, mine.stop == model.layers
        self.embedding = Embedding(model) if model.vocabulary and first else None
        own = range(model.experts) if experts is None else experts
        self.layers = nn.ModuleDict({str(number): Layer(model, number, choice, own) for number in mine})
        self.head = Head(model) if model.vocabulary and last else None
        self._tied = model.tied
        self.tie()
        for name, parameter in self.named_parameters():
            _fill(name, parameter, seed)

    def tie(self) -> None:
        """Share the embedding's matrix with the output, if the model ties them and both are here."""
        if self._tied and self.embedding is not None and self.head is not None:
            self.head.out.weight = self.embedding.tokens.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply to tokens if it has an embedding, otherwise to (sequences, tokens, hidden)."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        for layer in self.layers.values():
            hidden = layer(hidden)
        out: torch.Tensor = hidden if self.head is None else self.head(hidden)
        return out


def _norm(model: Model) -> nn.Module:
    kinds: dict[str, Any] = {"rms": nn.RMSNorm, "layer": nn.LayerNorm}
    norm: nn.Module = kinds[model.norm](model.hidden) if model.norm in kinds else nn.Identity()
    return norm


def _fill(name: str, parameter: nn.Parameter, seed: int) -> None:
    """Fill a matrix with normal values of variance 1 / inputs, and a bias with zeros; each has its own seed."""
    numbers = torch.Generator().manual_seed((seed << 32) % (1 << 62) + zlib.crc32(name.encode()))
    with torch.no_grad():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() > 1:
            parameter.normal_(0, 1 / math.sqrt(parameter.shape[1]), generator=numbers)


def batch_of(model: Model, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all sequences of a step: tokens, or normal values for a model without vocabulary."""
    numbers = torch.Generator().manual_seed(seed + 7)
    shape = (model.batch, model.sequence)
    if model.vocabulary:
        tokens, targets = (torch.randint(model.vocabulary, shape, generator=numbers) for _ in range(2))
        return tokens, targets
    given, target = (torch.randn(*shape, model.hidden, generator=numbers) for _ in range(2))
    return given, target


def loss_of(out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean loss over all tokens: cross-entropy, or squared error for real-valued targets."""
    if targets.is_floating_point():
        return functional.mse_loss(out, targets)
    return functional.cross_entropy(out.flatten(0, 1), targets.flatten())
