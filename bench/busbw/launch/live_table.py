"""What a user sees while it measures: a live table on stdout and, on a terminal, a progress bar on stderr."""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from busbw.escape import plain_text
from busbw.launch.observers import in_words, timing_in_words
from busbw.ops import OPS
from busbw.runs.cases import Cases
from busbw.runs.plan import Plan
from busbw.runs.records import Case, Failed, GroupSamples, Measurement, Skipped, least_good, settings_in_words
from busbw.runs.resume import Remaining
from busbw.statistics import spread
from busbw.units import format_rate, format_span, significant

_COLUMNS = (
    ("op", "", 15),
    ("size", "(B)", 11),
    ("count", "(elem)", 10),
    ("type", "", 8),
    ("redop", "", 7),
    ("time", "(µs)", 10),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("check", "", 8),
    ("spread", "(±%)", 6),
    ("skew", "(%)", 6),
    ("stop", "", 11),
    ("launch", "", 6),
)
_WIDTHS = {name: width for name, _, width in _COLUMNS}
NOTE = (
    "# time: median over samples of the slowest rank; spread: half of p95 − p5 over the median; "
    "skew: arrival skew over time; –: no wire, or not known"
)
TRAFFIC_NOTE = (
    "# algbw: S over time; traffic: what one rank's memory reads and writes, each byte once, as STREAM counts it, "
    "over the same time"
)


class LiveTable:
    """Prints a line when the last block of a case is in, once per launch, and shows how far the run is. ``unwritten``
    says why it could not (None: it could, or nobody reads it any more).
    """

    def __init__(
        self,
        plan: Plan,
        launch: int,
        began: float,
        remaining: Remaining | None = None,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        # A resumed run has its launches behind it: what is counted is what is to come.
        place, self._launches = (launch, plan.launches) if remaining is None else (remaining.number, remaining.launches)
        self._shown_launches = plan.launches if remaining is None else launch - place + self._launches
        self._remaining = remaining
        self._blocks_of: Counter[Case] = Counter()
        self._plan = plan
        self._launch = place
        self._began = began
        self._out: TextIO | None = out or sys.stdout
        self.unwritten: str | None = None
        self._pending: defaultdict[Case, list[Measurement]] = defaultdict(list)
        self._done = 0
        self._blocks = 0
        # Nothing runs between blocks but what is called: a refreshing thread would disturb what is measured.
        console = Console(file=err or sys.stderr)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("launch {task.fields[launch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left · {task.fields[case]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(
            "run", total=None, launch=f"{launch + 1}/{self._shown_launches}", left="?", case=""
        )

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """Print the head of the table, what to be careful about, and which sizes were rounded."""
        self._blocks = blocks
        if self._remaining is None:
            self._blocks_of.update(dict.fromkeys(cases.cases, self._plan.timing.blocks))
        else:
            self._blocks_of.update(cases.cases[place] for place, _ in self._remaining.blocks)
        if self._launch == 0:
            self._print(
                f"# {self._plan.name}: {len(cases.cases)} cases, {len(hosts)} ranks on {len(set(hosts))} host(s), "
                f"{self._launches} launch(es){'' if self._remaining is None else ' to come'}, "
                f"backend {self._plan.backend}"
            )
            for caution in cautions:
                self._print(f"# caution: {caution}")
            for note in cases.adjusted:
                self._print(f"# size rounded: {note}")
            self._print(NOTE)
            if any(OPS[case.op].memory_traffic is not None for case in cases.cases):
                self._print(TRAFFIC_NOTE)
            for line in header().splitlines():
                self._print(line)
        self._progress.start()

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - the bar counts blocks
        """Move the bar."""
        total = self._blocks * self._launches
        before = self._blocks * self._launch + self._done
        spent = time.monotonic() - self._began
        left = format_span(spent / before * (total - before)) if before else "?"
        self._progress.update(self._task, total=total, completed=before, left=left, case=in_words(case), refresh=True)

    def row_written(self, row: Measurement | Skipped | Failed) -> None:
        """Print what is complete."""
        if isinstance(row, Skipped):
            self._print(f"{_first_columns(row.case)}{_timing(row.case)}  skipped: {row.reason}")
            return
        self._done += 1
        if isinstance(row, Failed):
            # The other blocks of a failed case are not measured any more.
            self._done += self._blocks_of[row.case] - len(self._pending.pop(row.case, [])) - 1
            self._print(f"{_first_columns(row.case)}{_timing(row.case)}  FAILED: {row.error}")
            return
        blocks = self._pending[row.case]
        blocks.append(row)
        if len(blocks) == self._blocks_of[row.case]:
            for line in lines(blocks, self._shown_launches):
                self._print(line)
            del self._pending[row.case]

    def launch_ended(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def _print(self, line: str) -> None:
        try:
            self._show(plain_text(line))
        except OSError as error:
            # Whoever read the table has seen enough (| head), or the disk below it is full. The run goes on: it does
            # not depend on an audience, and what is stored is stored.
            if not isinstance(error, BrokenPipeError):
                self.unwritten = error.strerror or str(error)
            if self._out is sys.stdout and sys.stdout is not None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.stdout.fileno())  # what is still in its buffer is flushed at exit
                os.close(nowhere)
            self._out = None

    def _show(self, line: str) -> None:
        if self._out is None:
            return
        if self._progress.live.is_started:
            self._progress.stop()
            print(line, file=self._out, flush=True)
            self._progress.start()
        else:
            print(line, file=self._out, flush=True)


def header() -> str:
    """The two header lines of the live table."""
    names = " ".join(
        name.rjust(width) if index else name.ljust(width) for index, (name, _, width) in enumerate(_COLUMNS)
    )
    units = " ".join(unit.rjust(width) for _, unit, width in _COLUMNS)
    return f"# {names}\n# {units}"


@dataclass(frozen=True, slots=True)
class _Part:
    """A group in one of the blocks, whose samples have so many calls: as many as that block found right."""

    samples: GroupSamples
    calls: int


def lines(blocks: list[Measurement], launches: int) -> list[str]:
    """The lines of one case in one launch: one; for split groups one a group and the total; for the pair matrix the
    median and the slowest pair.
    """
    groups = _by_group(blocks)
    if len(groups) == 1:
        return [_line(blocks, next(iter(groups.values())), "", launches)]
    if OPS[blocks[0].case.op].members == "pairs":
        ordered = sorted(groups.values(), key=lambda parts: float(np.median(_per_call(parts))))
        return [
            _line(blocks, ordered[len(ordered) // 2], f"  median of {len(ordered)} pairs", launches),
            _line(blocks, ordered[-1], "  slowest pair {} → {}".format(*ordered[-1][0].samples.ranks), launches),
        ]
    shown = [_line(blocks, parts, f"  group {','.join(map(str, ranks))}", launches) for ranks, parts in groups.items()]
    rates = [rate for parts in groups.values() if (rate := _busbw(blocks[0], parts)) is not None]
    if len(rates) < 2:
        return shown  # a total of one group, or of none with a wire, says nothing new
    total = f"total busbw over {len(rates)} groups at once: {significant(sum(rates) / 1e9, 3, 8)} GB/s"
    return [*shown, f"{_first_columns(blocks[0].case)}  {total}{_timing(blocks[0].case)}"]


def _by_group(blocks: list[Measurement]) -> dict[tuple[int, ...], list[_Part]]:
    groups: defaultdict[tuple[int, ...], list[_Part]] = defaultdict(list)
    for block in blocks:
        for group in block.groups:
            groups[group.ranks].append(_Part(group, block.calls))
    return dict(groups)


def _per_call(parts: list[_Part]) -> npt.NDArray[np.float64]:
    """What a call took in each sample, ns of the slowest rank."""
    return np.concatenate([np.asarray(part.samples.slowest_ns) / part.calls for part in parts])


def _busbw(block: Measurement, parts: list[_Part]) -> float | None:
    factor = parts[0].samples.bus_factor
    if factor is None or block.case.mode == "overlap":
        return None
    return factor * block.case.size_bytes / (float(np.median(_per_call(parts))) / 1e9)


def _line(blocks: list[Measurement], parts: list[_Part], remark: str, launches: int) -> str:
    block = blocks[0]
    times = _per_call(parts)
    median = float(np.median(times))
    skews = [
        np.asarray(part.samples.arrival_skew_ns) / part.calls
        for part in parts
        if part.samples.arrival_skew_ns is not None
    ]
    skew = f"{float(np.median(np.concatenate(skews))) / median * 100:.1f}" if skews else "–"
    # Part of an overlapped sample is computation: its time is no rate of anything.
    rate = block.case.size_bytes / (median / 1e9) / 1e9 if block.case.mode != "overlap" else 0.0
    busbw = _busbw(block, parts)
    check = {"verified": "ok", "wrong": "WRONG", "not checked": "–"}[block.check.state]
    cells = (
        significant(median / 1e3, 1, _WIDTHS["time"]),
        significant(rate, 3, _WIDTHS["algbw"]) if rate else "–",
        significant(busbw / 1e9, 3, _WIDTHS["busbw"]) if busbw is not None else "–",
        check,
        f"{spread(times) * 100:.1f}",
        skew,
        least_good([one.stop_reason for one in blocks]),
        f"{block.launch + 1}/{launches}",
    )
    widths = [width for _, _, width in _COLUMNS[5:]]
    factor = OPS[block.case.op].memory_traffic
    # Memory is judged by its traffic, which is 1 to 3 times S: algbw alone would not be what a report shows.
    traffic = f"  traffic {format_rate(factor * rate * 1e9)}" if factor is not None and rate else ""
    return f"{_first_columns(block.case)} {_justified(cells, widths)}{traffic}{remark}{_timing(block.case)}"


def _timing(case: Case) -> str:
    """The settings of ``case`` (an algorithm, threads, a traffic), and how it is timed where it is not the usual
    way: numbers of different ways must not be taken for one.
    """
    words = [*settings_in_words(case), *timing_in_words(case)]
    return f"  ({', '.join(words)})" if words else ""


def _first_columns(case: Case) -> str:
    cells = (str(case.size_bytes), str(case.count), case.dtype or "–", case.redop or "–")
    name = (
        f"{case.op}{'*' if case.in_place and case.op in {'all_gather', 'reduce_scatter', 'gather', 'scatter'} else ''}"
    )
    widths = [width for _, _, width in _COLUMNS[1:5]]
    return f"  {name.ljust(_COLUMNS[0][2])} {_justified(cells, widths)}"


def _justified(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
