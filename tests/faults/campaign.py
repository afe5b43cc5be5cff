"""Break real runs on purpose, at random moments, and say how often what has to be true afterwards was not.

``python tests/faults/campaign.py --rounds 10 --seed 1``: every round makes each fault of ``fault_trials`` once over
each backend. After each: no process, no shared memory and no temporary file is left; the run folder can be read; the
rank that was to blame was named; ``--resume`` makes the run whole and ``show`` has all of it; and the end came within
two timeouts and 5 s. As root a run has a /dev/shm of its own, so that nothing else on the machine is taken for its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fault_trials import FAULTS, Trial, carry_out, why_not

from busbw.backends import BACKENDS


def main() -> int:
    """Exit status 1 when a fault had a consequence that it may not have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often each fault is made over each backend")
    parser.add_argument("--seed", type=int, default=1, help="chooses the moments")
    parser.add_argument("--jobs", type=int, default=2, help="runs beside each other")
    parser.add_argument("--faults", default=",".join(FAULTS), help="by commas")
    parser.add_argument("--backends", default="gloo,mpi", help="by commas")
    parser.add_argument(
        "--tree", type=Path, help="another checkout, whose busbw is tried in place of the installed one"
    )
    parser.add_argument("--json", action="store_true", help="print every trial as JSON")
    given = parser.parse_args()
    trials = [
        (fault, backend, round_)
        for round_ in range(given.rounds)
        for fault in given.faults.split(",")
        for backend in given.backends.split(",")
    ]
    skipped = {fault: why for fault in FAULTS if (why := why_not(fault)) is not None}
    skipped |= {name: why for name in given.backends.split(",") if (why := BACKENDS[name].missing()) is not None}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="busbw-faults-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        futures = []
        for number, (fault, backend, round_) in enumerate(trials):
            if fault in skipped or backend in skipped:
                continue
            place = Path(folder) / str(number)
            place.mkdir()
            trial = Trial(place, backend, random.Random(f"{given.seed} {fault} {backend} {round_}"), given.tree)
            futures.append((fault, pool.submit(carry_out, trial, fault)))
        done = [(fault, future.result()) for fault, future in futures]
    rows = [
        {
            "fault": fault,
            "backend": trial.backend,
            "ended_seconds": round(trial.ended_seconds, 2),
            "problems": trial.problems,
        }
        for fault, trial in done
    ]
    if given.json:
        print(json.dumps({"trials": rows, "skipped": skipped}, indent=2))  # noqa: T201 - it is what was asked for
    else:
        _print_table(rows, skipped, time.monotonic() - began)
    return int(any(row["problems"] for row in rows))


def _print_table(rows: list[dict[str, object]], skipped: dict[str, str], seconds: float) -> None:
    lines = [f"{'fault':20} {'backend':8} {'trials':>6} {'good':>5}"]
    for fault, backend in dict.fromkeys((str(row["fault"]), str(row["backend"])) for row in rows):
        these = [row for row in rows if (row["fault"], row["backend"]) == (fault, backend)]
        lines.append(f"{fault:20} {backend:8} {len(these):6} {sum(not row['problems'] for row in these):5}")
        told = [str(problem) for row in these if isinstance(row["problems"], list) for problem in row["problems"]]
        lines += [f"    {problem}" for problem in told]
    lines += [f"skipped: {name}: {why}" for name, why in skipped.items()]
    good = sum(not row["problems"] for row in rows)
    lines.append(f"{good} of {len(rows)} trials were as they have to be, in {seconds:.0f} s")
    print("\n".join(lines))  # noqa: T201 - it is what was asked for


if __name__ == "__main__":
    sys.exit(main())
