"""Data that prove themselves: exact in every dtype, different for every rank, and seen when they are wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.narrow import require
from testing.reference import Exchange

from busbw.backends import patterns
from busbw.backends.patterns import (
    EXACT_UP_TO,
    PERIOD,
    TORCH_DTYPES,
    Pattern,
    Unverifiable,
    count_wrong,
    fill,
    pattern,
    poison,
    settle,
)
from busbw.ops.base import REDUCED, Span
from busbw.runs.records import DTYPE_BYTES, FLOAT8, REDOPS

RANKS = (1, 2, 3, 7, 16, 127, 300)


def truth(table: torch.Tensor, redop: str) -> torch.Tensor:
    """The reduction in 64-bit integers, where nothing is rounded."""
    whole = table.to(torch.int64)
    if redop == "avg":
        assert bool((whole.sum(0) % len(whole) == 0).all()), "an average that is no whole number"
        return whole.sum(0) // len(whole)
    return {
        "sum": lambda: whole.sum(0),
        "product": lambda: whole.prod(0),
        "min": lambda: whole.min(0).values,
        "max": lambda: whole.max(0).values,
    }[redop]()


def made(ranks: int, dtype: str, redop: str | None, seed: int = 3) -> Pattern | None:
    try:
        return pattern(ranks, dtype, redop, seed)
    except Unverifiable:
        return None


def test_every_stored_dtype_has_a_torch_dtype_and_a_limit() -> None:
    assert set(TORCH_DTYPES) == set(DTYPE_BYTES) == set(EXACT_UP_TO)
    for name, size in DTYPE_BYTES.items():
        assert torch.empty(0, dtype=TORCH_DTYPES[name]).element_size() == size


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_limit_is_the_last_whole_number_before_a_gap(dtype: str) -> None:
    limit, kind = EXACT_UP_TO[dtype], TORCH_DTYPES[dtype]
    if kind.is_floating_point:
        near = torch.tensor([limit - 1, limit], dtype=torch.float64)
        assert near.to(kind).to(torch.float64).tolist() == near.tolist()
        beyond = torch.tensor([float(limit + 1)], dtype=torch.float64)
        assert dtype == "float64" or beyond.to(kind).to(torch.float64).item() != limit + 1
    else:
        assert limit == torch.iinfo(kind).max


@pytest.mark.parametrize("redop", REDOPS)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_expected_result_is_the_truth_and_every_partial_result_is_exact(dtype: str, redop: str) -> None:
    for ranks in RANKS:
        contents = made(ranks, dtype, redop)
        if contents is None:
            assert redop == "avg", "only an average may have no exact test"
            continue
        assert contents.reduced is not None
        expected = truth(contents.table, redop)
        assert torch.equal(contents.reduced.to(torch.int64), expected), ranks
        assert int(expected.abs().max()) <= EXACT_UP_TO[dtype]
        if redop in {"sum", "avg"}:
            assert int(contents.table.to(torch.int64).sum(0).max()) <= EXACT_UP_TO[dtype]


@pytest.mark.parametrize("redop", ["sum", "avg", "product"])
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_library_may_combine_in_any_order(dtype: str, redop: str) -> None:
    for ranks in (2, 3, 7, 16, 64):
        contents = made(ranks, dtype, redop)
        if contents is None:
            continue
        for order in (list(range(ranks)), list(reversed(range(ranks))), sorted(range(ranks), key=lambda r: r * 7 % 5)):
            result = Exchange([contents.table[rank] for rank in order], 0, redop=redop).reduced()
            assert torch.equal(result, require(contents.reduced)), (ranks, order)


def test_an_average_without_an_exact_test_says_so() -> None:
    with pytest.raises(Unverifiable, match="int8"):
        pattern(16, "int8", "avg", 1)
    assert made(11, "int8", "avg") is None
    assert made(8, "int8", "avg") is not None


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("redop", [None, *REDOPS])
def test_no_element_of_a_buffer_that_was_never_written_passes_for_a_result(dtype: str, redop: str | None) -> None:
    for ranks in (1, 2, 4, 7, 16, 100):
        contents = made(ranks, dtype, redop)
        if contents is None:
            continue
        untouched = torch.zeros(PERIOD, dtype=TORCH_DTYPES[dtype])
        poison(untouched, redop)
        sources = [REDUCED] if redop else list(range(ranks))
        assert all(count_wrong(untouched, (Span(PERIOD, source),), contents) == PERIOD for source in sources)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_no_reduction_passes_for_another_and_none_is_the_same_everywhere(dtype: str, ranks: int) -> None:
    for redop in REDOPS:
        contents = made(ranks, dtype, redop)
        if contents is None or contents.reduced is None:
            continue
        assert len(set(contents.reduced.tolist())) > 1
        for other in REDOPS:
            if other == redop or (other == "avg" and bool((contents.table.to(torch.int64).sum(0) % ranks).any())):
                continue
            assert bool((truth(contents.table, other) != contents.reduced.to(torch.int64)).any()), (redop, other)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_moved_8_bit_floats_are_told_apart_by_their_bytes(dtype: str) -> None:
    """Some of the bytes are NaN, which differs from itself."""
    contents, where = pattern(2, dtype, None, 1), (Span(PERIOD, 1),)
    buffer = torch.empty(PERIOD, dtype=TORCH_DTYPES[dtype])
    fill(buffer, where, contents)
    assert count_wrong(buffer, where, contents) == 0
    assert len(set(buffer.view(torch.uint8).tolist())) > 100
    buffer.view(torch.uint8)[7] ^= 1
    assert count_wrong(buffer, where, contents) == 1


@pytest.mark.parametrize("redop", [None, *REDOPS])
def test_all_ranks_differ_and_so_do_all_phases(redop: str | None) -> None:
    contents = pattern(7, "int8" if redop is None else "float32", redop, 1)
    assert len({tuple(row) for row in contents.table.tolist()}) == 7
    if redop is None:
        phases = {tuple(contents.row(Span(5, 2, phase)).tolist()) for phase in range(300)}
        assert len(phases) == 300


def test_a_pattern_follows_from_its_seed() -> None:
    same, other = pattern(4, "float32", "sum", 1), pattern(4, "float32", "sum", 2)
    assert torch.equal(same.table, pattern(4, "float32", "sum", 1).table)
    assert not torch.equal(same.table, other.table)
    assert not torch.equal(pattern(4, "int8", None, 1).table, pattern(4, "int8", None, 2).table)


spans = st.lists(
    st.builds(Span, st.integers(0, 2 * PERIOD + 5), st.integers(REDUCED, 3), st.integers(0, 5000)), max_size=4
)


@given(spans)
@settings(deadline=None, max_examples=50)
def test_what_fill_writes_count_wrong_finds_right(given_spans: list[Span]) -> None:
    contents = pattern(4, "float32", "sum", 1)
    buffer = torch.zeros(sum(span.length for span in given_spans))
    fill(buffer, given_spans, contents)
    assert count_wrong(buffer, given_spans, contents) == 0
    start = 0
    for span in given_spans:
        source = contents.reduced if span.source == REDUCED else contents.table[span.source]
        assert source is not None
        shift = span.phase if span.source == REDUCED else span.phase * 37
        for place in {0, span.length // 2, span.length - 1} if span.length else set():
            assert buffer[start + place] == source[(shift + place) % PERIOD]
        start += span.length


@given(st.integers(1, 3 * PERIOD), st.data())
@settings(deadline=None, max_examples=50)
def test_exactly_the_changed_elements_are_wrong(length: int, data: st.DataObject) -> None:
    contents, where = pattern(2, "float32", None, 1), (Span(length, 1, 4),)
    buffer = torch.zeros(length)
    fill(buffer, where, contents)
    places = data.draw(st.sets(st.integers(0, length - 1), max_size=10))
    for place in places:
        buffer[place] = float("nan") if place % 2 else 0.5
    assert count_wrong(buffer, where, contents) == len(places)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("redop", REDOPS)
def test_settled_data_stay_as_they_are_whatever_is_reduced(dtype: str, redop: str) -> None:
    buffers = [torch.full((4,), 5, dtype=TORCH_DTYPES[dtype]) for _ in range(7)]
    for buffer in buffers:
        settle(buffer, redop)
    before = buffers[0].clone()
    assert torch.equal(Exchange(buffers, 0, redop=redop).reduced(), before)


@pytest.mark.parametrize("extra", [0, 7])
def test_a_large_buffer_is_compared_in_pieces_and_nothing_is_left_out(
    extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for several times its size need not be there beside it."""
    monkeypatch.setattr(patterns, "_PERIODS_AT_ONCE", 2)
    counted: list[int] = []
    count = torch.count_nonzero

    def noted(unlike: torch.Tensor) -> torch.Tensor:
        counted.append(unlike.numel())
        return count(unlike)

    made_of = pattern(2, "int32", None, seed=3)
    spans = (Span(5 * PERIOD + extra, 1), Span(3, 0))
    buffer = torch.zeros(sum(span.length for span in spans), dtype=torch.int32)
    fill(buffer, spans, made_of)
    monkeypatch.setattr(torch, "count_nonzero", noted)
    assert count_wrong(buffer, spans, made_of) == 0
    assert max(counted) == 2 * PERIOD
    assert sum(counted) == len(buffer)
    for place in (0, 2 * PERIOD - 1, 2 * PERIOD, 5 * PERIOD - 1, len(buffer) - 1):
        buffer[place] += 1
    assert count_wrong(buffer, spans, made_of) == 5
