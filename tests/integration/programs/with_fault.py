"""Stands in for ``busbw``: the same command over a backend that one thing is wrong with.

``with_fault.py FAULT run …``: FAULT is a row of FAULTS; every other argument goes to busbw. Only BAD_OP is affected,
but for ``late``, which delays a rank in all ops, and ``die-in-a-step``, which is of BAD_STEP.
"""

import dataclasses
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable

from busbw import backends
from busbw.backends.base import Backend, Bound, Operation
from busbw.backends.faults import CorruptingBackend, DelayingBackend, WrappingBackend, wrapped
from busbw.cli.main import main as busbw
from busbw.errors import BackendError
from busbw.ops.groups import Ranks

BAD_OP = "broadcast"
BAD_STEP = "train_all_reduce"
_BAD_RANK = 1
_LAST_OF_THREE = 2
_FLIPPED = 3
"""The call after which a bit flips: neither the first, which is checked before the timing, nor the last."""


class _Disturbed(WrappingBackend):
    """Does ``instead`` before every call of the bad op."""

    def __init__(self, inner: Backend, instead: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._instead = instead

    def bind(self, bound: Bound) -> Operation:
        """The call of ``inner``, with the fault before it where it belongs."""
        inner = self.inner.bind(bound)
        if bound.case.op != BAD_OP:
            return inner

        def disturbed() -> None:
            self._instead(self.rank)
            inner.call()

        return Operation(disturbed)


def _raise_everywhere(_rank: int) -> None:
    message = "this library does not like it"
    raise BackendError(message)


def _raise_alone(rank: int) -> None:
    if rank == _BAD_RANK:
        message = "this rank does not like it"
        raise BackendError(message)


def _hang(rank: int) -> None:
    if rank == _BAD_RANK:
        time.sleep(1000)


def _hang_last(rank: int) -> None:
    if rank == _LAST_OF_THREE:
        time.sleep(1000)


def _crash(rank: int) -> None:
    if rank == _BAD_RANK:
        os.kill(os.getpid(), signal.SIGSEGV)


def _leave(rank: int) -> None:
    if rank == _BAD_RANK:
        os._exit(7)


def _bug(rank: int) -> None:
    if rank == _BAD_RANK:
        message = "a bug in one rank"
        raise ZeroDivisionError(message)


def _disturbed(instead: Callable[[int], None]) -> Callable[[Backend], Backend]:
    return lambda inner: _Disturbed(inner, instead)


def _corrupt(before_call: int) -> Callable[[Backend], Backend]:
    """Wrong data on the second rank in the bad op's first ``before_call`` calls with each set of buffers."""

    def wrap(inner: Backend) -> Backend:
        if inner.rank != _BAD_RANK:
            return inner
        return CorruptingBackend(inner, lambda case, index: case.op == BAD_OP and index < before_call, elements=3)

    return wrap


def _corrupt_later(inner: Backend) -> Backend:
    """Right at first, wrong from the second call on: only the check after the timing can see it."""
    if inner.rank != _BAD_RANK:
        return inner
    return CorruptingBackend(inner, lambda case, index: case.op == BAD_OP and index > 0)


def _flip(inner: Backend) -> Backend:
    """One bit of one result of the bad rank flips while ``signature`` is timed."""
    if inner.rank != _BAD_RANK:
        return inner
    return CorruptingBackend(inner, lambda case, index: case.op == "signature" and index == _FLIPPED)


class _DyingInAStep(WrappingBackend):
    """One rank is killed in its third step, when the data have been checked: its gradients never come."""

    def bind(self, bound: Bound) -> Operation:
        """The step of ``inner``."""
        inner = self.inner.bind(bound)
        numbers = itertools.count()

        def step() -> None:
            if next(numbers) == 2 and self.rank == _BAD_RANK:
                os.kill(os.getpid(), signal.SIGKILL)
            inner.call()

        return dataclasses.replace(inner, call=step) if bound.case.op == BAD_STEP else inner


class _LeavingAtTheEnd(WrappingBackend):
    """One rank dies when everything is measured."""

    def close(self) -> None:
        """Not on the bad rank."""
        _leave(self.rank)
        self.inner.close()


class _HangingOverGroups(WrappingBackend):
    """One rank never makes the groups that the others make."""

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Not on the bad rank."""
        _hang(self.rank)
        self.inner.use_groups(groups)


FAULTS: dict[str, Callable[[Backend], Backend]] = {
    "corrupt": _corrupt(1),
    "corrupt-later": _corrupt_later,
    "flip": _flip,
    "raise-everywhere": _disturbed(_raise_everywhere),
    "raise-alone": _disturbed(_raise_alone),
    "hang": _disturbed(_hang),
    "hang-last": _disturbed(_hang_last),
    "crash": _disturbed(_crash),
    "leave": _disturbed(_leave),
    "bug": _disturbed(_bug),
    "die-in-a-step": _DyingInAStep,
    "leave-at-the-end": _LeavingAtTheEnd,
    "hang-over-groups": _HangingOverGroups,
    "late": lambda inner: DelayingBackend(inner, _BAD_RANK, 5e-3, 0.4, seed=1),
}


def main() -> None:
    """Put the fault around every backend and be busbw."""
    fault = FAULTS[sys.argv.pop(1)]
    for name, row in backends.BACKENDS.items():
        backends.BACKENDS[name] = wrapped(row, fault)
    busbw(prog_name="busbw")


if __name__ == "__main__":
    main()
