"""What ``busbw training`` prints: tables of traffic, memory, limits, storage and rooflines."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from busbw.units import about_size, format_flop, format_rate, format_seconds
from busbw_analysis.report.document import Column, Table, table
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.limits import HEADLINES, Limits
from busbw_analysis.training.memory import Memory
from busbw_analysis.training.roofline import Phase
from busbw_analysis.training.statements import Statement
from busbw_analysis.training.storage import Checkpoints, Rate, Reading
from busbw_analysis.training.traffic import DIMENSIONS, Traffic, sent


def gigabytes(bytes_: float) -> str:
    """Decimal, with four significant digits."""
    return f"{bytes_ / 1e9:.4g} GB"


def percent_of(share: float) -> str:
    """A share as a number of per cent with three digits."""
    return f"{share * 100:.3g}"


def layout_words(layout: Layout) -> str:
    """``dp 8, tp 2, zero 3``: what is not as by default, and how many GPUs."""
    default = Layout()
    given = [
        f"{name.replace('_', '-')} {getattr(layout, name)}"
        for name in Layout.__slots__
        if getattr(layout, name) != getattr(default, name)
    ]
    return f"{layout.gpus} GPUs: {', '.join(given) or 'dp 1'}"


def _step_words(step: Step) -> str:
    return (
        f"{step.model.name}, {layout_words(step.layout)}; batch {step.batch}, sequence {step.sequence}, "
        f"{step.micro_batch} a micro-batch"
    )


def traffic_headline(step: Step, rows: tuple[Traffic, ...]) -> str:
    """What a rank sends in a step, most of it for what, and how much of it computation waits for."""
    whole = sent(rows)
    if not whole:
        return "A rank sends nothing."
    most = max(DIMENSIONS, key=lambda one: sent(rows, one))
    idle = f"; the pipeline idles for {percent_of(step.bubble_share)} % of a step" if step.bubble_share else ""
    return (
        f"A rank sends {gigabytes(whole)} a step, {percent_of(sent(rows, most) / whole)} % of it for {most}; "
        f"computation waits for {gigabytes(sent(rows, hideable=False))}{idle}"
    )


def memory_headline(found: Memory, room: float | None, what: str, other: Layout | None) -> str:
    """Whether a rank fits the ``room`` of ``what``, by how much, what most of it is, and which layout would fit."""
    parts = ("weights", "gradients", "optimizer", "activations", "buffers")
    most = max(parts, key=lambda name: getattr(found, name))
    of_it = f"{gigabytes(found.total)}, {percent_of(getattr(found, most) / found.total)} % of it {most}"
    if room is None:
        return f"A rank keeps {of_it}; --gpu says whether that fits"
    fits = "Fits" if found.total <= room else "Does not fit"
    would = "" if other is None else f"; this would fit: {layout_words(other)}"
    share = percent_of(found.total / room)
    return f"{fits} {gigabytes(room)} of {what}: a rank keeps {of_it}, {share} % of the room{would}"


def roofline_headline(found: Sequence[tuple[Phase, dict[str, float]]], tokens: float | None, own: int) -> str:
    """What decides the time of a step; ``tokens`` of a GPU from which dp is hidden, beside its ``own``."""
    whole = [(one, least) for one, least in found if one.dimension is not None]
    alone = sum(max(least.values()) for one, least in found if one.dimension is None)
    slow = [one.dimension for one, least in whole if least.get("network", 0.0) > least["compute"]]
    longest = max([alone, *(max(least.values()) for _, least in whole)])
    by = f"the network ({', '.join(map(str, slow))})" if slow else "what a GPU computes and reads"
    words = f"A step takes at least {format_seconds(longest)}, decided by {by}"
    if tokens is None:
        return words
    hidden = "hidden" if own >= tokens else "not hidden"
    return f"{words}; dp is {hidden}: {own} tokens a GPU, where it wants {tokens:.0f}"


def limits_headline(found: Sequence[Limits]) -> str:
    """Where the first one's limits are, and what moves the wall most."""
    one = found[0]
    cliff = "is not met" if one.cliff is None else f"is at {one.cliff:.1e} FLOP"
    if one.wall == float("inf"):
        return f"The cliff {cliff}, and nothing ends it: there is no latency; a reconstruction"
    best = max(found[1:], key=lambda other: other.wall)
    return (
        f"The cliff {cliff}, the wall of latency at {one.wall:.1e} FLOP; of all changes below the wall moves most by "
        f"'{best.name}', {best.wall / one.wall:.3g} times; a reconstruction"
    )


def storage_headline(reading: Reading, rate: Rate | None, saved: Sequence[Checkpoints]) -> str:
    """Whether the storage reads fast enough, how long a checkpoint stops training, and how often to save."""
    told = [f"Training reads {format_rate(reading.bytes_per_second)}"]
    if rate is not None:
        share = reading.share_of(rate.bytes_per_second)
        enough = "enough" if share <= 1 else f"not enough: it wants {share:.3g} times as much, and waits"
        told[0] += f" of {format_rate(rate.bytes_per_second)}: {enough}"
    if saved:
        told.append(f"a checkpoint stops it for {format_seconds(saved[0].stops)}")
        if saved[0].interval is not None and saved[0].lost is not None:
            lost = percent_of(saved[0].lost)
            told.append(f"save every {format_seconds(saved[0].interval)}, which loses {lost} % of all time")
    return "; ".join(told)


_TRAFFIC: Final[tuple[Column[Traffic], ...]] = (
    Column("group", lambda one: one.dimension),
    Column("what", lambda one: one.what),
    Column("op", lambda one: one.op),
    Column("ranks", lambda one: one.ranks, str),
    Column("S", lambda one: one.size_bytes, about_size),
    Column("calls", lambda one: one.messages, str),
    Column("sent", lambda one: one.sent_bytes, gigabytes),
    Column("phase", lambda one: one.phase),
    Column("waits", lambda one: "no" if one.hideable else "yes"),
    Column("of a call", lambda one: one.formula),
)
_BUBBLES: Final = ("(p−1)/(m v + p−1)", "1 − m Σ L_r/(p T), T = m max L_r + (Σ L_r − max L_r)/v")
_STATEMENTS: Final[tuple[Column[Statement], ...]] = (
    Column("group", lambda one: one.dimension or "all"),
    Column("often said", lambda one: one.said),
    Column("which makes", lambda one: one.said_value, "{:.4g}".format),
    Column("sent", lambda one: one.sent_bytes, gigabytes),
    Column("what holds", lambda one: one.holds),
)


def traffic_tables(
    step: Step, stage: int, rows: tuple[Traffic, ...], explained: Sequence[Statement]
) -> Iterator[Table]:
    """A line for each row, with the sums by group; ``explained``: loose statements beside the exact ones."""
    sums = [
        f"{one}: {gigabytes(sent(rows, one))} a step, waits for {gigabytes(sent(rows, one, hideable=False))}"
        for one in DIMENSIONS
        if sent(rows, one)
    ]
    bubble = step.bubble_share
    yield table(
        _step_words(step),
        _TRAFFIC,
        rows,
        f"sent: by one rank of pipeline stage {stage} in a step, in one direction; S as nccl-tests has it",
        "waits: computation waits for it; the others can go on beside it",
        f"pipeline: idle for {percent_of(bubble)} % of the step, {_BUBBLES[step.layout.uneven]}" if bubble else "",
        *(sums or ["nothing is sent"]),
        *dict.fromkeys(f"{row.dimension}: {row.source}" for row in rows),
    )
    if explained:
        yield table("", _STATEMENTS, explained, "which makes: as it stands, in elements where it names no type")


def memory_table(step: Step, found: Memory, by_zero: Sequence[float], saved: dict[int, int]) -> Table:
    """Parts of the memory of the rank that needs most."""
    layout = step.layout
    undivided = layout.zero == 2 and layout.micro_batches > 1 and layout.reduces == 1
    columns: tuple[Column[str], ...] = (
        Column("what", lambda name: name),
        Column("bytes", lambda name: getattr(found, name), gigabytes),
        Column("share", lambda name: getattr(found, name) / found.total, percent_of, "%"),
    )
    return table(
        _step_words(step),
        columns,
        ("weights", "gradients", "optimizer", "activations", "buffers", "total"),
        f"of a rank of pipeline stage {found.stage}, which needs most; {found.under_way:g} micro-batches under way",
        "zero 2 divides gradients only if every micro-batch reduces them (--sync every)" if undivided else "",
        f"weights, gradients and optimizer by zero 0 to 3: {', '.join(f'{one:.4g}' for one in by_zero)} B a parameter",
        "checkpoint: " + ", ".join(f"{gigabytes(bytes_)} at {per} B a parameter" for per, bytes_ in saved.items()),
    )


_LIMITS: Final[tuple[Column[Limits], ...]] = (
    Column("what", lambda one: one.name),
    Column("best", lambda one: one.best, percent_of, "%"),
    Column("cliff", lambda one: one.cliff, "{:.2e}".format, "FLOP"),
    Column("none in time", lambda one: one.infeasible, "{:.2e}".format, "FLOP"),
    Column("wall", lambda one: one.wall if one.wall < float("inf") else None, "{:.2e}".format, "FLOP"),
)


def limits_table(found: Sequence[Limits]) -> Table:
    """A line for each network or change."""
    stated = ", ".join(f"{name} {value:.0e}" for name, value in HEADLINES.items())
    return table(
        "",
        _LIMITS,
        found,
        "cliff: above it the best utilisation is below 80 % of that of small training; none in time: found no way",
        "wall: latency of the layers alone, without hops between nodes, takes the time there is (closed form)",
        f"a reconstruction of arXiv:2411.01137, whose text was not at hand; it states: {stated}",
    )


def reading_table(reading: Reading, rate: Rate | None, unknown: str = "") -> Table:
    """What is read, and what that is of the storage's rate; ``unknown``: why there is none."""
    columns: tuple[Column[Reading], ...] = (
        Column("what", lambda one: one.what),
        Column("sample", lambda one: one.bytes_per_flop, "{:.3g}".format, "B/FLOP"),
        Column("achieved", lambda one: one.flop_per_second, format_flop),
        Column("a GPU reads", lambda one: one.per_gpu, format_rate),
        Column("GPUs", lambda one: one.gpus, str),
        Column("all read", lambda one: one.bytes_per_second, format_rate),
        Column("share", lambda one: None if rate is None else one.share_of(rate.bytes_per_second), percent_of, "%"),
    )
    return table("", columns, [reading], unknown if rate is None else f"share: of {_rate_words(rate)}")


def _rate_words(rate: Rate) -> str:
    return f"{format_rate(rate.bytes_per_second)} of the storage, {rate.origin}"


_CHECKPOINTS: Final[tuple[Column[Checkpoints], ...]] = (
    Column("what", lambda one: one.how),
    Column("stops", lambda one: one.stops, format_seconds),
    Column("written", lambda one: one.written, format_seconds),
    Column("Young", lambda one: one.young, format_seconds),
    Column("interval", lambda one: one.interval, format_seconds),
    Column("lost", lambda one: one.lost, percent_of, "%"),
    Column("δ/τ + τ/2M + R/M", lambda one: one.loosely, percent_of, "%"),
)


def checkpoints_table(found: Sequence[Checkpoints], bytes_: int, rate: Rate) -> Table:
    """How long saving takes, and where it is known how often training fails, how often it is best and what is lost."""
    notes = [
        f"a checkpoint: {gigabytes(bytes_)} at {_rate_words(rate)}",
        "asynchronous: stops while GPUs copy to their hosts",
    ]
    if found[0].interval is not None:
        notes += [
            "interval: of work between two, by Daly 2006, not before it is written",
            "lost: share of all time, checkpoints, repeated work and restarts together",
        ]
    return table("", _CHECKPOINTS, found, *notes, without_empty=True)


_ROOFLINE: Final[tuple[Column[tuple[Phase, dict[str, float]]], ...]] = (
    Column("what", lambda one: one[0].name),
    Column("FLOP", lambda one: one[0].flop, "{:.3g}".format),
    Column("memory", lambda one: one[0].memory_intensity, "{:.3g}".format, "FLOP/B"),
    Column("network", lambda one: one[0].network_intensity, "{:.3g}".format, "FLOP/B"),
    Column("at least", lambda one: max(one[1].values()), format_seconds),
    Column("decided by", lambda one: max(one[1], key=lambda name: one[1][name])),
)


def roofline_table(step: Step, found: Sequence[tuple[Phase, dict[str, float]]], notes: Sequence[str]) -> Table:
    """Each phase with its intensities, and what decides it of its times."""
    return table(_step_words(step), _ROOFLINE, found, *notes)


_MODELS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("what", lambda row: row["model"]),
    Column("parameters", lambda row: row["parameters"], "{:.5g}".format),
    Column("active", lambda row: row["active_parameters"], "{:.5g}".format),
    Column("in products", lambda row: row["parameters_in_products"], "{:.5g}".format),
    Column("a token, causal", lambda row: row["causal_flop_per_token"], "{:.5g}".format, "FLOP"),
    Column("to all", lambda row: row["flop_per_token"], "{:.5g}".format, "FLOP"),
)


def models_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Names of models with what was derived of them."""
    note = "of a token: forward and backward pass, 6 a parameter in products, and attention in the row's sequence"
    return table("", _MODELS, rows, note)
