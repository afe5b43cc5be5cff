"""Report sections on the run itself: cases without a result, the timing protocol, the machine, and the glossary."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from busbw.runs.facts import UNKNOWN_HOST, GpuFacts
from busbw.runs.placement import RankPlacement, binding, rank_placements
from busbw.runs.records import JSON, Case, Detail, LaunchStarted, case_in_words
from busbw.runs.store import StoredRun
from busbw.units import clock_time, counted, format_size, format_span, format_time, listed, number_list
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.summary import FLAGS, CaseState, CaseSummary
from busbw_analysis.report.document import MISSING, Cell, Column, Paragraph, Section, Table, Terms, Tone, table

_GLOSSARY: Final = "templates/glossary.toml"
_HEADINGS: Final = "templates/headings.toml"
_STOP_WORDS: Final = {
    "converged": "the interval of the median was narrow enough",
    "time_limit": "the time limit of a case was reached",
    "sample_limit": "the sample limit of a case was reached",
}
_STATE_TONES: Final[dict[CaseState, Tone]] = {"failed": "bad", "not reached": "caution", "skipped": "quiet"}
_LONGEST: Final = 400


def case_label(case: Case, without: frozenset[Detail], *, ranks: bool = True) -> str:
    """A case in words, without its size; ``without`` names the fields to omit."""
    op, *details = case_in_words(case, without)
    many = [counted(case.ranks, "rank")] * ranks
    return " · ".join([op, case.backend, *details, *many])


def size_list(sizes: Iterable[int]) -> str:
    """Up to four sizes one by one, more as a range with their number."""
    names = [format_size(size) for size in sorted(sizes)]
    return f"{names[0]} … {names[-1]} ({len(names)} sizes)" if len(names) > 4 else ", ".join(names)


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
    states = Counter(row.state for row in cases)
    counts = ", ".join(f"{states[state]} {state}" for state in order if states[state])
    columns: tuple[Column[tuple[tuple[CaseState, str, str], list[CaseSummary]]], ...] = (
        Column("Case", lambda row: row[0][1]),
        Column("Sizes", lambda row: size_list({summary.case.size_bytes for summary in row[1]})),
        Column("State", lambda row: Cell(row[0][0], tone=_STATE_TONES[row[0][0]])),
        Column("Reason", lambda row: _shorten(row[0][2])),
    )
    gist = f"Of {counted(len(cases), 'case')}: {counts}."
    return Section("missing", "Cases without a result", (table("", columns, alike),), gist=gist)


_FACT_COLUMNS: Final[tuple[Column[tuple[str, str]], ...]] = (
    Column("What", lambda fact: fact[0]),
    Column("Value", lambda fact: fact[1]),
)


def timing(runs: Sequence[StoredRun]) -> Section:
    """The timing protocol, and its numbers for each launch."""
    blocks_of = [(number, block) for number, stored in enumerate(runs) for block in stored.measurements]
    by_launch = Counter((run, block.launch) for run, block in blocks_of)
    measured = [block for _, block in blocks_of]
    outcomes = Counter(
        [
            *(f"Blocks that stopped because {_STOP_WORDS.get(row.stop_reason, row.stop_reason)}" for row in measured),
            *(f"Blocks with data {row.check.state}" for row in measured),
        ]
    )
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
    if measured:
        calls = ", ".join(map(str, sorted({block.calls for block in measured})))
        counts = ((what, f"{count} of {len(measured)}") for what, count in outcomes.items())
        blocks.append(table("How the measurement ended", _FACT_COLUMNS, [("Calls per sample", calls), *counts]))
    for stored in runs:
        name = f" of run {stored.run.id}" if several else ""
        rounded = map("size rounded: {}".format, stored.run.adjusted)
        plan = flatten(stored.run.plan.as_json(), 4)
        blocks.append(table(f"Plan{name}, as executed", _FACT_COLUMNS, plan, *rounded, folded=True))
    spans = [sum(block.elapsed_ns for block in stored.measurements) / 1e9 for stored in runs]
    spent = ", ".join(format_span(seconds) if seconds else MISSING for seconds in spans)
    gist = f"{counted(len(launches), 'launch', 'launches')}, {spent} of measuring; no sample is discarded."
    if all(stored.run.imported is not None for stored in runs):
        gist = "Numbers from logs of other tools."
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


def environment(runs: Sequence[StoredRun]) -> Section:
    """The known facts of every host; those shared by all hosts are listed once."""
    blocks = list(places(runs))
    names = list(dict.fromkeys(host for stored in runs for host in stored.run.environments))
    recorded = by_key(
        (fact, (value, host))
        for stored in runs
        for host, facts in stored.run.environments.items()
        for name, known in msgspec.to_builtins(facts).items()
        if name not in _SHOWN_ABOVE
        for fact, value in flatten(known, prefix=name)
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


def _glossary() -> dict[str, dict[str, Any]]:
    return _read(_GLOSSARY)


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("busbw_analysis.report").joinpath(name).read_text(encoding="utf-8"))


def glossary_terms() -> tuple[tuple[str, str], ...]:
    """The terms of the glossary and their meanings, with each flag below ``Flags``."""
    flags = "".join(f" {flag}: {meaning}." for flag, meaning in FLAGS.items())
    meanings = ((term, entry["meaning"].replace("\n", " ")) for term, entry in _glossary().items())
    return tuple((term, meaning + flags if term == "Flags" else meaning) for term, meaning in meanings)


def heading_terms() -> dict[str, str]:
    """The meanings of headings that are other words than their terms, and of words that no report has."""
    meanings = dict(glossary_terms())
    headings = {name: meanings[term] for term, entry in _glossary().items() for name in entry.get("headings", ())}
    others = dict(_read(_HEADINGS))
    same: dict[str, str] = others.pop("same")
    codes: dict[str, str] = others.pop("codes")
    return headings | codes | others | {name: {**meanings, **others}[term] for name, term in same.items()}


def anchor_of(term: str) -> str:
    """The anchor of a glossary term."""
    return f"term-{term.lower().replace(' ', '-')}"


def term_of(heading: str) -> str:
    """The anchor of the glossary term for a heading; empty if there is none."""
    anchors = (anchor_of(term) for term, entry in _glossary().items() if heading in {term, *entry.get("headings", ())})
    return next(anchors, "")


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


_MOST_CARDS = 4

_SHOWN_ABOVE: Final = {"ranks", "node"}
"""Facts of a host that have tables of their own."""


def places(runs: Sequence[StoredRun]) -> Iterator[Table]:
    """The hosts, the ranks (folded) and the GPUs with their closest network cards, if there are any."""
    hosts: list[tuple[list[RankPlacement], str | None]] = []
    ranks: list[tuple[RankPlacement, str]] = []
    for run in (stored.run for stored in runs):
        placements = rank_placements(run.hosts, run.environments)
        for host, members in grouped(placements, lambda rank: rank.host).items():
            facts = run.environments.get(host, UNKNOWN_HOST)
            hosts.append((members, None if facts.node is None else facts.node.name))
            own = {rank.rank: ", ".join(map("=".join, rank.variables.items())) for rank in facts.ranks}
            ranks += [(rank, own.get(rank.rank, "")) for rank in members]
    yield table("Where the ranks ran", _HOST_COLUMNS, hosts, distinct=True)
    known = [row for row in ranks if row[0].cores is not None or row[0].local_rank is not None or row[1]]
    if known:
        yield table("Every rank", _RANK_COLUMNS, sorted(known, key=lambda row: row[0].rank), folded=True, distinct=True)
    alike: dict[tuple[Cell, ...], tuple[GpuFacts, list[str]]] = {}
    for host, facts in (item for stored in runs for item in stored.run.environments.items()):
        for gpu in facts.pci.gpus:
            shown = tuple(column.cell((gpu, [])) for column in _GPU_COLUMNS)
            alike.setdefault(shown, (gpu, []))[1].append(host)
    if alike:
        yield table("GPUs and the network cards next to them", _GPU_COLUMNS, alike.values(), _GPU_NOTE)


def _way(switches: tuple[str, ...] | None) -> str | None:
    return None if switches is None else " / ".join(switches) or "none known to Slurm"


_HOST_COLUMNS: Final[tuple[Column[tuple[list[RankPlacement], str | None]], ...]] = (
    Column("Host", lambda row: row[0][0].host),
    Column("Ranks", lambda row: rank_list([placement.rank for placement in row[0]])),
    Column("Slurm node", lambda row: row[1] or None),
    Column("Switches", lambda row: _way(row[0][0].switches)),
    Column("Cores of its ranks", lambda row: binding(row[0]) or None),
)
_RANK_COLUMNS: Final[tuple[Column[tuple[RankPlacement, str]], ...]] = (
    Column("Rank", lambda row: row[0].rank, str),
    Column("Host", lambda row: row[0].host),
    Column("Local rank", lambda row: row[0].local_rank),
    Column("Cores", lambda row: None if row[0].cores is None else number_list(row[0].cores)),
    Column("NUMA nodes", lambda row: number_list(row[0].numa_nodes or ()) or None),
    Column("GPU", lambda row: row[0].gpu_address or None if row[0].gpu is None else row[0].gpu),
    Column("Own variables", lambda row: row[1] or None),
)
_GPU_NOTE: Final = (
    "From the kernel's PCI tree: the cards that share most of the GPU's path to the host, or else its NUMA node. "
    "If both are unknown, there is no closest card."
)
_GPU_COLUMNS: Final[tuple[Column[tuple[GpuFacts, list[str]]], ...]] = (
    Column("GPU", lambda row: row[0].index),
    Column("What", lambda row: row[0].name),
    Column("Address", lambda row: row[0].address),
    Column("NUMA node", lambda row: row[0].numa_node, str),
    Column("Closest network cards", lambda row: listed(row[0].closest_nics, _MOST_CARDS) or None),
    Column("Shared", lambda row: row[0].closest_by or None),
    Column("Hosts", lambda row: ", ".join(dict.fromkeys(row[1]))),
)
