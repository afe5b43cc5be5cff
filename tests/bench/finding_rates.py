"""How many healthy runs have each finding, cause and flag: what they have as often as others is no finding.

    python tests/bench/finding_rates.py --measure 20 FOLDER      # on a quiet machine: 20 runs of each kind, then rows
    python tests/bench/finding_rates.py idle=FOLDER busy=OTHER   # only the rows, of stored runs below these folders

Printed are the numbers of "Findings" in docs/method.md: of runs with a finding or a cause, or with a flag of a
tenth of their cases. Nothing is asserted.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from busbw.backends import backend_named
from busbw.errors import BusbwError
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.data.summary import FLAGS
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.findings import CODES

_KINDS: Final = {"gloo-2": ("gloo", 2), "gloo-4": ("gloo", 4), "mpi-2": ("mpi", 2)}
"""The runs that are measured: backend and ranks."""
_SHARE: Final = 0.1
"""A flag of fewer cases says little of a run."""


@dataclass(slots=True)
class Counts:
    """What the runs of one column have.

    findings, causes, flags: number of runs with each code.
    answers: number of runs with each status of the answer.
    runs: number of runs.
    most: largest number of findings of a run.
    """

    findings: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    most: int = 0

    def add(self, folder: Path) -> None:
        """Count the run in ``folder``."""
        judgement = judge(load([folder]))
        answer = answer_of(judgement)
        measured = [case for case in judgement.cases if case.state == "measured"]
        flagged = Counter(flag for case in measured for flag in case.flags)
        findings = {finding.code for finding in judgement.findings}
        self.findings.update(findings)
        self.causes.update(cause.code for cause in answer.causes)
        self.flags.update(flag for flag, count in flagged.items() if count > _SHARE * len(measured))
        self.answers[answer.headline if answer.bands else answer.status] += 1
        self.runs += 1
        self.most = max(self.most, len(findings))


def measure(runs: int, folder: Path) -> None:
    """Measure ``runs`` runs of the quick suite of each kind below ``folder``, in turn."""
    kinds = {}
    for name, (backend, ranks) in _KINDS.items():
        if (missing := backend_named(backend).missing()) is not None:
            print(f"left out: {name}: {missing}", file=sys.stderr)
        else:
            kinds[name] = f"--backend {backend} --ranks {ranks}"
    for number in range(runs):
        for name, options in kinds.items():
            print(f"run {number + 1} of {runs}: {name}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "busbw", "run", "--suite", "quick", "--quiet", *options.split()]
            subprocess.run([*command, "--results-dir", str(folder / name)], check=True, stdout=subprocess.DEVNULL)


def counted(folder: Path) -> Counts:
    """The counts of all runs below ``folder``."""
    counts = Counts()
    for path in sorted({file.parent.resolve() for file in folder.rglob("run.json")}):
        try:
            counts.add(path)
        except BusbwError as error:
            print(f"left out: {error}", file=sys.stderr)
    return counts


def rows(columns: dict[str, Counts]) -> list[str]:
    """The table as lines of Markdown: findings and causes, then flags."""
    every = list(columns.values())
    heads = (f"{name} ({counts.runs})" for name, counts in columns.items())
    lines = [f"| finding or flag | {' | '.join(heads)} | kept as |", "|---" * (len(columns) + 2) + "|"]
    causes = dict.fromkeys(code for counts in every for code in counts.causes)
    for code in dict.fromkeys((*CODES, *(code for counts in every for code in counts.findings), *causes)):
        numbers = " | ".join(str(max(counts.findings[code], counts.causes[code])) for counts in every)
        kept = ", ".join([*(["finding"] if code in CODES else []), *(["cause"] if code in causes else [])])
        lines.append(f"| `{code}` | {numbers} | {kept} |")
    flags = ((flag, " | ".join(str(counts.flags[flag]) for counts in every)) for flag in FLAGS)
    return [*lines, *(f"| {flag} (a tenth of the cases) | {numbers} | flag of a row |" for flag, numbers in flags)]


def main(arguments: list[str]) -> None:
    """Measure if asked to, count, and print the rows, the answers, and how rare what never occurred must be."""
    if arguments[:1] == ["--measure"]:
        measure(int(arguments[1]), Path(arguments[2]))
        arguments = [f"idle={arguments[2]}"]
    columns = {name: counted(Path(folder)) for name, _, folder in (argument.partition("=") for argument in arguments)}
    print("\n".join(rows(columns)))
    for name, counts in columns.items():
        if counts.runs:
            answers = "; ".join(f"{count} × {answer}" for answer, count in counts.answers.most_common())
            rarest = 1 - 0.05 ** (1 / counts.runs)
            print(f"\n{name}: at most {counts.most} findings in a run. Answers: {answers}")
            print(f"0 of {counts.runs} excludes rates above {rarest:.0%} (95 % confidence).")


if __name__ == "__main__":
    main(sys.argv[1:])
