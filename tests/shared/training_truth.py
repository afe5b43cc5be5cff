"""Training steps that others have measured, what busbw predicts for them, and scores of the predictions.

``tests/data/training/truth`` has the rows with their sources. A row belongs to the part that parameters may be fitted
on, or to the part that is only scored, by a checksum of its text.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations
from math import exp, log
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Final, Literal
from zlib import crc32

import msgspec

from busbw.system.catalog import catalogue
from busbw.system.named import gpu_named
from busbw.workloads.model_rows import Model, flop_per_token, models
from busbw_analysis.cli.training_options import network_named
from busbw_analysis.data.grouped import by_key
from busbw_analysis.training import kernels
from busbw_analysis.training.calibration import calibrate, slower
from busbw_analysis.training.held import Kind, kind_of
from busbw_analysis.training.layout import Layout, Recompute, Step
from busbw_analysis.training.machine import machine_of
from busbw_analysis.training.memory import memory
from busbw_analysis.training.plan import Wanted, plan
from busbw_analysis.training.step_time import Machine, step_time
from busbw_analysis.training.traffic import DIMENSIONS

FOLDER: Final = Path(__file__).parents[1] / "data" / "training" / "truth"
Part = Literal["fit", "check"]
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class Anchor:
    """The mean absolute error of another simulator on all rows of a set, in percent (None: not published)."""

    name: str
    seconds: float
    memory: float | None = None


ANCHORS: Final[dict[str, Anchor]] = {
    "vtrain-multi": Anchor("vTrain", 14.7),
    "vtrain-single": Anchor("vTrain", 8.4),
    "simumax-b200": Anchor("SimuMax", 5.3, 0.4),
    "published": Anchor("Calculon, on its 8 of Korthikanti et al.", 3.65),
}
"""By set. vTrain states means (https://arxiv.org/abs/2312.12391, section IV)."""


@dataclass(frozen=True)
class Row:
    """A measured step.

    group: rows that differ in their layout alone.
    seconds: measured; bytes: peak memory of a rank, if measured.
    """

    of: str
    group: str
    part: Part
    step: Step
    machine: Machine
    seconds: float
    bytes: float | None = None

    @cached_property
    def predicted(self) -> float:
        """Seconds of the step."""
        return step_time(self.step, self.machine).total

    @property
    def off(self) -> float:
        """Share of the measured time that the predicted one is more."""
        return self.predicted / self.seconds - 1

    @property
    def predicted_bytes(self) -> float:
        """Peak memory of a rank."""
        return memory(self.step).total


def _lines(name: str) -> Iterator[tuple[Part, dict[str, str]]]:
    text = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    for line, row in zip(text[1:], csv.DictReader(text), strict=True):
        yield ("check" if crc32(line.encode()) % 2 else "fit"), row


_hardware: Final = cache(catalogue)
_network: Final = cache(network_named)


@cache
def _machine(gpu: str, network: str, gpus: int, overlap: float = 0.0, *, causal: bool = False) -> Machine:
    on, card = _network(network), gpu_named(_hardware(), gpu)
    return machine_of("bfloat16", gpus, None, network=on, gpu=card, overlap=overlap, causal=causal).machine


def gpt(layers: int, hidden: int, heads: int, sequence: int) -> Model:
    """A GPT of Megatron-LM with a padded vocabulary."""
    head = hidden // heads
    shape = {"hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": head, "ffn": 4 * hidden}
    more = {"layers": layers, "sequence": sequence, "positions": sequence, "vocabulary": 51200}
    return msgspec.structs.replace(models()["GPT-3 175B"], **shape, **more)


NODE_DELAY: Final = 57e-6
"""Seconds of delay of a call on vTrain's single node."""
_NODES: Final = "rail:nic=4X EDR,inner=A100 SXM4 80 GB,delay=15us,inner-delay=15us,sharing=2"
"""800 Gb/s a node, which vTrain's ``predictor.py`` divides by four cards."""
_ONE_NODE: Final = f"rail:nic=12.5GB/s,inner=240GB/s,delay={NODE_DELAY * 1e6:g}us,inner-delay={NODE_DELAY * 1e6:g}us"


def _vtrain(name: str) -> Iterator[Row]:
    """On one node activations are not recomputed: with recomputation the products of 1,024 tokens more, 1.9 ms a layer
    of 2,048 on one rank, would run at 98 % of the peak. Without ``tp`` its last stage takes 2.1 ms longer for 1,024
    tokens and columns than with it, as with the vocabulary of GPT-2 before padding.
    """
    alone = name == "vtrain-single"
    keys = ("# GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers", "sequence length")
    degrees = ("tensor parallelism", "data parallelism", "pipeline parallelism")
    for part, row in _lines(name):
        gpus, batch, micro, hidden, heads, layers, sequence = (int(row[key]) for key in keys)
        tp, dp, pp = (int(row[key]) for key in degrees)
        model = gpt(layers, hidden, heads, sequence)
        if tp == 1 and alone:
            model = msgspec.structs.replace(model, vocabulary=50257)
        again: Recompute = "none" if alone else "full"
        count = batch // dp // micro
        layout = Layout(dp=dp, tp=tp, pp=pp, micro_batches=count, recompute=again, scatter_gather=tp > 1 < pp)
        step = Step(model, layout, batch, sequence)
        group = f"{layers} × {hidden}, {sequence}, {batch}, {gpus}"
        machine = _machine("A100 SXM4 80 GB", _ONE_NODE if alone else _NODES, gpus)
        yield Row(name, group, part, step, machine, float(row["iteration time (ms)"]) / 1e3)


_CASE: Final = re.compile(r"(tp|pp|dp|cp|l|mbc|seq)(\d+)")


def _simumax() -> Iterator[Row]:
    for part, row in _lines("simumax-b200"):
        case = row["case"]
        given = {key: int(value) for key, value in _CASE.findall(case.split("b_", 1)[1])}
        full = models()["Llama 3 70B" if "70b" in case else "Llama 3 405B"]
        sequence, count = given.get("seq", 4096), given["mbc"]
        tp, pp, dp, cp = (given.get(key, 1) for key in ("tp", "pp", "dp", "cp"))
        layout = Layout(
            dp=dp, tp=tp, pp=pp, cp=cp, zero=1, micro_batches=count, sequence_parallel=tp > 1, context="ulysses"
        )
        model = msgspec.structs.replace(full, layers=given["l"])
        step = Step(model, layout, count * dp, sequence, "float32")
        machine = replace(_machine("B200 SXM", "4X NDR", 8), causal=True)
        group = f"{model.name}, {given['l']}, {sequence}"
        yield Row(
            "simumax-b200",
            group,
            part,
            step,
            machine,
            float(row["measured step (ms)"]) / 1e3,
            float(row["measured peak memory (GiB)"]) * _GIB,
        )


_REPORTS: Final = Path(__file__).parents[1] / "models" / "published_steps.toml"


def reports() -> list[dict[str, Any]]:
    """Published steps of whole clusters, by paper."""
    read: list[dict[str, Any]] = tomllib.loads(_REPORTS.read_text(encoding="utf-8"))["report"]
    return read


def published(report: Mapping[str, Any], number: int) -> Row:
    """A row of a report. Its seconds may be given as FLOP/s of a GPU: Megatron's FLOP are those of its equation 3, with
    the forward pass computed twice.
    """
    given = {**report, **dict(zip(report["columns"], report["rows"][number], strict=True))}
    model = models()[given["model"]]
    if "hidden" in given:
        own = gpt(given["layers"], given["hidden"], given["heads"], given["sequence"])
        keys = ("vocabulary", "kv_heads", "dropout")
        model = msgspec.structs.replace(own, **{key: given[key] for key in keys if key in given})
    how = dict(given["layout"])
    if how.get("scatter_gather"):
        how["scatter_gather"] = given["tp"] > 1 < given["pp"]
    degrees = {name: given[name] for name in ("dp", "tp", "pp", "cp", "ep", "vpp") if name in given}
    layout = Layout(**how, **degrees, micro_batches=given["batch"] // given["dp"] // given["micro_batch"])
    per_host = 8 if model.nodes_per_token else None
    gradients = given.get("gradients")
    step = Step(model, layout, given["batch"], given["sequence"], gradients, ranks_per_host=per_host)
    causal = not model.dropout
    on = _machine(given["gpu"], given["nic"], layout.gpus, given["overlap"], causal=causal)
    seconds = (
        given["seconds"] if "seconds" in given else _flop(step, causal=causal) / layout.gpus / given["tflops"] / 1e12
    )
    return Row("published", report["name"], "check", step, on, seconds)


def _flop(step: Step, *, causal: bool) -> float:
    model, s, h, layers = step.model, step.sequence, step.model.hidden, step.model.layers
    if causal:
        return flop_per_token(model, s, causal=True) * step.batch * s
    return 96.0 * step.batch * s * layers * h**2 * (1 + s / (6 * h) + model.vocabulary / (16 * layers * h))


@cache
def rows() -> tuple[Row, ...]:
    """All rows."""
    papers = (published(report, number) for report in reports() for number in range(len(report["rows"])))
    return (*_vtrain("vtrain-multi"), *_vtrain("vtrain-single"), *_simumax(), *papers)


@dataclass(frozen=True)
class Place:
    """Where a plan has the layout of a published step, among the fastest of each choice of degrees.

    place: 1 is the fastest of ``count``; None: the plan does not have it.
    gain: share of its time that the fastest saves.
    """

    name: str
    place: int | None
    count: int
    gain: float | None

    @property
    def in_first_tenth(self) -> bool:
        """Whether it is the fastest, or among the first tenth."""
        return self.place == 1 or (self.place is not None and 10 * self.place <= self.count)


def places() -> Iterator[Place]:
    """The place of each published layout, planned with what its software had: its recomputation, zero (0 if the paper
    has none) and overlap.
    """
    for report in reports():
        room = gpu_named(_hardware(), report["gpu"]).memory_bytes
        own = {key: value for key, value in report["layout"].items() if key not in {"scatter_gather", "uneven"}}
        for number in range(len(report["rows"])):
            row = published(report, number)
            step = row.step
            settings = {"zero": 0, **own}
            what = (step.model, step.layout.gpus, step.batch, step.sequence)
            wanted = Wanted(*what, settings, room=room, gradients=step.gradients)
            times = {_degrees(each.step): each.time.total for each in plan(wanted, row.machine).layouts}
            at = list(times).index(_degrees(step)) + 1 if _degrees(step) in times else None
            gain = None if at is None else 1 - min(times.values()) / times[_degrees(step)]
            yield Place(row.group, at, len(times), gain)


def _degrees(step: Step) -> tuple[int, ...]:
    return tuple(getattr(step.layout, name) for name in DIMENSIONS)


# --- scores --------------------------------------------------------------------------------------------------------

FITTED: Final = {
    "seconds of the host for a kernel": kernels.LAUNCH,
    "seconds of a kernel beside its work": kernels.STARTED,
    "by how much longer products without alignment take": kernels.UNALIGNED,
    "delay of a call on vTrain's single node": NODE_DELAY,
}
"""Everything that was fitted to steps: to the part "fit" of vTrain's rows, by least squares of logarithms."""


def kendall(pairs: Iterable[tuple[float, float]], apart: float = 0.0) -> float:
    """Kendall's τ-a of (predicted, measured), of pairs whose measured times differ by more than the share ``apart``."""
    couples = [(one, other) for one, other in combinations(list(pairs), 2) if abs(log(one[1] / other[1])) > apart]
    signs = [(one[0] - other[0]) * (one[1] - other[1]) for one, other in couples]
    return sum((value > 0) - (value < 0) for value in signs) / len(signs)


def median_order(pairs: Iterable[tuple[Row, float]], apart: float = 0.0) -> float | None:
    """Median τ of rows and their predicted seconds, over groups with at least five layouts; None without any."""
    groups = by_key((row.group, (time, row.seconds)) for row, time in pairs).values()
    order = [kendall(group, apart) for group in groups if len(group) >= _LAYOUTS]
    return median(order) if order else None


APART: Final = 0.1
"""Share by which steps differ that no scatter of the measurements puts in another order: 1.3 times that of layers."""


_LAYOUTS: Final = 5
"""Least layouts of a group whose order is scored."""


def by_layer() -> tuple[int, float, float, float]:
    """What vTrain's node leaves to any formula of a layer's time: of its rows not fitted, mean error in percent and
    order (``median_order``) if a factor for each width, tp and micro-batch is fitted, and how many factors; at last
    their standard deviation, of logarithms.
    """
    node = [(row, row.predicted) for row in rows() if row.of == "vtrain-single"]

    def layer(row: Row) -> tuple[int, int, int]:
        return row.step.model.hidden, row.step.layout.tp, row.step.micro_batch

    known = by_key((layer(row), log(row.seconds / time)) for row, time in node if row.part == "fit")
    factors = {key: median(values) for key, values in known.items()}
    check = [(row, time * exp(factors[layer(row)])) for row, time in node if row.part == "check"]
    error = 100 * mean(abs(time / row.seconds - 1) for row, time in check)
    return len(factors), error, median_order(check) or 0.0, stdev(factors.values())


@dataclass(frozen=True)
class Score:
    """Errors of a set of rows in percent; ``None`` where a set has nothing to compare.

    mean, median: absolute error of the step's time. bias: median error with its sign. after: mean absolute error of the
    others, once the first row of each model has calibrated the machine; before: of the same rows without that.
    order: median τ over groups with at least five layouts; order_apart: of steps that differ by 10 %.
    regret: by how much the predicted best is slower than the true best, median of these groups. covered: rows within
    their 95 % interval.
    memory: mean absolute error of the peak memory.
    """

    of: str
    part: str
    count: int
    mean: float
    median: float
    bias: float
    before: float | None
    after: float | None
    order: float | None
    order_apart: float | None
    regret: float | None
    covered: float
    memory: float | None


@cache
def score(of: str, part: str) -> Score:
    """The score of the rows of a set in a part, or in "all"."""
    chosen = [(row, row.predicted) for row in rows() if row.of == of and part in {row.part, "all"}]
    errors = [100 * (time / row.seconds - 1) for row, time in chosen]
    groups: dict[str, list[tuple[Row, float]]] = {}
    for row, time in chosen:
        groups.setdefault(row.group, []).append((row, time))
    large = [group for group in groups.values() if len(group) >= _LAYOUTS and of != "published"]
    regret = [
        100 * (min(group, key=lambda each: each[1])[0].seconds / min(row.seconds for row, _ in group) - 1)
        for group in large
    ]
    inside = [low <= row.seconds <= high for row, time in chosen for low, high in [within(row, time)]]
    sizes = [abs(100 * (row.predicted_bytes / row.bytes - 1)) for row, _ in chosen if row.bytes is not None]
    before, after = after_one([row for row, _ in chosen]) if of != "published" else (None, None)
    return Score(
        of,
        part,
        len(chosen),
        mean(map(abs, errors)),
        median(map(abs, errors)),
        median(errors),
        before,
        after,
        median_order(chosen) if of != "published" else None,
        median_order(chosen, APART) if of != "published" else None,
        median(regret) if regret else None,
        100 * mean(inside),
        mean(sizes) if sizes else None,
    )


def within(row: Row, time: float) -> tuple[float, float]:
    """The 95 % interval of a predicted time."""
    kind: Kind = kind_of(row.step, row.machine.per_host)
    return time * kind.low, time * kind.high


def after_one(chosen: list[Row]) -> tuple[float, float]:
    """Mean absolute error in percent of all rows but the first of each model, before and after it calibrates the
    machine.
    """
    models_: dict[str, list[Row]] = {}
    for row in chosen:
        models_.setdefault(f"{row.step.model.layers} × {row.step.model.hidden}", []).append(row)
    before, errors = [], []
    for first, *others in models_.values():
        before += [abs(100 * row.off) for row in others]
        factors = [factor.value for factor in calibrate(first.machine, [(first.step, first.seconds)]).factors]
        times = [step_time(row.step, slower(row.machine, *factors or (1, 1))).total for row in others]
        errors += [abs(100 * (time / row.seconds - 1)) for row, time in zip(others, times, strict=True)]
    return mean(before), mean(errors)


def scores() -> list[Score]:
    """The score of each set and part."""
    return [score(of, part) for of in ANCHORS for part in ("fit", "check", "all") if of != "published" or part == "all"]


def table_of_scores() -> Iterator[str]:
    """The scores of parts that nothing was fitted to, as a table of docs/training.md."""

    def shown(value: float | None, unit: str = "") -> str:
        return "–" if value is None else f"{value:.1f}{unit}"

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    yield from (
        (
            "| set | steps | mean error | median | after one step (before) | τ | τ, 10 % apart | regret | "
            "in interval | memory | other tools |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    )
    for of, anchor in ANCHORS.items():
        row = score(of, "all" if of == "published" else "check")
        known = f"{anchor.name} {anchor.seconds} %" + ("" if anchor.memory is None else f", memory {anchor.memory} %")
        after = "–" if row.after is None else f"{row.after:.1f} % ({shown(row.before)} %)"
        yield (
            f"| {of} | {row.count} | {shown(row.mean)} % | {shown(row.median)} % | {after} | "
            f"{number(row.order)} | {number(row.order_apart)} | {shown(row.regret, ' %')} | {row.covered:.0f} % | "
            f"{shown(row.memory, ' %')} | {known} |"
        )
