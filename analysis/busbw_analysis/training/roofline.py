"""The roofline of a training step: FLOP of each phase per byte of memory and of network.

A phase takes at least max(FLOP/π, memory bytes/β, network bytes/W) (Williams et al. 2009,
https://doi.org/10.1145/1498765.1498785; with a network: https://jax-ml.github.io/scaling-book/roofline/).
"""

from dataclasses import dataclass

from busbw.workloads import model_rows
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.memory import Optimizer, per_parameter
from busbw_analysis.training.rates import Rates
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, sent, traffic


@dataclass(frozen=True, slots=True)
class Phase:
    """FLOP of one rank in a step, and the bytes of its memory or those that it sends (None: not counted).

    dimension: the dimension of the layout that the bytes are sent for.
    """

    name: str
    flop: float
    memory_bytes: float | None = None
    network_bytes: float | None = None
    dimension: Dimension | None = None

    @property
    def memory_intensity(self) -> float | None:
        """FLOP per byte of memory."""
        return self.flop / self.memory_bytes if self.memory_bytes else None

    @property
    def network_intensity(self) -> float | None:
        """FLOP per byte sent."""
        return self.flop / self.network_bytes if self.network_bytes else None

    def seconds(self, flop_per_second: float, memory: float, rates: Rates | None, layout: Layout) -> dict[str, float]:
        """The least time by each limit: compute, memory, network."""
        found = {"compute": self.flop / flop_per_second}
        if self.memory_bytes is not None:
            found["memory"] = self.memory_bytes / memory
        if self.network_bytes is not None and self.dimension is not None and rates is not None:
            found["network"] = self.network_bytes / rate_of(rates, layout, self.dimension)
        return found


def rate_of(rates: Rates, layout: Layout, dimension: Dimension) -> float:
    """B/s of a GPU in the groups of a dimension: the inner rate if a group fits into a node.

    Ranks are numbered tp first, then cp, ep, dp and pp, as in Megatron (arXiv:2104.04473, section 3.2: tensor groups
    within a node).
    """
    copies = layout.replicas
    ranks = {"tp": 1, "cp": layout.cp, "ep": layout.ep, "dp": copies, "pp": copies * layout.pp}[dimension]
    return rates.inner if layout.tp * ranks <= rates.per_host else rates.outer


def rate_of_node(rates: Rates, layout: Layout) -> float:
    """B/s of a GPU in dp groups that leave a node, if the node's ranks reduce inside first and each sends a part.

    This is the rate of all their cards, at most the rate inside the node.
    """
    each = min(layout.replicas, max(1, rates.per_host // layout.tp))
    return min(rates.inner, rates.outer * each)


def phases(step: Step, optimizer: Optimizer = "adam", *, causal: bool) -> tuple[Phase, ...]:
    """Products forward and backward, attention, the optimizer, and the whole step against each dimension's traffic.

    All are of a rank of the stage that ``traffic`` takes. Memory of a product: the weights once per pass (in the
    backward pass gradients are also read and written) and its inputs and outputs. Of attention: queries, keys, values
    and results (no scores, as in flash attention: https://arxiv.org/abs/2205.14135). Of the optimizer: its states,
    gradients and weights are read, states and weights written.
    """
    stage, layout, model = step.middle, step.layout, step.model
    m, width = layout.micro_batches, model.width_bytes
    products, inputs = products_of(step, stage)
    weights = sum(unit.total for unit in step.units(stage) if unit.name != "embedding")
    attending = sum(step.layers_of(stage)) * step.tokens * m / layout.tp
    scores = scores_of(step, stage, causal=causal) * m
    heads = model.heads * (model.key_dim + model.head_value_dim)
    keys = (model.heads if model.kv_rank else model.kv_heads) * (model.key_dim + model.head_value_dim)
    touched = width * attending * (heads + keys)
    forward = 2 * products * m
    grads = 2 * step.gradient_bytes * weights * m
    found = [
        Phase("products forward", forward, m * width * (weights + inputs)),
        Phase("products backward", 2 * forward, m * width * (weights + 2 * inputs) + grads),
    ]
    if model.heads:
        found.append(Phase("attention forward", scores, touched))
        found.append(Phase("attention backward", 2 * scores, 2 * touched))
    found.append(Phase("optimizer", *optimizer_work(step, stage, optimizer)))
    rows = traffic(step)
    whole = 3 * (forward + scores)
    found += [
        Phase(f"step and {one.upper()}", whole, network_bytes=bytes_, dimension=one)
        for one in DIMENSIONS
        if (bytes_ := sent(rows, one))
    ]
    return tuple(found)


_OPTIMIZER_FLOP = 12
"""FLOP of Adam per parameter: two averages, two corrections, a root, a quotient, a step; it hardly matters."""


def optimizer_work(step: Step, stage: int, optimizer: Optimizer = "adam") -> tuple[float, float]:
    """FLOP of a rank for its share of the parameters, and the bytes read and written.

    States and weights are read and written, gradients only read.
    """
    states = sum(unit.total / (step.shards(unit) if step.layout.zero else 1) for unit in step.units(stage))
    each = per_parameter(step.model.width_bytes, step.gradient_bytes, optimizer, 0, 1)
    return _OPTIMIZER_FLOP * states, states * (2 * (each.optimizer + each.weights) + each.gradients)


def scores_of(step: Step, stage: int, *, causal: bool) -> float:
    """FLOP of a rank's attention in the forward pass of one micro-batch."""
    of_layer = model_rows.attention_flop(step.model, step.sequence, causal=causal) / step.model.layers
    return of_layer * sum(step.layers_of(stage)) * step.tokens / step.layout.tp


def products_of(step: Step, stage: int) -> tuple[float, float]:
    """Multiplications of a rank for one micro-batch, and elements that its products read and write.

    With experts, of the rank with the busiest ones.
    """
    layout, model = step.layout, step.model
    dense, expert = step.layers_of(stage)
    t, tokens, h = layout.tp, step.tokens, model.hidden
    attention = model_rows.attention(model).products * (dense + expert)
    ffn = model_rows.dense_ffn(model).products * dense
    chosen = model.top_k * step.imbalance
    routed = (chosen * model_rows.one_expert(model) + model_rows.around_experts(model).products) * expert
    head = model_rows.head(model).products if stage == layout.pp - 1 else 0
    pieces = 3 if model.gated else 2
    wide = 2 * h + model.heads * (model.key_dim + model.head_value_dim) / t * 2
    inside = 2 * h + pieces * model.ffn / t
    used = chosen + model.shared_experts
    experts = used * (2 * h + pieces * model.expert_ffn / t)
    ends = h + model.vocabulary / t if head else 0
    moved = wide * (dense + expert) * bool(model.heads) + inside * dense + experts * expert + ends
    return (attention + ffn + routed + head) / t * tokens, moved * tokens


def least_tokens(flop_per_second: float, bytes_per_second: float, ranks: int, width: int = 2) -> float:
    """Tokens per rank and step from which an all_reduce of gradients takes no longer than the concurrent backward pass.

    4 Ψ FLOP per token against 2(n−1)/n Ψ w bytes: (n−1)/n w/2 · π/W, so π/W with 2 bytes and many ranks. With zero 3
    the same holds per micro-batch, because an all_gather and a reduce_scatter move as many bytes
    (https://jax-ml.github.io/scaling-book/training/, on data parallelism and FSDP).
    """
    return (ranks - 1) / ranks * width / 2 * flop_per_second / bytes_per_second
