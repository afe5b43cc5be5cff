"""Stands in for ``busbw``: the same command, but every rank believes that it has a clock of its own.

The ranks of one host read one clock, so the truth is known: whatever is derived through the synchronised clocks has to
be what the shared clock says, within the bound that is stored. Anything else ends the run with an AssertionError.
"""

import dataclasses
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np

from busbw.backends.base import Backend, Vector
from busbw.cli.main import main as busbw
from busbw.launch import worker
from busbw.measure import sampling
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.measure.reduction import Batch, reduce_batch
from busbw.ops.base import Matrix
from busbw.ops.groups import Round
from busbw.runs.records import JSON, Case, Failed, Measurement
from busbw.system import environment

_CLOCKS: list[Bench] = []


def _apart(facts: Sequence[dict[str, JSON]]) -> tuple[str | None, ...]:
    return tuple(f"the clock of rank {rank}" for rank in range(len(facts)))


def _measured(bench: Bench, case: Case, matrix: Matrix, launch: int, block: int) -> Measurement | Failed:
    _CLOCKS[:] = [bench]
    row = measure(bench, case, matrix, launch, block)
    _hold(isinstance(row, Failed) or (row.clock_error_ns or 0) > 0, "clocks that are apart have an error")
    return row


def _skews(rows: Vector, size: int) -> dict[str, Vector]:
    _, _, latest, last_out, first_in, first_out, *_ = rows
    last_in = latest // size
    return {"arrival skew": last_in + first_in, "exit span": last_out - last_in, "exit skew": last_out + first_out}


def _reduced(backend: Backend, groups: Round, taken: Batch, elapsed_ns: int) -> tuple[Vector, int]:
    """What was seen, held to what is seen by the clock that all ranks truly share."""
    seen, longest_ns = reduce_batch(backend, groups, taken, elapsed_ns)
    true_times = dataclasses.replace(taken, entries=taken.samples.entries, exits=taken.samples.exits)
    truth, _ = reduce_batch(backend, groups, true_times, elapsed_ns)
    (error,) = backend.reduce(np.asarray([_CLOCKS[0].common.error_ns()], dtype=np.int64), "max")
    true = _skews(truth, backend.size)
    for name, skews in _skews(seen, backend.size).items():
        off = int(np.abs(skews - true[name]).max())
        _hold(off <= 2 * error, f"{name} is {off} ns from the truth, its bound is {2 * error} ns")
    return seen, longest_ns


def _hold(promise: bool, words: str) -> None:  # noqa: FBT001 - reads like an assertion, which it is, even under -O
    if not promise:
        raise AssertionError(words)


def main() -> None:
    """Part the clocks and be busbw."""
    with (
        patch.object(environment, "clock_domains", _apart),
        patch.object(worker, "measure", _measured),
        patch.object(sampling, "reduce_batch", _reduced),
    ):
        busbw(prog_name="busbw")


if __name__ == "__main__":
    main()
