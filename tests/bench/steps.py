"""How good the steps of a history are: error rates on simulated ones, and the F1 on series that people annotated.

    PYTHONPATH=tests/shared .venv/bin/python tests/bench/steps.py [TCPD [SCORES]]

TCPD: a checkout of github.com/alan-turing-institute/TCPD, whose series are not ours to redistribute. SCORES:
``analysis/output/scores/default_f1_scores.json`` of TCPDBench, for its methods with default settings.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
from testing.histories import SCATTER, STATIONARY, false_steps, steps_found

from busbw_analysis.history.steps import smallest_step, steps_of

_MARGIN = 5
_HISTORIES = 1000


def errors() -> None:
    """Print false steps per 1,000 runs, and how often steps are found within 10 runs."""
    lengths = (20, 40, 100, 1000)
    print("false steps per 1,000 runs, in histories of", *(f"{runs:6}" for runs in lengths))
    for kind in STATIONARY:
        rates = (false_steps(kind, runs, 50_000 // runs) / 50 for runs in lengths)
        print(f"{kind:42}", *(f"{rate:6.2f}" for rate in rates))
    for before in (20, 30, 60, 100, 200):
        share = steps_found(0.05, SCATTER, before, _HISTORIES) / _HISTORIES
        print(f"5 % at a scatter of 2 %, after {before:3} runs: {share:6.1%}")
    for scatter in (0.01, 0.02, 0.05, 0.1, 0.2):
        for before in (25, 40, 60, 200):
            size = smallest_step(scatter, before)
            share = steps_found(size, scatter, before, _HISTORIES) / _HISTORIES
            print(f"scatter {scatter:4.0%}, after {before:3} runs: smallest step {size:6.1%}, found {share:6.1%}")


def matched(truth: Iterable[int], places: AbstractSet[int]) -> int:
    """Number of true change points within the margin of a place of their own."""
    free = set(places)
    count = 0
    for point in sorted(truth):
        near = [(abs(point - place), place) for place in free if abs(point - place) <= _MARGIN]
        if near:
            free.remove(min(near)[1])
            count += 1
    return count


def f1(annotations: Mapping[str, list[int]], places: Iterable[int]) -> float:
    """As in van den Burg & Williams 2020: precision against all annotators together, mean recall over them; index 0 is
    a change point.
    """
    asked, truths = {0, *places}, [{0, *points} for points in annotations.values()]
    precision = matched(set().union(*truths), asked) / len(asked)
    recall = float(np.mean([matched(truth, asked) / len(truth) for truth in truths]))
    return 2 * precision * recall / (precision + recall)


def places_of(series: Path) -> set[int]:
    """The steps of all dimensions. Missing values are left out; values that are not positive are shifted."""
    places: set[int] = set()
    for dimension in json.loads(series.read_text(encoding="utf-8"))["series"]:
        known = [index for index, value in enumerate(dimension["raw"]) if value is not None]
        values = np.asarray([dimension["raw"][index] for index in known], dtype=np.float64)
        shifted = values if values.min() > 0 else values - values.min() + 1
        places.update(known[step.at] for step in steps_of(shifted.tolist()))
    return places


def annotated(folder: Path, scores: Path | None) -> None:
    """Print the F1 of each annotated series of the checkout, and the mean of ours and of TCPDBench's methods."""
    annotations = json.loads((folder / "annotations.json").read_text(encoding="utf-8"))
    files = {name: folder / "datasets" / name / f"{name}.json" for name in sorted(annotations)}
    # The others are quality controls of the annotators, or are not stored.
    names = [name for name, file in files.items() if file.exists() and not name.startswith("quality_control")]
    ours = {name: f1(annotations[name], places_of(files[name])) for name in names}
    for name, score in ours.items():
        print(f"{name:22} {score:.3f}")
    print(f"mean of {len(names)}: {np.mean(list(ours.values())):.4f}")
    if scores is not None:
        stored = json.loads(scores.read_text(encoding="utf-8"))
        complete = [name for name in names if None not in stored[name].values()]
        print(f"mean of the {len(complete)} that all methods have: {np.mean([ours[name] for name in complete]):.4f}")
        for method in stored[names[0]]:
            means = (np.mean([stored[name][method] or 0.0 for name in chosen]) for chosen in (names, complete))
            print(f"{method:22} {next(means):.4f} (a missing one counts 0)  {next(means):.4f}")


if __name__ == "__main__":
    errors()
    if len(sys.argv) > 1:
        annotated(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
