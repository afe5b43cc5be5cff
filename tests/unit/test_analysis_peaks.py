import pytest

from busbw.ops import OPS
from busbw.records import Case
from busbw.testing.synthetic import Machine, Piece, World, case, synthetic_run
from busbw_analysis.load import pool
from busbw_analysis.models import UNMODELLED
from busbw_analysis.peaks import LEAST_CROSSING, NoRoof, Roof, host_copies, roof_of
from busbw_analysis.series import series_of
from busbw_analysis.summary import summarise

MIB = 1 << 20
QUIET = World(
    pieces=(Piece(0.0, 1e-9),), by_op={"memory_copy": (Piece(0.0, 4 / 8e9),)}, sample_noise=0.0, jitter_seconds=0.0
)
"""Copies: 4 ranks with S bytes each in 4 S / 8e9 seconds, so the host copies 8 GB/s in all."""


def roof(
    op: str, *, machine: Machine | None = None, ranks: int = 4, copies: tuple[Case, ...] | None = None
) -> Roof | NoRoof:
    measured = (case("memory_copy", 64 * MIB, ranks),) if copies is None else copies
    size = 0 if op == "barrier" else 4 * MIB
    dataset = pool((synthetic_run([case(op, size, ranks), *measured], QUIET, machine=machine, samples=5),))
    summaries = summarise(dataset)
    return roof_of(dataset, series_of(dataset, summaries)[0], host_copies(dataset, summaries))


@pytest.mark.parametrize(
    ("op", "busbw"),
    [
        # 2 · 3 S bytes must move, so t ≥ 6 S / 8e9, algbw ≤ 8e9 / 6, busbw ≤ 1.5 · 8e9 / 6.
        ("all_reduce", 2e9),
        # 3 S bytes, factor 3/4.
        ("all_gather", 2e9),
        ("reduce_scatter", 2e9),
        ("all_to_all", 2e9),
        # 3 S bytes, factor 1.
        ("broadcast", 8e9 / 3),
        # 3/4 S bytes, factor 3/4: only one rank receives.
        ("gather", 8e9),
        ("send_recv", 2e9),
        ("ping_pong", 8e9),
    ],
)
def test_memory_roofs_by_hand(op: str, busbw: float) -> None:
    found = roof(op)
    assert isinstance(found, Roof)
    assert found.busbw == pytest.approx(busbw, rel=1e-3)
    assert found.measured
    assert "memory copy of node0, 8 GB/s" in found.denominator
    assert "measured in this run" in found.denominator


def test_the_largest_copy_is_the_roof() -> None:
    world = World(by_op={"memory_copy": (Piece(0.0, 1e-10), Piece(0.0, 5e-10, 64 * MIB))}, sample_noise=0.0)
    cases = [case("memory_copy", size) for size in (MIB, 64 * MIB)]
    dataset = pool((synthetic_run(cases, world),))
    copied = host_copies(dataset, summarise(dataset))["node0"]
    assert copied.size_bytes == 64 * MIB
    assert copied.bytes_per_second == pytest.approx(4 / 5e-10, rel=1e-3)


def test_ranks_that_copy_one_after_the_other_do_not_double_the_roof() -> None:
    late = World(pieces=(Piece(1e-3, 0.0),), sample_noise=0.0, late_rank=1, late_seconds=1e-3)
    dataset = pool((synthetic_run([case("memory_copy", 4 * MIB, 2)], late),))
    group = summarise(dataset)[0].only
    copied = host_copies(dataset, summarise(dataset))["node0"]
    assert group is not None
    assert group.time_ns == pytest.approx(1e6, rel=1e-3)
    assert group.span_ns == pytest.approx(2e6, rel=1e-3)
    assert copied.bytes_per_second == pytest.approx(2 * 4 * MIB / 2e-3, rel=1e-3)
    assert copied.whole


def test_without_a_copy_there_is_no_roof_and_the_reason_is_said() -> None:
    found = roof("all_reduce", copies=())
    assert isinstance(found, NoRoof)
    assert "no memory_copy of 1 MiB or more was measured on node0" in found.reason


@pytest.mark.parametrize(
    ("op", "ranks", "reason"),
    [
        ("all_reduce", 1, "nothing crosses a wire"),
        ("barrier", 4, "nothing crosses a wire"),
        ("memory_copy", 4, "the roof itself"),
    ],
)
def test_what_has_no_roof(op: str, ranks: int, reason: str) -> None:
    found = roof(op, ranks=ranks)
    assert isinstance(found, NoRoof)
    assert reason in found.reason


def test_hosts_are_under_the_speed_of_their_interface() -> None:
    machine = Machine(hosts=("node0", "node1"), interface_bytes_per_second=12.5e9)
    found = roof("all_to_all", machine=machine)
    assert isinstance(found, Roof)
    # 2 ranks a host, each sends 2 of its 4 blocks to the other host: S through the interface, so algbw ≤ 12.5 GB/s.
    assert found.algbw == pytest.approx(12.5e9)
    assert found.busbw == pytest.approx(12.5e9 * 3 / 4)
    assert not found.measured
    assert "eth0" in found.denominator
    assert "nominal" in found.denominator
    assert "one direction" in found.denominator


def test_an_unknown_interface_speed_is_no_roof() -> None:
    found = roof("all_reduce", machine=Machine(hosts=("node0", "node1")))
    assert isinstance(found, NoRoof)
    assert "node0 does not know the speed" in found.reason


def test_the_chosen_interface_counts_and_the_loopback_never() -> None:
    interfaces = [
        {"name": "lo", "speed_bytes_per_second": 1.0, "up": True, "kind": "loopback"},
        {"name": "eth0", "speed_bytes_per_second": 1e9, "up": True, "kind": "ethernet"},
        {"name": "eth1", "speed_bytes_per_second": 5e9, "up": True, "kind": "ethernet"},
        {"name": "eth2", "speed_bytes_per_second": 1e8, "up": False, "kind": "ethernet"},
    ]
    two = ("node0", "node1")
    slowest = roof("broadcast", machine=Machine(hosts=two, facts={"nics": interfaces}))
    chosen = roof(
        "broadcast", machine=Machine(hosts=two, facts={"nics": interfaces, "variables": {"GLOO_SOCKET_IFNAME": "eth1"}})
    )
    assert isinstance(slowest, Roof)
    assert isinstance(chosen, Roof)
    assert (slowest.busbw, chosen.busbw) == (1e9, 5e9)


def test_every_op_with_a_wire_says_what_must_cross_between_hosts() -> None:
    without_wire = {op.name for op in OPS.values() if op.bus_factor is None}
    assert set(LEAST_CROSSING) | without_wire | {"pair_matrix"} | set(UNMODELLED) == set(OPS)


@pytest.mark.parametrize(
    ("op", "placement", "least"),
    [
        ("all_reduce", "aabb", 1.0),
        ("all_reduce", "abcd", 1.5),
        ("all_gather", "aabb", 0.5),
        ("all_gather", "abcd", 0.75),
        ("reduce_scatter", "abcd", 0.75),
        ("all_to_all", "abcd", 0.75),
        ("all_to_all", "aaab", 0.75),
        ("gather", "aabb", 0.5),
        ("scatter", "aaab", 0.25),
        ("send_recv", "aabb", 1.0),
        ("send_recv", "abab", 2.0),
        ("broadcast", "aabb", 1.0),
    ],
)
def test_least_crossing_by_hand(op: str, placement: str, least: float) -> None:
    assert LEAST_CROSSING[op](placement, 0) == pytest.approx(least)


def test_groups_at_the_same_time_share_the_host() -> None:
    cases = [case("all_gather", 4 * MIB, group="div:2"), case("memory_copy", 64 * MIB)]
    dataset = pool((synthetic_run(cases, QUIET, samples=5),))
    summaries = summarise(dataset)
    alone = roof_of(dataset, series_of(dataset, summaries)[0], host_copies(dataset, summaries))
    shared = roof_of(dataset, series_of(dataset, summaries)[0], host_copies(dataset, summaries), 2.0)
    assert isinstance(alone, Roof)
    assert isinstance(shared, Roof)
    assert shared.algbw == pytest.approx(alone.algbw / 2)


def test_a_small_copy_is_no_roof() -> None:
    dataset = pool((synthetic_run([case("all_reduce", MIB), case("memory_copy", 64 * 1024)], World()),))
    assert not host_copies(dataset, summarise(dataset))


def test_a_copy_on_a_gpu_is_no_roof_and_there_is_none_over_what_gpus_send_each_other() -> None:
    sizes = {"all_reduce": 4 * MIB, "memory_copy": 64 * MIB}
    cases = [case(op, size, backend="nccl", device="cuda") for op, size in sizes.items()]
    dataset = pool((synthetic_run(cases, QUIET, samples=5),))
    summaries = summarise(dataset)
    copies = host_copies(dataset, summaries)
    assert copies == {}
    found = roof_of(dataset, series_of(dataset, summaries)[0], copies)
    assert found == NoRoof("the links between cuda devices are not known to busbw yet")
