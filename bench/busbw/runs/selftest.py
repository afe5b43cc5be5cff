"""What a self-test injected into its runs, which the analysis has to detect."""

from typing import Final

from busbw.runs.records import Record

FOLDER: Final = "selftests"
"""Subfolder of a machine's results for self-tests, apart from its runs so that they are not mistaken for runs."""

TRUTH_FILE: Final = "truth.json"
"""File beside the runs with their ``Truth``."""


class RunFolders(Record, frozen=True, kw_only=True):
    """The folders of the three runs, relative to that of the self-test: an A/A comparison, one with a delayed rank, and
    one with corrupted data.
    """

    same: str
    straggler: str
    wrong: str


class Truth(Record, frozen=True, kw_only=True):
    """What was measured, and the injected faults: one rank is late by a time in a share of the samples."""

    runs: RunFolders
    backend: str
    ranks: int
    usable_cores: int
    straggler_rank: int
    straggler_delay_ns: int
    straggler_share: float
