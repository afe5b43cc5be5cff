"""What busbw measures and fits on a network of known rate and delay, held against what is true of it.

Of times only medians are looked at, and only as differences between delays or as shares of the link: how fast this
machine is has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bed import Bed, Network, Ranks

from busbw import store
from busbw_analysis.fit import Fit
from busbw_analysis.judge import Curve, Judgement, judge
from busbw_analysis.load import load

pytestmark = [pytest.mark.timeout(400), pytest.mark.measures]

RATES_MBIT = (100, 1000)
DELAYS_MS = (1, 5)
HOSTS = (2, 4)

_MIB = 1 << 20
SEGMENT_BYTES = _MIB
"""Gloo's ring sends pieces of at most so many bytes (kMaxSegmentSize, gloo/allreduce.h)."""

SMALL_BYTES = 1024
LARGE_BYTES = {100: 8 * _MIB, 1000: 16 * _MIB}
"""Every piece of the ring is as large as it gets."""

_PLAN = """\
name = "truth"

[timing]
blocks = 1
min_samples = 10
least_samples = 3
min_seconds = 0.0
max_seconds = 0.8
precision = 0.02
launch_warmup_seconds = 0.2
warmup_calls = 2

[[sweep]]
ops = ["ping_pong"]
sizes = "1KiB..{largest}*4"

[[sweep]]
ops = ["all_reduce", "all_to_all"]
sizes = "{small}"

[[sweep]]
ops = ["all_reduce"]
sizes = "{large}"
"""


@dataclass(slots=True)
class Truths:
    """Runs of the same plan on networks that differ in rate and delay, each made when it is first asked for."""

    bed: Bed
    ranks: Ranks
    results: Path
    made: dict[tuple[int, int, int], Judgement] = field(default_factory=dict)

    def judged(self, rate_mbit: int, delay_ms: int, hosts: int) -> Judgement:
        """What the analysis says of the run on this network."""
        at = (rate_mbit, delay_ms, hosts)
        if at not in self.made:
            results = self.results / "-".join(map(str, at))
            results.mkdir()
            plan = results / "plan.toml"
            largest = "1MiB" if rate_mbit < 1000 else "4MiB"
            plan.write_text(_PLAN.format(largest=largest, small=SMALL_BYTES, large=LARGE_BYTES[rate_mbit]))
            self.bed.set_network(Network(rate_mbit, delay_ms))
            options = ("--plan", plan, "--results-dir", results, "--quiet")
            ends = self.ranks.run(*options, hosts=self.bed.names[:hosts])
            assert [end.code for end in ends] == [0] * hosts, ends
            self.made[at] = judge(load([*store.folders(results)]))
        return self.made[at]

    def curve(self, op: str, rate_mbit: int, delay_ms: int, hosts: int) -> Curve:
        """The one curve of an operation."""
        (curve,) = (one for one in self.judged(rate_mbit, delay_ms, hosts).curves if one.series.key.op == op)
        return curve

    def pair_fit(self, rate_mbit: int, delay_ms: int, hosts: int) -> Fit:
        """The fit of the time from one host to another."""
        fit = self.curve("ping_pong", rate_mbit, delay_ms, hosts).fit
        assert isinstance(fit, Fit), fit
        return fit

    def small_ms(self, op: str, rate_mbit: int, delay_ms: int, hosts: int) -> float:
        """The median time of the small size."""
        points = self.curve(op, rate_mbit, delay_ms, hosts).series.points
        return next(point.time_ns for point in points if point.size_bytes == SMALL_BYTES) / 1e6

    def share_of_link(self, rate_mbit: int, delay_ms: int, hosts: int) -> float:
        """The bus bandwidth of the large all-reduce, over the rate of the link."""
        point = self.curve("all_reduce", rate_mbit, delay_ms, hosts).series.points[-1]
        assert point.size_bytes == LARGE_BYTES[rate_mbit]
        assert point.busbw is not None
        return point.busbw * 8e-6 / rate_mbit


@pytest.fixture(scope="module")
def truths(network_of_module: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Truths]:
    results = tmp_path_factory.mktemp("truths")
    with Ranks(network_of_module, results) as ranks:
        yield Truths(network_of_module, ranks, results)


def over_delays(one_ms: float, five_ms: float) -> float:
    """How many delays are in a time, by how it grows with the delay."""
    return (five_ms - one_ms) / (DELAYS_MS[1] - DELAYS_MS[0])


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("rate", RATES_MBIT)
class TestPairFit:
    @pytest.mark.parametrize("delay", DELAYS_MS)
    def test_its_rate_is_that_of_the_cable(self, truths: Truths, rate: int, delay: int, hosts: int) -> None:
        fit = truths.pair_fit(rate, delay, hosts)
        assert fit.algbw is not None
        # TCP and Ethernet take 1 %: 8948 bytes of data in 9038 on the cable.
        assert fit.algbw * 8e-6 == pytest.approx(rate, rel=0.05)

    def test_its_latency_grows_by_the_delay(self, truths: Truths, rate: int, hosts: int) -> None:
        one, five = (truths.pair_fit(rate, delay, hosts).alpha_seconds * 1e3 for delay in DELAYS_MS)
        assert over_delays(one, five) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("rate", RATES_MBIT)
class TestSteps:
    def test_an_all_reduce_takes_four_delays_for_every_other_rank(self, truths: Truths, rate: int, hosts: int) -> None:
        # The textbook's ring has 2(n-1) steps. Gloo's sender waits in each for the receiver's word that it is ready.
        one, five = (truths.small_ms("all_reduce", rate, delay, hosts) for delay in DELAYS_MS)
        assert over_delays(one, five) == pytest.approx(4 * (hosts - 1), rel=0.1)

    def test_an_all_to_all_takes_two_delays(self, truths: Truths, rate: int, hosts: int) -> None:
        one, five = (truths.small_ms("all_to_all", rate, delay, hosts) for delay in DELAYS_MS)
        assert over_delays(one, five) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("delay", DELAYS_MS)
class TestLargeAllReduce:
    """Gloo's ring works in pieces of at most 1 MiB, two of them under way, and the word of the receiver that it is
    ready for the next one travels while the cable is idle: up to one delay is lost for each piece. At 100 Mbit/s a
    piece takes 84 ms, so that little is lost; at 1000 Mbit/s it takes 8.4 ms, and with 5 ms of delay a third of the
    link cannot be used, however large the message is: 16 MiB and 64 MiB show the same, and so do Reno and BBR, so that
    it is not for the window of TCP.
    """

    def test_it_fills_a_link_that_is_slow_against_the_delay(self, truths: Truths, delay: int, hosts: int) -> None:
        assert truths.share_of_link(100, delay, hosts) == pytest.approx(1, rel=0.1)

    def test_it_loses_at_most_a_delay_a_piece_on_a_fast_one(self, truths: Truths, delay: int, hosts: int) -> None:
        piece_ms = SEGMENT_BYTES * 8e-3 / 1000
        least = piece_ms / (piece_ms + delay)
        assert 0.9 * least < truths.share_of_link(1000, delay, hosts) < 1


@pytest.mark.parametrize("hosts", HOSTS)
def test_a_large_all_reduce_cannot_fill_a_fast_link_with_a_long_delay(truths: Truths, hosts: int) -> None:
    assert truths.share_of_link(1000, 5, hosts) < 0.8
