"""Fault injection for any backend, real or fake: wrong data and stragglers."""

import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import torch

from busbw.backends.base import Backend, BackendRow, Bound, Operation, in_order
from busbw.runs.records import Case


class WrappingBackend:
    """Base class of faults: delegates everything to ``inner``."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of ``inner``
        """Attribute ``name`` of ``inner``."""
        return getattr(self.inner, name)


class CorruptingBackend(WrappingBackend):
    """Flips the lowest bit of the last ``elements`` elements that this rank receives.

    when: given the case and the number of the call since binding, selects the calls to corrupt.
    """

    def __init__(
        self, inner: Backend, when: Callable[[Case, int], bool] = lambda _case, _index: True, *, elements: int = 1
    ) -> None:
        super().__init__(inner)
        self._when = when
        self._elements = elements

    def bind(self, bound: Bound) -> Operation:
        """Bind the call of ``inner``, followed by the fault."""
        inner = self.inner.bind(bound)
        numbers = itertools.count()
        # Little-endian: the first byte of an element holds its lowest bit.
        lowest = bound.receive.view(torch.uint8).view(len(bound.receive), -1)[:, 0] if len(bound.receive) else None

        def corrupt() -> None:
            if self._when(bound.case, next(numbers)) and lowest is not None:
                lowest[-self._elements :] ^= 1

        start = inner.post
        post = None if start is None else (lambda: in_order(start(), corrupt))
        # Not native, because the fault is in Python.
        return dataclasses.replace(inner, call=in_order(inner.call, corrupt), post=post, native=None)


class DelayingBackend(WrappingBackend):
    """Makes ``rank`` a straggler: it leaves a random ``share`` of the barriers ``seconds`` late.

    seed: seed of the random choice.
    wait: waits for a number of seconds; with a ``FakeWorld`` it must advance the clock instead of sleeping.
    """

    def __init__(
        self,
        inner: Backend,
        rank: int,
        seconds: float,
        share: float,
        seed: int,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self._late = inner.rank == rank
        self._dice = random.Random(seed)
        self._seconds, self._share, self._wait = seconds, share, wait

    def barrier(self) -> None:
        """Barrier of ``inner``, followed by the delay."""
        self.inner.barrier()
        due = self._dice.random() < self._share
        if self._late and due:
            self._wait(self._seconds)


def wrapped(row: BackendRow, wrap: Callable[[Backend], Backend]) -> BackendRow:
    """A copy of ``row`` that wraps every backend it opens; it replaces ``row`` in the table of backends."""
    return dataclasses.replace(row, open=lambda world: wrap(row.open(world)))
