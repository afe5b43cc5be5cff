"""A ReFrame check: all-reduce with verified data, and its bus bandwidth as a performance variable.

reframe -c docs/deploy/reframe/busbw_check.py -r --performance-report. A site sets ``ranks`` (0: those that its launcher
starts) and the lower limit of ``busbw`` in GB/s by ``-S``, or subclasses the check with ``reference``.
"""

import json
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_before, sanity_function, variable


@rfm.simple_test
class BusbwAllReduce(rfm.RunOnlyRegressionTest):
    """Measures two sizes and checks every result."""

    descr = "all-reduce, verified"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    ranks = variable(int, value=2)
    executable = "busbw"
    executable_opts = ["run", "--op", "all_reduce", "--sizes", "1MiB,16MiB", "--quiet", "--results-dir", "runs"]
    postrun_cmds = ["busbw show latest --json --results-dir runs >show.json"]

    @run_before("run")
    def start_ranks(self) -> None:
        """Let busbw start the ranks, unless the launcher does."""
        if self.ranks:
            self.executable_opts += ["--ranks", str(self.ranks)]

    def cases(self) -> list[dict[str, Any]]:
        """The measured sizes of the operation, smallest first."""
        shown = json.loads((Path(self.stagedir) / "show.json").read_text(encoding="utf-8"))
        return [case for case in shown["cases"] if case["op"] == "all_reduce"]

    @sanity_function
    def verified(self) -> bool:
        """Every size was measured, and its data verified."""
        return sn.assert_eq([case["check_state"] for case in self.cases()], ["verified", "verified"])

    @performance_function("GB/s")
    def busbw(self) -> float:
        """The bus bandwidth of the largest size."""
        return float(self.cases()[-1]["busbw"]) / 1e9
