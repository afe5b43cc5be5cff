"""The raw samples of pooled runs, for those that show or test samples; all others use summaries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from busbw.escape import plain_text, with_texts
from busbw.runs import store
from busbw.runs.records import Case, Imported, Measurement
from busbw_analysis.data.block_columns import packed


@dataclass(frozen=True)
class Samples:
    """The samples of several runs, read when they are first asked for.

    sources: runs with their samples, or the folders that have them
    cases: the index of every case in ``Dataset.cases``
    """

    sources: tuple[store.StoredRun | Path, ...]
    cases: Mapping[Case, int]

    @cached_property
    def runs(self) -> tuple[store.StoredRun, ...]:
        """All runs with their samples; control characters in their text are escaped. Raises like ``store.read``."""
        return tuple(
            plain_run(store.read(source, keep=packed) if isinstance(source, Path) else source)
            for source in self.sources
        )

    def rows(self) -> Iterator[tuple[int, int, Measurement | Imported]]:
        """The results of all runs: index of the run, index of the case, and the row (``PairBlock``: a pair matrix)."""
        for run, stored in enumerate(self.runs):
            for row in stored.rows:
                if isinstance(row, Measurement | Imported):
                    yield run, self.cases[row.case], row


def plain_run(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with all its strings escaped by ``plain_text``."""
    run, rows, warnings = with_texts([stored.run, stored.rows, stored.warnings], plain_text)
    return store.StoredRun(stored.path, run, rows, warnings)
