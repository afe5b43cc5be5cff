"""Operations: every row's buffers, data and factors, against reference implementations that know nothing of layouts."""

import itertools
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from testing.narrow import require
from testing.reference import MEANINGS, Exchange, by_layout, meaning

from busbw.backends.patterns import PERIOD, TORCH_DTYPES, Pattern, Unverifiable, count_wrong, fill, pattern, poison
from busbw.errors import UsageError
from busbw.ops import OPS, TRAINED, op_named, traffic
from busbw.ops.base import REDUCED, Layout, Op, Share, Span
from busbw.runs.records import DTYPE_BYTES, FLOAT8, REDOPS

RANKS = (1, 2, 3, 4, 7)
SIZED = [op for op in OPS.values() if op.sized and not op.computed]
REDUCING = [op for op in SIZED if op.reduces]


def members_of(op: Op) -> tuple[int, ...]:
    """The group sizes an op is tried with: the pair ops always have two."""
    return tuple(ranks for ranks in RANKS if ranks >= op.least_ranks()) if op.members == "all" else (2,)


def variants(op: Op) -> list[tuple[int, bool, int]]:
    """Ranks × in place or not × root."""
    return [
        (ranks, in_place, root)
        for ranks in members_of(op)
        for in_place in op.in_place
        for root in (sorted({0, ranks // 2, ranks - 1}) if op.rooted else [0])
    ]


class Table:
    """All ranks of one group at one table: their buffers, as the layouts want them, and what went in."""

    def __init__(self, op: Op, share: Share, made_of: Pattern, dtype: str, redop: str | None = None) -> None:
        self.op, self.share, self.made_of, self.redop = op, share, made_of, redop
        self.layouts = [op.layout(replace(share, rank=rank)) for rank in range(share.ranks)]
        self.buffers = [buffers(layout, dtype) for layout in self.layouts]
        for layout, (send, receive) in zip(self.layouts, self.buffers, strict=True):
            poison(receive, redop)
            fill(send, layout.send, made_of)
        self.sent = [send.clone() for send, _ in self.buffers]

    def exchange(self, me: int) -> Exchange:
        return Exchange(self.sent, me, self.share.root, self.redop, self.share.traffic)

    def run(self) -> None:
        for me, (_, receive) in enumerate(self.buffers):
            result = meaning(self.op, self.share)(self.exchange(me))
            if result is not None:
                receive.copy_(result)

    def wrong(self) -> list[int]:
        return [self.wrong_at(me) for me in range(self.share.ranks)]

    def wrong_at(self, me: int) -> int:
        return count_wrong(self.buffers[me][1], self.layouts[me].expect, self.made_of)


def buffers(layout: Layout, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    send = torch.zeros(layout.send_count, dtype=TORCH_DTYPES[dtype])
    receive = torch.zeros(layout.receive_count, dtype=TORCH_DTYPES[dtype])
    if layout.sends_from_receive is not None:
        send = receive[layout.sends_from_receive :][: layout.send_count]
    elif layout.receives_into_send is not None:
        receive = send[layout.receives_into_send :][: layout.receive_count]
    assert len(send) == layout.send_count
    assert len(receive) == layout.receive_count
    return send, receive


def table(
    op: Op,
    ranks: int,
    *,
    block: int,
    in_place: bool = False,
    root: int = 0,
    dtype: str = "float32",
    redop: str | None = "sum",
) -> Table:
    """A group of ``ranks`` with blocks of ``block`` elements, after the operation."""
    redop = redop if op.reduces else None
    count = block * ranks
    matrix = traffic.split(traffic.imbalanced(ranks, 0.5), count) if op.uneven else ()
    made = Table(op, Share(0, ranks, count, in_place, root, matrix), pattern(ranks, dtype, redop, seed=5), dtype, redop)
    made.run()
    return made


def starts(spans: tuple[Span, ...]) -> list[tuple[int, Span]]:
    ends = itertools.accumulate((span.length for span in spans), initial=0)
    return [(start, span) for start, span in zip(ends, spans, strict=False) if span.length]


# --- right data are right --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
def test_the_meaning_of_an_op_and_its_layout_agree(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        for block in (1, 5, PERIOD + 3):
            made = table(op, ranks, block=block, in_place=in_place, root=root)
            assert made.wrong() == [0] * ranks, (ranks, in_place, root, block)


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_every_dtype_and_reduction_verifies(op: Op, dtype: str) -> None:
    for ranks, redop in itertools.product(members_of(op), REDOPS if op.reduces else ("sum",)):
        if redop == "avg" and dtype in FLOAT8 and ranks > 2:
            continue  # it has no exact test
        made = table(op, ranks, block=160, dtype=dtype, redop=redop, in_place=op.in_place[0])
        assert made.wrong() == [0] * ranks, (ranks, redop)


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
def test_somebody_receives_and_buffers_that_are_shared_are_shared(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        layouts = [
            op.layout(Share(rank, ranks, ranks * 4, in_place, root, ((1,) * ranks,) * ranks)) for rank in range(ranks)
        ]
        assert any(layout.receive_count for layout in layouts)
        assert any(layout.send_count for layout in layouts)
        for layout in layouts:
            assert layout.sends_from_receive is None or layout.receives_into_send is None
        aliased = any(
            layout.sends_from_receive is not None or layout.receives_into_send is not None for layout in layouts
        )
        assert aliased == (in_place or op.in_place == (True,))


@pytest.mark.parametrize("op", [op for op in SIZED if not op.local], ids=lambda op: op.name)
def test_over_a_network_s_is_the_largest_buffer_of_a_rank(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        layouts = [
            op.layout(Share(rank, ranks, ranks * 4, in_place, root, ((4,) * ranks,) * ranks)) for rank in range(ranks)
        ]
        assert max(max(layout.send_count, layout.receive_count) for layout in layouts) == ranks * 4


def test_the_layout_of_an_even_exchange_grows_with_the_ranks_and_not_with_their_square() -> None:
    tracemalloc.start()
    try:
        OPS["all_to_all"].layout(Share(0, 4096, 4096))
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


# --- wrong data are caught -------------------------------------------------------------------------------------

BLOCK = 7


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
def test_any_corrupted_element_is_counted(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        made = table(op, ranks, block=BLOCK, in_place=in_place, root=root)
        for me, (_, receive) in enumerate(made.buffers):
            for place in range(len(receive)):
                right = receive[place].clone()
                receive[place] = float("nan") if place % 7 == 0 else right + 1
                assert made.wrong_at(me) == 1
                receive[place] = right


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
def test_a_block_that_is_missing_misplaced_duplicated_or_shifted_is_caught(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        made = table(op, ranks, block=BLOCK, in_place=in_place, root=root)
        for me, (_, receive) in enumerate(made.buffers):
            right = receive.clone()
            blocks = starts(made.layouts[me].expect)
            for start, span in blocks:
                here = slice(start, start + span.length)
                poison(receive[here], made.redop)
                assert made.wrong_at(me) > 0, "missing"
                receive[here] = 0
                assert made.wrong_at(me) > 0, "zeroed"
                if span.length > 1:
                    receive[here] = torch.roll(right[here], 1)
                    assert made.wrong_at(me) > 0, "shifted"
                receive.copy_(right)
            for (first_begin, first), (second_begin, second) in itertools.combinations(blocks, 2):
                length = min(first.length, second.length)
                receive[first_begin : first_begin + length] = right[second_begin : second_begin + length]
                assert made.wrong_at(me) > 0, "duplicated"
                receive[second_begin : second_begin + length] = right[first_begin : first_begin + length]
                assert made.wrong_at(me) > 0, "swapped"
                receive.copy_(right)
            assert made.wrong_at(me) == 0


@pytest.mark.parametrize("name", ["all_to_all", "all_to_all_v", "scatter", "reduce_scatter"])
def test_a_block_for_another_rank_is_caught(name: str) -> None:
    for ranks in RANKS[1:]:
        made = table(OPS[name], ranks, block=BLOCK)
        results = [receive.clone() for _, receive in made.buffers]
        for me, other in itertools.permutations(range(ranks), 2):
            length = min(len(results[me]), len(results[other]))
            made.buffers[me][1][:length] = results[other][:length]
            assert made.wrong_at(me) > 0, (ranks, me, other)
            made.buffers[me][1].copy_(results[me])


@pytest.mark.parametrize("name", ["all_gather", "gather", "broadcast", "send_recv"])
def test_the_data_of_any_two_ranks_differ_in_every_element(name: str) -> None:
    """So even a block of one element from the wrong rank is seen."""
    made = table(OPS[name], 7, block=1, root=3)
    fresh = pattern(7, "float32", None, seed=5).table
    for rank, other in itertools.combinations(range(7), 2):
        assert bool((fresh[rank] != fresh[other]).all())
    assert made.wrong() == [0] * 7


@pytest.mark.parametrize("op", REDUCING, ids=lambda op: op.name)
@pytest.mark.parametrize("redop", REDOPS)
def test_a_contribution_that_is_lost_or_counted_twice_is_caught(op: Op, redop: str) -> None:
    neutral = {"sum": 0.0, "avg": 0.0, "product": 1.0, "min": 1000.0, "max": -1000.0}[redop]
    for ranks in RANKS[1:]:
        made = table(op, ranks, block=PERIOD, in_place=op.in_place[0], redop=redop)
        whole = made.sent
        for lost in range(ranks):
            made.sent = [torch.full_like(part, neutral) if rank == lost else part for rank, part in enumerate(whole)]
            made.run()
            assert sum(made.wrong()) > 0, (ranks, lost, "lost")
            if redop in {"sum", "avg", "product"}:
                twice = {"product": whole[lost] * whole[lost]}.get(redop, whole[lost] + whole[lost])
                made.sent = [twice if rank == lost else part for rank, part in enumerate(whole)]
                made.run()
                assert sum(made.wrong()) > 0, (ranks, lost, "twice")
        made.sent = whole
        made.run()
        assert sum(made.wrong()) == 0


def test_in_a_sum_no_contribution_is_zero_so_that_one_element_shows_a_loss() -> None:
    for ranks, dtype in itertools.product((2, 7, 16), ("float32", "int8", "bfloat16", "uint8")):
        assert int(pattern(ranks, dtype, "sum", seed=5).table.min()) > 0


# --- factors ---------------------------------------------------------------------------------------------------

NCCL_TESTS: dict[str, Callable[[int], float]] = {
    # src/*.cu, GetBw: factor by which algorithm bandwidth becomes bus bandwidth
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "all_to_all_v": lambda n: (n - 1) / n,
    "broadcast": lambda _n: 1.0,
    "reduce": lambda _n: 1.0,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "send_recv": lambda _n: 1.0,
}


@given(st.integers(2, 100_000))
def test_bus_factors_are_those_of_nccl_tests(ranks: int) -> None:
    for name, factor in NCCL_TESTS.items():
        assert OPS[name].factor(ranks) == pytest.approx(factor(ranks), rel=1e-12)


def test_what_never_crosses_a_wire_has_no_factor() -> None:
    assert all((op.factor(4) is None) == (op.wire_bytes(4, 1 << 20) == 0) for op in OPS.values())
    assert {"barrier", "checkpoint_save"} | TRAINED <= {op.name for op in OPS.values() if op.factor(4) is None}


@pytest.mark.parametrize("op", [op for op in SIZED if not op.local], ids=lambda op: op.name)
def test_the_wire_carries_at_least_what_the_layouts_make_foreign(op: Op) -> None:
    for ranks in members_of(op):
        count = ranks * 12
        even = ((12,) * ranks,) * ranks if op.uneven else ()
        layouts = [op.layout(Share(rank, ranks, count, traffic=even)) for rank in range(ranks)]
        foreign = sum(
            span.length
            for rank, layout in enumerate(layouts)
            for span in layout.expect
            if span.source not in {rank, REDUCED}
        )
        wire = op.wire_bytes(ranks, count)
        assert wire >= foreign / op.trips
        if not op.reduces:
            assert wire == foreign / op.trips


@given(st.integers(2, 1000), st.integers(1, 1 << 30))
def test_where_all_ranks_send_alike_each_sends_factor_times_size(ranks: int, size: int) -> None:
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        op = OPS[name]
        factor = require(op.factor(ranks))
        assert op.wire_bytes(ranks, size) / ranks == pytest.approx(factor * size)


# --- the table -------------------------------------------------------------------------------------------------


def test_every_reference_is_of_an_op_and_what_is_computed_has_one() -> None:
    computed = {op.name for op in OPS.values() if op.computed}
    assert computed - TRAINED <= set(MEANINGS) <= set(OPS), "steps of training are held against one process"


@pytest.mark.parametrize("op", SIZED, ids=lambda op: op.name)
def test_what_the_layouts_of_all_ranks_say_together_is_the_meaning_of_an_op(op: Op) -> None:
    for ranks, in_place, root in variants(op):
        made = table(op, ranks, block=BLOCK, in_place=in_place, root=root)
        for me in range(ranks):
            result, meant = (by_layout(op, made.share, made.exchange(me)), meaning(op, made.share)(made.exchange(me)))
            assert (result is None) == (meant is None)
            assert result is None or meant is None or torch.equal(result, meant.expand_as(result))


_OF_TWO = {
    *("ping_pong", "pair_uni", "pair_bidir", "pair_matrix", "tcp_ping_pong", "train_exchange"),
    *(name for name, op in OPS.items() if op.between_devices),
}


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_a_row_is_complete(op: Op) -> None:
    assert op.summary
    assert op.size_meaning
    assert op.in_place
    assert op.least_ranks() == 2 or op.name not in _OF_TWO
    assert op.trips >= 1
    assert all(op.multiple(ranks) in {1, ranks} for ranks in RANKS)
    assert not (op.reduces and not op.sized)


def test_an_unknown_op_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        op_named("nothing_like_it")
    assert all(name in str(caught.value) for name in OPS)
    with pytest.raises(UsageError):
        op_named("allreduce")


def test_a_reduced_span_without_a_reduction_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="reduces"):
        pattern(2, "float32", None, 1).row(Span(1, REDUCED))


def test_what_cannot_be_exact_is_not_verified() -> None:
    with pytest.raises(Unverifiable, match="int8"):
        pattern(40, "int8", "avg", 1)
