"""The gallery of docs/gallery.md: public measurements of named machines, judged by the current code.

``docs/gallery/logs`` has the sizes and times of each log as a table. The text of the logs stays where it was published.
"""

import csv
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

import busbw_analysis as ba
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.verdicts import Verdict
from busbw_analysis.report.document import percent
from busbw_analysis.report.show import ShownRow, show_rows

LOGS: Final = Path(__file__).parents[2] / "docs/gallery/logs"
_REPEATED: Final = frozenset({"Why", "Do", "Trust", "Measured"})
"""Lines of the answer that are the same for all logs, or are the row."""


class Log(msgspec.Struct):
    """A public log.

    name: of the table in ``LOGS``.
    source: repository, commit and file on GitHub.
    hosts, gpu, nics: facts about the machine, as options of ``busbw show``; what the log does not say is from the
        vendor's description of the machine.
    """

    name: str
    machine: str
    tool: str
    source: str
    hosts: int
    gpu: str
    nics: str | None = None


def gallery() -> Iterator[str]:
    """The answer to each log, and the row that carries it."""
    with (Path(__file__).parents[1] / "data/gallery.csv").open(encoding="utf-8", newline="") as table:
        rows = [{key: value or None for key, value in row.items()} for row in csv.DictReader(table)]
    for log in msgspec.convert(rows, list[Log], strict=False):
        judgement = ba.load(LOGS / f"{log.name}.csv", hosts=log.hosts, gpu=log.gpu, nics=log.nics).judgement
        nics = [] if log.nics is None else ["--nics", log.nics]
        options = shlex.join(["--hosts", str(log.hosts), "--gpu", log.gpu, *nics])
        yield from ("", f"## {log.machine}", "")
        yield f"[{log.tool}](https://github.com/{log.source}) · `busbw show docs/gallery/logs/{log.name}.csv {options}`"
        yield ""
        answer = answer_of(judgement)
        yield from (f"- {label}: {text}" for label, text in answer.lines if label not in _REPEATED)
        yield _row(_decisive(show_rows(judgement), answer.verdicts), judged=bool(answer.bands))


def _decisive(rows: list[ShownRow], verdicts: Iterable[Verdict]) -> ShownRow:
    """The row of the worst verdict: slower before others, then the largest size, then the smallest share of its peak.

    Without verdicts, that of the largest size with the smallest share.
    """
    slower = {(verdict.op, verdict.size_bytes): verdict.status == "slower" for verdict in verdicts}
    measured = [row for row in rows if row.group is not None]
    judged = [row for row in measured if (row.case.op, row.case.size_bytes) in slower] or measured
    return min(
        judged,
        key=lambda row: (
            not slower.get((row.case.op, row.case.size_bytes), False),
            -row.case.size_bytes,
            row.peak_share or 1,
        ),
    )


def _row(row: ShownRow, *, judged: bool) -> str:
    """The row, without its share of the peak if that is ``judged`` above it."""
    ranks = () if row.group is None else row.group.ranks
    rate = row.algbw if row.busbw is None else row.busbw
    numbers = (
        format_time(row.time_ns) if row.time_ns else "",
        format_rate(rate) if rate else "",
        f"{percent(row.peak_share)} % of its peak" if row.peak_share and not judged else "",
    )
    where = f" of rank {ranks[0]}" if len(ranks) == 1 else ""
    return f"- {row.case.op}{where}, {format_size(row.case.size_bytes)}: {', '.join(filter(None, numbers))}"
