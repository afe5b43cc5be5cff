"""Health check of this node: a short run of its own, and the rules that every node has to keep."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Final

import psutil

from busbw.errors import UsageError
from busbw.runs import store
from busbw.runs.facts import HostFacts
from busbw.runs.files import temporary_folder
from busbw.system.environment import host_facts
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.findings import case_name
from busbw_analysis.gate.metrics import Gap
from busbw_analysis.gate.rules import Rule, with_usual

SECONDS: Final = 20.0
"""After so long the run is asked to end, and what it measured is judged: a check takes at most 30 s in all."""
_ENDING_SECONDS: Final = 5.0
_TIMEOUT_SECONDS: Final = 10
"""Limit of every wait for a rank: a GPU that does not answer is named within the time."""

_PREFIX: Final = "busbw-prolog-"
"""Of the folders of checks; the number of their process follows."""
_FOLDER: Final = re.compile(rf"{_PREFIX}([0-9]+)-.*")

_OF_LAUNCHERS: Final = (
    *("SLURM_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MPI_LOCAL", "FLUX_", "JSM_", "PALS_", "TORCHELASTIC_"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_"),
)
"""Prefixes of the variables by which busbw would join the ranks of a job instead of starting its own."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """A run on this node.

    folder: of the run
    late: whether it was ended because its time was over
    facts: of the node
    """

    folder: Path
    late: bool
    facts: HostFacts

    def and_usual(self, rules: Sequence[Rule], summaries: Sequence[CaseSummary]) -> tuple[Rule, ...]:
        """``rules``, and those of every check. A run whose time was over need not have all cases, whoever asks, unless
        one has failed.
        """
        gpus = len(self.facts.pci.gpus)
        usual = (
            Rule(metric="wrong_data", at_most="0"),
            Rule(metric="counters", at_most="0"),
            *([Rule(metric="gpus", at_least=str(gpus))] if gpus else []),
            Rule(metric="missing_cases", at_most="0"),
        )
        waived = self.late and not any(summary.state == "failed" for summary in summaries)
        return tuple(rule for rule in with_usual(rules, usual) if not (waived and rule.metric == "missing_cases"))

    def gaps(self, summaries: Sequence[CaseSummary]) -> tuple[Gap, ...]:
        """The cases that were not reached in time: the check cannot tell."""
        names = tuple(case_name(summary.case) for summary in summaries if summary.state == "not reached")
        reason = f"{SECONDS:.0f} s were over before these cases were measured"
        return (Gap("time-limit", reason, names),) if self.late and names else ()


@contextmanager
def measured_here() -> Iterator[NodeRun]:
    """Measure the suite for nodes with or without GPUs, on ranks of this node alone. The run is removed at the end.

    Raises UsageError if nothing could be measured.
    """
    facts = host_facts()
    suite = "prolog-gpu" if facts.pci.gpus else "prolog"
    with temporary_folder(f"{_PREFIX}{os.getpid()}-") as results:
        _remove_abandoned()
        argv = [sys.executable, "-m", "busbw", "run", "--suite", suite, "--no-baseline", "--quiet"]
        argv += ["--timeout", str(_TIMEOUT_SECONDS), "--results-dir", str(results)]
        late, said = _run(argv, own_variables(os.environ), SECONDS)
        made = list(store.folders(results))
        if not made:
            why = f"its {SECONDS:.0f} s were over" if late else said.strip() or "it ended without a message"
            raise UsageError(f"--prolog: nothing was measured: {why}", code="prolog")
        yield NodeRun(made[0], late, facts)


def _remove_abandoned() -> None:
    """Remove the folders of checks that were killed: on a node with a sick device, each would leave another."""
    for folder in Path(gettempdir()).glob(f"{_PREFIX}*-*"):
        match = _FOLDER.fullmatch(folder.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without what launchers set for their ranks, and without a folder for results."""
    return {name: value for name, value in variables.items() if not name.startswith(_OF_LAUNCHERS)}


def _run(argv: Sequence[str], variables: Mapping[str, str], seconds: float) -> tuple[bool, str]:
    """Whether the time was over before the program ended, and what it said."""
    process = subprocess.Popen(
        argv, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        return False, process.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it ends its ranks and keeps what they measured
    try:
        return True, process.communicate(timeout=_ENDING_SECONDS)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return True, process.communicate()[1]
    finally:
        process.kill()
