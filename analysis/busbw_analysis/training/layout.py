"""How a model is spread over GPUs: a layout, a training step with it, and all layouts that a model allows.

There are dp · tp · pp · cp ranks. The experts of a layer are split over ep of the dp · cp ranks that hold the same part
of everything else, and each expert over tp ranks like a dense network (expert parallelism within data parallelism:
Rajbhandari et al. 2022, https://arxiv.org/abs/2201.05596).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Literal

from busbw.errors import UsageError
from busbw.key_values import written
from busbw.ops.base import Context, Schedule
from busbw.runs.records import DTYPE_BYTES
from busbw.units import counted
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model

Recompute = Literal["none", "selective", "full"]
Sync = Literal["every", "last"]

MOST_GPUS: Final = 1 << 30
AS_FRAMEWORKS: Final = "as in Megatron-LM and torchtitan"
"""Defaults of a layout: float32 gradients (accumulate_allreduce_grads_in_fp32 in
https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/training/arguments.py, mixed_precision_reduce in
https://github.com/pytorch/torchtitan/blob/main/torchtitan/config/job_config.py), and one sequence in a micro-batch
(https://github.com/pytorch/torchtitan/blob/01424cb254492cd6f5924e26d28227d75913e122/torchtitan/models/llama3/train_configs/llama3_8b.toml).
"""
_MOST_WAYS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Degrees of parallelism, and how each works.

    zero: what data-parallel ranks divide: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too, as in FSDP
    (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054).
    shard: HSDP: zero 3 within groups of this many ranks, and copies of such groups (https://arxiv.org/abs/2304.11277).
    micro_batches: per step and replica.
    vpp: parts of the layers per pipeline stage.
    uneven: parts may differ by a layer if they do not divide the model. The last and the first, with the head and the
    embedding, are the shorter ones, and may have no layer (as in Llama 3 405B: https://arxiv.org/abs/2407.21783,
    section 3.3.2).
    sequence_parallel: norms and dropout are split along the sequence, too (https://arxiv.org/abs/2205.05198).
    keep_inputs: with it, gathered inputs are kept for gradients of weights, as in torch, and not gathered again.
    columns: the last matrices of a layer are also split by columns, so their inputs and outputs are gathered.
    scatter_gather: 1/tp of the tensor crosses a pipeline boundary and is then gathered
    (https://arxiv.org/abs/2104.04473, section 4.1).
    recompute_layers: with full recomputation, how many layers of a stage are computed again; the others keep their
    activations (``--recompute-method block`` of Megatron-LM, arguments.py; None: all).
    sync: reduce gradients in every micro-batch or in the last; default: every with zero 3, else last.
    fp8: products of layers take float8, and tokens go to their experts in it; attention, head and states do not
    (https://arxiv.org/abs/2412.19437, section 3.3).
    hide_experts: tokens travel to and from experts while others are computed (section 3.2.1).
    zero_bubble: gradients of weights are computed while a stage would wait, which leaves (p−1)(T_F + T_B − T_W) of the
    bubble (https://arxiv.org/abs/2401.10241, table 1).
    reshard: zero 3 gathers weights again for the backward pass, and in every micro-batch.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    shard: int | None = None
    micro_batches: int = 1
    vpp: int = 1
    uneven: bool = False
    schedule: Schedule = "1f1b"
    sequence_parallel: bool = False
    keep_inputs: bool = False
    columns: bool = False
    scatter_gather: bool = False
    recompute: Recompute = "none"
    recompute_layers: int | None = None
    context: Context = "ring"
    sync: Sync | None = None
    reshard: bool = True
    fp8: bool = False
    hide_experts: bool = False
    zero_bubble: bool = False

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "micro_batches", "vpp"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_GPUS:
                _refuse(f"{name} {value}: expected 1 to {MOST_GPUS}")
        if self.gpus > MOST_GPUS:
            _refuse(f"{self.gpus} GPUs: expected at most {MOST_GPUS}")
        if self.zero not in range(4):
            _refuse(f"zero {self.zero}: expected 0, 1, 2 or 3")
        _divides("ep", self.ep, self.replicas, f"dp · cp = {self.replicas} ranks")
        self._check_groups()

    def _check_groups(self) -> None:
        if self.shard is not None:
            if self.zero != 3:
                _refuse(f"shard {self.shard} with zero {self.zero}: hsdp is zero 3 in groups; use zero 3")
            _divides("shard", self.shard, self.replicas, f"dp · cp = {self.replicas} ranks")
            if self.ep > 1:
                _refuse(f"shard {self.shard} with ep {self.ep}: use only one of them; ep has groups of its own")
        self._check_schedule()

    def _check_schedule(self) -> None:
        if self.vpp > 1:
            if self.pp == 1 or self.schedule == "gpipe":
                _refuse(f"vpp {self.vpp}: it needs pp of 2 or more and schedule 1f1b; else use 1")
            if self.micro_batches % self.pp:
                _refuse(f"{self.micro_batches} micro-batches: interleaving needs a multiple of pp = {self.pp}")
        if self.sequence_parallel and self.tp == 1:
            _refuse("sequence parallelism with tp 1: it needs tp of 2 or more, whose ranks share the sequence")
        if self.hide_experts and self.ep == 1:
            _refuse("hide-experts with ep 1: there is no traffic to hide; use ep of 2 or more")
        if self.zero_bubble and (self.pp == 1 or self.schedule == "gpipe"):
            _refuse("zero-bubble: it needs pp of 2 or more and schedule 1f1b")
        if self.recompute_layers is not None and (self.recompute != "full" or self.recompute_layers < 1):
            _refuse(f"recompute-layers {self.recompute_layers}: it needs recompute=full, and 1 or more")
        if self.scatter_gather and (self.tp == 1 or self.pp == 1):
            _refuse("scatter-gather: it needs tp and pp of 2 or more")

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Ranks with the same parameters, except experts: they reduce gradients, and zero divides among them."""
        return self.dp * self.cp

    @property
    def reduces(self) -> int:
        """How often gradients are reduced in a step."""
        every = self.zero == 3 if self.sync is None else self.sync == "every"
        return self.micro_batches if every else 1

    @property
    def accumulates(self) -> bool:
        """Whether gradients accumulate over several micro-batches before they are reduced."""
        return self.reduces < self.micro_batches

    @property
    def bubble(self) -> float:
        """Idle over ideal time of the pipeline, (p−1)/(m v); GPipe and 1F1B are alike with v = 1.

        Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, section 2.2.
        """
        return (self.pp - 1) / (self.micro_batches * self.vpp)

    @property
    def bubble_share(self) -> float:
        """Idle share of the pipeline's total time: (p−1)/(m v + p−1)."""
        return (self.pp - 1) / (self.micro_batches * self.vpp + self.pp - 1)


def _refuse(message: str, code: str = "layout") -> None:
    raise UsageError(message, code=code)


def divisors(number: int) -> list[int]:
    """All divisors of ``number``, ascending."""
    low = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*low, *(number // divisor for divisor in low)})


def _divides(name: str, degree: int, whole: int, what: str) -> None:
    if degree < 1 or whole % degree:
        fit = ", ".join(map(str, divisors(whole)[:24])) if whole <= 10**12 else "a divisor"
        _refuse(f"{name} {degree} does not divide {what}; use one of {fit}", "divides")


@dataclass(frozen=True)
class Unit:
    """``count`` equal parts of a rank's model.

    parameters: of each.
    ranks: number of ranks that hold the same parameters.
    """

    name: str
    parameters: int
    count: int
    ranks: int

    @property
    def total(self) -> int:
        """Parameters of all parts."""
        return self.parameters * self.count


@dataclass(frozen=True)
class Step:
    """One training step of ``batch`` sequences of ``sequence`` tokens over all replicas.

    gradients: data type in which gradients are kept and reduced (None: as the weights).
    imbalance: tokens of the busiest rank's experts over the mean, 1 (even) to ep.
    ranks_per_host: GPUs of a host; with it, expert traffic of a model with ``nodes_per_token`` is split by hosts.
    """

    model: Model
    layout: Layout
    batch: int
    sequence: int
    gradients: str | None = None
    imbalance: float = 1.0
    ranks_per_host: int | None = None

    def __post_init__(self) -> None:
        model, layout = self.model, self.layout
        for name in ("batch", "sequence"):
            if not 1 <= getattr(self, name) <= MOST_GPUS:
                _refuse(f"{name} {getattr(self, name)}: expected 1 to {MOST_GPUS}")
        if self.gradients is not None and self.gradients not in DTYPE_BYTES:
            _refuse(f"gradients {self.gradients!r}: expected one of {', '.join(DTYPE_BYTES)}")
        self._check_parts()
        if layout.tp > 1:
            self._check_tensor(model, layout.tp)
        if model.experts:
            _divides("ep", layout.ep, model.experts, f"{model.experts} experts of {model.name}")
        elif layout.ep > 1:
            _refuse(f"ep {layout.ep}: {model.name} has no experts; use ep 1", "no-experts")
        self._check_context()
        pieces = layout.dp * layout.micro_batches
        if self.batch % pieces:
            _refuse(f"batch {self.batch}: expected a multiple of dp · micro-batches = {pieces}", "divides")
        if not 1 <= self.imbalance <= layout.ep:
            _refuse(f"imbalance {self.imbalance:g}: expected 1 (even) to ep = {layout.ep}")
        self._check_hosts()

    def _check_parts(self) -> None:
        model, parts = self.model, self.layout.pp * self.layout.vpp
        what = f"{model.layers} layers of {model.name}"
        ends = 2 if self.layout.vpp > 1 else 0  # with virtual stages the ends have other parts with layers
        if self.layout.uneven and parts > model.layers + ends:
            _refuse(f"pp · vpp {parts}: expected at most the {what}, one per part, and {ends} without", "divides")
        if not self.layout.uneven and model.layers % parts:
            fit = ", ".join(map(str, divisors(model.layers)))
            _refuse(f"pp · vpp {parts} does not divide {what}; use one of {fit}, or uneven=yes", "divides")

    def _check_hosts(self) -> None:
        if self.ranks_per_host is not None and self.ranks_per_host < 1:
            _refuse(f"ranks-per-host {self.ranks_per_host}: expected 1 or more")
        if self.ep_per_host is not None and self.layout.ep > self.ep_per_host:
            _divides("ranks-per-host / tp", self.ep_per_host, self.layout.ep, f"ep = {self.layout.ep} ranks")

    @staticmethod
    def _check_tensor(model: Model, tp: int) -> None:
        groups = 0 if model.kv_rank else model.kv_heads
        whole = math.gcd(model.hidden, model.heads, groups, model.ffn, model.expert_ffn)
        _divides("tp", tp, whole, f"hidden, heads, kv_heads and ffn of {model.name}")

    def _check_context(self) -> None:
        layout, model = self.layout, self.model
        split = layout.cp * (layout.tp if layout.sequence_parallel else 1)
        _divides("cp · tp" if split > layout.cp else "cp", split, self.sequence, f"a sequence of {self.sequence}")
        if layout.cp == 1:
            return
        if not model.heads:
            _refuse(f"cp {layout.cp}: {model.name} has no attention; use cp 1", "no-attention")
        if layout.context == "ulysses":
            heads, groups = model.heads // layout.tp, self.key_heads
            _divides("cp", layout.cp, heads, f"heads/tp = {heads} of {model.name}, which ulysses distributes")
            if groups % layout.cp and layout.cp % groups:
                _refuse(f"cp {layout.cp}: ulysses needs a divisor or a multiple of kv_heads/tp = {groups}", "divides")

    @property
    def micro_batch(self) -> int:
        """b: sequences of one micro-batch in one replica."""
        return self.batch // (self.layout.dp * self.layout.micro_batches)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank: b s / c."""
        return self.micro_batch * self.sequence // self.layout.cp

    @property
    def own_tokens(self) -> int:
        """Tokens of a rank between layers: b s / c, divided by t with sequence parallelism."""
        return self.tokens // (self.layout.tp if self.layout.sequence_parallel else 1)

    @property
    def key_heads(self) -> int:
        """Heads of keys and values on one tensor rank."""
        return (self.model.heads if self.model.kv_rank else self.model.kv_heads) // self.layout.tp

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient."""
        return self.model.width_bytes if self.gradients is None else DTYPE_BYTES[self.gradients]

    @property
    def ep_per_host(self) -> int | None:
        """Ranks of a host that experts are split over; tp ranks are neighbours (None: unknown)."""
        return None if self.ranks_per_host is None else max(1, self.ranks_per_host // self.layout.tp)

    @property
    def middle(self) -> int:
        """The representative stage: the first inner stage with experts, else the first inner stage, else stage 0."""
        inner = [stage for stage in self.kinds if 0 < stage < self.layout.pp - 1] or [0]
        return next((stage for stage in inner if self.layers_of(stage)[1]), inner[0])

    @property
    def kinds(self) -> Mapping[int, int]:
        """First stage of every kind → number of such stages. Kinds differ in layers or in being first or last."""
        layout, model = self.layout, self.model
        return _kinds(model.layers, model.layers - model.expert_layers, layout.pp, layout.vpp)

    def check_stage(self, stage: int) -> int:
        """``stage``, if it exists."""
        if not 0 <= stage < self.layout.pp:
            _refuse(f"stage {stage}: expected 0 to {self.layout.pp - 1}")
        return stage

    def layers_of(self, stage: int) -> tuple[int, int]:
        """Layers of a stage without and with experts; interleaved, part j of stage r is part j p + r of the model."""
        layout, model = self.layout, self.model
        return _layers_of(model.layers, model.layers - model.expert_layers, layout.pp, layout.vpp, stage)

    def recomputed(self, stage: int) -> tuple[int, int]:
        """Layers of a stage without and with experts whose whole forward pass is computed again."""
        dense, expert = self.layers_of(stage)
        if self.layout.recompute != "full":
            return 0, 0
        most = dense + expert if self.layout.recompute_layers is None else self.layout.recompute_layers
        return min(dense, most), min(expert, max(0, most - dense))

    @property
    def bubble_share(self) -> float:
        """Idle share of the time of all stages, by their layers alone: 1 − m Σ L_r/(p T).

        The longest stage works m times and the others fill and drain it: T = m max L_r + (Σ L_r − max L_r)/v. With
        equal stages this is (p−1)/(m v + p−1).
        """
        layout = self.layout
        layers = [sum(self.layers_of(stage)) for stage in range(layout.pp)]
        m, longest, together = layout.micro_batches, max(layers), sum(layers)
        whole = layout.pp * (m * longest + (together - longest) / layout.vpp)
        return (whole - m * together) / whole

    def units(self, stage: int) -> tuple[Unit, ...]:
        """Parameters of a rank of a stage before zero divides them.

        The rows of a vocabulary are padded to a multiple of tp, as in Megatron.
        """
        layout = self.layout
        ends = stage == 0, stage == layout.pp - 1
        return _units(self.model, layout.tp, layout.ep, layout.replicas, self.layers_of(stage), ends)

    def shards(self, unit: Unit) -> int:
        """Number of ranks among which zero divides ``unit``."""
        return unit.ranks if self.layout.shard is None else self.layout.shard


def default_gradients(model: Model) -> str:
    """float32, or the type of wider weights."""
    return "float32" if model.width_bytes < DTYPE_BYTES["float32"] else model.dtype


# Plans need the same results for thousands of steps, so they are cached.


@lru_cache(maxsize=1 << 14)
def part(layers: int, parts: int, number: int) -> tuple[int, int]:
    """The first layer of a part of the pipeline, and its number of layers.

    Remaining layers go to the second part and those after it, one each, then to the first and finally to the last.
    """
    length, more = divmod(layers, parts)
    with_first = more == parts - 1 and parts > 1
    before = max(0, min(number - 1, more - with_first)) + (with_first and number > 0)
    longer = with_first if number == 0 else 0 < number <= more - with_first
    return number * length + before, length + longer


@lru_cache(maxsize=1 << 14)
def _layers_of(layers: int, dense_layers: int, pp: int, vpp: int, stage: int) -> tuple[int, int]:
    parts = [part(layers, pp * vpp, number * pp + stage) for number in range(vpp)]
    dense = sum(max(0, min(length, dense_layers - first)) for first, length in parts)
    return dense, sum(length for _, length in parts) - dense


@lru_cache(maxsize=1 << 14)
def _kinds(layers: int, dense_layers: int, pp: int, vpp: int) -> Mapping[int, int]:
    kinds = [(*_layers_of(layers, dense_layers, pp, vpp, stage), stage == 0, stage == pp - 1) for stage in range(pp)]
    return {kinds.index(kind): count for kind, count in Counter(kinds).items()}


@lru_cache(maxsize=1 << 14)
def _units(
    model: Model, tp: int, ep: int, same: int, layers: tuple[int, int], ends: tuple[bool, bool]
) -> tuple[Unit, ...]:
    def on_rank(*counts: model_rows.Count) -> int:
        return sum(count.split // tp + count.whole for count in counts)

    dense, expert = layers
    attention = model_rows.attention(model)
    own = model.experts // ep * model_rows.one_expert(model) // tp
    rows = -(-model.vocabulary // tp) * model.hidden
    own_head = 0 if model.tied and all(ends) else rows
    units = (
        Unit("layers", on_rank(attention, model_rows.dense_ffn(model)), dense, same),
        Unit("layers around experts", on_rank(attention, model_rows.around_experts(model)), expert, same),
        Unit("experts", own, expert, same // ep),
        Unit("embedding", rows + model.positions * model.hidden, int(ends[0]), same),
        Unit("head", own_head + model_rows.head(model).whole, int(ends[1]), same),
    )
    return tuple(unit for unit in units if unit.total)


def layouts(model: Model, gpus: int, like: Layout | None = None, degrees: int | None = None) -> Iterator[Layout]:
    """All layouts on ``gpus`` GPUs whose degrees divide the model: layers, heads, widths, experts, sequence.

    like: all other settings. degrees: upper limit of all degrees except dp. Raises UsageError for a number with too
    many divisors.
    """
    base = Layout() if like is None else like
    most = gpus if degrees is None else degrees
    ways = list(islice(_ways(gpus), _MOST_WAYS + 1))
    if len(ways) > _MOST_WAYS:
        _refuse(
            f"{gpus} GPUs have more than {_MOST_WAYS} products of tp, pp, cp and dp; use a number with fewer divisors"
        )
    for tp, pp, cp in ways:
        dp = gpus // tp // pp // cp
        split, parts = base.sequence_parallel and tp > 1, base.scatter_gather and tp > 1 < pp
        for ep in divisors(dp * cp) if model.experts else [1]:
            if max(tp, pp, cp, ep) <= most:
                with suppress(UsageError):
                    layout = replace(
                        base, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, sequence_parallel=split, scatter_gather=parts
                    )
                    Step(model, layout, dp * layout.micro_batches, model.sequence)
                    yield layout


def _ways(gpus: int) -> Iterator[tuple[int, int, int]]:
    """tp, pp and cp with a product that divides ``gpus``."""
    for tp in divisors(gpus):
        for pp in divisors(gpus // tp):
            yield from ((tp, pp, cp) for cp in divisors(gpus // tp // pp))


def gigabytes(bytes_: float) -> str:
    """Decimal gigabytes with four significant digits."""
    return f"{bytes_ / 1e9:.4g} GB"


def percent_of(share: float) -> str:
    """A share as a percentage with three digits, without its sign."""
    return f"{share * 100:.3g}"


DEFAULT_SETTINGS: Final[Mapping[str, Any]] = {
    **{name: getattr(Layout(), name) for name in Layout.__slots__ if name != "micro_batches"},
    "micro_batch": 1,
    "gradients": None,
    "imbalance": 1,
}
"""The value of every setting of a layout that is not given, by key (None: it follows from others)."""


def setting_text(value: Any) -> str:  # noqa: ANN401 - of any setting
    """A value as ``--layout`` takes it."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value}"


def layout_text(step: Step) -> str:
    """``dp=16,tp=8,sequence-parallel=yes``: the settings that differ from the default, as ``--layout`` takes them."""
    usual = {**DEFAULT_SETTINGS, "gradients": default_gradients(step.model)}
    own = {"micro_batch": step.micro_batch, "gradients": step.gradients, "imbalance": step.imbalance}
    changed = [
        f"{written(name)}={setting_text(value)}"
        for name, default in usual.items()
        if (value := own[name] if name in own else getattr(step.layout, name)) not in {None, default}
    ]
    return ",".join(changed) or "dp=1"


def assumed_notes(assumed: Mapping[str, str]) -> list[str]:
    """``default gradients: float32, as in …``: one note per default that was taken."""
    return [f"default {written(name)}: {words}" for name, words in assumed.items()]


def step_words(step: Step) -> str:
    """The model, its layout and its batch, as the title of a table."""
    return (
        f"{step.model.name}, {counted(step.layout.gpus, 'GPU')}: {layout_text(step)}; batch {step.batch}, sequence "
        f"{step.sequence}, {counted(step.layout.micro_batches, 'micro-batch', 'micro-batches')} of {step.micro_batch}"
    )
