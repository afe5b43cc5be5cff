"""Since when a gate fails: earlier runs under the rules that fail, back to the last one that passes."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from busbw.errors import BusbwError
from busbw.runs.records import JSON, Run
from busbw.system.catalog import Catalogue
from busbw.units import listed
from busbw_analysis.assembly.judge import judge_with_selftest
from busbw_analysis.data.kept import read_summarised
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.gate.metrics import Evidence
from busbw_analysis.gate.verdicts import Gate, gate_of
from busbw_analysis.history.facts import facts_of

_MOST_RUNS: Final = 20
"""Runs that are looked at: each takes part of a second."""
_MOST_CHANGES: Final = 3
_LAST: Final = ("system", "boot_id")
"""Facts that say the same as others, or change at every start."""


@dataclass(frozen=True, slots=True)
class Since:
    """Since when a gate fails.

    first: the first of the runs that fail without one between them that passes
    passed: the last run before it that passes, or is of the baseline; None: not among those that were looked at
    changes: facts that differ between the two: key, before, after
    """

    first: Run
    passed: Run | None
    changes: tuple[tuple[str, str, str], ...]

    @property
    def in_words(self) -> str:
        """The day, the runs and the likeliest changes."""
        day = f"{self.first.started[:10]}, run {self.first.id}"
        if self.passed is None:
            return f"{day}, or before: no earlier run passes"
        texts = [f"{key} {before} → {after}" for key, before, after in self.changes]
        changed = listed(texts, _MOST_CHANGES) if texts else "no recorded fact"
        return f"{day}; {changed} changed since run {self.passed.id}"

    @property
    def as_json(self) -> dict[str, JSON]:
        """Names of the runs, the start of the first, and all changes."""
        return {
            "run": self.first.id,
            "started": self.first.started,
            "passed": None if self.passed is None else self.passed.id,
            "changes": [{"key": key, "before": before, "after": after} for key, before, after in self.changes],
        }


def since_of(gate: Gate, run: Run, baseline: Dataset, folders: Sequence[Path], rows: Catalogue) -> Since:
    """Since when the rules that ``run`` fails were failed. ``folders``: of all runs, oldest first. A run that cannot be
    read or judged is passed over.
    """
    rules = [verdict.rule for verdict in gate.verdicts if verdict.state == "fail" and verdict.rule.severity == "error"]
    good = {stored.run.id for stored in baseline.runs}
    first, passed = run, None
    for folder in islice((folder for folder in reversed(folders) if folder.name < run.id), _MOST_RUNS):
        with suppress(BusbwError):
            dataset = pool([read_summarised(folder)])
            earlier = dataset.runs[0].run
            if earlier.id in good:  # it cannot be compared with itself
                passed = earlier
                break
            state = gate_of(rules, Evidence(judge_with_selftest(dataset, rows), dataset, baseline)).state
            if state == "pass":
                passed = earlier
                break
            first = earlier if state == "fail" else first
    old, new = facts_of(passed or first), facts_of(first)
    changed = [(key, old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]]
    return Since(first, passed, tuple(sorted(changed, key=lambda change: (change[0] in _LAST, change[0]))))
