"""A rank's measuring context, its part in a round of groups, and agreement between ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from busbw.backends.base import Backend, Operation, Vector
from busbw.backends.compiled_loop import Row
from busbw.backends.patterns import Pattern
from busbw.measure.clock import Clock
from busbw.measure.clock_sync import CommonClock
from busbw.measure.compute import ComputeLoad
from busbw.ops import OPS
from busbw.ops.base import Layout
from busbw.ops.groups import Ranks, Round, pair_rounds, split_world
from busbw.runs.plan import Timing
from busbw.runs.records import Case, FailureCause

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Bench:
    """A rank's measuring context.

    backend: handle on the communication library.
    clock, common: this rank's clock, and the clock that all ranks share.
    timing: sampling rules of the plan.
    seed: seed of the test data.
    timer_ns: cost of reading the clock on the slowest rank, ns.
    hosts: host of each rank.
    work: computation that runs concurrently with a communication.
    traces: folder into which rank 0 writes profiler traces of training steps (None: no traces).
    """

    backend: Backend
    clock: Clock
    timing: Timing
    common: CommonClock
    seed: int
    timer_ns: int = 0
    hosts: tuple[str, ...] = ()
    work: ComputeLoad = field(default_factory=ComputeLoad)
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class BufferSet:
    """One pair of buffers with the operation bound to them."""

    send: "torch.Tensor"
    receive: "torch.Tensor"
    operation: Operation


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part in one round.

    group: ranks of its group.
    layout: how data lie in its buffers.
    sets: its buffers with their operations.
    made_of: test pattern of the data (None: the op has no data).
    row: calls the operations in turn from compiled code (None: Python does).
    """

    group: Ranks
    layout: Layout
    sets: tuple[BufferSet, ...]
    made_of: Pattern | None
    row: Row | None = None


def rounds_of(case: Case) -> tuple[Round, ...]:
    """Groups of ranks that call concurrently, for each round. Only the pair matrix has more than one round."""
    op = OPS[case.op]
    groups = split_world(case.group, case.ranks)
    if op.members == "all":
        return (groups,)
    if op.members == "ends":
        return (tuple((group[0], group[-1]) for group in groups),)
    by_group = [pair_rounds(group, together=case.pairs != "alone") for group in groups]
    if case.pairs == "alone":
        return tuple(chain.from_iterable(by_group))
    return tuple(tuple(chain.from_iterable(concurrent)) for concurrent in zip_longest(*by_group, fillvalue=()))


def agreed(bench: Bench, values: Sequence[int]) -> Vector:
    """The maximum over all ranks, at all ranks."""
    return bench.backend.reduce(np.asarray(values, dtype=np.int64), "max")


class CaseFailed(Exception):
    """A case has no result; raised on all ranks, with the reason. ``cause``: its code, if it is known."""

    cause: FailureCause | None = None


class WrongData(CaseFailed):
    """The check of a case's data failed."""

    cause = "wrong_data"


def fail_together(bench: Bench, error: str, what: str) -> None:
    """Raise CaseFailed on all ranks if any has an ``error``: ``what``, and the error of the first such rank."""
    if agreed(bench, [bool(error)])[0]:
        errors = bench.backend.share(error)
        first = next(rank for rank, text in enumerate(errors) if text)
        raise CaseFailed(f"{what}: rank {first} says: {errors[first]}")
