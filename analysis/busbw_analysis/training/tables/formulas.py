"""Output of ``busbw training``: tables of traffic, memory, limits, storage and rooflines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from busbw.key_values import written
from busbw.units import about_size, counted, format_flop, format_rate, format_seconds
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.gpus import Room
from busbw_analysis.training.layout import Layout, Step, default_gradients
from busbw_analysis.training.limits import HEADLINES, Limits
from busbw_analysis.training.memory import Memory
from busbw_analysis.training.roofline import Timed
from busbw_analysis.training.statements import Statement
from busbw_analysis.training.storage import Checkpoints, Rate, Reading
from busbw_analysis.training.traffic import DIMENSIONS, Traffic, sent


def gigabytes(bytes_: float) -> str:
    """Decimal gigabytes with four significant digits."""
    return f"{bytes_ / 1e9:.4g} GB"


def percent_of(share: float) -> str:
    """A share as a percentage with three digits, without its sign."""
    return f"{share * 100:.3g}"


def layout_text(step: Step) -> str:
    """``dp=16,tp=8,sequence-parallel=yes``: the settings that differ from the default, as ``--layout`` takes them."""
    values = {name: getattr(step.layout, name) for name in Layout.__slots__ if name != "micro_batches"}
    values |= {"micro_batch": step.micro_batch, "gradients": step.gradients, "imbalance": step.imbalance}
    usual = {"micro_batch": 1, "gradients": default_gradients(step.model), "imbalance": 1.0}
    default, words = Layout(), {True: "yes", False: "no"}
    changed = [
        f"{written(name)}={words[value] if isinstance(value, bool) else value}"
        for name, value in values.items()
        if value is not None and value != usual.get(name, getattr(default, name, None))
    ]
    return ",".join(changed) or "dp=1"


def assumed_notes(assumed: Mapping[str, str]) -> list[str]:
    """``default gradients: float32, as in …``: one note per default that was taken."""
    return [f"default {written(name)}: {words}" for name, words in assumed.items()]


def _step_words(step: Step) -> str:
    return (
        f"{step.model.name}, {step.layout.gpus} GPUs: {layout_text(step)}; batch {step.batch}, sequence "
        f"{step.sequence}, {counted(step.layout.micro_batches, 'micro-batch', 'micro-batches')} of {step.micro_batch}"
    )


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


def memory_headline(needed: Memory, room: Room | None, other: Step | None) -> str:
    """Whether a rank fits into ``room``, its largest part, and a layout that fits (``other``)."""
    parts = ("weights", "gradients", "optimizer", "activations", "buffers")
    most = max(parts, key=lambda name: getattr(needed, name))
    of_it = f"{gigabytes(needed.total)}, {percent_of(getattr(needed, most) / needed.total)} % of it {most}"
    if room is None:
        return f"A rank needs {of_it}; give --gpu to check whether it fits"
    fits = "Fits" if needed.total <= room.bytes else "Does not fit"
    would = "" if other is None else f"; this layout fits: --layout {layout_text(other)}"
    share = percent_of(needed.total / room.bytes)
    return f"{fits} {gigabytes(room.bytes)} of {room.in_words}: a rank needs {of_it}, {share} % of the memory{would}"


def roofline_headline(timed: Sequence[Timed], tokens: float | None, own: int) -> str:
    """The lower bound of a step's time and its limit.

    tokens: of a GPU's micro-batch, from which dp can be hidden; None if unknown. own: those of this step.
    """
    alone = sum(max(least.values()) for phase, least in timed if phase.dimension is None)
    longest = max([alone, *(max(least.values()) for _, least in timed)])
    slow = [phase.dimension for phase, least in timed if phase.dimension is not None and max(least.values()) > alone]
    by = f"the network ({', '.join(map(str, slow))})" if slow else "computation and memory of a GPU"
    words = f"A step takes at least {format_seconds(longest)}, limited by {by}"
    if tokens is None:
        return words
    hidden = "can be hidden" if own >= tokens else "is not hidden"
    return f"{words}; dp {hidden}: {own} tokens per GPU and micro-batch, {tokens:.0f} needed"


def limits_headline(rows: Sequence[Limits]) -> str:
    """The limits of the first row, and the change that moves the wall most."""
    first = rows[0]
    cliff = "is beyond the searched range" if first.cliff is None else f"is at {first.cliff:.1e} FLOP"
    if first.wall == float("inf"):
        return f"The cliff {cliff}; without latency there is no wall; a reconstruction"
    best = max(rows[1:], key=lambda other: other.wall)
    return (
        f"The cliff {cliff}, the latency wall at {first.wall:.1e} FLOP; '{best.name}' moves the wall most, "
        f"{best.wall / first.wall:.3g} times; a reconstruction"
    )


def storage_headline(reading: Reading, rate: Rate | None, saved: Sequence[Checkpoints]) -> str:
    """Whether the storage reads fast enough, how long a checkpoint stops training, and how often to save."""
    parts = [f"Training reads {format_rate(reading.bytes_per_second)}"]
    if rate is not None:
        share = reading.share_of(rate.bytes_per_second)
        enough = "enough" if share <= 1 else f"not enough: training needs {share:.3g} times that rate and waits"
        parts[0] += f" of {format_rate(rate.bytes_per_second)}: {enough}"
    if saved:
        parts.append(f"a checkpoint stops it for {format_seconds(saved[0].stops)}")
        if saved[0].interval is not None and saved[0].lost is not None:
            lost = percent_of(saved[0].lost)
            parts.append(f"save every {format_seconds(saved[0].interval)}, which loses {lost} % of all time")
    return "; ".join(parts)


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
        _step_words(step),
        _TRAFFIC,
        rows,
        f"sent: by one rank of pipeline stage {stage} in a step, in one direction; S as in nccl-tests",
        "waits: yes if computation waits for the call, no if it can overlap",
        f"pipeline: idle for {percent_of(bubble)} % of the step, {_BUBBLES[step.layout.uneven]}" if bubble else "",
        *(sums or ["nothing is sent"]),
        *dict.fromkeys(f"{row.dimension}: {row.source}" for row in rows),
        *assumed_notes(assumed),
    )
    if explained:
        yield table("", _STATEMENTS, explained, "gives: taken literally, in elements if it names no data type")


def memory_table(
    step: Step, needed: Memory, by_zero: Sequence[float], saved: dict[int, int], assumed: Mapping[str, str]
) -> Table:
    """The memory of the rank that needs most, by part."""
    undivided = step.layout.zero == 2 and step.layout.accumulates
    columns: tuple[Column[str], ...] = (
        Column("what", lambda name: name),
        Column("bytes", lambda name: getattr(needed, name), gigabytes),
        Column("share", lambda name: getattr(needed, name) / needed.total, percent_of, "%"),
    )
    return table(
        _step_words(step),
        columns,
        ("weights", "gradients", "optimizer", "activations", "buffers", "total"),
        f"a rank of pipeline stage {needed.stage}, which needs most; {needed.under_way:g} micro-batches in flight",
        "zero 2 divides gradients only if every micro-batch reduces them (sync=every)" if undivided else "",
        f"weights, gradients and optimizer by zero 0 to 3: {', '.join(map('{:.4g}'.format, by_zero))} B a parameter",
        "checkpoint: " + ", ".join(f"{gigabytes(bytes_)} at {per} B a parameter" for per, bytes_ in saved.items()),
        *assumed_notes(assumed),
    )


_LIMITS: Final[tuple[Column[Limits], ...]] = (
    Column("what", lambda row: row.name),
    Column("best", lambda row: row.best, percent_of, "%"),
    Column("cliff", lambda row: row.cliff, "{:.2e}".format, "FLOP"),
    Column("none in time", lambda row: row.infeasible, "{:.2e}".format, "FLOP"),
    Column("wall", lambda row: row.wall if row.wall < float("inf") else None, "{:.2e}".format, "FLOP"),
)


def limits_table(rows: Sequence[Limits], notes: Sequence[str] = ()) -> Table:
    """One row per network or change."""
    stated = ", ".join(f"{name} {value:.0e}" for name, value in HEADLINES.items())
    return table(
        "",
        _LIMITS,
        rows,
        "cliff: beyond it, the best utilisation is below 80 % of that of small training",
        "none in time: beyond it, no layout finishes in time",
        "wall: beyond it, the layers' latency alone, without hops between nodes, takes too long (closed form)",
        f"a reconstruction of arXiv:2411.01137 without its full text; it states: {stated}",
        *notes,
    )


def reading_table(reading: Reading, rate: Rate | None, unknown: str = "") -> Table:
    """Read rates, and their share of the storage's rate. ``unknown``: why the storage's rate is not known."""
    columns: tuple[Column[Reading], ...] = (
        Column("what", lambda row: row.what),
        Column("sample", lambda row: row.bytes_per_flop, "{:.3g}".format, "B/FLOP"),
        Column("achieved", lambda row: row.flop_per_second, format_flop),
        Column("a GPU reads", lambda row: row.per_gpu, format_rate),
        Column("GPUs", lambda row: row.gpus, str),
        Column("all read", lambda row: row.bytes_per_second, format_rate),
        Column("share", lambda row: None if rate is None else row.share_of(rate.bytes_per_second), percent_of, "%"),
    )
    return table("", columns, [reading], unknown if rate is None else f"share: of {_rate_words(rate)}")


def _rate_words(rate: Rate) -> str:
    return f"{format_rate(rate.bytes_per_second)} of the storage, {rate.origin}"


_CHECKPOINTS: Final[tuple[Column[Checkpoints], ...]] = (
    Column("what", lambda row: row.how),
    Column("stops", lambda row: row.stops, format_seconds),
    Column("written", lambda row: row.written, format_seconds),
    Column("Young", lambda row: row.young, format_seconds),
    Column("interval", lambda row: row.interval, format_seconds),
    Column("lost", lambda row: row.lost, percent_of, "%"),
    Column("δ/τ + τ/2M + R/M", lambda row: row.loosely, percent_of, "%"),
)


def checkpoints_table(schedules: Sequence[Checkpoints], bytes_: int, rate: Rate) -> Table:
    """Time of a checkpoint and, if the failure rate is known, how often to save and the time lost."""
    notes = [
        f"a checkpoint: {gigabytes(bytes_)} at {_rate_words(rate)}",
        "asynchronous: training stops while GPUs copy to their hosts",
    ]
    if schedules[0].interval is not None:
        notes += [
            "interval: work between two checkpoints, by Daly 2006, at least until the last one is written",
            "lost: share of all time in checkpoints, repeated work and restarts",
        ]
    return table("", _CHECKPOINTS, schedules, *notes)


_ROOFLINE: Final[tuple[Column[Timed], ...]] = (
    Column("what", lambda row: row[0].name),
    Column("FLOP", lambda row: row[0].flop, "{:.3g}".format),
    Column("memory", lambda row: row[0].memory_intensity, "{:.3g}".format, "FLOP/B"),
    Column("network", lambda row: row[0].network_intensity, "{:.3g}".format, "FLOP/B"),
    Column("at least", lambda row: max(row[1].values()), format_seconds),
    Column("limited by", lambda row: max(row[1], key=lambda name: row[1][name])),
)


def roofline_table(step: Step, timed: Sequence[Timed], notes: Sequence[str], assumed: Mapping[str, str]) -> Table:
    """Each phase with its intensities, its least time, and the limit; links of every dimension below."""
    links = [
        f"{phase.dimension}: links inside a node take {format_seconds(least['inside'])}, cards between nodes "
        f"{format_seconds(least['between'])}, at once"
        for phase, least in timed
        if "inside" in least
    ]
    return table(_step_words(step), _ROOFLINE, timed, *links, *notes, *assumed_notes(assumed))


_MODELS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("what", lambda row: row["model"]),
    Column("parameters", lambda row: row["parameters"], "{:.5g}".format),
    Column("active", lambda row: row["active_parameters"], "{:.5g}".format),
    Column("in products", lambda row: row["parameters_in_products"], "{:.5g}".format),
    Column("causal", lambda row: row["causal_flop_per_token"], "{:.5g}".format, "FLOP"),
    Column("full", lambda row: row["flop_per_token"], "{:.5g}".format, "FLOP"),
)


def models_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The models and numbers derived from them."""
    note = (
        "causal, full: per token, 6 FLOP per parameter in products, and causal or full attention in the row's sequence"
    )
    return table("", _MODELS, rows, note)
