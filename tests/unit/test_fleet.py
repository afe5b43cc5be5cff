"""Fleets of known truth: what a search names, what it asks, and that healthy ones are left alone."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from exhaustive import trials
from testing.fleets import ALONE, NODE_FAULTS, PAIRS, World, fleet_of, judged, scatter, searched
from testing.narrow import require
from testing.synthetic import case

from busbw_analysis.fleet import search
from busbw_analysis.fleet.model import Noise, Suspects, lasting, medians, suspects_of_pairs
from busbw_analysis.fleet.rounds import SAMPLES, Fleet, Round, everybody, tournament
from busbw_analysis.fleet.search import ERROR_RATE, MOST_ROUNDS, Options, Search
from busbw_analysis.fleet.verdicts import (
    Evidence,
    FleetJudgement,
    Found,
    Verdict,
    _decided,
    _Test,
    judge,
    without_usual,
)

QUIET = scatter(0.3)
TWICE = math.log(2)


def world(count: int = 16, below: int = 0, **faults: object) -> World:
    return World(fleet_of(count, below), QUIET, **faults)  # type: ignore[arg-type]


def only(truth: World, seed: int = 1) -> Verdict:
    (verdict,) = judged(truth, seed).verdicts
    return verdict


@pytest.mark.parametrize(("kind", "way"), [("both ways", "both"), ("sending", "out"), ("receiving", "in")])
def test_a_slow_node_is_named_with_its_direction(kind: str, way: str) -> None:
    truth = world()
    NODE_FAULTS[kind](truth, 5, TWICE)
    verdict = only(truth)
    assert (verdict.kind, verdict.nodes, verdict.way) == ("node", (5,), way)
    assert verdict.ratio == pytest.approx(2, rel=0.1)
    assert verdict.error is not None
    assert verdict.error <= ERROR_RATE
    assert verdict.probability > 0.9


def test_a_node_that_is_slow_alone_is_told_from_slow_links() -> None:
    verdict = only(world(alone={5: TWICE}))
    assert (verdict.kind, verdict.nodes, verdict.evidence[0].case) == ("alone", (5,), ALONE)


@pytest.mark.parametrize(
    ("links", "nodes", "way"),
    [({(2, 9): TWICE, (9, 2): TWICE}, (2, 9), "both"), ({(9, 2): TWICE}, (9, 2), "out")],
)
def test_a_slow_link_accuses_neither_of_its_nodes(links: dict[tuple[int, int], float], nodes: object, way: str) -> None:
    verdict = only(world(links=links))
    assert (verdict.kind, verdict.nodes, verdict.way) == ("link", nodes, way)


def test_outliers_do_not_crowd_a_slow_link_out() -> None:
    truth = [World(fleet_of(16), scatter(), links={(seed % 16, (seed + 5) % 16): TWICE}) for seed in range(10)]
    named = [[verdict.nodes for verdict in judged(each, seed).accused] for seed, each in enumerate(truth)]
    assert sum(nodes == list(each.links) for nodes, each in zip(named, truth, strict=True)) >= 9


@pytest.mark.parametrize(("kind", "log"), [("alone", 0.55), ("both ways", TWICE)])
def test_a_slow_node_is_named_where_programs_compete_in_moments_that_do_not_last(kind: str, log: float) -> None:
    errors = 0.2 * np.random.default_rng(1).standard_t(6, 4000)
    right = 0
    for seed in range(8):
        truth = World(fleet_of(16), errors, taken=dict.fromkeys(range(16), 0.6))
        NODE_FAULTS[kind](truth, 5, log)
        right += judged(truth, seed).bad_nodes == (5,)
    assert right >= 6


@pytest.mark.parametrize("node", [7, 11])
def test_a_likely_node_is_measured_until_it_is_named_where_programs_compete(node: int) -> None:
    """Twice the scatter of real launches: sixteen turns left both undecided."""
    busy = dict.fromkeys(range(16), 0.4)
    truth = World(fleet_of(16), scatter(2.0), alone={node: math.log(1.4)}, taken=busy)
    judgement = judged(truth, 23 if node == 7 else 11)
    assert [(verdict.kind, verdict.nodes) for verdict in judgement.verdicts] == [("alone", (node,))]


def test_slow_moments_that_last_are_told_from_those_that_do_not() -> None:
    def lasts(moments: float) -> float:
        search = searched(World(fleet_of(16), QUIET, moments=moments), 1)
        rounds = search.of_case(PAIRS)
        return lasting(search.fleet, rounds, suspects_of_pairs(search.fleet, rounds, search.options.within))

    assert lasts(0.0) < 0.3 < lasts(0.03)


@pytest.mark.parametrize("part", [0.3, 1.0])
def test_nine_of_ten_faults_as_large_as_said_are_found(part: float) -> None:
    errors = scatter(part)
    said = {found.kind: math.log(found.ratio) for found in judged(World(fleet_of(16), errors), 1).found}
    plants = {
        "alone": {"alone": {3: said["alone"]}},
        "node": {"out": {3: said["node"]}},
        "link": {"links": {(3, 14): said["link"]}},
    }
    for faults in plants.values():
        worlds = [World(fleet_of(16), errors, **faults) for _ in range(trials(12, 20))]  # type: ignore[arg-type]
        codes = [judged(each, seed).code for seed, each in enumerate(worlds)]
        # Of 12 at a rate of 10 %, 5 or more happen in 0.4 % of all cases, of 20 6 or more in 1 %.
        assert codes.count(0) <= trials(4, 5)


def test_nodes_run_alone_more_often_if_the_scatter_hides_what_counts() -> None:
    times = [
        sum(each.stage == "alone" for each in searched(World(fleet_of(16), errors), 1).rounds)
        for errors in (QUIET, 0.2 * np.random.default_rng(1).standard_t(6, 4000))
    ]
    assert times[0] == 3 < times[1] <= 12


def lossy(count: int, seed: int, share: float) -> World:
    """Of a node's samples, ``share`` is late, whoever its partner is."""
    node = seed % count
    others = [other for other in range(count) if other != node]
    lost = {pair: share for other in others for pair in ((node, other), (other, node))}
    return World(fleet_of(count), scatter(), lost=lost)


def test_a_node_that_loses_messages_is_named_though_medians_hide_it() -> None:
    named = Counter(tuple(verdict.nodes for verdict in judged(lossy(8, 3, 0.2), seed).accused) for seed in range(10))
    assert named[((3,),)] >= 9
    (verdict,) = judged(lossy(8, 3, 0.2), 1).accused
    evidence = verdict.evidence[0]
    assert verdict.kind == "node"
    assert evidence.rounds / 3 < evidence.late < evidence.rounds
    assert evidence.ratio == pytest.approx(4.8, rel=0.5)  # a fifth takes 20 times as long


@pytest.mark.parametrize("seed", [5, 28])
def test_a_node_that_loses_few_messages_is_named_by_the_rounds_that_made_it_a_suspect_too(seed: int) -> None:
    verdicts = judged(lossy(16, seed, 0.08), seed).accused
    assert [verdict.nodes for verdict in verdicts] == [(seed % 16,)]


@pytest.mark.parametrize("count", [8, 16])
def test_a_node_whose_cpus_programs_take_is_not_accused_of_losing_messages(count: int) -> None:
    lost = {pair: 0.4 for node in range(count) if node != 3 for pair in ((3, node), (node, 3))}
    judgement = judged(World(fleet_of(count), QUIET, lost=lost, taken={3: 0.5}), 1)
    assert (judgement.code, judgement.accused) == (3, ())


def test_what_a_node_loses_costs_what_it_did_before_it_was_a_suspect_if_it_is_named_at_once() -> None:
    (verdict,) = judged(lossy(16, 2, 0.2), 2).accused
    assert verdict.nodes == (2,)
    assert 2 < verdict.ratio < 10


def test_a_fleet_in_which_a_node_loses_messages_is_asked_few_pairs() -> None:
    searches = [searched(lossy(16, seed, 0.2), seed) for seed in range(3)]
    pairs = [sum(each.stage == "pairs" for each in search.rounds) for search in searches]
    assert 2 * SAMPLES <= min(pairs) <= max(pairs) < 15  # all pairs: 30
    assert max(len(search.rounds) for search in searches) < 40


def test_other_suspects_cost_few_rounds_beside_a_node_that_loses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = {pair: 0.3 for node in range(16) if node != 2 for pair in ((2, node), (node, 2))}
    rounds = {}
    for turns in (search.TURNS, search._TURNS_BESIDE_LOSS):
        monkeypatch.setattr(search, "_TURNS_BESIDE_LOSS", turns)
        fleets = [searched(World(fleet_of(16), scatter(2.0), lost=lost), seed) for seed in range(6)]
        rounds[turns] = sum(len(each.rounds) for each in fleets)
    few, many = sorted(rounds)
    assert rounds[few] < rounds[many]


def test_packets_that_are_sent_again_are_those_of_pairs_that_stand_out() -> None:
    asked = Round.of(PAIRS, "pairs", np.asarray([0, 2, 4]), np.asarray([1, 3, 5]))
    for packets, resent in (
        ([0, 4, 0, 1, 0, 0], [True, False, False]),
        ([0, 2, 0, 0, 0, 0], [False] * 3),
        ([5, 4, 5, 4, 5, 4], [False] * 3),
    ):
        measured = asked.measured(np.ones(3), np.ones(3), packets=np.asarray(packets, dtype=np.float64))
        assert measured.resent is not None
        assert measured.resent.tolist() == resent


def test_packets_that_neighbours_send_again_in_barriers_are_those_of_a_node_that_waits() -> None:
    asked = Round.of(PAIRS, "suspects", np.asarray([0, 2]), np.asarray([1, 3]))
    for waits, resent in ((0, True), (1, True), (2, False), (5, False)):
        packets = np.asarray([2, 2, 0, 0, waits], dtype=np.float64)
        measured = asked.measured(np.ones(2), np.ones(2), packets=packets)
        assert require(measured.resent).tolist() == [resent, False]


def test_a_link_that_loses_messages_is_told_from_its_nodes() -> None:
    verdict = only(world(lost={(2, 9): 0.4, (9, 2): 0.4}))
    assert (verdict.kind, verdict.nodes, verdict.way) == ("link", (2, 9), "both")
    assert verdict.evidence[0].late > 0


def test_a_node_that_sends_packets_again_is_named_after_few_rounds() -> None:
    for seed in range(3):
        search = searched(World(fleet_of(16), scatter(), resent={3: 5.0}, often=0.3), seed)
        judgement = judge(search.fleet, search.rounds, search.options)
        assert [verdict.nodes for verdict in judgement.accused] == [(3,)]
        assert len(search.rounds) < 40


def test_packets_that_all_nodes_send_again_accuse_nobody() -> None:
    worlds = [World(fleet_of(16), scatter(), often=often) for often in (0.1, 0.5, 2.0)]
    assert not sum(bool(judged(each, seed).accused) for seed, each in enumerate(worlds))


def test_late_messages_everywhere_accuse_nobody() -> None:
    accused = sum(bool(judged(World(fleet_of(8), scatter(), late=0.05), seed).accused) for seed in range(10))
    assert accused <= 1


@pytest.mark.parametrize(("fault", "kind"), [("switches", "switch"), ("trunks", "trunk")])
def test_a_switch_is_told_from_its_trunk_by_the_pairs_below_it(fault: str, kind: str) -> None:
    verdict = only(world(32, 8, **{fault: {1: TWICE}}))
    assert (verdict.kind, verdict.switch, verdict.nodes) == (kind, "s1", tuple(range(8, 16)))


@pytest.mark.parametrize("side", [frozenset(range(8)), frozenset(range(0, 16, 2))])
def test_halves_that_fail_together_are_found_without_a_topology(side: frozenset[int]) -> None:
    verdict = only(world(cut=(side, TWICE, 4)))
    assert (verdict.kind, verdict.at_once) == ("trunk", 8)
    assert {node in side for node in verdict.nodes[:8]} in ({True}, {False})


def test_a_cut_is_narrowed_to_the_fewest_pairs_that_fail_together() -> None:
    assert only(world(cut=(frozenset(range(8)), TWICE, 2))).at_once == 4


def test_a_dead_node_is_found_among_failing_rounds_and_left_out() -> None:
    search = searched(world(dead=frozenset([5])), 1)
    (verdict,) = judge(search.fleet, search.rounds, search.options).verdicts
    assert (verdict.kind, verdict.nodes) == ("failed", (5,))
    assert not any(5 in each.sender for each in search.rounds if each.case == PAIRS)


@pytest.mark.parametrize("count", [4, 8, 16])
def test_healthy_fleets_with_the_scatter_of_real_launches_are_left_alone(count: int) -> None:
    accused = sum(bool(judged(World(fleet_of(count), scatter()), seed).accused) for seed in range(25))
    assert accused <= 2  # of 25 at a rate of 1 %, 3 or more happen in 0.2 % of all cases


def test_one_of_four_nodes_is_named() -> None:
    truth = world(4)
    NODE_FAULTS["both ways"](truth, 2, TWICE)
    assert judged(truth, 1).bad_nodes == (2,)


EVERYBODY = dict.fromkeys(range(4), 0.6)


@pytest.mark.parametrize(("count", "factor"), [(4, 2.0), (5, 2.0), (5, 10.0), (8, 2.0)])
def test_a_fleet_with_a_slow_node_is_hardly_ever_called_healthy(count: int, factor: float) -> None:
    log = math.log(factor)
    truth = [World(fleet_of(count), scatter(), out={1: log}, back={1: log}) for _ in range(20)]
    judgements = [judged(each, seed) for seed, each in enumerate(truth)]
    healthy = [judgement for judgement in judgements if judgement.code == 0]
    assert len(healthy) <= 1  # of four nodes, 13 of 1,200 were
    named = [any(1 in verdict.nodes for verdict in judgement.verdicts) for judgement in judgements]
    assert named.count(False) == len(healthy)


def test_slow_moments_that_last_several_rounds_accuse_nobody() -> None:
    worlds = [World(fleet_of(4), QUIET, moments=0.1, taken=EVERYBODY) for _ in range(trials(25, 40))]
    accused = sum(bool(judged(each, seed).accused) for seed, each in enumerate(worlds))
    assert accused <= 1


@pytest.mark.parametrize("kind", ["alone", "both ways"])
def test_a_node_that_is_always_slow_is_named_among_slow_moments(kind: str) -> None:
    named: Counter[tuple[int, ...]] = Counter()
    for seed in range(10):
        truth = World(fleet_of(4), QUIET, moments=0.03, taken=EVERYBODY)
        NODE_FAULTS[kind](truth, 2, math.log(8))
        named[judged(truth, seed).bad_nodes] += 1
    assert named[2,] >= 6
    assert set(named) <= {(2,), ()}


def test_what_other_programs_slow_down_is_no_evidence_against_a_node() -> None:
    truth = world(out={5: TWICE}, back={5: TWICE}, alone={5: TWICE}, taken={5: 0.5})
    judgement = judged(truth, 1)
    assert (judgement.accused, judgement.code) == ((), 3)
    assert {(verdict.nodes, verdict.busy) for verdict in judgement.verdicts} == {((5,), True)}


@pytest.mark.parametrize(
    ("taken", "disturbed"),
    [([0.0] * 7 + [0.5], [3]), ([0.77, 0.84, 0.8, 0.92, 0.83, 0.78, 0.85, 0.95], []), ([0.82] * 7 + [0.95], [3])],
)
def test_a_node_is_disturbed_if_its_cpus_are_taken_clearly_more_than_others(
    taken: list[float], disturbed: list[int]
) -> None:
    asked = Round.of(PAIRS, "pairs", np.arange(0, 8, 2), np.arange(1, 8, 2))
    measured = asked.measured(np.ones(4), taken=np.asarray(taken))
    assert np.flatnonzero(require(measured.disturbed)).tolist() == disturbed


def test_a_slow_link_is_not_cleared_by_turns_in_which_it_was_disturbed() -> None:
    asked_before = Counter[str]()

    class Disturbed(World):
        """In the first four turns, other programs take the CPUs of node 3 while it sends."""

        def outcome(self, asked: Round, generator: np.random.Generator) -> Round:
            number = asked_before[asked.stage]
            asked_before[asked.stage] += 1
            self.taken = {3: 0.5} if asked.stage == "suspects" and number < 8 and number % 2 == 0 else {}
            return super().outcome(asked, generator)

    verdict = only(Disturbed(fleet_of(16), QUIET, links={(3, 14): TWICE}))
    assert (verdict.kind, verdict.nodes, verdict.way) == ("link", (3, 14), "out")


@pytest.mark.parametrize(("ratio", "kinds"), [(2.0, ["undecided"]), (1.2, [])])
def test_what_is_clearly_slow_whenever_it_is_measured_is_not_called_healthy(ratio: float, kinds: list[str]) -> None:
    def suspect(node: int, log: float, times_longer: float) -> _Test:
        seen = Evidence(ALONE, times_longer, 1.0, times_longer, 16)
        return _Test(Verdict("alone", (node,), evidence=(seen,)), np.asarray([log]), 16, 0)

    tests = [suspect(3, 2.0, ratio), *(suspect(node, -3.0, 1.0) for node in range(4, 15))]
    assert [verdict.kind for verdict in _decided(tests)] == kinds


def test_other_rounds_lie_between_those_of_a_suspect_where_programs_compete() -> None:
    search = searched(world(4, alone={1: TWICE}, taken=EVERYBODY), 1)
    stages = [each.stage for each in search.rounds]
    assert "alone again" in stages
    assert ("alone again", "alone again") not in pairwise(stages)


def test_a_thousand_nodes_take_few_rounds_and_all_bad_ones_are_named() -> None:
    truth = World(fleet_of(1000, 32), scatter())
    bad = range(7, 1000, 50)
    for place, node in enumerate(bad):
        NODE_FAULTS["alone" if place % 2 else ("both ways", "sending", "receiving")[place % 3]](truth, node, TWICE)
    judgement = judged(truth, 2)
    assert judgement.bad_nodes == tuple(bad)
    assert len(judgement.rounds) <= MOST_ROUNDS


def test_a_node_is_accused_by_new_data_only() -> None:
    truth = world()
    NODE_FAULTS["both ways"](truth, 5, TWICE)
    search = searched(truth, 1)
    before = [each for each in search.rounds if each.stage in {"alone", "pairs"}]
    judgement = judge(search.fleet, before, search.options)
    assert not judgement.accused
    assert {node for verdict in judgement.verdicts for node in verdict.nodes} >= {5}
    assert judgement.code == 3


@pytest.mark.parametrize(("hidden", "is_open"), [(1.3, True), (1.15, False)])
def test_pairs_apart_are_open_if_a_slow_one_may_be_hidden(hidden: float, is_open: bool) -> None:  # noqa: FBT001
    """The longest time is 1.45 times the shortest, and 1.21 times the usual one, over which faults are found."""
    pairs = np.asarray([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    measured = Round.of(0, "pairs", *pairs.T).measured(np.asarray([1.0, 1.1, 1.2, 1.2, 1.32, 1.45]))
    found = (Found("node", 0, 1.1), Found("link", 0, hidden))
    judgement = FleetJudgement(fleet_of(4), (), (measured,), 0, found)
    apart = without_usual(judgement, [measured], [case("all_reduce", 8)], Options().within).apart
    assert require(apart).is_open is is_open


@pytest.mark.parametrize("count", [2, 3])
def test_too_few_nodes_do_not_know_what_is_usual(count: int) -> None:
    truth = world(count)
    NODE_FAULTS["both ways"](truth, 0, TWICE)
    judgement = judged(truth, 1)
    assert (judgement.verdicts, judgement.code) == ((), 3)


def test_two_cases_of_a_node_are_one_verdict() -> None:
    fleet = fleet_of(16)
    truth = World(Fleet(fleet.names, fleet.leaf, (), (), (PAIRS, PAIRS + 1)), QUIET)
    NODE_FAULTS["both ways"](truth, 5, TWICE)
    verdict = only(truth)
    assert {each.case for each in verdict.evidence} == {PAIRS, PAIRS + 1}


def test_a_node_that_is_slow_alone_is_not_asked_about_in_pairs_again() -> None:
    fleet = fleet_of(16)
    for seed in (5, 9):
        truth = World(Fleet(fleet.names, fleet.leaf, (), (ALONE,), (PAIRS, PAIRS + 1)), scatter(3.0))
        truth.alone[3] = 2 * TWICE
        truth.out[3] = truth.back[3] = math.log(1.6)
        rounds = [each for each in searched(truth, seed).rounds if each.stage == "suspects"]
        assert sum(3 in each.sender or 3 in each.receiver for each in rounds) <= 24


def test_nodes_that_are_slow_alone_still_show_a_slow_switch() -> None:
    fleet = fleet_of(16, 4)
    truth = World(Fleet(fleet.names, fleet.leaf, fleet.switches, (ALONE,), (PAIRS, PAIRS + 1)), scatter())
    truth.alone = {4: TWICE, 5: TWICE}
    truth.switches = {1: math.log(1.6)}
    for seed in range(3):
        kinds = {(verdict.kind, verdict.nodes) for verdict in judged(truth, seed).accused}
        assert {nodes for kind, nodes in kinds if kind == "node"} <= {(4,), (5,)}
        assert {kind for kind, _ in kinds} & {"switch", "trunk"}


def test_every_pair_has_its_turn_once() -> None:
    for count in (5, 8):
        rounds = list(tournament(count, 0))
        pairs = {frozenset(pair) for each in rounds for pair in zip(each.sender, each.receiver, strict=True)}
        assert len(pairs) == count * (count - 1) // 2 == sum(len(each.sender) for each in rounds)
        assert len(rounds) == count - 1 + count % 2


def test_rounds_have_each_node_once() -> None:
    truth = world(33, 8, links={(2, 9): TWICE}, out={4: TWICE})
    for each in searched(truth, 3).rounds:
        nodes = each.sender if each.case == ALONE else np.concatenate([each.sender, each.receiver])
        assert len(np.unique(nodes)) == len(nodes)


def test_a_slow_link_does_not_wait_for_one_that_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = search.open_suspects

    def with_open_link(fleet: Fleet, rounds: list[Round], suspects: Suspects, *arguments: Any) -> object:  # noqa: ANN401
        nodes, links = decided(fleet, rounds, suspects, *arguments)
        return nodes, np.asarray([[1, 3]]) if suspects.late else links

    monkeypatch.setattr(search, "open_suspects", with_open_link)
    verdict = only(world(links={(3, 14): TWICE, (14, 3): TWICE}))
    assert (verdict.kind, verdict.nodes) == ("link", (3, 14))


def test_the_evidence_of_chance_exceeds_its_limit_as_rarely_as_promised() -> None:
    generator = np.random.default_rng(1)
    errors = generator.standard_t(4, (20_000, 6)) * 0.1
    evidence = Noise(0.1).log_evidence(errors, 0.16)
    for limit in (10, 100):
        assert (evidence > math.log(limit)).mean() <= 1 / limit
    assert np.median(Noise(0.1).log_evidence(errors + TWICE, 0.16)) > math.log(1000)


def test_a_single_slow_moment_is_no_evidence() -> None:
    errors = np.zeros((1, 4))
    errors[0, 0] = math.log(5)
    assert Noise(0.05).log_evidence(errors, 0.16)[0] < 0


def test_medians_by_key() -> None:
    values = medians(np.asarray([3.0, 1.0, 2.0, 8.0, 4.0]), np.asarray([0, 0, 0, 2, 2]), 3)
    np.testing.assert_array_equal(values, [2.0, np.nan, 6.0])


def test_a_round_that_was_not_asked_is_refused() -> None:
    fleet = Fleet(("n0",), np.asarray([-1]))
    search = Search(fleet, Options())
    assert search.asked is None
    with pytest.raises(ValueError, match="no round"):
        search.tell(everybody(fleet, 0, "alone"))


@pytest.mark.parametrize("turn", [lambda each: each.turned, lambda each: each.part(0, 1)])
def test_parts_of_a_round_have_no_times_yet(turn: Callable[[Round], Round]) -> None:
    asked = Round(1, "pairs", np.asarray([0, 1]), np.asarray([2, 3]), np.ones(2))
    assert np.isnan(turn(asked).seconds).all()
