"""Bytes that a rank sends in a training step, by dimension: which collective, how large, how often, with formulas.

S is defined as in docs/method.md and nccl-tests: the buffer of a rank in an all_reduce or all_to_all, the whole output
of an all_gather, the whole input of a reduce_scatter, a message of a send_recv. A rank sends S × bus factor in a call:
as much as in a ring or a direct exchange, and the least for any algorithm without switches that reduce.

Letters: d, t, p, c, e degrees, b sequences of a micro-batch, s tokens of a sequence, h hidden, L layers of the stage, m
micro-batches, v interleaved parts, w bytes of an element, w_g of a gradient, Ψ parameters of a rank, k experts of a
token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, get_args

from busbw.ops import bus_factor
from busbw.units import about_size
from busbw.workloads import model_rows
from busbw.workloads.model_rows import parameters
from busbw_analysis.data.grouped import by_key
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import Step, assumed_notes, gigabytes, percent_of, step_words

Dimension = Literal["dp", "tp", "pp", "cp", "ep"]
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)
Phase = Literal["forward", "backward", "optimizer"]

ZERO: Final = "Rajbhandari et al. 2020 (arXiv:1910.02054), section 7"
FSDP: Final = "Zhao et al. 2023 (arXiv:2304.11277), section 3"
LECTURE: Final = "Stanford CS336, spring 2025, lecture 8"
MEGATRON: Final = "Shoeybi et al. 2019 (arXiv:1909.08053), section 3"
PIPELINE: Final = "Narayanan et al. 2021 (arXiv:2104.04473), sections 2.2 and 4.1"
SEQUENCE: Final = "Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2"
RING: Final = "Liu et al. 2023 (arXiv:2310.01889), section 3; grouped heads: arXiv:2305.13245"
ULYSSES: Final = "Jacobs et al. 2023 (arXiv:2309.14509), section 3"
EXPERTS: Final = "Lepikhin et al. 2020 (arXiv:2006.16668), section 3.2"
NODES: Final = "DeepSeek-AI 2024 (arXiv:2412.19437), sections 2.1.2 and 3.2.2"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Equal calls of one collective in a step, for one rank.

    ranks: ranks of its group.
    stride: distance between neighbours of the group; ranks are numbered tp first, then cp, ep, dp and pp, as in
    Megatron (arXiv:2104.04473, section 3.2).
    size_bytes: S of a call.
    messages: calls per step.
    sent_bytes: bytes sent by the rank in all of them.
    hideable: it can overlap with computation; otherwise computation waits.
    """

    dimension: Dimension
    what: str
    op: str
    ranks: int
    size_bytes: int
    messages: int
    phase: Phase
    hideable: bool
    formula: str
    source: str
    stride: int = 1

    @property
    def sent_bytes(self) -> float:
        """Bytes sent per step."""
        return self.messages * self.size_bytes * (bus_factor(self.op, self.ranks) or 0.0)


def traffic(step: Step, stage: int | None = None) -> tuple[Traffic, ...]:
    """All traffic of a rank of a pipeline stage (None: the middle one, ``Step.middle``), without empty rows."""
    chosen = step.middle if stage is None else step.check_stage(stage)
    layers = _columns if step.layout.columns else _tensor
    parts = (_data, layers, _summed, _vocabulary, _pipeline, _context, _experts)
    rows = chain.from_iterable(part(step, chosen) for part in parts)
    return tuple(row for row in rows if row.ranks > 1 and row.messages and row.size_bytes)


def sent(rows: tuple[Traffic, ...], dimension: Dimension | None = None, *, hideable: bool | None = None) -> float:
    """Bytes of all rows, or of those of a dimension, or of those that are hideable or not."""
    return sum(
        row.sent_bytes
        for row in rows
        if dimension in {None, row.dimension} and (hideable is None or row.hideable == hideable)
    )


def _data(step: Step, stage: int) -> Iterator[Traffic]:
    """Gradients, and weights that zero has divided.

    Without division an all_reduce of Ψ w_g. With zero 1 and 2 the same bytes as a reduce_scatter of gradients and an
    all_gather of weights. With zero 3, weights are gathered for the forward and again for the backward pass of every
    micro-batch: 3 (n−1)/n Ψ w (arXiv:1910.02054, section 7). Experts are reduced among n/e ranks.
    """
    layout, width, gradient = step.layout, step.model.width_bytes, step.gradient_bytes
    if layout.zero == 3:
        yield from _sharded(step, stage)
        return
    kinds = (("experts" if unit.name == "experts" else "dense", unit) for unit in step.units(stage))
    groups = by_key(((name, unit.ranks), unit.total) for name, unit in kinds)
    times = layout.reduces
    for (name, ranks), totals in groups.items():
        total, stride = sum(totals), layout.tp * (layout.replicas // ranks)
        op, formula = ("reduce_scatter", "(n−1)/n Ψ w_g") if layout.zero else ("all_reduce", "2(n−1)/n Ψ w_g")
        what = f"gradients, {name}"
        yield Traffic("dp", what, op, ranks, total * gradient, times, "backward", True, formula, ZERO, stride)
        if layout.zero:
            what, formula = f"weights, {name}", "(n−1)/n Ψ w"
            yield Traffic("dp", what, "all_gather", ranks, total * width, 1, "optimizer", True, formula, ZERO, stride)


def _sharded(step: Step, stage: int) -> Iterator[Traffic]:
    """Zero 3 unit by unit: a layer, its experts, the embedding, the head.

    HSDP adds an all_reduce of each shard's gradients among the r copies of its group: 2(r−1)/r Ψ/n_s w_g.
    """
    layout, width, gradient = step.layout, step.model.width_bytes, step.gradient_bytes
    gathers: tuple[Phase, ...] = ("forward", "backward") if layout.reshard else ("forward",)
    for unit in step.units(stage):
        ranks, name, times = step.shards(unit), unit.name, unit.count * layout.reduces
        stride = layout.tp * (layout.replicas // unit.ranks)
        calls = unit.count * (layout.micro_batches if layout.reshard else 1)
        what, size, formula = f"weights, {name}", unit.parameters * width, "(n−1)/n Ψ w a pass"
        for phase in gathers:
            yield Traffic("dp", what, "all_gather", ranks, size, calls, phase, True, formula, FSDP, stride)
        what, size, formula = f"gradients, {name}", unit.parameters * gradient, "(n−1)/n Ψ w_g"
        yield Traffic("dp", what, "reduce_scatter", ranks, size, times, "backward", True, formula, FSDP, stride)
        copies, apart = unit.ranks // ranks, stride * ranks
        part, what, formula = -(-size // ranks), f"gradients of shards, {name}", "2(r−1)/r Ψ/n w_g"
        yield Traffic("dp", what, "all_reduce", copies, part, times, "backward", True, formula, FSDP, apart)


def _tensor(step: Step, stage: int) -> Iterator[Traffic]:
    """Activations between the ranks that share a layer.

    After attention and after the feed-forward network an all_reduce of b s h in the forward pass, before them one in
    the backward pass: 8 b s h (t−1)/t w a layer. With sequence parallelism each becomes an all_gather and a
    reduce_scatter of the same bytes, and the two inputs kept in parts are gathered again for the gradients of weights,
    beside a product. Full recomputation adds a forward pass of its layers. Experts: their inputs come from the
    all_to_all, k b s h when balanced.
    """
    layout, model = step.layout, step.model
    t, m = layout.tp, layout.micro_batches
    size = step.tokens * model.hidden * model.width_bytes
    dense, expert = step.layers_of(stage)
    dense_again, expert_again = step.recomputed(stage)
    attends, shares = model.heads > 0, model.shared_experts > 0
    routed = round(size * model.top_k * step.imbalance)
    blocks = [
        ("attention", (dense + expert) * attends, (dense_again + expert_again) * attends, size, "b s h w"),
        ("feed-forward", dense, dense_again, size, "b s h w"),
        ("shared experts", expert * shares, expert_again * shares, size, "b s h w"),
        ("experts", expert, expert_again, routed, "k b s h w"),
    ]
    ops, factor, source = ["all_reduce"], "2(t−1)/t", MEGATRON
    if layout.sequence_parallel:
        ops, factor, source = ["all_gather", "reduce_scatter"], "(t−1)/t", SEQUENCE
    for name, count, again, bytes_, letters in blocks:
        calls, formula = count * m, f"{factor} {letters}"
        passes: tuple[tuple[Phase, int], ...] = (("forward", calls), ("backward", calls + again * m))
        for phase, times in passes:
            for op in ops:
                yield Traffic("tp", name, op, t, bytes_, times, phase, False, formula, source)
        if layout.sequence_parallel and name != "experts" and not layout.keep_inputs:
            what = f"{name}: input again"
            yield Traffic("tp", what, "all_gather", t, bytes_, calls, "backward", True, formula, SEQUENCE)


def _columns(step: Step, stage: int) -> Iterator[Traffic]:
    """Layers that are split by columns only.

    Forward pass: an all_gather of the input of the last matrix of attention and of the feed-forward network, and one of
    its output. Backward pass: a reduce_scatter of the gradient of the former, and an all_reduce of the gradient of the
    block's input.
    """
    layout, model = step.layout, step.model
    token, calls = step.tokens * model.width_bytes, sum(step.layers_of(stage)) * layout.micro_batches
    for name, inner in (("attention", model.heads * model.head_value_dim), ("feed-forward", model.ffn)):
        if not inner:
            continue
        parts: tuple[tuple[str, int, Phase, str], ...] = (
            ("all_gather", inner, "forward", "(t−1)/t b s f w"),
            ("all_gather", model.hidden, "forward", "(t−1)/t b s h w"),
            ("reduce_scatter", inner, "backward", "(t−1)/t b s f w"),
            ("all_reduce", model.hidden, "backward", "2(t−1)/t b s h w"),
        )
        for op, wide, phase, formula in parts:
            yield Traffic("tp", name, op, layout.tp, token * wide, calls, phase, False, formula, LECTURE)


def _summed(step: Step, stage: int) -> Iterator[Traffic]:
    """Gradients of parameters that every tensor rank holds but uses with other data, reduced once a step.

    These are norms of heads, and with sequence parallelism all other norms, biases and routers.
    """
    layout, model = step.layout, step.model
    dense, expert = step.layers_of(stage)
    elements = (dense + expert) * (2 * model.head_dim if model.qk_norm else 0)
    if layout.sequence_parallel:
        elements = (dense + expert) * model_rows.attention(model).whole
        elements += dense * model_rows.dense_ffn(model).whole + expert * model_rows.around_experts(model).whole
        elements += model.positions * model.hidden if stage == 0 else 0
        elements += model_rows.head(model).whole if stage == layout.pp - 1 else 0
    size, formula = elements * step.gradient_bytes, "2(t−1)/t of norms w_g"
    yield Traffic("tp", "gradients of norms", "all_reduce", layout.tp, size, 1, "backward", True, formula, SEQUENCE)


def _vocabulary(step: Step, stage: int) -> Iterator[Traffic]:
    """Traffic of an embedding and a head that are split over the vocabulary, on the first and last stage.

    A reduction of b s h after the embedding, one in the backward pass before the head, and for the loss three of one
    float32 per token (maximum, sum of exponentials, the target's logit). Tied weights on two stages reduce their
    gradients.
    """
    layout, model = step.layout, step.model
    if not model.vocabulary:
        return
    t, m, last = layout.tp, layout.micro_batches, layout.pp - 1
    size = step.tokens * model.hidden * model.width_bytes
    op, source = ("reduce_scatter", SEQUENCE) if layout.sequence_parallel else ("all_reduce", MEGATRON)
    ends: tuple[tuple[str, int, Phase, Phase], ...] = (
        ("embedding", 0, "forward", "backward"),
        ("head", last, "backward", "forward"),
    )
    for name, place, phase, other in ends:
        if stage == place:
            yield Traffic("tp", name, op, t, size, m, phase, False, "b s h w", source)
            if layout.sequence_parallel:
                yield Traffic("tp", name, "all_gather", t, size, m, other, False, "b s h w", source)
    if stage == last:
        if layout.sequence_parallel and not layout.keep_inputs:
            yield Traffic("tp", "head: input again", "all_gather", t, size, m, "backward", True, "b s h w", source)
        yield Traffic("tp", "loss", "all_reduce", t, step.tokens * 4, 3 * m, "forward", False, "b s 4", MEGATRON)
    if model.tied and layout.pp > 1 and stage in {0, last}:
        rows = -(-model.vocabulary // t) * model.hidden * step.gradient_bytes
        far, formula = t * layout.replicas * last, "V/t h w_g"
        yield Traffic("pp", "tied embedding", "all_reduce", 2, rows, 1, "backward", False, formula, PIPELINE, far)


def _pipeline(step: Step, stage: int) -> Iterator[Traffic]:
    """Outputs to the next stage and gradients back: b s h w for each of m micro-batches and v parts.

    Nothing arrives before the first part or leaves after the last. With scatter-gather or a split sequence, a rank
    sends 1/t.
    """
    layout, model = step.layout, step.model
    size = step.tokens * model.hidden * model.width_bytes
    split = layout.scatter_gather or layout.sequence_parallel
    per_rank = size // layout.tp if split else size
    formula = "b s h w/t" if split else "b s h w"
    m, v, last = layout.micro_batches, layout.vpp, layout.pp - 1
    ahead, back, apart = m * (v - (stage == last)), m * (v - (stage == 0)), layout.tp * layout.replicas
    ways: tuple[tuple[str, int, Phase], ...] = (
        ("outputs", ahead, "forward"),
        ("gradients of inputs", back, "backward"),
    )
    for what, calls, phase in ways:
        yield Traffic("pp", what, "send_recv", 2, per_rank, calls, phase, True, formula, PIPELINE, apart)
    if layout.scatter_gather and not layout.sequence_parallel:
        t, shown = layout.tp, "(t−1)/t b s h w"
        yield Traffic("tp", "inputs of the stage", "all_gather", t, size, back, "forward", False, shown, PIPELINE)
        yield Traffic("tp", "gradients of outputs", "all_gather", t, size, ahead, "backward", False, shown, PIPELINE)


def _context(step: Step, stage: int) -> Iterator[Traffic]:
    """Attention over a sequence shared by c ranks.

    Ring: keys and values of s/c tokens travel from rank to rank, c−1 times in the forward pass, and again with their
    gradients in the backward pass: 3 (c−1) b s/c (h_k + h_v) w a layer. Ulysses: an all_to_all each of queries, keys,
    values and results, in both directions: (c−1)/c of b s/c of each; keys and values have at least one head per rank.
    Latent attention sends keys and values of all heads.
    """
    layout, model = step.layout, step.model
    c, calls = layout.cp, sum(step.layers_of(stage)) * layout.micro_batches
    again = sum(step.recomputed(stage)) * layout.micro_batches
    token = step.tokens * model.width_bytes
    if layout.context == "ring":
        size = token * step.key_heads * (model.key_dim + model.head_value_dim)
        rounds, formula = calls * (c - 1), "(c−1) b s/c (h_k + h_v)/t w"
        kept = again * (c - 1)
        moves: tuple[tuple[str, int, Phase], ...] = (
            ("keys and values", rounds, "forward"),
            ("keys and values", rounds + kept, "backward"),
            ("their gradients", rounds, "backward"),
        )
        for what, times, phase in moves:
            yield Traffic("cp", what, "send_recv", c, size, times, phase, True, formula, RING, layout.tp)
        return
    heads, groups = model.heads // layout.tp, max(step.key_heads, c)
    parts = (
        ("queries", heads * model.key_dim),
        ("keys", groups * model.key_dim),
        ("values", groups * model.head_value_dim),
        ("results", heads * model.head_value_dim),
    )
    for name, wide in parts:
        formula, size = f"(c−1)/c b s/c h_{name[0]}/t w", token * wide
        yield Traffic("cp", name, "all_to_all", c, size, calls, "forward", False, formula, ULYSSES, layout.tp)
        yield Traffic("cp", name, "all_to_all", c, size, calls + again, "backward", False, formula, ULYSSES, layout.tp)


def _experts(step: Step, stage: int) -> Iterator[Traffic]:
    """Tokens to their experts and back: (e−1)/e of k tokens h w, twice in the forward and twice in the backward pass.

    This holds for every layer with experts; with an imbalance x the busiest rank has x times as much. Limited to M
    nodes, a token is sent to each node once and forwarded inside: min(k, M) copies between nodes, k inside them.
    """
    layout, model = step.layout, step.model
    calls = step.layers_of(stage)[1] * layout.micro_batches
    again = step.recomputed(stage)[1] * layout.micro_batches
    elements = step.own_tokens * model.hidden * step.imbalance
    token, narrow = elements * model.width_bytes, elements * (1 if layout.fp8 else model.width_bytes)
    e, per_host = layout.ep, step.ep_per_host
    parts = [("", e, round(token * model.top_k), "(e−1)/e k b s h w", EXPERTS, layout.tp)]
    if per_host is not None and model.nodes_per_token and per_host < e:
        nodes = e // per_host
        copies = min(model.nodes_per_token, model.top_k, nodes)
        parts = [
            (
                " between nodes",
                nodes,
                round(token * copies),
                "(N−1)/N min(k, N_t) b s h w",
                NODES,
                layout.tp * per_host,
            ),
            (" inside a node", per_host, round(token * model.top_k), "(g−1)/g k b s h w", NODES, layout.tp),
        ]
    op = "all_to_all" if step.imbalance == 1 else "all_to_all_v"
    for where, ranks, size, formula, source, stride in parts:
        for what, own in (("dispatch", round(size * narrow / token)), ("combine", size)):
            name, hidden = what + where, layout.hide_experts
            yield Traffic("ep", name, op, ranks, own, calls, "forward", hidden, formula, source, stride)
            yield Traffic("ep", name, op, ranks, own, calls + again, "backward", hidden, formula, source, stride)


@dataclass(frozen=True, slots=True)
class Statement:
    """A common statement and what is exact.

    said, holds: the statement as it circulates, and the exact one.
    said_value: the statement's number for this step, taken literally; in elements if it names no data type.
    sent_bytes: the exact number. Both are None for a statement without a number.
    """

    dimension: str
    said: str
    holds: str
    said_value: float | None
    sent_bytes: float | None


def statements(step: Step, rows: tuple[Traffic, ...]) -> tuple[Statement, ...]:
    """All statements, for the rows of one stage of a step."""
    layout, model = step.layout, step.model
    whole = 2.0 * parameters(model)
    tokens = step.batch // layout.dp * step.sequence
    again = 2 if layout.recompute == "full" else 1
    sums = (1 + (model.heads > 0)) * (2 * (1 + again) + layout.sequence_parallel)
    used = [dimension for dimension in DIMENSIONS if sent(rows, dimension)]
    calls = {dimension: sum(row.messages for row in rows if row.dimension == dimension) for dimension in used}
    by_calls, by_bytes = (
        " > ".join(dimension.upper() for dimension in sorted(used, key=lambda dimension: -measure(dimension)))
        for measure in (calls.__getitem__, lambda dimension: sent(rows, dimension))
    )
    claims = (
        Statement(
            "dp",
            "2Ψ of the model",
            "2(n−1)/n Ψ w_g: bytes, not elements; Ψ of a rank, not of the model; once a step, or with zero 3 "
            "(n−1)/n Ψ (2 w + w_g) in every micro-batch",
            whole,
            sent(rows, "dp"),
        ),
        Statement(
            "tp",
            "TP communicates parameters, 2Ψ forward and backward",
            f"activations: {sums} b s h (t−1)/t w per {'dense ' if model.experts else ''}layer and micro-batch; "
            "parameters are not sent",
            2 * whole,
            sent(rows, "tp"),
        ),
        Statement(
            "pp",
            "batch · s h / m",
            "b s h w in each direction for every micro-batch, v times when interleaved; /t if ranks send parts",
            tokens * model.hidden / layout.micro_batches,
            sent(rows, "pp"),
        ),
        Statement(
            "cp",
            "b s h / CP",
            f"{2 + again} (c−1) b s/c (h_k + h_v)/t w per layer: every hop, forward and backward, of keys and values "
            "only"
            if layout.context == "ring"
            else f"{1 + again} (c−1)/c b s/c (h_q + h_k + h_v + h_r)/t w per layer: queries, keys, values and results, "
            "forward and backward",
            step.tokens * model.hidden,
            sent(rows, "cp"),
        ),
        Statement("", "TP > CP > PP > DP", f"by calls here: {by_calls}; by bytes: {by_bytes}", None, None),
    )
    return tuple(statement for statement in claims if statement.sent_bytes is None or statement.sent_bytes)


def traffic_headline(step: Step, rows: tuple[Traffic, ...]) -> str:
    """Bytes that a rank sends in a step, the dimension with most of them, and the bytes that computation waits for."""
    whole = sent(rows)
    if not whole:
        return "A rank sends nothing."
    most = max(DIMENSIONS, key=lambda dimension: sent(rows, dimension))
    idle = f"; the pipeline is idle for {percent_of(step.bubble_share)} % of a step" if step.bubble_share else ""
    return (
        f"A rank sends {gigabytes(whole)} per step, {percent_of(sent(rows, most) / whole)} % of it for {most}; "
        f"computation waits for {gigabytes(sent(rows, hideable=False))}{idle}"
    )


_TRAFFIC: Final[tuple[Column[Traffic], ...]] = (
    Column("group", lambda row: row.dimension),
    Column("what", lambda row: row.what),
    Column("op", lambda row: row.op),
    Column("ranks", lambda row: row.ranks, str),
    Column("S", lambda row: row.size_bytes, about_size),
    Column("calls", lambda row: row.messages, str),
    Column("sent", lambda row: row.sent_bytes, gigabytes),
    Column("phase", lambda row: row.phase),
    Column("waits", lambda row: "no" if row.hideable else "yes"),
    Column("of a call", lambda row: row.formula),
)
_LETTERS: Final = (
    "of a call: n ranks; d, t, p, c, e of dp, tp, pp, cp, ep; m micro-batches of b sequences of s tokens; h hidden "
    "width; Ψ parameters of a rank; w, w_g bytes of an element, of a gradient (docs/training.md has more)"
)
_BUBBLES: Final = ("(p−1)/(m v + p−1)", "1 − m Σ L_r/(p T), T = m max L_r + (Σ L_r − max L_r)/v")
_STATEMENTS: Final[tuple[Column[Statement], ...]] = (
    Column("group", lambda row: row.dimension or "all"),
    Column("often said", lambda row: row.said),
    Column("gives", lambda row: row.said_value, "{:.4g}".format),
    Column("sent", lambda row: row.sent_bytes, gigabytes),
    Column("exact", lambda row: row.holds),
)


def traffic_tables(
    step: Step, stage: int, rows: tuple[Traffic, ...], explained: Sequence[Statement], assumed: Mapping[str, str]
) -> Iterator[Table]:
    """One row per kind of call, with sums by group. ``explained``: common statements and what is exact; ``assumed``:
    defaults that were taken.
    """
    sums = [
        f"{name}: {gigabytes(sent(rows, name))} a step, waits for {gigabytes(sent(rows, name, hideable=False))}"
        for name in DIMENSIONS
        if sent(rows, name)
    ]
    bubble = step.bubble_share
    yield table(
        step_words(step),
        _TRAFFIC,
        rows,
        f"sent: by one rank of pipeline stage {stage} in a step, in one direction; S as in nccl-tests",
        "waits: yes if computation waits for the call, no if it can overlap",
        _LETTERS if rows else "",
        f"pipeline: idle for {percent_of(bubble)} % of the step, {_BUBBLES[step.layout.uneven]}" if bubble else "",
        *(sums or ["nothing is sent"]),
        *dict.fromkeys(f"{row.dimension}: {row.source}" for row in rows),
        *assumed_notes(assumed),
    )
    if explained:
        yield table(
            "",
            _STATEMENTS,
            explained,
            "gives: the statement taken literally, in bytes, or in elements if it names no data type",
        )
