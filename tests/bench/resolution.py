"""What this machine really tells apart: one run of many launches of real ranks, every second launch against the others.

    .venv/bin/python tests/bench/resolution.py [RUN]     # a run folder; without one 20 launches over Gloo, and over MPI

Printed are, for each size and each band of sizes: how much launches scatter, how large a difference ten against ten
of them would show, how much neighbouring launches share (what --paired gains), and how much the sizes of a band share
(what a band gains). Nothing is asserted.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.backends import backend_named
from busbw.runs import store
from busbw.runs.records import Case
from busbw.units import format_size
from busbw_analysis.data.bands import band_of
from busbw_analysis.data.load import load
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.hypothesis_tests import estimate, launches_needed

Floats = npt.NDArray[np.float64]

LAUNCHES: Final = 20
LIBRARIES: Final = ("gloo", "mpi")
SIZES: Final = "8,1KiB,4KiB,64KiB,256KiB,1MiB,4MiB"
WITHIN: Final = 0.05


def main(arguments: Sequence[str]) -> None:
    """Judge the run that was named, or one that is measured for it."""
    if arguments:
        judge(Path(arguments[0]))
        return
    for library in LIBRARIES:
        missing = backend_named(library).missing()
        print(f"## {library}{f': {missing}' if missing else ''}", flush=True)
        if missing is not None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            options = f"--op all_reduce --sizes {SIZES} --ranks 2 --launches {LAUNCHES} --max-seconds 0.2 --quiet"
            command = [sys.executable, "-m", "busbw", "run", *options.split(), "--backend", library]
            subprocess.run([*command, "--results-dir", folder], check=True, stderr=subprocess.DEVNULL)
            judge(store.find(Path(folder), "latest"))


def judge(folder: Path) -> None:
    """Print what the launches of one run tell apart."""
    measured = [summary for summary in load([folder]).summaries if summary.only is not None]
    launches = min(_launches(summary) for summary in measured)
    print(f"# launches 1, 3, 5 … against 2, 4, 6 … of {launches} that were taken one after the other")
    print("#   cv: standard deviation of the logarithms; neighbours, sizes: correlation, mean over pairs")
    print("#   B/A and its interval: the truth is 1; 5 % takes: launches a side that would tell 5 % from none")
    print("                               cv   B/A (interval)           5 % takes  neighbours  sizes")
    bands: dict[tuple[Case, str], list[CaseSummary]] = {}
    for summary in measured:
        bands.setdefault((_without_size(summary.case), band_of(summary.case.size_bytes)), []).append(summary)
    for (case, band), members in bands.items():
        logs = np.asarray([_logs(summary, launches) for summary in members])
        if len(members) > 1:
            correlation = np.corrcoef(logs)[np.triu_indices(len(members), 1)].mean()
            _line(f"{case.op} {band}", logs.mean(axis=0), f"{correlation:5.2f}")
        for summary, values in zip(members, logs, strict=True):
            means = summary.only is not None and summary.only.modes is not None
            _line(f"{summary.case.op} {format_size(summary.case.size_bytes)}{' (means)' if means else ''}", values)


def _without_size(case: Case) -> Case:
    return msgspec.structs.replace(case, size_bytes=0)


def _launches(summary: CaseSummary) -> int:
    return 0 if summary.only is None else summary.only.launches // 2 * 2


def _logs(summary: CaseSummary, launches: int) -> Floats:
    """Logarithms of launch medians, or of means where there are two modes: as ``busbw compare`` takes them."""
    group = summary.only
    values = () if group is None else group.launch_medians_ns if group.modes is None else group.launch_means_ns
    return np.log(np.asarray(values[:launches], dtype=np.float64))


def _line(name: str, logs: Floats, sizes: str = "    –") -> None:
    first = {("a", number): float(value) for number, value in enumerate(np.exp(logs[::2]))}
    second = {("b", number): float(value) for number, value in enumerate(np.exp(logs[1::2]))}
    found = estimate(first, second)
    centred = logs - logs.mean()
    shared = float(centred[1:] @ centred[:-1] / (centred @ centred))
    needed = launches_needed(found.scatter or 0.0, WITHIN)
    interval = "–" if found.low is None else f"{found.low:.3f} … {found.high:.3f}"
    takes = ">1000" if needed is None else str(needed)
    print(f"{name:28}{logs.std(ddof=1):6.1%}  {found.ratio:.3f} ({interval})  {takes:>9}  {shared:10.2f}  {sizes}")


if __name__ == "__main__":
    main(sys.argv[1:])
