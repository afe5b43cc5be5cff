"""Rows of TOML that describe models and samples with their sources, and quantities derived from one row.

``models/`` and ``samples.toml`` have the shipped rows; users have files of their own. FLOP count a multiplication and
its addition as 2.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from busbw.errors import UsageError, nearest, what_is_known
from busbw.ops import limits
from busbw.ops.limits import SourcedRow, refuse
from busbw.runs.records import DTYPE_BYTES, Record

Norm = Literal["rms", "layer", "none"]

_LARGEST: Final = 10**9
_MOST_LAYERS: Final = 1 << 14
"""A lower limit, because each stage of a pipeline is checked."""


class Sample(SourcedRow, frozen=True, kw_only=True):
    """Data read to train on one example: ``bytes`` as stored, ``flop`` of its forward and backward pass."""

    bytes: int
    flop: int

    def __post_init__(self) -> None:
        self.check_source()
        for key in ("bytes", "flop"):
            if not 1 <= getattr(self, key) <= limits.LARGEST_SEED:
                refuse(key, getattr(self, key), "1 or more")


class Model(SourcedRow, frozen=True, kw_only=True):
    """A transformer, or with ``heads = 0`` layers without attention.

    heads, kv_heads, head_dim: attention; fewer kv_heads than heads is grouped-query attention
    ffn, gated: width of the dense feed-forward network; it has three matrices if gated, else two
    vocabulary, tied: rows of the embedding; tied: the output head is the same matrix
    positions: rows of a learned position table (0: none, as with rotary embeddings)
    norm, biases, qk_norm, dropout: rms has a weight, layer a weight and a bias; qk_norm adds two of head_dim per layer
    experts, top_k, shared_experts, expert_ffn: layers after the first ``dense_layers`` (experts = 0: no experts)
    nodes_per_token: most nodes that hold the experts of one token (0: no limit)
    rope_dim, value_dim, q_rank, kv_rank: multi-head latent attention (kv_rank = 0: not used): queries and keys have
        width head_dim + rope_dim, values value_dim; q_rank = 0: queries are not compressed
    sequence, batch, dtype: tokens per sequence, sequences per step and type of weights in the published training
    """

    layers: int
    hidden: int
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    gated: bool = True
    vocabulary: int = 0
    tied: bool = False
    positions: int = 0
    norm: Norm = "rms"
    biases: bool = False
    qk_norm: bool = False
    dropout: bool = False
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    dense_layers: int = 0
    nodes_per_token: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    sequence: int
    batch: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        self.check_source()
        least = dict.fromkeys(("layers", "hidden", "sequence", "batch"), 1)
        for key in (*least, *self.__struct_fields__):
            value, most = getattr(self, key), _MOST_LAYERS if key == "layers" else _LARGEST
            if isinstance(value, int) and not least.get(key, 0) <= value <= most:
                refuse(key, value, f"{least.get(key, 0)} to {most}")
        self._check_parts()

    def _check_parts(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            refuse("dtype", self.dtype, ", ".join(DTYPE_BYTES))
        if self.heads and not (self.kv_heads and self.head_dim and self.heads % self.kv_heads == 0):
            refuse("kv_heads", self.kv_heads, f"a divisor of {self.heads} heads, together with head_dim")
        if self.kv_rank and not (self.heads and self.value_dim):
            refuse("kv_rank", self.kv_rank, "kv_rank only together with heads and value_dim")
        if self.experts and not (self.expert_ffn and 1 <= self.top_k <= self.experts):
            refuse("experts", self.experts, f"experts only together with expert_ffn and top_k of 1 to {self.experts}")
        if not self.experts and (self.top_k or self.shared_experts or self.expert_ffn or self.nodes_per_token):
            refuse("experts", self.experts, "1 or more, to use top_k, shared_experts, expert_ffn or nodes_per_token")
        if self.dense_layers > self.layers:
            refuse("dense_layers", self.dense_layers, f"at most {self.layers}")
        if not self.ffn and not self.experts:
            refuse("ffn", self.ffn, "1 or more, or experts")

    @property
    def width_bytes(self) -> int:
        """Bytes of a weight, and of one element of an activation."""
        return DTYPE_BYTES[self.dtype]

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def key_dim(self) -> int:
        """Width of one head's query and key."""
        return self.head_dim + self.rope_dim

    @property
    def head_value_dim(self) -> int:
        """Width of one head's value."""
        return self.value_dim or self.head_dim


# --- derived from a row ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """Parameters of a part of the model.

    split: divided among tensor-parallel ranks
    whole: replicated on each of them
    products: those of both that are in matrix products (not norms, biases or lookup tables)
    """

    split: int
    whole: int
    products: int

    @property
    def total(self) -> int:
        """All parameters of the part."""
        return self.split + self.whole


def _norm(model: Model) -> int:
    return {"rms": model.hidden, "layer": 2 * model.hidden, "none": 0}[model.norm]


def attention(model: Model) -> Count:
    """Parameters of one layer's attention and the norm before it.

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2; grouped-query:
    https://arxiv.org/abs/2305.13245; latent: https://arxiv.org/abs/2412.19437, section 2.1.1, whose down-projections
    are on every tensor-parallel rank.
    """
    h, heads, groups = model.hidden, model.heads, model.kv_heads
    if not heads:
        return Count(0, 0, 0)
    if model.kv_rank:
        query = (model.q_rank or h) * heads * model.key_dim
        split = query + model.kv_rank * heads * (model.head_dim + model.value_dim) + heads * model.value_dim * h
        down = h * (model.q_rank + model.kv_rank + model.rope_dim)
        return Count(split, down + model.q_rank + model.kv_rank + _norm(model), split + down)
    matrices = 2 * h * model.head_dim * (heads + groups)
    bias = model.head_dim * (heads + 2 * groups) if model.biases else 0
    whole = _norm(model) + (h if model.biases else 0) + (2 * model.head_dim if model.qk_norm else 0)
    return Count(matrices + bias, whole, matrices)


def dense_ffn(model: Model) -> Count:
    """Parameters of a dense feed-forward network and the norm before it (gated: https://arxiv.org/abs/2002.05202)."""
    up = 2 if model.gated else 1
    matrices = (up + 1) * model.hidden * model.ffn
    bias, out = (up * model.ffn, model.hidden) if model.biases else (0, 0)
    return Count(matrices + bias, _norm(model) + out, matrices)


def one_expert(model: Model) -> int:
    """Parameters of one expert, all of them in products."""
    return (3 if model.gated else 2) * model.hidden * model.expert_ffn


def around_experts(model: Model) -> Count:
    """Parameters of a layer's norm, router and shared experts, which every token uses."""
    router = model.hidden * model.experts
    shared = model.shared_experts * one_expert(model)
    return Count(shared, router + _norm(model), shared + router)


def embedding(model: Model) -> Count:
    """Lookup tables; they are in no matrix product."""
    return Count(model.vocabulary * model.hidden, model.positions * model.hidden, 0)


def head(model: Model) -> Count:
    """The norm after the last layer, and the output head; a tied head is a product but is counted in the embedding."""
    matrix = model.vocabulary * model.hidden
    return Count(0 if model.tied else matrix, _norm(model) if model.vocabulary else 0, matrix)


def parameters(model: Model, *, active: bool = False) -> int:
    """All parameters; ``active``: only those that one token uses."""
    return _of_all_parts(model, lambda part: part.total, model.top_k if active else model.experts)


def products(model: Model) -> int:
    """Parameters in matrix products for one token: the N of 6 N without embeddings, norms and biases (Kaplan et al.
    2020, https://arxiv.org/abs/2001.08361, section 2.1), but with the output head.
    """
    return _of_all_parts(model, lambda part: part.products, model.top_k)


def _of_all_parts(model: Model, count: Callable[[Count], int], experts: int) -> int:
    """Sum of ``count`` over the parts of a model, with ``experts`` experts in each mixture layer."""
    mixture = experts * one_expert(model) + count(around_experts(model))
    return (
        count(embedding(model))
        + count(head(model))
        + model.layers * count(attention(model))
        + (model.layers - model.expert_layers) * count(dense_ffn(model))
        + model.expert_layers * mixture
    )


def attention_flop(model: Model, sequence: int, *, causal: bool) -> float:
    """FLOP of a token's forward pass in scores and weighted values: 2 s a (d_k + d_v) per layer, which is 4 s a d
    (Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B). Causal: a token sees (s + 1)/2 on average.
    """
    seen = (sequence + 1) / 2 if causal else sequence
    return 2 * seen * model.heads * (model.key_dim + model.head_value_dim) * model.layers


def flop_per_token(model: Model, sequence: int, *, causal: bool) -> float:
    """FLOP of a token's forward and backward pass: 6 per parameter in products, and 3 times the attention's forward
    pass (Kaplan et al. 2020, section 2.1: a backward pass costs two forward passes). No recomputation.
    """
    return 6 * products(model) + 3 * attention_flop(model, sequence, causal=causal)


_SCALED: Final = {
    **dict.fromkeys(("hidden", "head_dim", "ffn", "expert_ffn", "vocabulary", "positions"), 8),
    **dict.fromkeys(("rope_dim", "value_dim", "q_rank", "kv_rank", "sequence", "batch"), 8),
    "layers": 4,
}
"""Scaled field → the multiple that it is rounded up to, so that ranks can divide it."""


def scaled(model: Model, scale: float) -> Model:
    """``model`` with widths, layers, sequence and batch times ``scale``; the numbers of heads and experts stay. Each
    value is rounded up to a multiple of 8 (layers: 4), but is at most that of the row.
    """
    smaller = {
        name: min(whole, math.ceil(whole * scale / step) * step)
        for name, step in _SCALED.items()
        if (whole := getattr(model, name))
    }
    # The same fraction of dense layers, at least one if the model has any.
    dense = max(min(1, model.dense_layers), model.dense_layers * smaller["layers"] // model.layers)
    return msgspec.structs.replace(model, **smaller, dense_layers=dense)


# --- reading -----------------------------------------------------------------------------------------------------


class _File(Record, frozen=True, kw_only=True):
    model: tuple[Model, ...] = ()
    sample: tuple[Sample, ...] = ()


_Named = TypeVar("_Named", Model, Sample)


def _files(path: Path | None) -> list[_File]:
    """The file at ``path``, or the shipped ones."""
    if path is not None:
        return [parse(limits.read_text(path, limits.MOST_TOML_BYTES), str(path))]
    shipped = {**limits.shipped("busbw.workloads", "models"), **limits.shipped("busbw.workloads", ".")}
    return [parse(text, f"workloads/{name}.toml") for name, text in shipped.items()]


def parse(text: str, origin: str) -> _File:
    """The rows of one file. Raises UsageError with the file, the row and the key."""
    try:
        return msgspec.convert(limits.read_toml(text, origin), _File)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise UsageError(f"{origin}: {error}", code="model") from error


def models(path: Path | None = None) -> dict[str, Model]:
    """Name → model: those of the file at ``path``, or the shipped ones."""
    return {row.name: row for file in _files(path) for row in file.model}


def samples(path: Path | None = None) -> dict[str, Sample]:
    """Name → sample: those of the file at ``path``, or the shipped ones."""
    return {row.name: row for file in _files(path) for row in file.sample}


def named(rows: dict[str, _Named], name: str, what: str = "model") -> _Named:
    """The row called ``name``, ignoring case, spaces and dashes. Raises UsageError that lists all rows, as ``what``.

    One without the numbers of ``name`` is another model, not the one that was meant.
    """
    plain = _plain(name)
    row = next((row for key, row in rows.items() if _plain(key) == plain), None)
    if row is None:
        likely: str | None = nearest(name, rows)
        if likely is not None and not set(re.findall(r"\d+", name)).issubset(re.findall(r"\d+", likely)):
            likely = None
        own = "; describe another, such as --model layers=32,hidden=4096" if what == "model" else ""
        raise UsageError(f"{what} {name!r} is unknown; {what_is_known(list(rows), likely)}{own}", code="model")
    return row


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()
