"""Groups and pairs: splits as nccl-tests makes them, and tournaments in which everybody meets everybody once."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.errors import UsageError
from busbw.ops.groups import number_of_rounds, pair_rounds, split_world

COLOUR = {
    # NCCL_TESTS_SPLIT, src/common.cu: ranks of one colour are one communicator
    "and": lambda rank, value: rank & value,
    "or": lambda rank, value: rank | value,
    "mod": lambda rank, value: rank % value,
    "div": lambda rank, value: rank // value,
}


@given(st.sampled_from(sorted(COLOUR)), st.integers(1, 70), st.integers(1, 64), st.booleans())
def test_a_split_is_that_of_nccl_tests(how: str, value: int, ranks: int, hexadecimal: bool) -> None:  # noqa: FBT001
    groups = split_world(f"{how}:{hex(value) if hexadecimal else value}", ranks)
    assert sorted(itertools.chain(*groups)) == list(range(ranks)), "everybody is somewhere, once"
    for group in groups:
        assert list(group) == sorted(group)
        assert len({COLOUR[how](rank, value) for rank in group}) == 1
    assert len({COLOUR[how](group[0], value) for group in groups}) == len(groups)


def test_splits_as_they_are_used() -> None:
    assert split_world("all", 4) == ((0, 1, 2, 3),)
    assert split_world("div:2", 5) == ((0, 1), (2, 3), (4,))
    assert split_world("MOD:2", 4) == ((0, 2), (1, 3))
    assert split_world("and:0x1", 4) == ((0, 2), (1, 3))
    assert split_world("and:0", 3) == ((0, 1, 2),)
    assert split_world("or:1", 4) == ((0, 1), (2, 3))


def test_a_list_keeps_its_order_and_leaves_the_others_idle() -> None:
    assert split_world("3,0; 1", 5) == ((3, 0), (1,))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("half", "MASK"),
        ("", "split"),
        ("0,1;", "split"),
        ("-1,0", "split"),
        ("div:2.5", "split"),
        ("xor:1", "split"),
        ("div:0", "above 0"),
        ("mod:0x0", "above 0"),
        ("0,4", "exist"),
        ("0,1;1,2", "listed"),
    ],
)
def test_what_is_no_split_is_refused(spec: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        split_world(spec, 4)
    assert repr(spec) in str(caught.value)
    assert said in str(caught.value)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 200), min_size=2, max_size=24, unique=True))
def test_together_all_ordered_pairs_meet_once_and_nobody_plays_twice_in_a_round(members: list[int]) -> None:
    rounds = pair_rounds(tuple(members), together=True)
    pairs = [pair for turn in rounds for pair in turn]
    assert sorted(pairs) == sorted(itertools.permutations(members, 2))
    for turn in rounds:
        playing = list(itertools.chain(*turn))
        assert len(playing) == len(set(playing))
    size = len(members)
    assert len(rounds) == 2 * (size - 1 + size % 2)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=12, unique=True))
def test_alone_a_round_is_one_pair(members: list[int]) -> None:
    rounds = pair_rounds(tuple(members), together=False)
    assert all(len(turn) == 1 for turn in rounds)
    assert sorted(turn[0] for turn in rounds) == sorted(itertools.permutations(members, 2))


@pytest.mark.parametrize("together", [True, False])
def test_rounds_are_counted_as_they_are_made(together: bool) -> None:  # noqa: FBT001 - it is what differs
    for size in range(1, 40):
        assert number_of_rounds(size, together=together) == len(pair_rounds(tuple(range(size)), together=together))


def test_the_split_of_the_most_ranks_is_made_once_for_all_cases() -> None:
    # Of a sweep of 22 sizes over 131,072 ranks a dry run asked for it 24 times, which took more than 2 s.
    assert split_world("or:0x3", 131_072) is split_world("or:0x3", 131_072)
