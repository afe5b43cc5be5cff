"""Report sections on the run itself: cases without a result, the timing protocol, the machine, and the glossary."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from busbw.runs.facts import HostFacts
from busbw.runs.records import JSON, Case, Detail, LaunchStarted, case_in_words
from busbw.runs.store import StoredRun
from busbw.units import clock_time, counted, format_size, format_span, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.summary import FLAGS, CaseState, CaseSummary
from busbw_analysis.report.document import (
    MISSING,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    Terms,
    Tone,
    table,
)
from busbw_analysis.report.sections.placement import SHOWN_HERE, places

_GLOSSARY: Final = "templates/glossary.toml"
_STOP_WORDS: Final = {
    "converged": "the interval of the median was narrow enough",
    "time_limit": "the time limit of a case was reached",
    "sample_limit": "the sample limit of a case was reached",
}
_STATE_TONES: Final[dict[CaseState, Tone]] = {"failed": "bad", "not reached": "caution", "skipped": "quiet"}
_LONGEST = 400


def case_label(case: Case, without: frozenset[Detail] = frozenset(), *, ranks: bool = True) -> str:
    """A case in words, without its size; ``without`` names the fields to omit."""
    op, *details = case_in_words(case, without)
    many = [counted(case.ranks, "rank")] * ranks
    return " · ".join([op, case.backend, *details, *many])


def size_list(sizes: Iterable[int]) -> str:
    """Up to four sizes one by one, more as a range with their number."""
    ordered = sorted(set(sizes))
    if len(ordered) > 4:
        return f"{format_size(ordered[0])} … {format_size(ordered[-1])} ({len(ordered)} sizes)"
    return ", ".join(format_size(size) for size in ordered)


_MISSING_COLUMNS: Final[tuple[Column[tuple[tuple[CaseState, str, str], list[CaseSummary]]], ...]] = (
    Column("Case", lambda row: row[0][1]),
    Column("Sizes", lambda row: size_list(summary.case.size_bytes for summary in row[1])),
    Column("State", lambda row: Cell(row[0][0], tone=_STATE_TONES[row[0][0]])),
    Column("Reason", lambda row: _shorten(row[0][2])),
)


def missing_cases(cases: Sequence[CaseSummary]) -> Section | None:
    """The cases of the plan that gave no reliable number, grouped by reason; None if there are none."""
    by_reason = by_key(
        ((row.state, case_label(row.case, without=frozenset({"mode"})), "; ".join(row.reasons)), row)
        for row in cases
        if row.state != "measured"
    )
    if not by_reason:
        return None
    order = list(_STATE_TONES)
    alike = sorted(by_reason.items(), key=lambda item: order.index(item[0][0]))
    counts = Counter(row.state for row in cases)
    caption = f"Of {counted(len(cases), 'case')}: " + ", ".join(
        f"{counts[state]} {state}" for state in order if counts[state]
    )
    return Section("missing", "Cases without a result", (table("", _MISSING_COLUMNS, alike),), gist=f"{caption}.")


_FACT_COLUMNS: Final[tuple[Column[tuple[str, str]], ...]] = (
    Column("What", lambda fact: fact[0]),
    Column("Value", lambda fact: fact[1]),
)


def timing(runs: Sequence[StoredRun]) -> Section:
    """The timing protocol, and its numbers for each launch."""
    stops: Counter[str] = Counter()
    checks: Counter[str] = Counter()
    by_launch: Counter[tuple[int, int]] = Counter()
    measurements = [(number, block) for number, stored in enumerate(runs) for block in stored.measurements]
    for run, block in measurements:
        stops[f"Blocks that stopped because {_STOP_WORDS.get(block.stop_reason, block.stop_reason)}"] += 1
        checks[f"Blocks with data {block.check.state}"] += 1
        by_launch[run, block.launch] += 1
    protocol = (
        "The ranks synchronise before every sample, outside the timed part, by a barrier unless the case says "
        "otherwise. Each rank then reads a monotonic clock before and after the call or, in mode pipelined, a sequence "
        "of calls. The time of a call is that of the slowest rank. The cost of reading the clock is not subtracted. No "
        "sample is discarded."
    )
    several = len(runs) > 1
    launches = [
        (stored, launch, by_launch[number, launch.launch])
        for number, stored in enumerate(runs)
        for launch in stored.launches
    ]
    columns = _LAUNCH_COLUMNS if several else _LAUNCH_COLUMNS[1:]
    note = "The clock reading is that of the slowest rank." if launches else "No launch started."
    blocks: list[Paragraph | Table] = [Paragraph(protocol)]
    blocks.append(table("Launches", columns, launches, note, row_headers=2 if several else 1))
    if measured := stops.total():
        calls = ", ".join(map(str, sorted({block.calls for _, block in measurements})))
        counts = (*stops.most_common(), *checks.most_common())
        facts = [("Calls per sample", calls), *((what, f"{number} of {measured}") for what, number in counts)]
        blocks.append(table("How the measurement ended", _FACT_COLUMNS, facts))
    for stored in runs:
        name = f" of run {stored.run.id}" if several else ""
        rounded = map("size rounded: {}".format, stored.run.adjusted)
        plan = flatten(stored.run.plan, 4)
        blocks.append(table(f"Plan{name}, as executed", _FACT_COLUMNS, plan, *rounded, folded=True))
    spent = ", ".join(ran_for(stored) for stored in runs)
    gist = f"{counted(len(launches), 'launch', 'launches')}, {spent} of measuring; no sample is discarded."
    return Section("timing", "How it was timed", tuple(blocks), gist=gist)


_LAUNCH_COLUMNS: Final[tuple[Column[tuple[StoredRun, LaunchStarted, int]], ...]] = (
    Column("Run", lambda row: row[0].run.id),
    Column("Launch", lambda row: row[1].launch + 1, str),
    Column("Started (UTC)", lambda row: clock_time(row[1].started)),
    Column("Ranks", lambda row: len(row[1].hosts), str),
    Column("Order seed", lambda row: row[1].order_seed, str),
    Column("Blocks", lambda row: row[2], str),
    Column("One clock reading", lambda row: max(row[1].timer_ns, default=None), format_time),
    Column("Shared clock", lambda row: "yes" if row[1].shared_clock else "no"),
    Column("Load average before", lambda row: row[1].load_average, "{:.2f}".format),
)


def _shown_nowhere_else(facts: HostFacts) -> dict[str, JSON]:
    return {name: value for name, value in msgspec.to_builtins(facts).items() if name not in SHOWN_HERE}


def environment(runs: Sequence[StoredRun]) -> Section:
    """The known facts of every host; those shared by all hosts are listed once."""
    blocks = places(runs)
    names = list(dict.fromkeys(host for stored in runs for host in stored.run.environments))
    recorded = by_key(
        (fact, (value, host))
        for stored in runs
        for host, facts in stored.run.environments.items()
        for fact, value in flatten(_shown_nowhere_else(facts))
        if value != MISSING
    )
    each = ((fact, value, hosts) for fact, values in recorded.items() for value, hosts in by_key(values).items())
    rows = [(fact, value, list(dict.fromkeys(hosts))) for fact, value, hosts in each]
    alone = len(names) == 1
    columns: tuple[Column[tuple[str, str, list[str]]], ...] = (
        Column("Fact", lambda row: row[0]),
        Column("Value", lambda row: row[1]),
        Column("Hosts", lambda row: None if alone else "all" if len(row[2]) == len(names) else ", ".join(row[2])),
    )
    caption = f"Recorded on {names[0]}" if alone else f"Recorded on {len(names)} hosts"
    blocks.append(table(caption, columns, rows, folded=True))
    return Section("environment", "Machine and software", tuple(blocks), gist=f"{caption}: {len(rows)} facts.")


def glossary() -> Section:
    """The terms and units of the report."""
    terms = glossary_terms()
    gist = f"{', '.join(term for term, _ in terms)}."
    return Section("glossary", "Words and units", (Terms(terms),), folded=True, gist=gist)


@cache
def _glossary() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("busbw_analysis.report").joinpath(_GLOSSARY).read_text(encoding="utf-8"))


def glossary_terms() -> tuple[tuple[str, str], ...]:
    """The terms of the glossary and their meanings, with each flag below ``Flags``."""
    flags = "".join(f" {flag}: {meaning}." for flag, meaning in FLAGS.items())
    meanings = ((term, entry["meaning"].replace("\n", " ")) for term, entry in _glossary().items())
    return tuple((term, meaning + flags if term == "Flags" else meaning) for term, meaning in meanings)


def anchor_of(term: str) -> str:
    """The anchor of a glossary term."""
    return f"term-{term.lower().replace(' ', '-')}"


def term_of(heading: str) -> str:
    """The anchor of the glossary term for a heading; empty if there is none."""
    anchors = (anchor_of(term) for term, entry in _glossary().items() if heading in {term, *entry.get("headings", ())})
    return next(anchors, "")


def ran_for(stored: StoredRun) -> str:
    """The wall time of a run's blocks, or a dash."""
    elapsed = sum(row.elapsed_ns for row in stored.measurements)
    return format_span(elapsed / 1e9) if elapsed else MISSING


def flatten(value: JSON, depth: int = 6, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as dotted names and texts; anything nested deeper than ``depth`` is printed as is."""
    if isinstance(value, Mapping) and depth and value:
        for key, inner in value.items():
            yield from flatten(inner, depth - 1, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value) and depth:
        for number, item in enumerate(value):
            yield from flatten(item, depth - 1, f"{prefix}[{number}]")
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(map(_plain, value)) or MISSING
    else:
        yield prefix, _plain(value)


def _plain(value: JSON) -> str:
    if value is None or value == {}:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _shorten(text: str) -> str:
    """Cut a long error, which would bury the table; the run folder has all of it."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… (cut; the whole text is in samples.jsonl)"
