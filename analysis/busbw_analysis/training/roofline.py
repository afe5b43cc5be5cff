"""The roofline of a training step: FLOP of each phase per byte of memory and of network.

A phase takes at least max(FLOP/π, memory bytes/β, the time of each kind of link) (Williams et al. 2009,
https://doi.org/10.1145/1498765.1498785; with a network: https://jax-ml.github.io/scaling-book/roofline/). Links inside
a node and cards between nodes work at once (``prices.wires_of``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.units import format_seconds
from busbw.workloads import model_rows
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import Step, assumed_notes, step_words
from busbw_analysis.training.memory import per_parameter
from busbw_analysis.training.prices import Rates, Wires, busiest
from busbw_analysis.training.traffic import DIMENSIONS, Dimension, sent, traffic

Limit = Literal["compute", "memory", "inside", "between"]
"""What limits a phase; the last two are links inside a node, and cards between nodes."""


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

    def seconds(self, flop_per_second: float, memory: float, wires: Wires | None) -> dict[Limit, float]:
        """The least time by each limit; ``wires``: that of the links, of a phase with a dimension."""
        least: dict[Limit, float] = {"compute": self.flop / flop_per_second}
        if self.memory_bytes is not None:
            least["memory"] = self.memory_bytes / memory
        if wires is not None:
            least |= {"inside": wires.inside, "between": wires.between}
        return least


Timed = tuple[Phase, dict[Limit, float]]
"""A phase and its least seconds by each limit."""


def wires_of_step(step: Step, rates: Rates) -> dict[Dimension, Wires]:
    """The least seconds of each dimension's calls on the links of a rank of ``Step.middle``."""
    rows = traffic(step)
    return {
        dimension: busiest((row for row in rows if row.dimension == dimension), step.layout, rates, rates.per_host)
        for dimension in DIMENSIONS
        if sent(rows, dimension)
    }


def phases(step: Step, *, causal: bool) -> tuple[Phase, ...]:
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
    parts = [
        Phase("products forward", forward, m * width * (weights + inputs)),
        Phase("products backward", 2 * forward, m * width * (weights + 2 * inputs) + grads),
    ]
    if model.heads:
        parts.append(Phase("attention forward", scores, touched))
        parts.append(Phase("attention backward", 2 * scores, 2 * touched))
    parts.append(Phase("optimizer", *optimizer_work(step, stage)))
    rows = traffic(step)
    whole = 3 * (forward + scores)
    parts += [
        Phase(f"step over {dimension.upper()}", whole, network_bytes=bytes_, dimension=dimension)
        for dimension in DIMENSIONS
        if (bytes_ := sent(rows, dimension))
    ]
    return tuple(parts)


_OPTIMIZER_FLOP = 12
"""FLOP of Adam per parameter: two averages, two corrections, a root, a quotient, a step; it hardly matters."""


def optimizer_work(step: Step, stage: int) -> tuple[float, float]:
    """FLOP of a rank by Adam for its share of the parameters, and the bytes read and written.

    States and weights are read and written, gradients only read.
    """
    states = sum(unit.total / (step.shards(unit) if step.layout.zero else 1) for unit in step.units(stage))
    each = per_parameter(step.model.width_bytes, step.gradient_bytes, "adam", 0, 1)
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


def least_tokens(step: Step, flop_per_second: float, rates: Rates) -> float:
    """Tokens of a micro-batch on a rank from which its passes take no less time than the dp calls beside them.

    π t/(2 A) forward and π t/(4 A) backward: A multiplications per token in products, of a token's own experts only, t
    seconds for the weights or gradients of all parameters. For a dense model, with 2 bytes, many ranks and one rank per
    node, (n−1)/n π/W (https://jax-ml.github.io/scaling-book/training/, on data parallelism and FSDP). Gradients that
    are reduced once a step are beside the last micro-batch alone. 0 without dp.
    """
    layout, stage = step.layout, step.middle
    for_token = products_of(step, stage)[0] / step.tokens
    gathers = layout.micro_batches if layout.zero == 3 and layout.reshard else 1
    tokens = 0.0
    for flop, phases_ in ((2.0, {"forward", "optimizer"}), (4.0, {"backward"})):
        once = [
            replace(row, messages=row.messages // (layout.reduces if row.op != "all_gather" else gathers))
            for row in traffic(step, stage)
            if row.dimension == "dp" and row.phase in phases_
        ]
        seconds = max(busiest(once, layout, rates, rates.per_host))
        tokens = max(tokens, seconds * flop_per_second / (flop * for_token))
    return tokens


def seconds_alone(timed: Sequence[Timed]) -> float:
    """The least seconds of a step without communication: its phases one after the other."""
    return sum(max(least.values()) for phase, least in timed if phase.dimension is None)


def roofline_headline(timed: Sequence[Timed], tokens: float | None, own: int) -> str:
    """The lower bound of a step's time and its limit.

    tokens: of a GPU's micro-batch, from which dp can be hidden; None if unknown. own: those of this step.
    """
    alone = seconds_alone(timed)
    longest = max([alone, *(max(least.values()) for _, least in timed)])
    slow = [phase.dimension for phase, least in timed if phase.dimension is not None and max(least.values()) > alone]
    by = f"the network ({', '.join(map(str, slow))})" if slow else "computation and memory of a GPU"
    words = f"A step takes at least {format_seconds(longest)}, limited by {by}"
    if tokens is None:
        return words
    hidden = "can be" if own >= tokens else "is not"
    return f"{words}; dp {hidden} hidden by a micro-batch: that takes {tokens:.0f} tokens a GPU, and it has {own}"


_LIMITED_BY: Final[dict[Limit, str]] = {
    "compute": "compute",
    "memory": "memory",
    "inside": "links in a node",
    "between": "NICs",
}
_ROOFLINE: Final[tuple[Column[Timed], ...]] = (
    Column("what", lambda row: row[0].name),
    Column("FLOP", lambda row: row[0].flop, "{:.3g}".format),
    Column("memory", lambda row: row[0].memory_intensity, "{:.3g}".format, "FLOP/B"),
    Column("network", lambda row: row[0].network_intensity, "{:.3g}".format, "FLOP/B"),
    Column("at least", lambda row: max(row[1].values()), format_seconds),
    Column("limited by", lambda row: _LIMITED_BY[max(row[1], key=lambda name: row[1][name])]),
)


def roofline_table(step: Step, timed: Sequence[Timed], notes: Sequence[str], assumed: Mapping[str, str]) -> Table:
    """Each phase with its intensities, its least time, and the limit; links of every dimension below."""
    links = [
        f"{phase.dimension}: links inside a node take {format_seconds(least['inside'])}, NICs "
        f"{format_seconds(least['between'])}, at once"
        for phase, least in timed
        if "inside" in least
    ]
    whole = f"sum of the rows without communication, one after the other: {format_seconds(seconds_alone(timed))}"
    return table(step_words(step), _ROOFLINE, timed, whole, *links, *notes, *assumed_notes(assumed))
