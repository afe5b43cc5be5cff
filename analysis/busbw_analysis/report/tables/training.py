"""What ``busbw training`` prints: tables of traffic, memory, limits, storage and rooflines."""

from collections.abc import Sequence
from typing import Final

from busbw.runs.records import JSON
from busbw.units import about_size, format_flop, format_rate, format_time
from busbw_analysis.report.tables.layout import MISSING, aligned
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.limits import HEADLINES, Limits
from busbw_analysis.training.memory import Memory
from busbw_analysis.training.roofline import Phase
from busbw_analysis.training.statements import Statement
from busbw_analysis.training.storage import Checkpoints, Reading
from busbw_analysis.training.traffic import DIMENSIONS, Traffic, sent

_TRAFFIC: Final = ("group", "what", "op", "ranks", "S", "calls", "sent", "phase", "waits", "of a call")


def _table(columns: Sequence[str], body: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Columns are names, with a unit in brackets where they have one."""
    named = [(name.partition(" (")[0], "".join(name.partition("(")[1:])) for name in columns]
    return aligned(named, body, notes)


def gigabytes(bytes_: float) -> str:
    """Decimal, with four significant digits."""
    return f"{bytes_ / 1e9:.4g} GB"


def layout_words(layout: Layout) -> str:
    """``dp 8, tp 2, zero 3``: what is not as by default, and how many GPUs."""
    default = Layout()
    given = [
        f"{name.replace('_', '-')} {getattr(layout, name)}"
        for name in Layout.__slots__
        if getattr(layout, name) != getattr(default, name)
    ]
    return f"{layout.gpus} GPUs: {', '.join(given) or 'dp 1'}"


def step_words(step: Step) -> str:
    """The model, the layout and what a micro-batch is."""
    return (
        f"{step.model.name}, {layout_words(step.layout)}; batch {step.batch}, sequence {step.sequence}, "
        f"{step.micro_batch} a micro-batch"
    )


def traffic_text(step: Step, stage: int, rows: Sequence[Traffic], *, explained: Sequence[Statement]) -> str:
    """A line for each row, the sums by group, and with ``explained`` the loose statements beside the exact ones."""
    body = [
        [
            row.dimension,
            row.what,
            row.op,
            str(row.ranks),
            about_size(row.size_bytes),
            str(row.messages),
            gigabytes(row.sent_bytes),
            row.phase,
            "no" if row.hideable else "yes",
            row.formula,
        ]
        for row in rows
    ]
    all_rows = tuple(rows)
    sums = [
        f"{one}: {gigabytes(sent(all_rows, one))} a step, waits for {gigabytes(sent(all_rows, one, hideable=False))}"
        for one in DIMENSIONS
        if sent(all_rows, one)
    ]
    sources = dict.fromkeys(f"{row.dimension}: {row.source}" for row in rows)
    bubble = step.layout.bubble_share
    notes = [
        f"sent: by one rank of pipeline stage {stage} in a step, in one direction; S as nccl-tests has it",
        "waits: computation waits for it; the others can go on beside it",
        *([f"pipeline: idle for {bubble * 100:.3g} % of the step, (p−1)/(m v + p−1)"] if bubble else []),
        *(sums or ["nothing is sent"]),
        *sources,
    ]
    text = f"# {step_words(step)}\n{_table(_TRAFFIC, body, notes)}"
    return text if not explained else f"{text}\n\n{_statements(explained)}"


def _statements(found: Sequence[Statement]) -> str:
    lines = ["# what is often said, and what holds:"]
    for one in found:
        loose = "" if one.said_value is None else f" (here {one.said_value / 1e9:.4g}e9)"
        exact = "" if one.sent_bytes is None else f" (here {gigabytes(one.sent_bytes)})"
        lines.append(f"  {one.dimension.upper() or 'all'}: said: {one.said}{loose}; holds: {one.holds}{exact}")
    return "\n".join(lines)


def memory_text(step: Step, found: Memory, by_zero: Sequence[float], saved: dict[int, int], fit: Sequence[str]) -> str:
    """Parts of the memory of the rank that needs most, and whether they fit."""
    parts = ("weights", "gradients", "optimizer", "activations", "buffers", "total")
    body = [
        [name, gigabytes(getattr(found, name)), f"{getattr(found, name) / found.total * 100:.1f}"] for name in parts
    ]
    notes = [
        f"of a rank of pipeline stage {found.stage}, which needs most; {found.under_way:g} micro-batches under way",
        *(
            ["zero 2 divides gradients only if they are reduced in every micro-batch (--sync every)"]
            if _undivided(step)
            else []
        ),
        f"weights, gradients and optimizer by zero 0 to 3: {', '.join(f'{one:.4g}' for one in by_zero)} B a parameter",
        "checkpoint: " + ", ".join(f"{gigabytes(bytes_)} at {per} B a parameter" for per, bytes_ in saved.items()),
        *fit,
    ]
    return f"# {step_words(step)}\n{_table(('what', 'bytes', 'share (%)'), body, notes)}"


def _undivided(step: Step) -> bool:
    layout = step.layout
    return layout.zero == 2 and layout.micro_batches > 1 and layout.reduces == 1


def limits_text(found: Sequence[Limits]) -> str:
    """A line for each network or change."""
    body = [
        [one.name, f"{one.best * 100:.1f}", _flop(one.cliff), _flop(one.infeasible), _flop(one.wall)] for one in found
    ]
    columns = ("what", "best (%)", "cliff (FLOP)", "none in time (FLOP)", "wall (FLOP)")
    stated = ", ".join(f"{name} {value:.0e}" for name, value in HEADLINES.items())
    notes = (
        "cliff: above it the best utilisation is below 80 % of that of small training; none in time: found no way",
        "wall: latency of the layers alone takes the time there is (closed form)",
        f"a reconstruction of arXiv:2411.01137, whose text was not at hand; it states: {stated}",
    )
    return _table(columns, body, notes)


def _flop(value: float | None) -> str:
    return MISSING if value is None or value == float("inf") else f"{value:.2e}"


def reading_text(readings: Sequence[Reading], rate: float | None) -> str:
    """What is read, and the share of the storage's rate that it takes."""
    body = [
        [
            one.what,
            f"{one.bytes_per_flop:.3g}",
            format_flop(one.flop_per_second),
            format_rate(one.per_gpu),
            str(one.gpus),
            format_rate(one.bytes_per_second),
            MISSING if rate is None else f"{one.share_of(rate) * 100:.3g}",
        ]
        for one in readings
    ]
    columns = ("what", "sample (B/FLOP)", "achieved", "a GPU reads", "GPUs", "all read", "share (%)")
    notes = () if rate is None else (f"share: of {format_rate(rate)} of the storage; above 100 training waits",)
    return _table(columns, body, notes)


def checkpoints_text(found: Sequence[Checkpoints], bytes_: int) -> str:
    """How long saving takes, how often it is best, and what is lost."""
    body = [
        [
            one.how,
            *(format_time(seconds * 1e9) for seconds in (one.stops, one.written, one.young, one.interval)),
            f"{one.lost * 100:.3g}",
            f"{one.loosely * 100:.3g}",
        ]
        for one in found
    ]
    columns = ("what", "stops", "written", "Young", "interval", "lost (%)", "δ/τ + τ/2M + R/M (%)")
    notes = (
        f"a checkpoint: {gigabytes(bytes_)}; interval: of work between two, by Daly 2006, not before it is written",
        "asynchronous: stops while GPUs copy to their hosts",
        "lost: share of all time, checkpoints, repeated work and restarts together",
    )
    return _table(columns, body, notes)


def roofline_text(step: Step, found: Sequence[Phase], times: Sequence[dict[str, float]], notes: Sequence[str]) -> str:
    """Each phase with its intensities and what decides it of its ``times``."""
    body: list[list[str]] = []
    for one, least in zip(found, times, strict=True):
        slowest = max(least, key=lambda name: least[name])
        body.append(
            [
                one.name,
                f"{one.flop:.3g}",
                MISSING if one.memory_intensity is None else f"{one.memory_intensity:.3g}",
                MISSING if one.network_intensity is None else f"{one.network_intensity:.3g}",
                format_time(least[slowest] * 1e9),
                slowest,
            ]
        )
    columns = ("what", "FLOP", "memory (FLOP/B)", "network (FLOP/B)", "at least", "decided by")
    return f"# {step_words(step)}\n{_table(columns, body, notes)}"


def models_text(rows: Sequence[dict[str, JSON]]) -> str:
    """Names of models with what was derived of them."""
    columns = ("what", "parameters", "active", "in products", "a token, causal (FLOP)", "to all (FLOP)")
    keys = ("parameters", "active_parameters", "parameters_in_products", "causal_flop_per_token", "flop_per_token")
    body = [[str(row["model"]), *(f"{row[key]:.5g}" for key in keys)] for row in rows]
    notes = ("of a token: forward and backward pass, 6 a parameter in products, and attention in the row's sequence",)
    return _table(columns, body, notes)
