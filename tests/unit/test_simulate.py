"""The simulator: fair shares with known answers, closed forms where they hold, and what they cannot say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_counts import cost

from busbw.cli.main import main
from busbw.errors import AnalysisError
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.schedules import Schedule, Transfer, same
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.networks import (
    NOWHERE,
    FatTree,
    Flat,
    Link,
    Network,
    Placement,
    Rails,
    Routes,
    SharedHost,
    TwoLevel,
    Whole,
    change_links,
    parse_network,
)
from busbw_analysis.models.simulate import Costs, Simulation, Traffic, fair_rates, formula_seconds, simulate
from busbw_analysis.models.textbook import ROWS, TEXTBOOK

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def traffic_of(op: str, name: str, ranks: int, hosts: int = 1) -> Traffic:
    return Traffic.of(ALGORITHMS[op][name].on(ranks, hosts))


def run(op: str, name: str, network: Network, size: float = 64 * MIB, costs: Costs | None = None) -> Simulation:
    place = network.placement
    return simulate(traffic_of(op, name, place.ranks, place.hosts), size, network, costs)


class TestFairRates:
    def rates(self, flows: list[list[int]], capacities: list[float]) -> list[float]:
        width = max(map(len, flows))
        links = np.array([flow + [NOWHERE] * (width - len(flow)) for flow in flows])
        return [float(rate) for rate in fair_rates(links, np.array(capacities))]

    @pytest.mark.parametrize(
        ("flows", "capacities", "rates"),
        [
            pytest.param([[0], [0], [0], [0]], [8.0], [2.0] * 4, id="alike"),
            pytest.param([[0, 1], [0]], [10.0, 3.0], [3.0, 7.0], id="what one cannot use goes to the other"),
            pytest.param([[0, 1, 2], [0], [1], [2]], [1.0] * 3, [0.5] * 4, id="a line"),
            # Link 1 (2 flows, 1.0) is the first to be full, then link 0 with 2.5 left for two more, then link 2.
            ([[0, 1], [0], [0], [1, 2], [2]], [3.0, 1.0, 4.0], [0.5, 1.25, 1.25, 0.5, 3.5]),
            ([[0], [0], [0, 1], [1], [2]], [1.0, 1.0, 1.0], [1 / 3, 1 / 3, 1 / 3, 2 / 3, 1]),
        ],
    )
    def test_shares_are_fair(self, flows: list[list[int]], capacities: list[float], rates: list[float]) -> None:
        assert self.rates(flows, capacities) == pytest.approx(rates)

    @given(st.data())
    @settings(deadline=None)
    def test_every_flow_has_a_full_link_on_which_none_has_more(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 6))
        capacities = data.draw(st.lists(st.floats(0.1, 100), min_size=count, max_size=count))
        flows = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1), min_size=1, max_size=12))
        rates = self.rates([sorted(flow) for flow in flows], capacities)
        load = [sum(rate for rate, flow in zip(rates, flows, strict=True) if link in flow) for link in range(count)]
        assert all(there <= capacity * (1 + 1e-9) for there, capacity in zip(load, capacities, strict=True))
        for rate, flow in zip(rates, flows, strict=True):
            bottlenecks = [link for link in flow if load[link] >= capacities[link] * (1 - 1e-9)]
            most = [max(r for r, other in zip(rates, flows, strict=True) if link in other) for link in bottlenecks]
            assert any(rate >= highest * (1 - 1e-9) for highest in most)


class TestAgainstTheFormulas:
    """On a flat network nothing is shared but what the closed forms count."""

    @pytest.mark.parametrize("row", TEXTBOOK, ids=lambda row: f"{row.op} {row.algorithm}")
    def test_on_a_flat_network_every_algorithm_takes_what_its_formula_says(self, row: CostModel) -> None:
        tried = 0
        for ranks in range(2, 17):
            algorithm = ALGORITHMS[row.op][row.algorithm]
            hosts = 2 if algorithm.levels else 1
            if ranks % hosts or not row.possible(ranks, hosts, 1) or algorithm.refuse(ranks) is not None:
                continue
            network = Flat(Placement(ranks, ranks // hosts), rate=1e9, delay=3e-6)
            traffic, costs = traffic_of(row.op, row.algorithm, ranks, hosts), Costs(overhead=1e-6, gamma=1e-10)
            for size in (0, 12345):
                # Written out, and not by formula_seconds: α is delay and overhead, β 1 ns, γ 0.1 ns.
                wanted = (
                    row.rounds(ranks, hosts, 1) * 4e-6
                    + row.sent(ranks, hosts, 1) * size * 1e-9
                    + row.added(ranks, hosts, 1) * size * 1e-10
                )
                assert simulate(traffic, size, network, costs).seconds == pytest.approx(wanted, rel=1e-9), (ranks, size)
                assert formula_seconds(row, traffic, size, network, costs) == pytest.approx(wanted, rel=1e-12)
            tried += 1
        assert tried >= 3

    @pytest.mark.parametrize(("op", "name"), [("all_reduce", "hierarchical"), ("all_to_all", "two-level")])
    @pytest.mark.parametrize("shape", [(2, 2), (2, 3), (4, 4), (8, 2), (3, 8)])
    def test_two_levels_have_an_alpha_and_a_beta_each(self, op: str, name: str, shape: tuple[int, int]) -> None:
        hosts, each = shape
        ranks, traffic = hosts * each, traffic_of(op, name, hosts * each, hosts)
        row = ROWS[op, name]
        twice = 2 if op == "all_reduce" else 1
        # Written out: 5 µs and 1 ns/B between hosts, 1 µs and 0.2 ns/B inside. One card for all carries each rank's.
        for kind, part in (("rail", 1), ("two-level", each)):
            network = parse_network(f"{kind}:nic=1GB/s,inner=5GB/s,delay=5us,inner_delay=1us").on(
                Placement(ranks, each)
            )
            between = (hosts - 1) / hosts / (each if op == "all_reduce" else 1)
            wanted = twice * ((each - 1) * 1e-6 + (hosts - 1) * 5e-6)
            wanted += twice * ((each - 1) / each * 0.2e-9 + part * between * 1e-9) * MIB
            assert simulate(traffic, MIB, network).seconds == pytest.approx(wanted, rel=1e-9)
            assert formula_seconds(row, traffic, MIB, network) == pytest.approx(wanted, rel=1e-9)

    @pytest.mark.parametrize(("inner", "nic"), [("9GB/s", "1GB/s"), ("1GB/s", "1GB/s"), ("1GB/s", "9GB/s")])
    def test_several_rings_wait_for_their_cards_or_for_what_is_inside(self, inner: str, nic: str) -> None:
        row, traffic = ROWS["all_reduce", "multi-ring"], traffic_of("all_reduce", "multi-ring", 16, 4)
        whole = 30 / 16 * MIB
        for kind, cards in (("rail", 4), ("two-level", 1)):
            network = parse_network(f"{kind}:nic={nic},inner={inner},delay=5us,inner_delay=1us").on(Placement(16, 4))
            delay = 6e-6 if kind == "rail" else 5e-6  # on the way to the card of another rank
            between, inside = whole / cards / 1e9 / float(nic[0]), whole / 1e9 / float(inner[0])
            wanted = max(30 * delay + between, 30 * 1e-6 + inside)
            assert simulate(traffic, MIB, network).seconds == pytest.approx(wanted, rel=1e-9)
            assert formula_seconds(row, traffic, MIB, network) == pytest.approx(wanted, rel=1e-9)

    @pytest.mark.parametrize("each", [2, 4, 8])
    def test_several_rings_lose_and_gain_by_delays_that_differ(self, each: int) -> None:
        """Bytes of a round through a port take a time of 1. Who comes later has it for itself when the others are gone:
        at most g/(g+1) of the formula where the bytes for other hosts come first, (g−1)/4g more where they come last.
        """
        assert self.of_rings(each, "rail", 1e3, (0, 3)) == pytest.approx(1, rel=1e-9)
        first = self.of_rings(each, "two-level", 1e3, (0, 1 / each))
        assert first == pytest.approx(each / (each + 1), rel=1e-9)
        # Two ranks of a host and a card that takes 3/2 of what a port takes: it begins when 1/4 is through.
        assert self.of_rings(2, "rail", 2 / 3, (1 / 4, 0)) == pytest.approx(9 / 8, rel=1e-9)

    @staticmethod
    def of_rings(each: int, kind: str, card: float, delays: tuple[float, float]) -> float:
        """Simulated over formula: a card has ``card`` times the rate of a port for what it carries of each rank."""
        row, traffic = ROWS["all_reduce", "multi-ring"], traffic_of("all_reduce", "multi-ring", 2 * each, 2)
        place, per_round = Placement(2 * each, each), MIB / (2 * each)
        between, inside = (delay * per_round / 1e9 for delay in delays)
        network: Network = TwoLevel(place, card * each * 1e9, 1e9, between, inside)
        if kind == "rail":
            network = Rails(place, card * 1e9, 1e9, between, inside)
        return simulate(traffic, MIB, network).seconds / formula_seconds(row, traffic, MIB, network)

    @pytest.mark.parametrize("name", ["hierarchical", "multi-ring"])
    def test_ranks_that_are_dealt_out_have_no_inside(self, name: str) -> None:
        row, traffic = ROWS["all_reduce", name], traffic_of("all_reduce", name, 16, 4)
        for kind in ("two-level", "rail"):
            network = parse_network(f"{kind}:nic=1GB/s,inner=9GB/s,delay=5us").on(Placement(16, 4, "cyclic"))
            done, costs = simulate(traffic, MIB, network, Costs(1e-6, 1e-10)).seconds, Costs(1e-6, 1e-10)
            assert formula_seconds(row, traffic, MIB, network, costs) == pytest.approx(done, rel=1e-9)

    def test_on_a_shared_host_its_memory_is_the_peak_of_a_ring(self) -> None:
        traffic = traffic_of("all_reduce", "ring", 8)
        row = ROWS["all_reduce", "ring"]
        for memory in (2e9, 5e9, 20e9):
            network = SharedHost(Placement(8, 8), rate=1e9, memory=memory, delay=1e-6)
            wanted = 14 * 1e-6 + max(14 / 8 * MIB / 1e9, 14 * MIB / memory)
            assert simulate(traffic, MIB, network).seconds == pytest.approx(wanted, rel=1e-9)
            assert formula_seconds(row, traffic, MIB, network) == pytest.approx(wanted, rel=1e-9)

    @given(
        st.sampled_from([(row.op, row.algorithm) for row in TEXTBOOK]),
        st.integers(2, 6).map(lambda half: 2 * half),
        st.sampled_from(["two-level:nic=1GB/s,inner=3GB/s,delay=9us,inner_delay=2us", "flat:rate=1GB/s"]),
    )
    @settings(max_examples=60, deadline=None)
    def test_the_links_carry_what_the_schedule_sends(self, which: tuple[str, str], ranks: int, text: str) -> None:
        op, name = which
        if ALGORITHMS[op][name].refuse(ranks) is not None:
            return
        network = parse_network(text).on(Placement(ranks, 2))
        schedule = ALGORITHMS[op][name].on(ranks, ranks // 2)
        done = simulate(Traffic.of(schedule), MIB, network)
        out = [n for n, link in enumerate(done.links) if link.name.startswith("rank") and link.name.endswith("out")]
        into = [n for n, link in enumerate(done.links) if link.name.startswith("rank") and link.name.endswith("in")]
        moved = float(cost(schedule).moved) * MIB
        assert done.carried[out].sum() == pytest.approx(moved, rel=1e-6)
        assert done.carried[into].sum() == pytest.approx(moved, rel=1e-6)
        sent, received = np.zeros(ranks), np.zeros(ranks)
        for transfers in schedule.rounds:
            for transfer in transfers:
                sent[transfer.source] += len(transfer.sent)
                received[transfer.to] += len(transfer.sent)
        assert done.carried[out] == pytest.approx(sent * MIB / schedule.blocks, rel=1e-6)
        assert done.carried[into] == pytest.approx(received * MIB / schedule.blocks, rel=1e-6)
        assert done.utilisation().max() <= 1 + 1e-9


class Lines:
    """A network for a test: message m of rank m goes through the links that are given, after its own delay."""

    def __init__(self, capacities: list[float], routes: dict[tuple[int, int], tuple[list[int], float]]) -> None:
        self.placement = Placement(1 + max(max(pair) for pair in routes))
        self._capacities, self._routes = capacities, routes

    def links(self) -> tuple[Link, ...]:
        return tuple(Link(f"line {number}", rate, "port", "line #") for number, rate in enumerate(self._capacities))

    def routes(self, sources: Whole, targets: Whole) -> Routes:
        routes = [self._routes[int(source), int(target)] for source, target in zip(sources, targets, strict=True)]
        width = max(len(links) for links, _ in routes)
        links = np.array([links + [NOWHERE] * (width - len(links)) for links, _ in routes])
        return Routes(links, np.array([delay for _, delay in routes]))


def schedule(ranks: int, *rounds: list[Transfer]) -> Traffic:
    """Blocks of one byte when S is as many bytes as the most slots that a rank has."""
    slots = ((0,) * 8,) * ranks
    return Traffic.of(Schedule(ranks, 8, slots, tuple(tuple(transfers) for transfers in rounds), slots))


def message(source: int, to: int, blocks: int, *, adds: bool = False) -> Transfer:
    return same(source, to, tuple(range(blocks)), adds=adds)


class TestEvents:
    """Small cases that can be worked out on paper; a block is a byte."""

    def test_a_message_that_comes_later_takes_half_of_what_is_left(self) -> None:
        network = Lines([1.0], {(0, 2): ([0], 0.0), (1, 2): ([0], 2.0)})
        done = simulate(schedule(3, [message(0, 2, 4), message(1, 2, 4)]), 8, network)
        assert done.seconds == pytest.approx(8.0)
        alone = simulate(schedule(3, [message(0, 2, 4), message(1, 2, 1)]), 8, network)
        assert alone.seconds == pytest.approx(5.0)  # 2 s alone, 2 s in halves, 1 s alone

    def test_a_round_is_a_barrier(self) -> None:
        network = Lines([1.0, 1.0], {(0, 1): ([0], 0.5), (2, 3): ([1], 0.5)})
        traffic = schedule(4, [message(0, 1, 6), message(2, 3, 1)], [message(0, 1, 1), message(2, 3, 6)])
        assert simulate(traffic, 8, network).seconds == pytest.approx(6.5 + 6.5)

    def test_sums_are_made_after_the_last_message_of_the_round_and_before_the_next_one(self) -> None:
        network = Lines([1.0, 1.0], {(0, 1): ([0], 0.0), (2, 1): ([1], 0.0), (1, 0): ([0], 0.0)})
        traffic = schedule(3, [message(0, 1, 2, adds=True), message(2, 1, 4, adds=True)], [message(1, 0, 1)])
        done = simulate(traffic, 8, network, Costs(gamma=0.5))
        assert done.seconds == pytest.approx(4 + 6 * 0.5 + 1)

    def test_every_message_pays_the_overhead_once_and_those_of_a_round_together(self) -> None:
        network = Lines([1.0], {(0, 1): ([0], 1.0), (0, 2): ([0], 1.0)})
        traffic = schedule(3, [message(0, 1, 2), message(0, 2, 2)], [message(0, 1, 2)])
        assert simulate(traffic, 8, network, Costs(overhead=0.25)).seconds == pytest.approx(1.25 + 4 + 1.25 + 2)

    def test_a_word_without_bytes_takes_its_delay(self) -> None:
        network = Lines([1.0], {(0, 1): ([0], 3.0)})
        done = simulate(schedule(2, [message(0, 1, 0)]), 8, network)
        assert done.seconds == pytest.approx(3.0)
        assert done.utilisation().tolist() == [0.0]

    def test_rounds_that_are_alike_are_worked_out_once(self) -> None:
        traffic = traffic_of("all_reduce", "ring", 64)
        assert (len(traffic.different), len(traffic.order)) == (2, 126)
        assert len(traffic_of("all_to_all", "pairwise", 16).different) == 15

    def test_a_schedule_of_other_ranks_is_refused(self) -> None:
        with pytest.raises(AnalysisError):
            simulate(traffic_of("all_reduce", "ring", 4), MIB, Flat(Placement(8), 1e9))


class TestWhatAFormulaCannotSay:
    def test_a_slow_link_slows_a_ring_by_its_ratio(self) -> None:
        network = TwoLevel(Placement(16), 10e9)
        slow = change_links(network, ("host 3 out=10%",))
        ring, slowed = run("all_reduce", "ring", network), run("all_reduce", "ring", slow)
        assert slowed.seconds / ring.seconds == pytest.approx(10)
        used = slowed.utilisation()
        assert slowed.links[int(used.argmax())].name == "host 3 out"
        assert used.max() == pytest.approx(1)
        assert sorted(used)[-2] == pytest.approx(0.1)

    def test_a_slow_link_slows_a_tree_in_the_one_round_that_takes_it(self) -> None:
        network = Flat(Placement(16), 10e9)
        slow = change_links(network, ("rank 3 out=10%",))
        message_time = 64 * MIB / 10e9
        assert run("all_reduce", "binomial-tree", network).seconds == pytest.approx(8 * message_time)
        assert run("all_reduce", "binomial-tree", slow).seconds == pytest.approx((7 + 10) * message_time)

    @pytest.mark.parametrize("per_host", [2, 4, 8])
    def test_a_ring_whose_neighbours_sit_apart_shares_every_card_between_all_ranks(self, per_host: int) -> None:
        """One message at a time leaves a host whose ranks are neighbours; of others all do."""
        block = run("all_reduce", "ring", TwoLevel(Placement(32, per_host), 10e9, 1e15))
        cyclic = run("all_reduce", "ring", TwoLevel(Placement(32, per_host, "cyclic"), 10e9, 1e15))
        assert block.seconds == pytest.approx(2 * 31 / 32 * 64 * MIB / 10e9, rel=1e-3)
        assert cyclic.seconds / block.seconds == pytest.approx(per_host, rel=1e-3)

    def test_rails_in_two_levels_carry_what_the_known_rule_says(self) -> None:
        """The rate of each card is busbw (k−1)/(n−1), for k hosts: busbw is (n−1)/(k−1) cards if inside is free."""
        ranks, hosts, size = 32, 4, 64 * MIB
        network = Rails(Placement(ranks, ranks // hosts), nic=10e9, inner=1e15)
        done = run("all_reduce", "hierarchical", network, size)
        busbw = 2 * (ranks - 1) / ranks * size / done.seconds
        cards = [n for n, link in enumerate(done.links) if "rail" in link.name]
        assert done.carried[cards] / done.seconds == pytest.approx(busbw * (hosts - 1) / (ranks - 1))
        assert busbw == pytest.approx(10e9 * (ranks - 1) / (hosts - 1), rel=1e-3)
        shared = run("all_reduce", "hierarchical", TwoLevel(Placement(ranks, ranks // hosts), 10e9, 1e15), size)
        assert shared.seconds / done.seconds == pytest.approx(ranks // hosts, rel=1e-3)

    @pytest.mark.parametrize("oversubscription", [1.0, 2.0, 3.5])
    def test_an_oversubscribed_tree_divides_what_goes_from_leaf_to_leaf(self, oversubscription: float) -> None:
        ranks, leaf, nic, size = 16, 4, 10e9, 64 * MIB
        network = FatTree(Placement(ranks), nic, leaf, oversubscription=oversubscription)
        done = run("all_to_all", "spread", network, size)
        card = (ranks - 1) / ranks * size / nic
        trunk = (ranks - leaf) / ranks * size / nic * oversubscription
        assert done.seconds == pytest.approx(max(card, trunk))

        across = [message(rank, (rank + leaf) % ranks, 8) for rank in range(ranks)]
        within = [message(rank, rank // leaf * leaf + (rank + 1) % leaf, 8) for rank in range(ranks)]
        assert simulate(schedule(ranks, across), size, network).seconds == pytest.approx(size / nic * oversubscription)
        assert simulate(schedule(ranks, within), size, network).seconds == pytest.approx(size / nic)

    def test_messages_that_are_hashed_onto_one_spine_wait_for_each_other(self) -> None:
        nic, size = 10e9, 64 * MIB
        hashed, straight = (
            FatTree(Placement(32), nic, 8, spines=8, routing=routing) for routing in ("hash", "destination")
        )
        ranks = np.arange(32)
        traffic = schedule(32, [message(rank, (rank + 8) % 32, 8) for rank in range(32)])
        routes = hashed.routes(ranks, (ranks + 8) % 32)
        most = max(np.bincount(routes.links[:, column]).max() for column in (2, 3))
        assert most > 1
        assert simulate(traffic, size, hashed).seconds == pytest.approx(most * size / nic)
        assert simulate(traffic, size, straight).seconds == pytest.approx(size / nic)

    def test_a_spine_between_rails_is_what_limits_other_rails(self) -> None:
        place = Placement(16, 4)
        other_rail = [message(rank, (rank + 5) % 16, 8) for rank in range(16) if rank % 4 != 3]
        size, nic = 64 * MIB, 10e9
        times = {
            spine: simulate(schedule(16, other_rail), size, Rails(place, nic, 1e15, spine=spine)).seconds
            for spine in (1.0, 4.0)
        }
        assert times == {1.0: pytest.approx(size / nic), 4.0: pytest.approx(4 * size / nic)}
        through_hosts = simulate(schedule(16, other_rail), size, Rails(place, nic, 1e15))
        assert through_hosts.seconds == pytest.approx(size / nic, rel=1e-3)


def shown_in_the_documentation() -> list[tuple[str, list[str]]]:
    """The commands of the section, each with the lines that stand below it."""
    section = (ROOT / "docs" / "models.md").read_text().partition("\n## Simulation\n")[2].partition("\n## ")[0]
    commands: list[tuple[str, list[str]]] = []
    for line in section.splitlines():
        if line.startswith("    busbw simulate "):
            commands.append((line.strip(), []))
        elif line.startswith("    "):
            commands[-1][1].append(line.removeprefix("    "))
    return commands


def busbw(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


TWO_LEVEL = ("--ranks", "16", "--ranks-per-host", "4", "--network", "two-level:nic=10GB/s,inner=100GB/s,delay=5us")


class TestCommand:
    def test_json_has_the_same_in_base_units(self) -> None:
        done = busbw("--op", "all_reduce", "--size", "8,1MiB", *TWO_LEVEL, "--overhead", "1us", "--json")
        document = json.loads(done.stdout)
        cases = {(row["algorithm"], row["size_bytes"]): row for row in document["cases"]}
        assert {name for name, _ in cases} == set(ALGORITHMS["all_reduce"])
        ring = cases["ring", MIB]
        assert ring["seconds"] == pytest.approx(30 * (MIB / 16 / 10e9 + 6e-6))
        assert ring["formula_seconds"] == pytest.approx(ring["seconds"])
        assert ring["ratio"] == pytest.approx(1)
        assert ring["busbw"] == pytest.approx(MIB / ring["seconds"] * 30 / 16)
        assert ring["links"][0]["busiest"] == "host 0 out"
        assert ring["links"][0]["as_busy"] == 4
        assert ring["links"][0]["busiest_bytes"] == pytest.approx(30 * MIB / 16)

    def test_a_rank_that_adds_up_slowly_takes_longer(self) -> None:
        arguments = ("--op", "reduce", "--size", "1MiB", "--ranks", "2", "--network", "flat:rate=1GB/s", "--json")
        quick, slow = (json.loads(busbw(*arguments, *more).stdout)["cases"][0] for more in ((), ("--sums", "2GB/s")))
        assert slow["seconds"] - quick["seconds"] == pytest.approx(MIB / 2e9)

    def test_what_cannot_be_is_left_out_of_all_and_refused_by_name(self) -> None:
        arguments = ("--op", "all_gather", "--size", "1MiB", "--ranks", "6", "--network", "flat:rate=1GB/s")
        done = busbw(*arguments)
        assert done.exit_code == 0
        assert "recursive-doubling" in done.stderr
        assert "recursive-doubling" not in done.stdout
        named = busbw(*arguments, "--algorithm", "ring,recursive-doubling")
        assert named.exit_code == 2
        assert "recursive-doubling" in named.stderr

    @pytest.mark.parametrize(
        ("network", "more", "count"),
        [
            ("flat:rate=1GB/s", (), 1),
            ("flat:rate=1GB/s", ("--overhead", "1us"), 0),
            ("flat:rate=1GB/s,delay=5us", (), 0),
            ("rail:nic=50GB/s,inner=450GB/s", (), 2),
            ("rail:nic=50GB/s,inner=450GB/s,delay=5us", (), 1),
            ("rail:nic=50GB/s,inner=450GB/s,delay=5us", ("--ranks-per-host", "4"), 0),
            ("rail:nic=50GB/s,inner=450GB/s,delay=5us", ("--link", "host 1 rail 0 out=10%"), 1),
        ],
    )
    def test_a_network_without_delay_or_with_links_in_vain_is_a_caution(
        self, network: str, more: tuple[str, ...], count: int
    ) -> None:
        arguments = ("--op", "all_reduce", "--algorithm", "ring", "--size", "1KiB", "--ranks", "8", "--json")
        done = busbw(*arguments, "--network", network, *more)
        assert len(json.loads(done.stdout)["cautions"]) == count, done.output

    def test_a_run_gives_its_own_parameters(self) -> None:
        sample = str(next((ROOT / "results" / "samples" / "vm").iterdir()))
        done = busbw("--op", "all_reduce", "--size", "1MiB", "--from", sample)
        assert done.exit_code == 0, done.output
        assert done.stdout.startswith("# all_reduce, shared: ")
        dealt_out = busbw("--op", "all_reduce", "--size", "1MiB", "--from", sample, "--order", "cyclic")
        assert dealt_out.exit_code == 2
        lacking = busbw("--op", "scatter", "--size", "1MiB", "--from", sample)
        assert lacking.exit_code == 1
        assert "scatter" in lacking.stderr

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--op", "send_recv"), "'send_recv'"),
            (("--algorithm", "ring,nvls"), "simulated"),
            (("--algorithm", "rnig"), "'rnig'"),
            (("--size", "64M"), "did"),
            (("--ranks", "5000"), "--ranks"),
            (
                (
                    "--op",
                    "all_to_all",
                    "--algorithm",
                    "spread",
                    "--ranks",
                    "1024",
                    "--size",
                    "1..9223372036854775807*2",
                ),
                "algorithms",
            ),
            (("--ranks-per-host", "1", "--order", "cyclic"), "--order"),
            (("--ranks-per-host", "3"), "with"),
            (("--network", "shared:rate=1GB/s,memory=1GB/s"), "shared"),
            (("--link", "host 7 out=5%"), "matches"),
            (("--link", "host 3 out"), "SHARE"),
            (("--sums", "20"), "'20'"),
            (("--from", "latest"), "--network"),
        ],
    )
    def test_bad_input_is_refused_in_words(self, arguments: tuple[str, ...], said: str) -> None:
        done = busbw("--op", "all_reduce", "--size", "1MiB", *TWO_LEVEL, *arguments)
        assert done.exit_code == 2, done.output
        assert said in done.stderr

    @pytest.mark.parametrize(("command", "lines"), shown_in_the_documentation())
    def test_the_documentation_shows_what_it_prints(self, command: str, lines: list[str]) -> None:
        printed = busbw(*shlex.split(command)[2:]).stdout.splitlines()
        assert len(lines) >= 4
        assert [line for line in printed if line in lines] == lines

    def test_a_barrier_has_no_size_and_no_rate_and_all_others_have(self) -> None:
        where = ("--ranks", "4", "--network", "flat:rate=1GB/s,delay=5us")
        done = busbw("--op", "barrier", *where)
        assert done.exit_code == 0, done.output
        row = next(line for line in done.stdout.splitlines() if line.startswith("  dissemination"))
        assert row.split()[1:4] == ["10", "µs", "1.00"]
        sized = busbw("--op", "barrier", "--size", "1MiB", *where)
        assert sized.exit_code == 2
        unsized = busbw("--op", "all_reduce", *where)
        assert unsized.exit_code == 2

    def test_links_of_one_kind_with_several_rates_show_the_lowest_and_the_highest(self) -> None:
        arguments = ("--op", "all_reduce", "--algorithm", "ring", "--ranks", "4", "--size", "1MiB")
        network = ("--network", "flat:rate=50GB/s,delay=5us", "--link", "rank 3 *=1GB/s")
        (case,) = json.loads(busbw(*arguments, *network, "--json").stdout)["cases"]
        assert case["links"][0]["bytes_per_second"] == [1e9, 50e9]
        assert case["links"][0]["busiest_bytes_per_second"] == 1e9
