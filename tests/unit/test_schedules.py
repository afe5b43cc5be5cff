"""Algorithms do what they are for, whatever the number of ranks, and cost what theory says that they cost."""

from __future__ import annotations

from collections import Counter

import pytest
from exhaustive import EXHAUSTIVE, RANKS
from schedule_counts import Contribution, by_level, cost, execute, through_a_link
from switched_schedules import SWITCHED
from testing.narrow import require

from busbw.ops.algorithms import ALGORITHMS, double_tree
from busbw.ops.schedules import Schedule, Transfer
from busbw.ops.trees import twins
from busbw_analysis.models import textbook
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.textbook import TEXTBOOK

EVERY = [(op, name) for op, named in ALGORITHMS.items() for name in named]
LEVELS = [(op, name) for op, name in EVERY if ALGORITHMS[op][name].levels]
FLAT = [(op, name) for op, name in EVERY if not ALGORITHMS[op][name].levels]


def schedule_of(op: str, name: str, ranks: int, hosts: int = 1) -> Schedule | None:
    algorithm = ALGORITHMS[op][name]
    return None if algorithm.refuse(ranks) is not None else algorithm.on(ranks, hosts)


def all_of(ranks: int, block: int) -> Contribution:
    return frozenset((rank, block) for rank in range(ranks))


def one_of(rank: int, block: int) -> Contribution:
    return frozenset({(rank, block)})


def meaning(op: str, ranks: int, blocks: int) -> tuple[tuple[Contribution, ...], ...]:
    """What each rank has to end with, from the definition of the operation."""
    every = range(ranks)
    only_root = ((),) * (ranks - 1)
    meanings: dict[str, tuple[tuple[Contribution, ...], ...]] = {
        "all_reduce": (tuple(all_of(ranks, block) for block in range(blocks)),) * ranks,
        "all_gather": (tuple(one_of(rank, 0) for rank in every),) * ranks,
        "reduce_scatter": tuple((all_of(ranks, rank),) for rank in every),
        "all_to_all": tuple(tuple(one_of(source, rank) for source in every) for rank in every),
        "broadcast": (tuple(one_of(0, block) for block in range(blocks)),) * ranks,
        "reduce": (tuple(all_of(ranks, block) for block in range(blocks)), *only_root),
        "gather": (tuple(one_of(rank, 0) for rank in every), *only_root),
        "scatter": tuple((one_of(0, rank),) for rank in every),
        "barrier": ((),) * ranks,
    }
    return meanings[op]


@pytest.mark.parametrize(("op", "name"), FLAT)
def test_every_rank_ends_with_what_the_operation_means(op: str, name: str) -> None:
    tried = 0
    for ranks in RANKS:
        schedule = schedule_of(op, name, ranks)
        if schedule is not None:
            assert execute(schedule) == meaning(op, ranks, schedule.blocks), ranks
            tried += 1
    assert tried >= 6


@pytest.mark.parametrize(("op", "name"), LEVELS)
@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8])
def test_levels_of_hosts_end_alike(hosts: int, op: str, name: str) -> None:
    for on_host in range(1, 9):
        schedule = require(schedule_of(op, name, hosts * on_host, hosts))
        assert execute(schedule) == meaning(op, hosts * on_host, schedule.blocks)


@pytest.mark.parametrize("name", ALGORITHMS["barrier"])
def test_a_barrier_lets_nobody_go_before_the_last_has_come(name: str) -> None:
    for ranks in RANKS:
        schedule = require(schedule_of("barrier", name, ranks))
        heard = [{rank} for rank in range(ranks)]
        for messages in schedule.rounds:
            before = [set(words) for words in heard]
            for transfer in messages:
                heard[transfer.to] |= before[transfer.source]
        assert all(words == set(range(ranks)) for words in heard)


@pytest.mark.parametrize("row", TEXTBOOK, ids=lambda row: f"{row.op} {row.algorithm}")
def test_the_formula_is_what_is_counted(row: CostModel) -> None:
    tried = 0
    for ranks in RANKS:
        for hosts in (1, 2, 4, 8) if ALGORITHMS[row.op][row.algorithm].levels else (1,):
            if ranks % hosts or not (row.possible(ranks, hosts, 1) or ranks == 1):
                continue
            schedule = schedule_of(row.op, row.algorithm, ranks, hosts)
            if schedule is None:
                assert ranks == 1, "one rank is nobody's neighbour"
                continue
            counted = cost(schedule)
            in_bytes = [float(volume) for volume in (counted.sent, counted.added, counted.moved)]
            assert said(row, ranks, hosts) == pytest.approx([counted.rounds, counted.messages, *in_bytes]), (
                ranks,
                hosts,
            )
            tried += 1
    assert tried >= 6


def said(row: CostModel, ranks: int, hosts: int) -> list[float]:
    """What a row has for its rounds, messages, and bytes sent, added and moved."""
    return [
        count(ranks, hosts, 1) for count in (row.rounds, row.messages or row.rounds, row.sent, row.added, row.moved)
    ]


@pytest.mark.parametrize(
    "row", [*TEXTBOOK, *textbook.LIMITS, *textbook.SWITCHED], ids=lambda row: f"{row.op} {row.algorithm}"
)
def test_one_rank_alone_has_no_round_and_no_byte(row: CostModel) -> None:
    assert said(row, 1, 1) == [0] * 5
    assert not row.possible(1, 1, 1), "nobody is to be asked to measure it"


SHAPES = [(ranks, hosts) for ranks in RANKS for hosts in range(2, ranks + 1) if ranks % hosts == 0]


@pytest.mark.parametrize(("op", "name"), LEVELS)
def test_what_stays_inside_a_host_and_what_goes_between_is_what_is_counted(op: str, name: str) -> None:
    row = textbook.ROWS[op, name]
    for ranks, hosts in SHAPES:
        on_host = ranks // hosts
        counted = by_level(ALGORITHMS[op][name].on(ranks, hosts), on_host)
        in_bytes = [float(volume) for volume in (counted.inner, counted.between, counted.of_a_host)]
        between = row.between(ranks, hosts, 1)
        said = [row.inner_rounds(ranks, hosts, 1), row.inner_sent(ranks, hosts, 1), between, on_host * between]
        assert said == pytest.approx([counted.inner_rounds, *in_bytes]), (ranks, hosts)


@pytest.mark.parametrize(("op", "name"), LEVELS)
def test_rounds_are_mixed_where_a_row_says_that_levels_overlap_and_nowhere_else(op: str, name: str) -> None:
    row = textbook.ROWS[op, name]
    kinds = [
        {message.source // 4 == message.to // 4 for message in messages}
        for messages in ALGORITHMS[op][name].on(12, 3).rounds
    ]
    assert all(len(kind) == 1 for kind in kinds) == (not row.overlapped)


def test_a_ring_waits_in_every_round_for_one_rank_of_each_host() -> None:
    row = textbook.ROWS["all_reduce", "ring"]
    for ranks, hosts in SHAPES:
        counted = by_level(ALGORITHMS["all_reduce"]["ring"].on(ranks, hosts), ranks // hosts)
        assert counted.inner_rounds == row.inner_rounds(ranks, hosts, 1) == 0
        assert float(counted.between) == float(counted.of_a_host) == pytest.approx(row.between(ranks, hosts, 1))


def test_of_an_all_reduce_by_sharp_the_rings_of_the_hosts_stay_inside() -> None:
    row = textbook.ROWS["all_reduce", "sharp"]
    for ranks, hosts in SHAPES:
        schedule = SWITCHED["all_reduce"]["sharp"](ranks, ranks // hosts)
        counted = by_level(schedule, ranks // hosts)  # the switch is on a host of its own
        said = [row.inner_rounds(ranks, hosts, 1), row.inner_sent(ranks, hosts, 1)]
        assert said == pytest.approx([counted.inner_rounds, float(counted.inner)]), (ranks, hosts)
        assert row.between(ranks, hosts, 1) == pytest.approx(hosts / ranks)


def test_there_is_a_row_for_every_schedule_and_for_nothing_else() -> None:
    assert {(row.op, row.algorithm) for row in TEXTBOOK} == set(EVERY)
    assert len(TEXTBOOK) == len(EVERY)


def test_where_a_schedule_is_possible_so_is_its_row() -> None:
    for row in TEXTBOOK:
        for ranks in range(2, 65):
            hosts = 2 if ALGORITHMS[row.op][row.algorithm].levels else 1
            there = ranks % hosts == 0 and ALGORITHMS[row.op][row.algorithm].refuse(ranks) is None
            assert row.possible(ranks, hosts, 1) == there, (row, ranks)


SWITCHES = [(op, name) for op, named in SWITCHED.items() for name in named]


@pytest.mark.parametrize(("op", "name"), SWITCHES)
def test_a_switch_that_adds_leaves_what_the_operation_means(op: str, name: str) -> None:
    for ranks in RANKS:
        for hosts in (1, 2, 4, 8):
            if ranks % hosts == 0:
                schedule = SWITCHED[op][name](ranks, ranks // hosts)
                assert execute(schedule) == (*meaning(op, ranks, schedule.blocks), ()), (ranks, hosts)


@pytest.mark.parametrize("row", textbook.SWITCHED, ids=lambda row: f"{row.op} {row.algorithm}")
def test_the_formula_with_a_switch_is_what_is_counted(row: CostModel) -> None:
    tried = 0
    for ranks in RANKS:
        for hosts in (1, 2, 4, 8):
            if ranks % hosts or not (row.possible(ranks, hosts, 1) or ranks == 1):
                continue
            schedule = SWITCHED[row.op][row.algorithm](ranks, ranks // hosts)
            by_switch = [
                any(ranks in {message.source, message.to} for message in messages) for messages in schedule.rounds
            ]
            by_ranks = [message for messages in schedule.rounds for message in messages if message.source < ranks]
            sums = Counter(
                message.to for messages in schedule.rounds for message in messages for _ in message.sent if message.adds
            )
            counted = [
                # To the switch and from there to a rank is one message.
                len(by_switch) - sum(by_switch) / 2,
                float(through_a_link(schedule, ranks)),
                max([count for rank, count in sums.items() if rank < ranks], default=0) / schedule.blocks,
                sum(len(message.sent) for message in by_ranks) / schedule.blocks,
            ]
            closed = [count(ranks, hosts, 1) for count in (row.rounds, row.sent, row.added, row.moved)]
            assert closed == pytest.approx(counted), (ranks, hosts)
            tried += 1
    assert tried >= (51 if EXHAUSTIVE else 16)


def test_there_is_a_row_for_every_switch_and_for_nothing_else() -> None:
    assert [(row.op, row.algorithm) for row in textbook.SWITCHED] == SWITCHES


@pytest.mark.parametrize(("ranks", "ceiling"), [(2, 0.667), (3, 1.0), (4, 1.2), (8, 1.556)])
def test_busbw_by_nvls_comes_to_more_than_the_link_carries(ranks: int, ceiling: float) -> None:
    # Of B, 2(n−1)/(n+1): published for NVLink SHARP in pull request 239 of NVIDIA/nccl-tests.
    row = textbook.ROWS["all_reduce", "nvls"]
    assert 2 * (ranks - 1) / ranks / row.sent(ranks, 1, 1) == pytest.approx(ceiling, abs=5e-4)


@pytest.mark.parametrize(("op", "ranks"), [("all_gather", 4), ("all_gather", 8), ("reduce_scatter", 8)])
def test_nvls_saves_no_bytes_where_each_result_has_to_come_once(op: str, ranks: int) -> None:
    row, ring = textbook.ROWS[op, "nvls"], textbook.ROWS[op, "ring"]
    assert row.sent(ranks, 1, 1) == ring.sent(ranks, 1, 1)


@pytest.mark.parametrize(("hosts", "on_host"), [(2, 1), (2, 8), (4, 8), (8, 4)])
def test_sharp_has_every_rank_send_its_share_to_the_network_once(hosts: int, on_host: int) -> None:
    ranks = hosts * on_host
    schedule = SWITCHED["all_reduce"]["sharp"](ranks, on_host)
    sent = Counter(
        message.source
        for messages in schedule.rounds
        for message in messages
        for _ in message.sent
        if message.to == ranks
    )
    shares = {rank: count / schedule.blocks for rank, count in sent.items()}
    assert shares == pytest.approx(dict.fromkeys(range(ranks), 1 / on_host))
    # So busbw comes to 2(n−1)/n times what the g cards of a host carry.
    assert 2 * (ranks - 1) / ranks / shares[0] == pytest.approx(2 * (ranks - 1) / ranks * on_host)
    # Rings between hosts send 2(k−1)/k times as much.
    levels = ALGORITHMS["all_reduce"]["hierarchical"].on(ranks, hosts)
    assert between_hosts(levels, on_host) / shares[0] == pytest.approx(2 * (hosts - 1) / hosts)


def between_hosts(schedule: Schedule, on_host: int) -> float:
    """What the busiest rank sends to other hosts, in units of S."""
    sent = Counter(
        message.source
        for messages in schedule.rounds
        for message in messages
        for _ in message.sent
        if message.source // on_host != message.to // on_host
    )
    return max(sent.values(), default=0) / schedule.blocks


@pytest.mark.parametrize(("hosts", "on_host"), [(2, 4), (4, 8), (8, 3)])
def test_several_rings_keep_all_cards_of_a_host_at_work_and_one_ring_does_not(hosts: int, on_host: int) -> None:
    ranks, whole = hosts * on_host, 2 * (hosts * on_host - 1) / (hosts * on_host)
    named = ALGORITHMS["all_reduce"]
    assert between_hosts(named["multi-ring"].on(ranks, hosts), on_host) == pytest.approx(whole / on_host)
    assert between_hosts(named["ring"].on(ranks, hosts), on_host) == pytest.approx(whole)


@pytest.mark.parametrize(("hosts", "on_host"), [(2, 4), (4, 8), (8, 3)])
def test_an_exchange_in_two_levels_has_one_message_from_each_rank_to_each_other_host(hosts: int, on_host: int) -> None:
    messages: dict[str, Counter[int]] = {}
    for name in ("two-level", "spread"):
        schedule = ALGORITHMS["all_to_all"][name].on(hosts * on_host, hosts)
        crossing = (message for all_of_them in schedule.rounds for message in all_of_them)
        messages[name] = Counter(
            message.source for message in crossing if message.source // on_host != message.to // on_host
        )
        assert between_hosts(schedule, on_host) == pytest.approx((hosts - 1) / hosts)
    assert set(messages["two-level"].values()) == {hosts - 1}
    assert set(messages["spread"].values()) == {(hosts - 1) * on_host}


def test_of_two_trees_every_rank_is_a_leaf_in_one() -> None:
    for ranks in RANKS:
        both = twins(range(ranks))
        parents = [{edge.parent for edge in tree} for tree in both]
        children = [Counter(edge.parent for edge in tree) for tree in both]
        for tree in both:
            assert {edge.child for edge in tree} | {edge.parent for edge in tree} in ({*range(ranks)}, set())
            assert max((edge.depth for edge in tree), default=0) == textbook.up(ranks)
        # Of an odd number one rank cannot be; it has one child in both.
        twice = parents[0] & parents[1]
        assert len(twice) == (ranks % 2 if ranks > 1 else 0)
        assert all(max(count.values(), default=0) <= 2 for count in children)
        assert all(count[rank] == 1 for rank in twice for count in children)


@pytest.mark.parametrize("row", textbook.LIMITS, ids=lambda row: row.algorithm)
def test_a_limit_is_what_pipelining_comes_near_to(row: CostModel) -> None:
    for ranks in RANKS:
        whole, finer = double_tree(ranks, 1), double_tree(ranks, 64)
        assert row.rounds(ranks, 1, 1) == len(whole.rounds)
        assert row.sent(ranks, 1, 1) == pytest.approx(float(through_a_link(whole, ranks)))
        assert row.sent(ranks, 1, 1) == pytest.approx(float(through_a_link(finer, ranks)))
        # Up and down one after the other, three ranks cannot have more than two thirds of both links busy.
        assert float(cost(finer).sent) == pytest.approx(row.sent(ranks, 1, 1), rel=0.35 if ranks == 3 else 0.08)


class TestCrossover:
    """Where two algorithms take the same time."""

    ALPHA, BETA = 20e-6, 1 / 10e9

    def crossing(self, first: str, second: str, ranks: int) -> float | None:
        rows = [textbook.ROWS["all_reduce", name] for name in (first, second)]
        return Parameters(self.ALPHA, self.BETA, None, "").crossover_bytes(rows[0], rows[1], ranks, 1)

    def test_of_a_ring_and_a_pipelined_double_tree(self) -> None:
        for ranks in range(4, 65):
            expected = ranks * (ranks - 1 - textbook.up(ranks)) * self.ALPHA / self.BETA
            assert self.crossing("ring", "double binary tree, pipelined", ranks) == pytest.approx(expected)

    def test_of_a_ring_and_a_binomial_tree(self) -> None:
        for ranks in range(4, 65):
            up = textbook.up(ranks)
            expected = (ranks - 1 - up) / (up - (ranks - 1) / ranks) * self.ALPHA / self.BETA
            assert self.crossing("ring", "binomial-tree", ranks) == pytest.approx(expected)
            assert self.crossing("binomial-tree", "ring", ranks) == pytest.approx(expected)

    def test_there_is_none_where_one_has_no_more_rounds_and_no_more_bytes(self) -> None:
        for ranks in range(2, 65):
            assert self.crossing("reduce-scatter-all-gather", "ring", ranks) is None
            assert self.crossing("ring", "ring", ranks) is None
        # Two ranks: a ring has as many rounds as a tree and half of its bytes.
        assert self.crossing("ring", "binomial-tree", 2) is None

    def test_sums_move_it(self) -> None:
        ring, tree = textbook.ROWS["all_reduce", "ring"], textbook.ROWS["all_reduce", "binomial-tree"]
        crossover = require(Parameters(self.ALPHA, self.BETA, None, "", 1 / 5e9).crossover_bytes(ring, tree, 8, 1))
        seconds = [
            row.rounds(8, 1, 1) * self.ALPHA + crossover * (row.sent(8, 1, 1) * self.BETA + row.added(8, 1, 1) / 5e9)
            for row in (ring, tree)
        ]
        assert seconds[0] == pytest.approx(seconds[1])


class TestExecute:
    """What a wrong schedule is told."""

    @pytest.mark.parametrize(
        ("transfers", "fault"),
        [
            ([Transfer(0, 1, (1,), (1,))], "empty"),
            ([Transfer(0, 1, (0,), (0,), adds=True)] * 2, "add"),
            ([Transfer(0, 1, (0,), (1,)), Transfer(1, 1, (0,), (1,))], "just"),
            ([Transfer(0, 1, (0,), (1,))], "end"),
        ],
    )
    def test_a_wrong_schedule_is_refused(self, transfers: list[Transfer], fault: str) -> None:
        with pytest.raises(ValueError, match=fault):
            execute(Schedule(2, 1, ((0, -1), (0, -1)), (tuple(transfers),), ((1,), (1,))))
