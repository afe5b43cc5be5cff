"""Networks: every message takes links that there are, and bad descriptions are refused in words."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from busbw.errors import UsageError
from busbw_analysis.models.networks import (
    NETWORKS,
    NOWHERE,
    FatTree,
    Network,
    Placement,
    Rails,
    TwoLevel,
    change_links,
    in_words,
    parse_network,
)

SPECIFICATIONS = {
    "flat": "flat:rate=10GB/s,delay=1us",
    "shared": "shared:rate=10GB/s,memory=20GB/s,delay=1us",
    "two-level": "two-level:nic=10GB/s,inner=100GB/s,delay=5us,inner-delay=1us",
    "rail": "rail:nic=10GB/s,inner=100GB/s,delay=5us,inner_delay=1us",
    "rail with a spine": "rail:nic=10GB/s,inner=100GB/s,delay=5us,spine=2",
    "fat-tree": "fat-tree:nic=80Gb/s,inner=100GB/s,delay=5us,leaf=2,spines=3,oversubscription=2,seed=7",
    "fat-tree by destination": "fat-tree:nic=10GB/s,inner=100GB/s,leaf=2,spines=2,routing=destination",
}


def every_pair(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(source, target) for source in range(ranks) for target in range(ranks) if source != target]
    sources, targets = zip(*pairs, strict=True)
    return np.array(sources), np.array(targets)


def names(network: Network, source: int, to: int) -> list[str]:
    links = network.links()
    route = network.routes(np.array([source]), np.array([to]))
    return [links[number].name for number in route.links[0] if number != NOWHERE]


def delay(network: Network, source: int, to: int) -> float:
    return float(network.routes(np.array([source]), np.array([to])).delays[0])


class TestPlacement:
    @pytest.mark.parametrize("order", ["block", "cyclic"])
    def test_every_rank_sits_where_it_is_found(self, order: str) -> None:
        ranks = np.arange(24)
        place = Placement(24, 4, "block" if order == "block" else "cyclic")
        assert place.rank_at(place.host_of(ranks), place.local_rank_of(ranks)).tolist() == ranks.tolist()
        assert place.host_of(ranks).tolist()[:8] == [
            number // 4 if order == "block" else number % 6 for number in range(8)
        ]

    @pytest.mark.parametrize(
        ("ranks", "per_host", "said"),
        [
            (1, 1, "nothing"),
            (8, 3, "divide"),
            (8, 0, "with"),
        ],
    )
    def test_what_cannot_be_is_refused(self, ranks: int, per_host: int, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            Placement(ranks, per_host)


class TestRoutes:
    @pytest.mark.parametrize("order", ["block", "cyclic"])
    @pytest.mark.parametrize("text", SPECIFICATIONS.values(), ids=SPECIFICATIONS)
    def test_every_message_leaves_its_sender_and_comes_in_where_it_should(self, text: str, order: str) -> None:
        per_host = 24 if text.startswith("shared") else 4
        network = parse_network(text).on(Placement(24, per_host, "block" if order == "block" else "cyclic"))
        place, links = network.placement, network.links()
        assert len({link.name for link in links}) == len(links)
        sources, targets = every_pair(24)
        routes = network.routes(sources, targets)
        assert routes.links.max() < len(links)
        for source, to, numbers in zip(sources, targets, routes.links, strict=True):
            taken = [links[number].name for number in numbers if number != NOWHERE]
            assert len(set(taken)) == len(taken) >= 2
            at, seat = (int(of(np.array([source]))[0]) for of in (place.host_of, place.local_rank_of))
            to_at, to_seat = (int(of(np.array([to]))[0]) for of in (place.host_of, place.local_rank_of))
            assert taken[0] in {f"rank {source} out", f"host {at} rail {seat} out"}
            assert taken[-1] in {f"rank {to} in", f"host {to_at} rail {to_seat} in"}
            if any(link.name.startswith("host") for link in links):
                assert any(name.startswith("host") for name in taken) == (at != to_at)

    def test_two_levels_share_a_card(self) -> None:
        network = TwoLevel(Placement(8, 4), 10.0, 100.0, 5.0, 1.0)
        assert names(network, 0, 3) == ["rank 0 out", "rank 3 in"]
        assert names(network, 3, 4) == ["rank 3 out", "host 0 out", "host 1 in", "rank 4 in"]
        assert (delay(network, 0, 3), delay(network, 3, 4)) == (1.0, 5.0)

    def test_a_rail_is_taken_straight_and_another_one_through_its_rank(self) -> None:
        network = Rails(Placement(8, 4), 10.0, 100.0, 5.0, 1.0)
        assert names(network, 1, 5) == ["host 0 rail 1 out", "host 1 rail 1 in"]
        assert names(network, 1, 6) == ["rank 1 out", "rank 2 in", "host 0 rail 2 out", "host 1 rail 2 in"]
        assert names(network, 1, 2) == ["rank 1 out", "rank 2 in"]
        assert [delay(network, 1, to) for to in (5, 6, 2)] == [5.0, 6.0, 1.0]

    def test_over_a_spine_another_rail_is_reached_from_the_own_one(self) -> None:
        network = Rails(Placement(8, 4), 10.0, 100.0, 5.0, 1.0, spine=2.0)
        assert names(network, 1, 6) == ["host 0 rail 1 out", "rail 1 up", "rail 2 down", "host 1 rail 2 in"]
        assert next(link for link in network.links() if link.name == "rail 1 up").bytes_per_second == 2 * 10.0 / 2

    def test_a_leaf_has_its_share_of_the_cards_below_it(self) -> None:
        network = FatTree(Placement(16, 2), 10.0, 4, 100.0, spines=2, oversubscription=4)
        up = [link.bytes_per_second for link in network.links() if link.name.startswith("leaf 0")]
        assert up == [4 * 10.0 / 4 / 2] * 2
        assert names(network, 0, 1) == ["rank 0 out", "rank 1 in"]
        assert names(network, 0, 6) == ["rank 0 out", "host 0 out", "host 3 in", "rank 6 in"]

    def test_by_destination_the_hosts_of_a_leaf_are_reached_over_different_spines(self) -> None:
        network = FatTree(Placement(16), 10.0, 4, spines=4, routing="destination")
        spines = {names(network, 0, to)[2] for to in range(4, 8)}
        assert spines == {f"leaf 0 to spine {spine}" for spine in range(4)}

    def test_a_hash_takes_some_spines_twice_and_all_of_them_equally_often_in_the_end(self) -> None:
        network = FatTree(Placement(64), 10.0, 8, spines=8)
        permutation = Counter(names(network, rank, (rank + 8) % 64)[2] for rank in range(8))
        assert max(permutation.values()) > 1
        sources, targets = every_pair(64)
        far = sources // 8 != targets // 8
        route = network.routes(sources[far], targets[far])
        spines = Counter((route.links[:, 2] % 8).tolist())
        assert min(spines.values()) > 0.85 * max(spines.values())
        other = FatTree(Placement(64), 10.0, 8, spines=8, seed=1).routes(sources[far], targets[far])
        assert (other.links != route.links).any()
        again = FatTree(Placement(64), 10.0, 8, spines=8).routes(sources[far], targets[far])
        assert (again.links == route.links).all()


class TestWords:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "two-level"),
            ("torus:rate=1GB/s", "'torus'"),
            ("flat", "lacks"),
            ("flat:delay=2us", "lacks rate"),
            ("flat:rate=50", "'50'"),
            ("flat:rate=0GB/s", "above"),
            ("flat:rate=1GB/s,delay=5", "time"),
            ("flat:rate=1GB/s,rate=2GB/s", "'rate=2GB/s'"),
            ("flat:rate=1GB/s,nic=2GB/s", "'nic=2GB/s'"),
            ("flat:rate", "'rate'"),
            ("flat:rate=1GB/s,placement=8", "'placement=8'"),
            ("two-level:nic=1GB/s", "missing"),
            ("rail:nic=1GB/s,inner=2GB/s,spine=0", "finite"),
            ("rail:nic=1GB/s,inner=2GB/s,spine=nan", "nan"),
            ("rail:nic=1GB/s,inner=2GB/s,spine=x", "number"),
            ("fat-tree:nic=1GB/s,inner=1GB/s,leaf=4", "divides"),
            ("fat-tree:nic=1GB/s,inner=1GB/s,leaf=0", "leaf 0"),
            ("fat-tree:nic=1GB/s,inner=1GB/s,leaf=2,spines=0", "4096"),
            ("fat-tree:nic=1GB/s,inner=1GB/s,leaf=2,spines=1.5", "'1.5'"),
            ("fat-tree:nic=1GB/s,inner=1GB/s,leaf=2,routing=best", "'best'"),
        ],
    )
    def test_what_is_no_network_is_refused_in_words(self, text: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            parse_network(text).on(Placement(24, 4))

    def test_there_is_an_example_of_every_kind(self) -> None:
        assert {text.partition(":")[0] for text in SPECIFICATIONS.values()} == set(NETWORKS)


class TestChanges:
    network = TwoLevel(Placement(8, 2), 10e9, 100e9)

    def rates(self, *changes: str) -> dict[str, float]:
        return {link.name: link.bytes_per_second for link in change_links(self.network, changes).links()}

    def test_a_share_and_a_rate_of_one_link(self) -> None:
        rates = self.rates("host 3 out=10%", "host 2 in = 2GB/s")
        assert (rates["host 3 out"], rates["host 2 in"]) == (1e9, 2e9)
        assert rates["host 3 in"] == rates["host 2 out"] == 10e9

    def test_a_star_stands_for_anything(self) -> None:
        rates = self.rates("host 3 *=50%")
        assert rates["host 3 out"] == rates["host 3 in"] == 5e9
        assert rates["rank 3 in"] == 100e9

    def test_it_is_said_what_was_changed(self) -> None:
        assert in_words(change_links(self.network, ("host 3 *=50%",))).endswith(
            "changed: host 3 out at 5 GB/s and host 3 in at 5 GB/s"
        )

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("host 9 out=10%", "NAME"),
            ("host 3 out", "lacks =SHARE"),
            ("host 3 out=", "rate"),
            ("host 3 out=10", "'10'"),
            ("host 3 out=0%", "above"),
            ("host 3 out=inf%", "above"),
            ("host 3 out=x%", "number"),
        ],
    )
    def test_what_is_no_change_is_refused_in_words(self, change: str, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            change_links(self.network, (change,))

    def test_kinds_have_no_numbers(self) -> None:
        for specification in SPECIFICATIONS.values():
            links = parse_network(specification).on(Placement(16, 4)).links()
            assert all(re.sub(r"\d+", "#", link.name) == link.kind for link in links)
