"""Pairs within a host against pairs between hosts, in runs whose truth is known, and what cannot be told apart."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.runs.placement import RankPlacement
from busbw.runs.records import Case
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.groups import groups_of
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.distances import indistinct, kinds, splits_of, steps_between
from busbw_analysis.diagnosis.judge import Judgement

MIB = 1 << 20
FAST, SLOW, FAR = (Piece(2e-6, 1e-10),), (Piece(50e-6, 1e-9),), (Piece(80e-6, 4e-9),)
"""10 GB/s within a host; 1 GB/s between hosts; a quarter of that between leaf switches."""
WORLD = World(by_distance={0: FAST, None: SLOW, 1: SLOW, 2: FAR}, sample_noise=0.02, launch_noise=0.03)
HOSTS = ("n1", "n2", "n3", "n4")
TREE = {host: ("spine", f"leaf{number // 2}") for number, host in enumerate(HOSTS)}


def judged(*cases: Case, tree: bool = False, launches: int = 6, world: World = WORLD) -> Judgement:
    machine = Machine(hosts=HOSTS, switches=TREE if tree else {})
    return judge(pool((synthetic_run(cases, world, machine=machine, launches=launches),)))


def matrix(size: int = MIB, ranks: int = 8) -> Case:
    return case("pair_matrix", size, ranks, nodes=4, pairs="together")


def test_pairs_within_a_host_and_between_hosts_have_their_own_numbers() -> None:
    (split,) = judged(matrix()).splits
    within, between = split.classes
    assert (within.name, within.pairs, between.name, between.pairs) == ("within a host", 8, "between hosts", 48)
    assert within.rate == pytest.approx(MIB / (2e-6 + MIB / 10e9), rel=0.05)
    assert between.rate == pytest.approx(MIB / (50e-6 + MIB / 1e9), rel=0.05)
    true_ratio = (50e-6 + MIB / 1e9) / (2e-6 + MIB / 10e9)
    assert between.times_within == pytest.approx(true_ratio, rel=0.02)
    ends = (between.times_low or 0.0, between.times_within or 0.0, between.times_high or 0.0)
    assert ends == tuple(sorted(ends))
    assert ends[0] > 0
    assert between.interval.kind == "95 % over launches"
    assert within.times_within is None


def test_where_slurm_knows_the_switches_pairs_are_told_apart_by_them() -> None:
    (split,) = judged(matrix(8), tree=True).splits
    assert [(kind.name, kind.pairs, kind.part) for kind in split.classes] == [
        ("within a host", 8, False),
        ("between hosts", 48, False),
        ("below one leaf switch", 16, True),
        ("between leaf switches", 32, True),
    ]
    leaf, far = split.classes[2:]
    assert leaf.time_ns == pytest.approx(50e3, rel=0.05)
    assert far.time_ns == pytest.approx(80e3, rel=0.05)
    assert far.times_within == pytest.approx(40, rel=0.05)


def test_one_leaf_switch_is_no_part_of_anything() -> None:
    machine = Machine(hosts=HOSTS, switches=dict.fromkeys(HOSTS, ("spine", "leaf")))
    (split,) = judge(pool((synthetic_run([matrix()], WORLD, machine=machine),))).splits
    assert [kind.name for kind in split.classes] == ["within a host", "between hosts"]


def test_groups_of_one_operation_are_held_against_each_other() -> None:
    splits = judged(*(case("ping_pong", MIB, 8, nodes=4, group=group) for group in ("all", "div:2"))).splits
    (split,) = splits
    assert [(kind.name, kind.pairs) for kind in split.classes] == [("within a host", 4), ("between hosts", 1)]
    assert split.classes[1].slowest == (0, 7)
    assert split.classes[1].times_within == pytest.approx(10, rel=0.1)


def test_fewer_launches_have_a_range_and_one_has_nothing() -> None:
    few, single = (judged(matrix(), launches=launches).splits[0].classes[1] for launches in (3, 1))
    assert few.interval.kind == "range of launch medians"
    assert (single.interval.low_ns, single.times_low, single.interval.kind) == (None, None, "none")
    assert single.times_within == pytest.approx(10, rel=0.2)


def test_one_host_has_nothing_to_split_and_no_collective_is_a_pair() -> None:
    one_host = judge(pool((synthetic_run([case("pair_matrix", 8)], WORLD),)))
    assert one_host.splits == ()
    assert judged(case("all_reduce", 8, 8, nodes=4)).splits == ()


def test_pairs_with_other_launches_have_no_interval() -> None:
    judgement = judged(matrix())
    summary = judgement.cases[0]
    without_first = summary.groups.rows.take(np.arange(1, len(summary.groups.rows)))
    lacking = replace(summary, groups=groups_of(summary.index, summary.case, [(0, without_first)]))
    (split,) = splits_of([lacking], judgement.facts.placements)
    assert {kind.interval.kind for kind in split.classes} == {"none", "95 % over launches"}
    assert split.classes[1].times_within is None


def test_the_report_says_the_split_in_words_table_and_json() -> None:
    report = compose(judged(matrix(8), matrix(MIB), tree=True))
    splits = json.loads(report.json)["pair_splits"]
    assert [split["size_bytes"] for split in splits] == [8, MIB]
    assert [kind["name"] for kind in splits[0]["classes"]][:2] == ["within a host", "between hosts"]
    (first, *_) = json.loads(report.json)["pair_matrices"]
    assert first["steps"][0][:4] == [0, 0, 1, 1]
    assert first["hosts"][:3] == ["n1", "n1", "n2"]


def test_a_heatmap_puts_ranks_of_a_host_and_hosts_of_a_leaf_side_by_side() -> None:
    """Slurm orders nodes by name, switches need not follow it."""
    machine = Machine(hosts=HOSTS, switches={host: (f"leaf{number % 2}",) for number, host in enumerate(HOSTS)})
    report = compose(judge(pool((synthetic_run([matrix()], WORLD, machine=machine),))))
    text = report.text.replace("\\", "")
    head = next(line for line in text.splitlines() if line.startswith("| host | from"))
    assert [cell.strip() for cell in head.split("|")[3:-1]] == [
        *("leaf0 · n1: 0", "leaf0 · n1: 1", "leaf0 · n3: 4", "leaf0 · n3: 5"),
        *("leaf1 · n2: 2", "leaf1 · n2: 3", "leaf1 · n4: 6", "leaf1 · n4: 7"),
    ]


# --- like with like --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_what_is_far_is_not_slow(seed: int) -> None:
    for ranks, tree in ((8, False), (8, True), (4, True)):
        world = WORLD if tree else replace(WORLD, by_distance={0: FAST, None: SLOW})
        machine = Machine(hosts=HOSTS, switches=TREE if tree else {})
        run = synthetic_run([matrix(MIB, ranks)], world, machine=machine, launches=6, seed=seed)
        assert judge(pool((run,))).matrices[0].outliers == ()


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ({"slow_pairs": ((0, 3),)}, ("pair", "0 → 3")),
        ({"slow_pairs": ((0, 1),)}, ("pair", "0 → 1")),
        ({"slow_ranks": (1,)}, ("rank", "rank 1")),
    ],
)
def test_what_is_slow_is_named_among_its_like(ranks: int, slow: dict[str, object], named: tuple[str, str]) -> None:
    world = replace(WORLD, slow_factor=2.0, **slow)  # type: ignore[arg-type]  # fields of World, by name
    outliers = judged(matrix(MIB, ranks), tree=True, world=world).matrices[0].outliers
    if ranks == 4 and named[0] == "rank":
        named = ("host", "host n2")
    assert [(odd.kind, odd.name) for odd in outliers] == [named]


def places(*leaves: str, each: int = 1) -> tuple[list[str], tuple[RankPlacement, ...]]:
    seats = [
        RankPlacement(rank, f"n{rank // each}", switches=("s", leaves[rank // each]))
        for rank in range(len(leaves) * each)
    ]
    return [seat.host for seat in seats], tuple(seats)


@pytest.mark.parametrize(
    ("leaves", "each", "named"),
    [
        ("aabb", 1, None),
        ("aaaa", 1, None),
        ("abbb", 1, "whether n0 or"),
        ("ab", 4, "whether n0, n1 or"),
        ("aa", 4, "whether n0, n1 or"),
        ("a", 8, None),
        ("aab", 2, "whether n2 or"),
    ],
)
def test_a_host_that_stands_alone_is_said_to_be_indistinct(leaves: str, each: int, named: str | None) -> None:
    hosts, seats = places(*leaves, each=each)
    said = indistinct(hosts, kinds(steps_between(seats, range(len(seats)))))
    assert said is None if named is None else said is not None and said.startswith(named)


SEATS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "y"])), min_size=2, max_size=7)


@given(SEATS)
def test_kinds_take_every_pair_exactly_once(drawn: list[tuple[str, str]]) -> None:
    seats = [
        RankPlacement(rank, host, switches=None if not leaf else (leaf, leaf + host))
        for rank, (host, leaf) in enumerate(drawn)
    ]
    masks = kinds(steps_between(seats, range(len(seats))))
    assert (np.sum(masks, axis=0) == ~np.eye(len(seats), dtype=np.bool_)).all()
    for mask in masks:
        assert (mask == mask.T).all()
        assert mask.any()


def test_a_rank_without_a_seat_is_as_far_as_is_not_known() -> None:
    assert steps_between((RankPlacement(0, "a"),), (0, 1)) == ((0, None), (None, None))
