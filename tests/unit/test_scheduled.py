"""Collectives by hand leave what the operation has to leave, with any number of ranks and elements."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
import torch
from exhaustive import EXHAUSTIVE
from testing.narrow import require

from busbw.backends import scheduled
from busbw.backends.base import Bound
from busbw.backends.patterns import count_wrong, fill, pattern, poison
from busbw.backends.scheduled import Exchange, Messages, Messaging
from busbw.ops import OPS
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.base import Layout, Share
from busbw.ops.settings import AlgorithmSettings, explicit_algorithm
from busbw.runs.records import Case

EVERY = [(op, name) for op, named in ALGORITHMS.items() for name in named]


_EXPECTING = 77


class Mail:
    """Messages between threads, in order for each pair; what is sent is copied, so that nobody sees later changes."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int], SimpleQueue[torch.Tensor]] = {}
        self._lock = threading.Lock()

    def _box(self, source: int, to: int) -> SimpleQueue[torch.Tensor]:
        with self._lock:
            return self._boxes.setdefault((source, to), SimpleQueue())

    def exchange(self, me: int) -> Exchange:
        """What rank ``me`` sends and receives with. Where messages are expected is written at once, as a library is
        free to do, and has to be as it was left when they come.
        """

        def exchange(sends: Messages, receives: Messages) -> Messaging:
            def expect() -> None:
                for _, buffer in receives:
                    buffer.fill_(_EXPECTING)

            def finish() -> None:
                for to, buffer in sends:
                    self._box(me, to).put(buffer.clone())
                for source, buffer in receives:
                    assert bool((buffer == _EXPECTING).all()), "written to while something else is expected there"
                    buffer.copy_(self._box(source, me).get(timeout=20))

            return Messaging(expect, finish)

        return exchange


def case_of(
    op: str, name: str, ranks: int, elements: int, *, redop: str = "sum", nodes: int = 1, **more: object
) -> Case:
    settings: dict[str, object] = {
        "op": op,
        "backend": "gloo",
        "device": "cpu",
        "dtype": "int64" if OPS[op].sized else None,
        "redop": redop if OPS[op].reduces else None,
        "size_bytes": 8 * elements if OPS[op].sized else 0,
        "ranks": ranks,
        "nodes": nodes,
        "in_place": OPS[op].in_place[0],
        "root": 0 if OPS[op].rooted else None,
        "settings": AlgorithmSettings(name),
        **more,
    }
    return Case(**settings)  # type: ignore[arg-type]


def buffers(layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    if layout.receives_into_send is not None:
        send = torch.zeros(layout.send_count, dtype=torch.int64)
        return send, send[layout.receives_into_send :][: layout.receive_count]
    receive = torch.zeros(layout.receive_count, dtype=torch.int64)
    if layout.sends_from_receive is not None:
        return receive[layout.sends_from_receive :][: layout.send_count], receive
    return torch.zeros(layout.send_count, dtype=torch.int64), receive


def wrong_elements(case: Case, calls: int = 2) -> int:
    """All wrong elements of all ranks, after each of so many calls on fresh data."""
    op, ranks = OPS[case.op], case.ranks
    made_of = pattern(ranks, "int64", case.redop, seed=5)
    mail, group = Mail(), tuple(range(100, 100 + ranks))

    def exchange_of(me: int) -> Exchange:
        inner = mail.exchange(me)

        def exchange(sends: Messages, receives: Messages) -> Messaging:
            return inner(
                [(to - 100, message) for to, message in sends],
                [(source - 100, message) for source, message in receives],
            )

        return exchange

    def rank(me: int) -> int:
        layout = op.layout(Share(me, ranks, case.count, case.in_place, case.root or 0))
        send, receive = buffers(layout)
        operation = scheduled.bind(op, Bound(case, send, receive, group=group, me=me), exchange_of(me))
        wrong = 0
        for _ in range(calls):
            poison(receive, case.redop)
            fill(send, layout.send, made_of)
            operation.call()
            wrong += count_wrong(receive, layout.expect, made_of)
        return wrong

    with ThreadPoolExecutor(ranks) as threads:
        return sum(threads.map(rank, range(ranks)))


def possible(blocks: int) -> list[Case]:
    """Every algorithm on some numbers of ranks, with so many elements for each of them, and one more if it may be."""
    cases = []
    for op, name in EVERY:
        for ranks in (2, 3, 4, 6, 7, 8) if EXHAUSTIVE else (3, 4, 8) if blocks == 1 else (2, 6, 7):
            even = OPS[op].multiple(ranks)
            elements = even * blocks + (1 if even == 1 and blocks > 1 else 0)
            case = case_of(op, name, ranks, elements, nodes=2 if ALGORITHMS[op][name].levels else 1)
            if scheduled.refuse(OPS[op], case) is None:
                cases.append(case)
    return cases


@pytest.mark.parametrize(
    "case",
    [*possible(1), *possible(40)],
    ids=lambda case: f"{case.op}-{explicit_algorithm(case.settings)}-{case.ranks}-{case.count}",
)
def test_what_comes_out_is_what_has_to(case: Case) -> None:
    assert wrong_elements(case) == 0


@pytest.mark.parametrize("name", ALGORITHMS["barrier"])
def test_a_barrier_holds_everybody_until_the_last_has_come(name: str) -> None:
    case, mail, late = case_of("barrier", name, 5, 0), Mail(), threading.Event()
    nothing = torch.zeros(0, dtype=torch.uint8)

    def rank(me: int) -> bool:
        operation = scheduled.bind(
            OPS["barrier"], Bound(case, nothing, nothing, group=tuple(range(5)), me=me), mail.exchange(me)
        )
        if me == 3:
            time.sleep(0.1)
            late.set()
        operation.call()
        return late.is_set()

    with ThreadPoolExecutor(5) as threads:
        assert all(threads.map(rank, range(5)))


@pytest.mark.parametrize("redop", ["sum", "product", "min", "max"])
@pytest.mark.parametrize("name", ALGORITHMS["all_reduce"])
def test_every_reduction_by_every_all_reduce(name: str, redop: str) -> None:
    assert wrong_elements(case_of("all_reduce", name, 4, 5, redop=redop, nodes=2)) == 0


@pytest.mark.parametrize(
    ("op", "name"),
    [("all_gather", "ring"), ("all_gather", "bruck"), ("reduce_scatter", "pairwise"), ("all_reduce", "ring")],
)
def test_the_other_way_of_buffers_as_well(op: str, name: str) -> None:
    assert wrong_elements(case_of(op, name, 4, 12, in_place=not OPS[op].in_place[0])) == 0


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (case_of("all_gather", "recursive-doubling", 6, 12), "power-of-two"),
        (case_of("all_gather", "neighbour-exchange", 5, 10), "even"),
        (case_of("all_gather", "tree", 4, 8), "'tree'"),
        (case_of("all_reduce", "ring", 4, 8, redop="avg"), "reduction"),
        (case_of("all_reduce", "ring", 4, 8, mode="overlap"), "steps"),
        (case_of("all_reduce", "hierarchical", 4, 8), "counts"),
        (case_of("all_reduce", "hierarchical", 5, 8, nodes=2), "counts"),
        (case_of("broadcast", "chain", 4, 8, root=1), "root"),
        (case_of("all_reduce", "ring", 1, 8), "least"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(case: Case, reason: str) -> None:
    refusal = require(scheduled.refuse(OPS[case.op], case))
    assert reason in refusal
