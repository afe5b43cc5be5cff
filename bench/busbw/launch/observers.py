"""Who hears how far a run is: the live table, the launcher, or nobody; and what a case is called when it is said."""

from collections.abc import Callable

from busbw.ops import OPS
from busbw.runs.cases import Cases
from busbw.runs.progress import CaseBlock
from busbw.runs.records import SETTINGS, Case, Failed, Measurement, Skipped, case_in_words
from busbw.units import format_size


class Listener:
    """Who wants to know how far the run is: the live table, the launcher. By itself it hears everything and does
    nothing, as on every rank but the first.
    """

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """The world is there; ``blocks`` blocks of this launch are to come. ``cautions``: what to hear before that."""

    def block_begins(self, case: Case, launch: int, block: int) -> None:
        """The next block."""

    def row_written(self, row: Measurement | Skipped | Failed) -> None:
        """A row has reached the disk."""

    def launch_ended(self) -> None:
        """All blocks of this launch are written."""


class Relay(Listener):
    """Hands on to ``listener`` what it hears, and says to ``tell`` which block is under way: its case and number, and
    None as soon as its row is on the disk, so that nothing of it can be lost any more.
    """

    def __init__(self, listener: Listener, tell: Callable[[CaseBlock | None], None]) -> None:
        self._listener = listener
        self._tell = tell

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """Hand it on."""
        self._listener.world_formed(cases, blocks, hosts, cautions)

    def block_begins(self, case: Case, launch: int, block: int) -> None:
        """Hand it on, and tell."""
        self._listener.block_begins(case, launch, block)
        self._tell((case, block))

    def row_written(self, row: Measurement | Skipped | Failed) -> None:
        """Hand it on, and tell."""
        self._listener.row_written(row)
        self._tell(None)

    def launch_ended(self) -> None:
        """Hand it on."""
        self._listener.launch_ended()


def timing_in_words(case: Case) -> list[str]:
    """How ``case`` is timed, where it is not the usual way: mode, sync, cache and pre-enqueued."""
    return case_in_words(case, {"op", "dtype", "redop", "in_place", "device", "group", "root", *SETTINGS})


def in_words(case: Case) -> str:
    """A case as a person would call it: ``all_reduce at 1 MiB (float32 sum)``."""
    details = " ".join(case_in_words(case, {"op", "in_place", "device", "group", "root"}))
    where = "" if case.group == "all" else f" in groups {case.group}"
    size = f" at {format_size(case.size_bytes)}" if OPS[case.op].sized else ""
    return f"{case.op}{size}{where}{f' ({details})' if details else ''}"
