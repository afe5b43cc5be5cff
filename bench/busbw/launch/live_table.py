"""The progress on stderr during a run: a line per case; on a terminal, a line per operation, redrawn, and a bar."""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

import numpy as np
import numpy.typing as npt
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from busbw.escape import plain_text
from busbw.launch.run_session import Listener
from busbw.ops import OPS
from busbw.ops.groups import Ranks
from busbw.runs.cases import Cases, in_words
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock
from busbw.runs.records import Case, Detail, Failed, Measurement, Skipped, case_in_words
from busbw.runs.resume import Remaining
from busbw.statistics import autocorrelation_time, median_interval
from busbw.units import about_size, counted, format_rate, format_size, format_span, format_time

_SIZE_WIDTH = 9
_FIRST = f"  {{:18}} {{:>{_SIZE_WIDTH}}}"
_VALUES = {"time": 8, "rate": 9, "check": 6, "±": 7, "launch": 6}
"""The columns of the table: operation and size, then the measured values with their widths."""
_SILENT_SECONDS: Final = 5.0
"""After so long without a line, a case is shown before its last block."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_TYPES: frozenset[Detail] = frozenset({"dtype", "redop"})
"""Details that are shown only if they differ between the cases."""

Times = npt.NDArray[np.float64]
"""Time per call in each sample, in ns, of the slowest rank."""


class _Console(Console):
    """A console that leaves the cursor visible: the parent kills ranks, which could not show it again."""

    def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's own signature
        """Do nothing."""
        return False


class LiveTable(Listener):
    """Prints a line when the last block of a case is measured, once per launch, and earlier after silence; on a
    terminal, it draws a line for each operation instead: its rates so far by size as bars, and its last case. What is
    measured only as a reference for others has no line.
    """

    def __init__(
        self,
        plan: Plan,
        launch: int,
        began: float,
        remaining: Remaining | None = None,
        *,
        report: Callable[[CaseBlock | None], None] = lambda _: None,
        err: TextIO | None = None,
    ) -> None:
        super().__init__(report)
        # For a resumed run, only the launches to come are counted.
        place, self._launches = (launch, plan.launches) if remaining is None else (remaining.number, remaining.launches)
        self._shown_launches = plan.launches if remaining is None else launch - place + self._launches
        self._remaining = remaining
        self._blocks_of: Counter[Case] = Counter()
        self._plan = plan
        self._references = plan.baseline_ops
        self._launch = place
        self._began = began
        self._shown_fields: frozenset[Detail] = frozenset()
        self._pending: defaultdict[Case, list[Measurement]] = defaultdict(list)
        self._done = 0
        self._blocks = 0
        self._silent_until = 0.0
        # No refresh thread, which would disturb the measurement.
        console = _Console(file=err or sys.stderr)
        known = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]} left ·"))
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("launch {task.fields[launch]}"),
            *(known if plan.controller is None else (TextColumn("round {task.completed} ·"),)),
            TextColumn("{task.fields[case]}"),
            console=console,
            auto_refresh=False,
        )
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._of_ops: defaultdict[str, dict[int, _Slowest]] = defaultdict(dict)
        self._task = self._progress.add_task(
            "run", total=None, launch=f"{launch + 1}/{self._shown_launches}", left="?", case=""
        )

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """Print the heading of the table, cautions, and sizes that were rounded."""
        self._blocks = blocks
        if self._remaining is None:
            self._blocks_of.update(dict.fromkeys(cases.cases, self._plan.timing.blocks))
        else:
            self._blocks_of.update(cases.cases[place] for place, _ in self._remaining.blocks)
        if self._launch == 0:
            self._began = time.monotonic()  # the start of the ranks is no block
            beside = sum(case.op in self._references for case in cases.cases)
            self._print(
                f"# {self._plan.name}: {counted(len(cases.cases) - beside, 'case')}"
                f"{f' and {beside} as reference' if beside else ''}, {counted(len(hosts), 'rank')} on "
                f"{counted(len(set(hosts)), 'host')}, "
                f"{counted(self._launches, 'launch', 'launches')}{'' if self._remaining is None else ' to come'}, "
                f"backend {self._plan.backend}"
            )
            for caution in cautions:
                self._print(f"# caution: {caution}")
            for note in cases.adjusted:
                self._print(f"# size rounded: {note}")
            if self._live is None and self._plan.controller is None:
                self._print(header())
        dtypes, redops = ({case.dtype for case in cases.cases}, {case.redop for case in cases.cases})
        values: dict[Detail, set[str | None]] = {"dtype": dtypes, "redop": redops}
        self._shown_fields = frozenset(name for name, of_cases in values.items() if len(of_cases - {None}) > 1)
        if self._live is not None:
            self._live.start()

    def block_begins(self, case: Case, launch: int, block: int) -> None:
        """Update the progress bar."""
        super().block_begins(case, launch, block)
        total = self._blocks * self._launches if self._plan.controller is None else None
        before = self._blocks * self._launch + self._done
        spent = time.monotonic() - self._began
        left = format_span(spent / before * (total - before)) if before and total is not None else "?"
        if self._live is not None:
            self._progress.update(self._task, total=total, completed=before, left=left, case=in_words(case))
            self._live.update(Group(self._overview(), self._progress), refresh=True)

    def row_written(self, row: Measurement | Skipped | Failed) -> None:
        """Show the case."""
        super().row_written(row)
        if isinstance(row, Skipped):
            self._print(f"{_first_columns(row.case)}{_timing(row.case, self._shown_fields)}  skipped: {row.reason}")
            return
        self._done += 1
        if self._plan.controller is not None and isinstance(row, Measurement):
            return  # one of many rounds, which mean something only together
        if isinstance(row, Failed):
            # The other blocks of a failed case are no longer measured.
            self._done += self._blocks_of[row.case] - len(self._pending.pop(row.case, [])) - 1
            self._print(f"{_first_columns(row.case)}{_timing(row.case, self._shown_fields)}  FAILED: {row.error}")
            return
        blocks, of_case = self._pending[row.case], self._blocks_of[row.case]
        blocks.append(row)
        if row.case.op in self._references:
            pass
        elif self._live is not None:
            name = f"{row.case.op}{_timing(row.case, self._shown_fields)}"
            self._of_ops[name][row.case.size_bytes] = _slowest(blocks)
        elif len(blocks) == of_case or time.monotonic() > self._silent_until:
            part = "" if len(blocks) == of_case else f"  (block {len(blocks)} of {of_case})"
            self._print(line(blocks, self._shown_launches, self._shown_fields) + part)
            self._silent_until = time.monotonic() + _SILENT_SECONDS
        if len(blocks) == of_case:
            del self._pending[row.case]

    def launch_ended(self) -> None:
        """Remove what is redrawn."""
        if self._live is not None:
            self._live.stop()

    def _overview(self) -> Table:
        """A line for each operation: its rates by size as bars, and its last case."""
        table = Table.grid(padding=(0, 2))
        for name, of_sizes in self._of_ops.items():
            size, last = next(reversed(of_sizes.items()))
            rates = [of_size.rate for _, of_size in sorted(of_sizes.items()) if of_size.rate is not None]
            texts = [format_size(size) if size else "", format_time(last.time_ns), format_rate(last.rate)]
            table.add_row(*map(Text, (name, _bars(rates), *texts, last.half_width)))
        return table

    def _print(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.out(plain_text(text), highlight=False)


def header() -> str:
    """The header line of the live table."""
    return f"#{_FIRST.format('op', 'size')[1:]}{_in_columns({name: name for name in _VALUES})}"


@dataclass(frozen=True, slots=True)
class _Slowest:
    """The slowest group or pair of a case in one launch.

    ranks, groups: its ranks, and of how many groups it is one
    time_ns: median time of a call
    half_width: distance of the farther end of the median's 95 % interval, over the median, as text
    rate: bus bandwidth, or bytes over time without a wire, B/s; None without a size
    """

    ranks: Ranks
    groups: int
    time_ns: float
    half_width: str
    rate: float | None


def _slowest(blocks: Sequence[Measurement]) -> _Slowest:
    case = blocks[0].case
    by_group: defaultdict[Ranks, list[Times]] = defaultdict(list)
    for block in blocks:
        for group in block.groups:
            by_group[group.ranks].append(np.asarray(group.slowest_ns) / block.calls)
    joined = {ranks: np.concatenate(times) for ranks, times in by_group.items()}
    ranks, times = max(joined.items(), key=lambda of_group: float(np.median(of_group[1])))
    # The same interval as that of the final table of a single launch.
    interval = median_interval(times, tau=autocorrelation_time(times))
    median = interval.median
    ends = None if interval.low is None or interval.high is None else (median - interval.low, interval.high - median)
    return _Slowest(
        ranks=ranks,
        groups=len(joined),
        time_ns=median,
        half_width="–" if ends is None else "±>100%" if max(ends) > median else f"±{max(ends) / median:.0%}",
        rate=(OPS[case.op].factor(len(ranks)) or 1.0) * case.size_bytes / median * 1e9 if case.has_rate else None,
    )


def _bars(rates: Sequence[float]) -> str:
    """``rates`` relative to the highest, a character each."""
    most = max(rates, default=0.0)
    return "".join(_BARS[min(int(len(_BARS) * rate / most), len(_BARS) - 1)] for rate in rates)


def line(blocks: list[Measurement], launches: int, shown_fields: frozenset[Detail] = frozenset()) -> str:
    """The line of one case in one launch: that of the slowest group or pair if it has several. ``shown_fields`` are
    fields of a case to print.
    """
    case, slowest = blocks[0].case, _slowest(blocks)
    texts = {
        "time": format_time(slowest.time_ns),
        "rate": format_rate(slowest.rate),
        "check": {"verified": "ok", "wrong": "WRONG", "not checked": "–"}[blocks[0].check.state],
        "±": slowest.half_width,
        "launch": f"{blocks[0].launch + 1}/{launches}",
    }
    of_pairs = OPS[case.op].members == "pairs"
    named = (" → " if of_pairs else ",").join(map(str, slowest.ranks))
    kind = "pairs" if of_pairs else "groups"
    which = f"  slowest of {slowest.groups} {kind}: {named}" if slowest.groups > 1 else ""
    return f"{_first_columns(case)}{_in_columns(texts)}{which}{_timing(case, shown_fields)}"


def _in_columns(texts: Mapping[str, str]) -> str:
    return "".join(f" {text:>{_VALUES[name]}}" for name, text in texts.items())


def _timing(case: Case, shown_fields: frozenset[Detail]) -> str:
    """The ``shown_fields`` of ``case``, its settings (algorithm, threads …), and how it is timed if not the default, so
    that results of different timing modes are not confused.
    """
    words = case_in_words(case, {"op", "in_place", "device", "group", "root", *(_TYPES - shown_fields)})
    return f"  ({', '.join(words)})" if words else ""


def _first_columns(case: Case) -> str:
    name = f"{case.op}{'*' if case.in_place != OPS[case.op].in_place[0] else ''}"
    size = format_size(case.size_bytes) if case.size_bytes else "–"
    size = size if len(size) <= _SIZE_WIDTH else about_size(case.size_bytes)
    return _FIRST.format(name, size)
