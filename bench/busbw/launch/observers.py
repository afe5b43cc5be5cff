"""Observers of a run's progress, such as the live table, and the description of a case as text."""

from collections.abc import Callable

from busbw.ops import OPS
from busbw.runs.cases import Cases
from busbw.runs.progress import CaseBlock
from busbw.runs.records import Case, Failed, Measurement, Skipped, case_in_words
from busbw.units import format_size


class Listener:
    """Receives the events of a launch, and calls ``report`` with the current block: case and number, or None once its
    row is on disk.
    """

    def __init__(self, report: Callable[[CaseBlock | None], None] = lambda _: None) -> None:
        self._report = report

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """All ranks are connected; this launch has ``blocks`` blocks. ``cautions`` are to be shown first."""

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - for observers that count them
        """A block begins."""
        self._report((case, block))

    def row_written(self, row: Measurement | Skipped | Failed) -> None:  # noqa: ARG002 - for observers that show it
        """A row was written to disk."""
        self._report(None)

    def launch_ended(self) -> None:
        """All blocks of this launch are written."""


def timing_in_words(case: Case) -> list[str]:
    """How ``case`` is timed, as far as that differs from the defaults: mode, sync, cache and pre-enqueue."""
    return case_in_words(case, {"op", "dtype", "redop", "in_place", "settings", "device", "group", "root"})


def in_words(case: Case) -> str:
    """A case as text: ``all_reduce at 1 MiB (float32 sum)``."""
    details = " ".join(case_in_words(case, {"op", "in_place", "device", "group", "root"}))
    where = "" if case.group == "all" else f" in groups {case.group}"
    size = f" at {format_size(case.size_bytes)}" if OPS[case.op].sized else ""
    return f"{case.op}{size}{where}{f' ({details})' if details else ''}"
