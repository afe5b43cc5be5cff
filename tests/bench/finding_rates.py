"""How many runs have each finding and each flag: a finding that healthy runs have as often as others is none.

    python tests/bench/finding_rates.py quiet=RESULTS busy=OTHER_RESULTS

Each argument is a name and a folder below which runs lie. Printed is how many runs of each have every code that a
finding or a flag of a tenth of its cases has there. docs/method.md has the table that this made. Nothing is asserted.
"""

import sys
from collections import Counter
from pathlib import Path

from busbw.errors import BusbwError
from busbw_analysis.data.load import load
from busbw_analysis.diagnosis.judge import judge

_SHARE = 0.1
"""A flag of fewer cases says little of a run."""


def codes_of(folder: Path) -> tuple[set[str], set[str]]:
    """The codes of the findings on the run in ``folder``, and the flags that a tenth of its cases have."""
    judgement = judge(load([folder]))
    measured = [case for case in judgement.cases if case.state == "measured"]
    counts = Counter(flag for case in measured for flag in case.flags)
    flags = {f"flag {flag}" for flag, count in counts.items() if count > _SHARE * len(measured)}
    return {finding.code for finding in judgement.findings}, flags


def main(arguments: list[str]) -> None:
    """Count, and print a row per code and a column per folder."""
    columns: dict[str, tuple[Counter[str], int, int]] = {}
    for argument in arguments:
        name, _, folder = argument.partition("=")
        found: Counter[str] = Counter()
        runs = most = 0
        for path in sorted({file.parent.resolve() for file in Path(folder).rglob("run.json")}):
            try:
                findings, flags = codes_of(path)
            except BusbwError as error:
                print(f"left out: {error}", file=sys.stderr)
                continue
            found.update(findings | flags)
            runs, most = runs + 1, max(most, len(findings))
        columns[name] = (found, runs, most)
    print("code".ljust(24), *(f"{name} ({runs})".rjust(18) for name, (_, runs, _) in columns.items()))
    for code in sorted({code for found, _, _ in columns.values() for code in found}):
        print(code.ljust(24), *(f"{found[code]}".rjust(18) for found, _, _ in columns.values()))
    print("most findings".ljust(24), *(f"{most}".rjust(18) for _, _, most in columns.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
