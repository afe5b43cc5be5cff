"""The part of a report that needs no judgement: cases without a number, how it was timed, on what, and the words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from busbw.runs.records import JSON, Case, LaunchStarted, case_in_words
from busbw.runs.store import StoredRun
from busbw.units import format_size, format_span, format_time
from busbw_analysis.data.load import CaseRow, CaseState, Dataset
from busbw_analysis.report.document import (
    MISSING,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    Terms,
    Tone,
    clock_time,
    table,
)
from busbw_analysis.report.sections.placement import SHOWN_HERE, places

GLOSSARY: Final = (
    (
        "Size S",
        (
            "The bytes that a call is said to move, as nccl-tests counts them: the buffer of one rank for "
            "all_reduce, broadcast and reduce; the whole gathered or scattered buffer for all_gather, "
            "reduce_scatter, gather and scatter; one rank's send buffer for all_to_all; one message for "
            "send_recv and ping_pong. Sizes are binary: 1 KiB = 1024 B."
        ),
    ),
    (
        "Compiled loop",
        (
            "What made the calls of a sample one after the other without Python between them, as a program in C does. "
            "A Python call takes longer than a short message. Where nothing is said, Python made the calls."
        ),
    ),
    (
        "Time",
        (
            "How long the slowest rank of the group took for one call: the collective is over when the last "
            "rank is done. In each launch the median over its samples; over launches the median of these "
            "medians. For ping_pong it is half of the round trip."
        ),
    ),
    (
        "algbw",
        "S divided by the time: the rate that the program sees. Rates are decimal: 1 GB/s = 1,000,000,000 B/s.",
    ),
    (
        "busbw",
        (
            "algbw times the bus factor of the operation, which for n ranks is 2(n−1)/n for all_reduce, "
            "(n−1)/n for all_gather, reduce_scatter, all_to_all(_v), gather and scatter, and 1 for the rest: the "
            "rate that each rank's link must carry if the wire is used as well as possible. It can be "
            "compared between operations and with a link's speed. With one rank there is no wire and no "
            "busbw. The highest busbw of a run is the largest of any size and any group of ranks, judged or not; a "
            "total over groups is no rate of a link and does not count."
        ),
    ),
    (
        "Spread",
        (
            "How far single samples lie from their median: half of p95 − p5 over the median of all samples of a "
            "launch (± 10 %: nine in ten are about so near); over launches the median of these. How far launches lie "
            "from each other is the interval or range."
        ),
    ),
    (
        "Skew",
        (
            "Arrival skew: the time from the first rank's entry into a call to the last one's, by a clock that the "
            "ranks share; without one it is not known. In an operation that synchronises, the others wait for the "
            "rank that enters last, and the rank with the shortest time is usually that one."
        ),
    ),
    (
        "Launch",
        (
            "One start of all the processes. Launches differ from each other more than samples within one do, "
            "so a launch counts as one observation; no time, interval or verdict is made of samples of different "
            "launches thrown into one pot."
        ),
    ),
    (
        "Block",
        (
            "A stretch of samples of one case with one set of buffers. The blocks of a launch are shuffled, "
            "so that a slow minute does not fall on one case alone."
        ),
    ),
    (
        "Sample",
        "One or more calls between two readings of the clock.",
    ),
    (
        "Interval",
        (
            "A distribution-free 95 % interval of the median over launches, its ends between the order statistics "
            "that cover more and less. It takes at least 6 launches; "
            "with fewer, the smallest and largest launch median are shown and called a range. A mean or a 99 % "
            "quantile over launches has a bootstrap interval, for which whole launches are drawn again."
        ),
    ),
    (
        "Peak",
        (
            "The rate that hardware allows. Each percentage names which: measured on this machine, or "
            "nominal, and of what."
        ),
    ),
    (
        "Model",
        "A formula for the time of the algorithm that the backend runs, with the constants named next to it.",
    ),
    (
        "Fit",
        (
            "time = α0 + S/B∞ through the measured points, in pieces where the backend changes its way of "
            "sending. α0 is the time that an empty call would cost, by the first piece; B∞ the rate of an endless "
            "one, by the last piece; S½ = α · B∞, with the α of that last piece, the size at which half of that rate "
            "is reached. Held out: every second size is predicted by a fit of the others that did not see it."
        ),
    ),
    (
        "Flags",
        (
            "bimodal: the samples fall into two humps, and the median may jump from one to the other, so that "
            "comparisons go by the mean. slow mode: a few "
            "very slow samples take more than a tenth of the time. skew>10%: the ranks arrive further apart than a "
            "tenth of the time. drift: the first and the last third of a block differ. correlated: neighbouring "
            "samples know of each other (autocorrelation time of 5 samples or more), so that they count as fewer. "
            "outliers: more than 5 % of the samples are further from the quartiles of their launch than three times "
            "the distance between these. oversubscribed: more ranks than "
            "cores. disturbed: other programs, the hypervisor or lost cores took more than a number can stand. "
            "unbalanced: beside a call of mode overlap, less than half or more than twice as much was computed as the "
            "call takes alone. "
            "clock error: the ranks' clocks agree too badly to say who came when. moved>1: the backend moves more "
            "bytes than the best algorithm needs. cap: the limit of time or samples came before the interval was "
            "narrow. not checked: the data were not compared."
        ),
    ),
    (
        "Verified",
        (
            "The data that arrived were compared with what must come out, exactly. Wrong data make a case "
            "fail, whatever its speed."
        ),
    ),
)

_STOP_WORDS: Final = {
    "converged": "the interval of the median was narrow enough",
    "cap_time": "the time allowed for one case was used up",
    "cap_samples": "the number of samples allowed was reached",
}
_STATE_TONES: Final[dict[CaseState, Tone]] = {"failed": "bad", "not reached": "caution", "skipped": "quiet"}
_LONGEST = 400


def case_label(case: Case, without: frozenset[str] = frozenset()) -> str:
    """A case in words, without its size; ``without`` names the fields that need not be said."""
    op, *details = case_in_words(case, without)
    ranks = [] if "ranks" in without else [f"{case.ranks} rank{'s' if case.ranks != 1 else ''}"]
    return " · ".join([op, case.backend, *details, *ranks])


def size_list(sizes: Iterable[int]) -> str:
    """Sizes as people name them: up to four one by one, more as a range with their number."""
    ordered = sorted(set(sizes))
    if len(ordered) > 4:
        return f"{format_size(ordered[0])} … {format_size(ordered[-1])} ({len(ordered)} sizes)"
    return ", ".join(format_size(size) for size in ordered)


_MISSING_COLUMNS: Final[tuple[Column[tuple[tuple[CaseState, str, str], list[CaseRow]]], ...]] = (
    Column("Case", lambda one: one[0][1]),
    Column("Sizes", lambda one: size_list(row.case.size_bytes for row in one[1])),
    Column("State", lambda one: Cell(one[0][0], tone=_STATE_TONES[one[0][0]])),
    Column("Reason", lambda one: _shorten(one[0][2])),
)


def missing_cases(dataset: Dataset) -> Section:
    """The cases that were asked for and gave no number that may be believed, with the reason; like ones together."""
    grouped: dict[tuple[CaseState, str, str], list[CaseRow]] = {}
    for row in dataset.cases:
        if row.state != "measured":
            key = (row.state, case_label(row.case, without=frozenset({"mode"})), "; ".join(row.reasons))
            grouped.setdefault(key, []).append(row)
    if not grouped:
        text = (
            f"None: all {len(dataset.cases)} cases of the plan were measured."
            if dataset.cases
            else "The plan had no case."
        )
        return Section("missing", "Cases without a result", (Paragraph(text),))
    order: tuple[CaseState, ...] = ("failed", "not reached", "skipped")
    alike = sorted(grouped.items(), key=lambda item: order.index(item[0][0]))
    counts = Counter(row.state for row in dataset.cases)
    caption = f"Of {len(dataset.cases)} cases: " + ", ".join(
        f"{counts[state]} {state}" for state in order if counts[state]
    )
    return Section("missing", "Cases without a result", (table(caption, _MISSING_COLUMNS, alike),))


_FACT_COLUMNS: Final[tuple[Column[tuple[str, str]], ...]] = (
    Column("What", lambda fact: fact[0]),
    Column("Value", lambda fact: fact[1]),
)
_LINE_COLUMNS: Final[tuple[Column[str], ...]] = (Column("What", lambda line: line),)


def timing(dataset: Dataset) -> Section:
    """The protocol and its numbers, launch by launch."""
    stops: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    for _, block, groups in dataset.measured():
        stops[block.stop_reason] += groups
        checks[block.check.state] += groups
    blocks_measured = stops.total()
    calls = sorted({block.calls for _, block, _ in dataset.measured()})
    protocol = (
        "Before every sample the ranks come together, by a barrier unless the case says otherwise, outside of the "
        "timed part; each then reads a monotonic clock before and after the call or, in mode pipelined, a row of "
        "calls. The time of a call is that of the slowest rank. The cost of reading the clock is known and not "
        "subtracted. No sample is thrown away."
    )
    facts: list[tuple[str, str]] = []
    if blocks_measured:
        facts.append(("Calls per sample", ", ".join(map(str, calls))))
        facts += [
            (f"Blocks that stopped because {_STOP_WORDS.get(reason, reason)}", f"{number} of {blocks_measured}")
            for reason, number in stops.most_common()
        ]
        facts += [
            (f"Blocks with data {state}", f"{number} of {blocks_measured}") for state, number in checks.most_common()
        ]
    blocks: list[Paragraph | Table] = [Paragraph(protocol), _launches(dataset)]
    if facts:
        blocks.append(table("How the measuring ended", _FACT_COLUMNS, facts))
    for stored in dataset.runs:
        name = f" of run {stored.run.id}" if len(dataset.runs) > 1 else ""
        blocks.append(table(f"Plan{name}, as executed", _FACT_COLUMNS, flatten(stored.run.plan, 4), folded=True))
        if stored.run.adjusted:
            blocks.append(table(f"Sizes{name} that were rounded", _LINE_COLUMNS, stored.run.adjusted, folded=True))
    return Section("timing", "How it was timed", tuple(blocks))


_LAUNCH_COLUMNS: Final[tuple[Column[tuple[StoredRun, LaunchStarted, int]], ...]] = (
    Column("Run", lambda one: one[0].run.id),
    Column("Launch", lambda one: one[1].launch + 1, str),
    Column("Started (UTC)", lambda one: clock_time(one[1].started)),
    Column("Ranks", lambda one: len(one[1].hosts), str),
    Column("Seed of the order", lambda one: one[1].order_seed, str),
    Column("Blocks", lambda one: one[2], str),
    Column("One clock reading", lambda one: max(one[1].timer_ns, default=None), format_time),
    Column("Ranks share a clock", lambda one: "yes" if one[1].shared_clock else "no"),
    Column("Load average before", lambda one: one[1].load_average, "{:.2f}".format),
)


def _launches(dataset: Dataset) -> Table:
    several = len(dataset.runs) > 1
    measured: Counter[tuple[int, int]] = Counter()
    for run, block, groups in dataset.measured():
        measured[run, block.launch] += groups
    rows = [
        (stored, launch, measured[number, launch.launch])
        for number, stored in enumerate(dataset.runs)
        for launch in stored.launches
    ]
    columns = _LAUNCH_COLUMNS if several else _LAUNCH_COLUMNS[1:]
    note = "The cost of a clock reading is that of the slowest rank." if rows else "No launch came to life."
    return table("Launches", columns, rows, note, row_headers=2 if several else 1)


def environment(dataset: Dataset) -> Section:
    """The facts of every host. What is the same on all of them is said once."""
    blocks = places(dataset.runs)
    names = list(dict.fromkeys(host for stored in dataset.runs for host in stored.run.environments))
    values: dict[str, dict[str, list[str]]] = {}
    for stored in dataset.runs:
        for host, facts in stored.run.environments.items():
            for fact, value in flatten({name: told for name, told in facts.items() if name not in SHOWN_HERE}):
                hosts = values.setdefault(fact, {}).setdefault(value, [])
                if host not in hosts:
                    hosts.append(host)
    rows = [(fact, value, hosts) for fact, by_value in values.items() for value, hosts in by_value.items()]
    columns: list[Column[tuple[str, str, list[str]]]] = [
        Column("Fact", lambda row: row[0]),
        Column("Value", lambda row: row[1]),
        Column("Hosts", lambda row: "all" if len(row[2]) == len(names) else ", ".join(row[2])),
    ]
    caption = f"Recorded on {names[0]}" if len(names) == 1 else f"Recorded on {len(names)} hosts"
    blocks.append(table(caption, columns[:2] if len(names) == 1 else columns, rows, folded=True))
    return Section("environment", "Machine and software", tuple(blocks))


def glossary() -> Section:
    """The words and units of the report."""
    return Section("glossary", "Words and units", (Terms(GLOSSARY),))


def ran_for(stored: StoredRun) -> str:
    """The wall time of the blocks of a run, or a dash."""
    elapsed = sum(row.elapsed_ns for row in stored.measurements)
    return format_span(elapsed / 1e9) if elapsed else MISSING


def flatten(value: JSON, depth: int = 6, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as dotted names and texts; what lies deeper than ``depth`` is shown as it is written."""
    if isinstance(value, Mapping) and depth and value:
        for key, inner in value.items():
            yield from flatten(inner, depth - 1, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value) and depth:
        for number, item in enumerate(value):
            yield from flatten(item, depth - 1, f"{prefix}[{number}]")
    elif isinstance(value, list):
        yield prefix, ", ".join(map(_plain, value)) or MISSING
    else:
        yield prefix, _plain(value)


def _plain(value: JSON) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _shorten(text: str) -> str:
    """An error of a page's length would bury the table; the whole of it is in the run folder."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (cut; the whole text is in samples.jsonl)"
