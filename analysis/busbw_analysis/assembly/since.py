"""Since when a gate fails: earlier runs under the rules that fail, back to the last one that passes."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from busbw.errors import BusbwError
from busbw.runs.run import Run
from busbw.system.catalog import Catalogue
from busbw_analysis.assembly.judge import judge_with_selftest
from busbw_analysis.data.kept import read_summarised
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.gate.metrics import Evidence
from busbw_analysis.gate.verdicts import Change, Gate, Since, gate_of
from busbw_analysis.history.facts import facts_of

_MOST_RUNS: Final = 20
"""Runs that are looked at: each takes part of a second."""
_LAST: Final = ("system", "boot_id")
"""Facts that say the same as others, or change at every start."""


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
    if passed and {rule.metric for rule in rules} == {"missing_cases"} and not {*passed.cases} <= {*first.cases}:
        # Its plan leaves cases out, so no fact of the machine explains their absence.
        old, new = ({"cases of the plan": str(len({*passed.cases} & {*run.cases}))} for run in (passed, first))
    changed = [Change(key, old[key], new[key]) for key in old.keys() & new.keys() if old[key] != new[key]]
    changed.sort(key=lambda change: (change.key in _LAST, change.key))
    return Since(first.id, first.started, None if passed is None else passed.id, tuple(changed))
