"""Report sections on the instrument: the self-test's results, its overhead, and overlap with computation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from busbw.ops import STORING
from busbw.units import counted, format_size, format_time
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL
from busbw_analysis.data.overlap import Overlap
from busbw_analysis.data.sentences import capitalised
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.hypothesis_tests import percent
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.selftest import Check, SelfTest, State, taken_in_words
from busbw_analysis.report.document import Block, Cell, Column, Paragraph, Section, Tone, table
from busbw_analysis.report.sections.run import case_label

_TONES: Final[dict[State, Tone]] = {"ok": "good", "caution": "caution", "fail": "bad"}
_CHECK_COLUMNS: Final[tuple[Column[Check], ...]] = (
    Column("Check", lambda check: check.name),
    Column("State", lambda check: Cell(check.state, tone=_TONES[check.state])),
    Column("Found", lambda check: check.found),
    Column("Wanted", lambda check: check.limit),
)
_NONE: Final = (
    "No self-test of this machine with this backend and number of ranks was found beside the run, so the smallest "
    "detectable difference is unknown. Run busbw selftest: it takes about a minute for the ranks of one host."
)


def trust(judgement: Judgement) -> Section:
    """The instrument's overhead, and the self-test that applies to these runs."""
    blocks: list[Block] = []
    tested = judgement.selftest
    if tested is None:
        blocks.append(Paragraph(_NONE))
    else:
        blocks.append(Paragraph(_result(judgement, tested), tone="bad" if tested.failures else "plain"))
        caption = f"Self-test {tested.id}: {tested.ranks} ranks over {tested.backend}, {tested.usable_cores} cores"
        blocks.append(table(caption, _CHECK_COLUMNS, tested.checks, folded=not tested.failures))
    blocks += _own_cost(judgement)
    gist = "No self-test of this machine with this number of ranks." if tested is None else tested.answer()
    return Section("trust", "How far to trust the instrument", tuple(blocks), gist=gist)


def _result(judgement: Judgement, tested: SelfTest) -> str:
    cells = ", ".join(f"{percent(width)} for {name}" for name, width in tested.resolution.items())
    fine = f" By case: {cells}." if cells else ""
    which = taken_in_words(tested, [stored.run.started for stored in judgement.runs])
    return f"{capitalised(which)}. {tested.answer()}{fine}"


def _own_cost(judgement: Judgement) -> Iterator[Paragraph]:
    """The harness's share of a call, measured by these launches, in Python and in the compiled loop."""
    launches = [launch for stored in judgement.runs for launch in stored.launches if launch.empty_call_ns]
    compiled = [launch for launch in launches if launch.compiled_call_ns]
    cases = sum("compiled" in case.loops for case in judgement.cases)
    if not launches:
        return
    alone, in_a_row = (
        _longest(getattr(launch, name) for launch in launches) for name in ("empty_call_ns", "empty_loop_ns")
    )
    yield Paragraph(
        f"An empty call takes {alone} alone in a sample and {in_a_row} in a row of calls, on the slowest rank. Every "
        "time includes this cost of the instrument; it is not subtracted."
    )
    if cases and compiled:
        alone = _longest(launch.compiled_call_ns for launch in compiled)
        in_a_row = _longest(launch.compiled_loop_ns for launch in compiled)
        many = counted(cases, "case")
        yield Paragraph(f"In the compiled loop, which ran {many}, it takes {alone} and {in_a_row}.")


def _longest(times: Iterable[Sequence[float]]) -> str:
    return format_time(max(map(max, times)))


_Overlapped: TypeAlias = tuple[CaseSummary, GroupSummary, Overlap]


def _case_of(row: _Overlapped) -> str:
    """The case in words, with its ranks if several groups ran it at the same time."""
    name = case_label(row[0].case, without=frozenset({"mode"}), ranks=False)
    return f"{name} (ranks {row[1].label})" if len(row[0].groups) > 1 else name


_OVERLAP_COLUMNS: Final[tuple[Column[_Overlapped], ...]] = (
    Column("Case", _case_of),
    Column("Size", lambda row: row[0].case.size_bytes or None, format_size),
    Column("Overlap", lambda row: row[2].share, "{:.0%}".format, ends=lambda row: (row[2].low, row[2].high)),
    Column("Alone", lambda row: row[2].pure_ns, format_time),
    Column("Post", lambda row: row[2].post_ns, format_time),
    Column("Wait", lambda row: row[2].wait_ns, format_time),
    Column("Computation alone", lambda row: _computed(row[2]), str),
    Column(
        "Slowdown",
        lambda row: row[2].slowdown,
        "{:.2f} ×".format,
        ends=lambda row: (row[2].slowdown_low, row[2].slowdown_high),
    ),
)


def overlaps(judgement: Judgement) -> Section | None:
    """How much of each call is hidden by concurrent computation; None if this was not measured."""
    rows = [
        (summary, group, group.overlap)
        for summary in judgement.cases
        if summary.case.mode == "overlap"
        for group in summary.groups
        if group.overlap is not None
    ]
    if not rows:
        return None
    ops = {summary.case.op for summary, _, _ in rows}
    what = "storage" if ops <= STORING else "communication and storage" if ops & STORING else "communication"
    how = (
        "Each call is posted, followed by computation as long as the call takes alone, and then completed; samples "
        "alternate with the call alone. Overlap is max(0, 1 − (post + wait) / alone), as OSU defines it for "
        f"non-blocking collectives. It does not include that computation slows down beside {what}; see the last "
        "columns. If computation and call alone differ too much in length, the case is flagged unbalanced: a longer "
        "computation hides more, a shorter one less."
    )
    note = (
        "All columns are medians over launches, for the slowest rank. Low and high: 95 % interval with at least "
        f"{LAUNCHES_FOR_AN_INTERVAL} launches, the range with fewer. Slowdown: computation beside the call over the "
        "same computation alone, block by block, because each block computes another amount."
    )
    caption = f"{what.capitalize()} beside computation"
    overlap_table = table(caption, _OVERLAP_COLUMNS, rows, note, row_headers=2)
    shares = sorted(overlap.share for _, _, overlap in rows)
    gist = f"{shares[0]:.0%} to {shares[-1]:.0%} of a call is hidden behind computation."
    return Section("overlap", "Overlap", (Paragraph(how), overlap_table), gist=gist)


def _computed(overlap: Overlap) -> Cell:
    return Cell(format_time(overlap.compute_alone_ns), tone="caution" if overlap.unbalanced else "plain")
