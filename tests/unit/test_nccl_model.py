from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.synthetic import Machine as Host
from testing.synthetic import case, synthetic_run

from busbw.runs.records import JSON
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.models.nccl import (
    ALGORITHMS,
    LIMITS,
    TREE_CORRECTION,
    Architecture,
    Expectation,
    Machine,
    Op,
    choose,
    expectations,
    ring_peak,
    seconds,
)
from busbw_analysis.report.fits import NcclChoice, nccl_choices, nccl_table
from busbw_analysis.report.to_terminal import render

GB = 1e9
LINKS: dict[Architecture, int] = {"Volta": 6, "Ampere": 12, "Hopper": 18, "Blackwell": 18}


def eight(architecture: Architecture, **more: object) -> Machine:
    machine = Machine(architecture, 8, ring_peak(architecture, LINKS[architecture]), 16)
    return replace(machine, **more)  # type: ignore[arg-type] # what a test changes


def expected(op: Op, algorithm: str, protocol: str, machine: Machine) -> Expectation:
    return next(
        expectation
        for expectation in expectations(op, machine)
        if (expectation.algorithm, expectation.protocol) == (algorithm, protocol)
    )


def busbw(expectation: Expectation, ranks: int, op: Op = "all_reduce") -> float:
    factor = 2 * (ranks - 1) / ranks if op == "all_reduce" else (ranks - 1) / ranks
    return expectation.algbw * factor / GB


@pytest.mark.parametrize(
    ("architecture", "peak", "channels", "measured"),
    [("Ampere", 240.0, 6 * 40, 234.9), ("Hopper", 370.8, 6 * 60, 367.6), ("Blackwell", 721.8, 8 * 90, 682.2)],
)
def test_a_ring_is_expected_to_reach_its_links_and_was_measured_close_to_that(
    architecture: Architecture, peak: float, channels: float, measured: float
) -> None:
    """Measured by others: all_reduce of 8 A100, H200 and B200 (stas00/ml-engineering, 0cc3de5, network/README.md)."""
    assert ring_peak(architecture, LINKS[architecture]) / GB == pytest.approx(peak)
    ring = expected("all_reduce", "Ring", "Simple", eight(architecture))
    assert busbw(ring, 8) == pytest.approx(channels)
    assert measured / channels == pytest.approx(1.0, abs=0.06)
    assert measured < peak


def test_a_ring_has_as_many_whole_channels_as_carry_most_and_no_slow_ones() -> None:
    """Of 4 Hopper links 82.4 GB/s: 1 channel of 60, 2 of 40 more, 4 of 20 no more, 7 of 11 or 27 of 3 not tried."""
    machine = eight("Hopper", bus_rate=ring_peak("Hopper", 4))
    assert busbw(expected("all_reduce", "Ring", "Simple", machine), 8) == pytest.approx(80)
    slow = eight("Hopper", bus_rate=2 * GB)  # less than any that is tried
    assert busbw(expected("all_reduce", "Ring", "Simple", slow), 8) == pytest.approx(2)


def test_what_switches_add_up_is_expected_close_to_what_was_measured_on_h200() -> None:
    """8 heads, as NCCL's own log has them (NVIDIA/nccl#1197: 8 channels of 40 GB/s); one counts for nothing."""
    nvls = expected("all_reduce", "NVLS", "Simple", eight("Hopper"))
    assert busbw(nvls, 8) == pytest.approx(2 * 7 * 40 * 0.85)
    assert busbw(nvls, 8) == pytest.approx(480.7, rel=0.02)


def test_on_b200_a_switch_was_measured_to_do_more_than_is_expected_of_it() -> None:
    """By others, 838 GB/s, more than 8 channels of 90 GB/s beyond the host; with those inside alone it were 829."""
    nvls = expected("all_reduce", "NVLS", "Simple", eight("Blackwell"))
    assert busbw(nvls, 8) == pytest.approx(min(2 * 7 * 80 * 0.74, 8 * 90))
    assert 1.1 < 838.0 / busbw(nvls, 8) < 1.2


@pytest.mark.parametrize(
    ("architecture", "ranks", "inside", "beyond"),
    [
        ("Hopper", 2, None, None),
        ("Hopper", 3, 60, 60),
        ("Hopper", 6, 50, 60),
        ("Hopper", 8, 40, 60),
        ("Blackwell", 7, 90, 90),
        ("Blackwell", 8, 80, 90),
        ("Blackwell", 18, 30, 60),
    ],
)
def test_few_gpus_have_few_heads_and_stay_with_a_ring(
    architecture: Architecture, ranks: int, inside: float | None, beyond: float | None
) -> None:
    """However many channels a ring has. A head has what fits its link (n + 1) times, and the search goes up its list
    from there to twice that at most: the smaller one counts.
    """
    efficiency = {"Hopper": 0.85, "Blackwell": 0.74}[architecture]
    for channels in (12, 16, 24):
        machine = eight(architecture, ranks=ranks, channels=channels)
        rates = {
            expectation.algorithm: busbw(expectation, ranks)
            for expectation in expectations("all_reduce", machine)
            if expectation.protocol == "Simple"
        }
        if inside is None or beyond is None:
            assert "NVLS" not in rates
        else:
            nvls = ranks * min(2 * inside * efficiency * (ranks - 1) / ranks, beyond)
            assert rates["NVLS"] == pytest.approx(nvls)
        taken = choose("all_reduce", 1 << 34, machine).algorithm
        # Where both have as much, a ring has more steps.
        assert (taken == "NVLS") == (ranks >= {"Hopper": 6, "Blackwell": 8}[architecture])


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_switches_gain_nothing_where_nothing_is_handed_out_and_added_up_at_once(op: Op) -> None:
    """Measured on H200: all_gather 361 and reduce_scatter 363 GB/s, as much as a ring."""
    machine = eight("Hopper")
    assert choose(op, 1 << 34, machine).algorithm == "Ring"
    assert busbw(expected(op, "Ring", "Simple", machine), 8, op) == pytest.approx(362, rel=0.03)


def test_latencies_are_those_of_steps() -> None:
    """On one host: base + 14 steps of a ring, 2·7 of a tree; by hand from the tables."""
    machine = eight("Ampere")
    by = {
        (expectation.algorithm, expectation.protocol): expectation.latency_seconds * 1e6
        for expectation in expectations("all_reduce", machine)
    }
    assert by["Ring", "LL"] == pytest.approx(6.6 + 14 * 0.6)
    assert by["Ring", "Simple"] == pytest.approx(8.4 + 14 * 3.4)
    assert by["Tree", "LL128"] == pytest.approx(14.0 + 14 * 1.25)
    assert expected("all_gather", "Ring", "LL", machine).latency_seconds * 1e6 == pytest.approx(6.6 + 7 * 0.6)
    assert expected("all_reduce", "NVLS", "Simple", eight("Hopper")).latency_seconds * 1e6 == pytest.approx(25)


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_through_switches_a_chain_is_one_step(op: Op, ranks: int) -> None:
    """For however many GPUs: so a short broadcast of H200 x 8 is expected in 7.2 µs, and 16 MiB go by Simple."""
    machine = eight("Hopper", ranks=ranks)
    by = {expectation.protocol: expectation.latency_seconds * 1e6 for expectation in expectations(op, machine)}
    assert by == pytest.approx({"LL": 6.6 + 0.6, "LL128": 14.0 + 1.9, "Simple": 8.4 + 3.4})
    assert seconds(choose(op, 8, machine), 8) * 1e6 == pytest.approx(7.2, abs=0.01)
    long = choose(op, 16 << 20, machine)
    assert long.protocol == "Simple"
    assert seconds(long, 16 << 20) == pytest.approx(11.8e-6 + (16 << 20) / 360e9)


def test_short_messages_go_by_ll_and_long_ones_by_simple() -> None:
    for architecture in LIMITS:
        machine = eight(architecture)
        assert choose("all_reduce", 8, machine).protocol == "LL"
        assert choose("all_reduce", 1 << 32, machine).protocol == "Simple"
    assert choose("all_reduce", 16 << 20, eight("Ampere")).protocol == "LL128"
    assert choose("all_reduce", 1 << 30, eight("Hopper")).algorithm == "NVLS"


def test_a_tree_has_less_than_its_rate_at_middle_sizes() -> None:
    machine = eight("Ampere")
    tree = expected("all_reduce", "Tree", "Simple", machine)
    for power, share in ((6, 0.9), (6 + 11, 0.5), (6 + 22, 0.9), (6 + 23, 1.0)):
        size = 1 << power
        assert (seconds(tree, size) - tree.latency_seconds) * tree.algbw == pytest.approx(size / share)
    assert {len(row) for row in TREE_CORRECTION.values()} == {24}


@given(
    op=st.sampled_from(sorted(ALGORITHMS)),
    architecture=st.sampled_from(sorted(LIMITS)),
    ranks=st.integers(2, 72),
    power=st.integers(0, 36),
)
def test_whatever_is_asked_there_is_a_choice_and_it_is_the_fastest(
    op: Op, architecture: Architecture, ranks: int, power: int
) -> None:
    machine = eight(architecture, ranks=ranks)
    chosen = choose(op, 1 << power, machine)
    least = seconds(chosen, 1 << power)
    assert least > 0
    assert all(least <= seconds(expectation, 1 << power) for expectation in expectations(op, machine))


# --- of a run --------------------------------------------------------------------------------------------------

SIZES = [8, 1 << 14, 1 << 20, 1 << 26, 1 << 30]


def gpus(count: int, name: str = "NVIDIA H200", **nvlink: JSON) -> list[dict[str, JSON]]:
    links = {"generation": 4, "up": 18, "down": 0, "switch": 18, "peers": {}, "unknown": 0, **nvlink}
    return [
        {"index": index, "name": name, "id": None, "address": f"0000:{index}0:00.0", "nvlink": links}
        for index in range(count)
    ]


def judged(
    op: str = "all_reduce",
    cards: list[dict[str, JSON]] | None = None,
    *,
    nodes: int = 1,
    variables: dict[str, JSON] | None = None,
    algorithm: str | None = None,
    ranks: int = 8,
) -> Judgement:
    cards = gpus(8) if cards is None else cards
    seats: list[JSON] = [{"rank": rank, "local_rank": rank, "gpu": rank} for rank in range(ranks)]
    hardware: dict[str, JSON] = {"pci": {"gpus": list(cards), "nics": [], "drives": []}, "ranks": seats}
    facts = {**hardware, **({} if variables is None else {"variables": variables})}
    sizes = [0] if op == "barrier" else SIZES
    cases = [case(op, size, ranks, nodes=nodes, backend="nccl", device="cuda", algorithm=algorithm) for size in sizes]
    hosts = tuple(f"node{number}" for number in range(nodes))
    return judge(pool((synthetic_run(cases, machine=Host(hosts=hosts, facts=facts), samples=5),)))


def choices_in(judgement: Judgement) -> list[NcclChoice]:
    names = {curve.series.key: curve.series.key.label for curve in judgement.curves}
    return list(nccl_choices(judgement, names, catalogue()))


def test_a_run_over_nccl_is_shown_with_what_its_model_chooses() -> None:
    rows = choices_in(judged())
    assert [(row.algorithm, row.protocol) for row in rows] == [("Ring", "LL"), ("NVLS", "Simple")]
    assert (rows[0].first_bytes, rows[-1].last_bytes) == (8, 1 << 30)
    assert rows[0].bus_rate == pytest.approx(370.8e9)
    assert all((row.measured_seconds or 0) > 0 < (row.expected_seconds or 0) for row in rows)
    text = render([nccl_table(rows)])
    assert "NVLS" in text
    assert "2.30.7" in text


def test_a_barrier_is_an_all_reduce_of_one_element() -> None:
    (row,) = choices_in(judged("barrier"))
    choice = choose("all_reduce", 4, eight("Hopper"))
    assert (row.algorithm, row.protocol) == (choice.algorithm, choice.protocol)
    assert (row.first_bytes, row.last_bytes, row.expected_seconds) == (4, 4, seconds(choice, 4))
    assert row.measured_seconds


@pytest.mark.parametrize(
    ("judgement", "words"),
    [
        (lambda: judged("all_to_all"), "receives"),
        (lambda: judged(nodes=2), "channels"),
        (lambda: judged(variables={"NCCL_ALGO": "Ring"}), "set NCCL_ALGO"),
        (lambda: judged(cards=gpus(8, name="NVIDIA X1")), "GPU"),
        (lambda: judged(cards=gpus(8, up=0, switch=0)), "recorded"),
        (lambda: judged(cards=gpus(8, switch=0)), "NVSwitches"),
        (lambda: judged(cards=gpus(8, name="NVIDIA H100 PCIe")), "NVL"),
        (lambda: judged(algorithm="ring"), "algorithm"),
    ],
)
def test_what_a_run_does_not_tell_is_said(judgement: Callable[[], Judgement], words: str) -> None:
    rows = choices_in(judgement())
    assert len(rows) == 1
    assert words in str(rows[0].refused)
