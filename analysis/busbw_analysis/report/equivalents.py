"""Report sections on the instrument (self-test, overhead), and on other ways to do the same work: a single call, two
halves of an all-reduce, a call beside computation.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from busbw.runs.records import LaunchStarted
from busbw.units import counted, format_rate, format_size, format_time
from busbw_analysis.data.groups import GroupSummary, Overlap
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL
from busbw_analysis.data.sentences import capitalised
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.equivalents import UNIT, Composition, SingleCall, compositions_of, single_calls
from busbw_analysis.diagnosis.hypothesis_tests import percent
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.selftest import Check, State, taken_in_words
from busbw_analysis.report.document import Block, Cell, Column, Paragraph, Section, Tone, table, three_digits
from busbw_analysis.report.run import case_label

_ONE_CALL: Final = (
    "Many scripts warm up once, time one call and its barrier, and print GiB/s labelled GB/s. This section compares "
    "their result with calls that are timed alone, many times. Such a script prints busbw × unit × barrier × one call. "
    f"The unit factor is 10⁹/2³⁰ = {UNIT:.3f}; the other two factors come from the method."
)


_CALL_COLUMNS: Final[tuple[Column[SingleCall], ...]] = (
    Column("Operation", lambda call: call.op),
    Column("Ranks", lambda call: call.ranks, str),
    Column("Size S", lambda call: call.size_bytes, format_size),
    Column("Time", lambda call: call.time_ns, format_time, group="Proper"),
    Column("busbw", lambda call: call.busbw, format_rate, group="Proper"),
    Column("Time", lambda call: call.one_ns, format_time, group="One call"),
    Column("printed", lambda call: call.printed, three_digits, '"GB/s"', group="One call"),
    Column("any one", lambda call: " to ".join(map(three_digits, call.printed_range)), group="One call"),
    Column("all", lambda call: call.whole, three_digits, "×", group="Difference"),
    Column("barrier", lambda call: call.barrier, three_digits, "×", group="Difference"),
    Column("one call", lambda call: call.one_call, three_digits, "×", group="Difference"),
)


def one_call(judgement: Judgement) -> Section | None:
    """Every case measured in both modes, barriers and isolated; None if there is none."""
    rows = single_calls(judgement.cases, judgement.samples)
    if not rows:
        return None
    note = "Any one: the numbers that the slowest and the fastest sample would have printed."
    parts = (Paragraph(_ONE_CALL), table("One call between barriers", _CALL_COLUMNS, rows, note))
    return Section("one-call", "One call between barriers", parts)


_HALVES: Final[tuple[Column[Composition], ...]] = (
    Column("All-reduce", lambda row: row.label),
    Column("Size", lambda row: row.size_bytes, format_size),
    Column("all_reduce", lambda row: row.all_reduce_ns, format_time),
    Column("reduce_scatter", lambda row: row.reduce_scatter_ns, format_time),
    Column("all_gather", lambda row: row.all_gather_ns, format_time),
    Column("Sum of the two", lambda row: row.sum_ns, format_time),
    Column("Sum / all_reduce", lambda row: row.ratio, three_digits),
)
_NOTES: Final = (
    "A ring all-reduce is a reduce-scatter and an all-gather, so large sizes should have a ratio of 1",
    "above 1 the all-reduce is faster; below 1 sharding (ZeRO, FSDP) costs less than the all-reduce that it replaces",
    "medians over launches; the ratio is as uncertain as its three times",
)


def composition(judgement: Judgement) -> Section | None:
    """The sizes measured for all three operations; None if there are none."""
    rows = compositions_of(judgement.curves)
    if not rows:
        return None
    halves = table("A reduce-scatter followed by an all-gather", _HALVES, rows, *_NOTES, row_headers=2)
    ratios = sorted(row.ratio for row in rows)
    gist = f"The two halves take {three_digits(ratios[0])} to {three_digits(ratios[-1])} times as long as all-reduce."
    return Section("composition", "All-reduce and its two halves", (halves,), gist=gist)


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


_TRUST: Final = "How far to trust the instrument"


def trust(judgement: Judgement) -> Section:
    """The instrument's overhead, and the self-test that applies to these runs."""
    tested = judgement.selftest
    if tested is None:
        gist = "No self-test of this machine with this number of ranks."
        return Section("trust", _TRUST, (Paragraph(_NONE), *_own_cost(judgement)), gist=gist)
    cells = ", ".join(f"{percent(width)} for {name}" for name, width in tested.resolution.items())
    which = taken_in_words(tested, [stored.run.started for stored in judgement.runs])
    result = f"{capitalised(which)}. {tested.answer()}{f' By case: {cells}.' if cells else ''}"
    caption = f"Self-test {tested.id}: {tested.ranks} ranks over {tested.backend}, {tested.usable_cores} cores"
    checks = table(caption, _CHECK_COLUMNS, tested.checks, folded=not tested.failures)
    tone: Tone = "bad" if tested.failures else "plain"
    blocks: tuple[Block, ...] = (Paragraph(result, tone), checks, *_own_cost(judgement))
    return Section("trust", _TRUST, blocks, gist=tested.answer())


def _own_cost(judgement: Judgement) -> Iterator[Paragraph]:
    """The harness's share of a call, measured by these launches, in Python and in the compiled loop."""
    launches = [launch for stored in judgement.runs for launch in stored.launches]
    cases = sum("compiled" in case.loops for case in judgement.cases)

    def longest(times: Callable[[LaunchStarted], Sequence[float]]) -> str | None:
        known = [max(times(launch)) for launch in launches if times(launch)]
        return format_time(max(known)) if known else None

    in_a_row = longest(lambda launch: launch.empty_loop_ns)
    if alone := longest(lambda launch: launch.empty_call_ns):
        yield Paragraph(
            f"An empty call takes {alone} alone in a sample and {in_a_row} in a row "
            "of calls, on the slowest rank. Every time includes this cost of the instrument; it is not subtracted."
        )
    if cases and (alone := longest(lambda launch: launch.compiled_call_ns)):
        in_a_row = longest(lambda launch: launch.compiled_loop_ns)
        many = counted(cases, "case")
        yield Paragraph(f"In the compiled loop, which ran {many}, it takes {alone} and {in_a_row}.")


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
    Column("Computation alone", lambda row: row[2].compute_alone_ns, format_time),
    Column("Unbalanced", lambda row: "yes" if row[2].unbalanced else None),
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
    how = (
        "Each call is posted, followed by computation as long as the call takes alone, and then completed; samples "
        "alternate with the call alone. Overlap is max(0, 1 − (post + wait) / alone), as OSU defines it for "
        "non-blocking collectives. It does not include that computation slows down beside the call; see the last "
        "columns. If computation and call alone differ too much in length, the case is flagged unbalanced: a longer "
        "computation hides more, a shorter one less."
    )
    note = (
        "All columns are medians over launches, for the slowest rank. Low and high: 95 % interval with at least "
        f"{LAUNCHES_FOR_AN_INTERVAL} launches, the range with fewer. Slowdown: computation beside the call over the "
        "same computation alone, block by block, because each block computes another amount."
    )
    overlap_table = table("Calls beside computation", _OVERLAP_COLUMNS, rows, note, row_headers=2)
    shares = sorted(overlap.share for _, _, overlap in rows)
    gist = f"{shares[0]:.0%} to {shares[-1]:.0%} of a call is hidden behind computation."
    return Section("overlap", "Overlap", (Paragraph(how), overlap_table), gist=gist)
