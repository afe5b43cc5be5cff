from dataclasses import replace

import msgspec
import pytest
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.ops import LEAST_CROSSING, OPS
from busbw.runs.records import JSON, Case
from busbw.system.catalog import Catalogue, catalogue
from busbw.units import format_rate
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.gloo import UNMODELLED
from busbw_analysis.peaks.peaks import Hardware, Peak, host_rates, peak_of
from busbw_analysis.report.show import show_rows

MIB = 1 << 20
ROWS = catalogue(environment={})
QUIET = World(
    pieces=(Piece(0.0, 1e-9),), by_op={"memory_copy": (Piece(0.0, 4 / 8e9),)}, sample_noise=0.0, jitter_seconds=0.0
)
"""Copies: 4 ranks with S bytes each in 4 S / 8e9 seconds, so the host copies 8 GB/s in all."""


def hardware(dataset: Dataset, rows: Catalogue = ROWS) -> Hardware:
    return Hardware(dataset.facts, host_rates(dataset.summaries, dataset.facts), rows)


def peak_of_op(
    op: str, *, machine: Machine | None = None, ranks: int = 4, copies: tuple[Case, ...] | None = None
) -> Peak | Unavailable:
    measured = (case("memory_copy", 64 * MIB, ranks),) if copies is None else copies
    size = 0 if op == "barrier" else 4 * MIB
    dataset = pool((synthetic_run([case(op, size, ranks), *measured], QUIET, machine=machine, samples=5),))
    return peak_of(dataset.series[0], hardware(dataset))


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
def test_memory_peaks_by_hand(op: str, busbw: float) -> None:
    peak = require_type(Peak, peak_of_op(op))
    assert peak.busbw == pytest.approx(busbw, rel=1e-3)
    assert (peak.level, peak.holder, peak.practical_busbw) == ("memory copy of a host", "node0", None)
    assert peak.measured
    divided = f"; {format_rate(8e9)} ÷ {8e9 / busbw:.3g} bytes copied for each byte of busbw = {format_rate(busbw)}"
    assert divided in peak.denominator


@pytest.mark.parametrize(
    ("op", "ranks_of_op", "backend", "cores", "busbw"),
    [
        # 4 ranks send 12e9 B/s in all, of which 6 S, 3 S and 3 S are needed; of two ranks 6e9 B/s, of which S.
        ("all_reduce", 4, "gloo", 2, 3e9),
        ("all_to_all", 4, "gloo", 2, 3e9),
        ("broadcast", 4, "gloo", 2, 4e9),
        ("ping_pong", 2, "gloo", 4, 6e9),
        ("ping_pong", 2, "gloo", 2, None),  # two of four ranks have a core each, four of four have half a one
        ("all_reduce", 4, "mpi", 2, None),  # shared memory, no sockets
        ("tcp_stream", 4, "gloo", 2, None),
    ],
)
def test_ranks_over_sockets_are_held_against_plain_sockets(
    op: str, ranks_of_op: int, backend: str, cores: int, busbw: float | None
) -> None:
    # 4 ranks send 16 MiB in 16 MiB / 3e9 s; the smaller one that is faster is too small, and memory has 8 GB/s.
    world = replace(QUIET, by_op={**QUIET.by_op, "tcp_stream": (Piece(0.0, 1e-12), Piece(0.0, 1 / 3e9, 16 * MIB))})
    others = [case("tcp_stream", 1 << 19), case("tcp_stream", 16 * MIB), case("memory_copy", 64 * MIB)]
    cases = [msgspec.structs.replace(planned, backend=backend) for planned in (case(op, 32 * MIB), *others)]
    machine = Machine(usable_cores=cores)
    dataset = pool((synthetic_run(cases, world, machine=machine, samples=5),))
    series = dataset.series[0]
    assert len(series.key.ranks) == ranks_of_op
    peak = peak_of(series, hardware(dataset))
    if (op, busbw) == ("ping_pong", None):
        assert isinstance(peak, Unavailable)
        assert peak.code == "stream-shared-cores"
        return
    assert isinstance(peak, Peak)
    assert (peak.level == "plain TCP of a host") == (busbw is not None)
    if busbw is not None:
        assert peak.busbw == pytest.approx(busbw, rel=1e-3)
        assert peak.algbw == pytest.approx(busbw / (series.bus_factor or 0), rel=1e-3)


def test_a_message_one_way_at_a_time_is_held_against_one_over_a_plain_socket() -> None:
    """However many ranks there are: only two of them have to do."""
    world = replace(QUIET, by_op={**QUIET.by_op, "tcp_ping_pong": (Piece(0.0, 1 / 4e9),)})
    asked = [case(op, 16 * MIB) for op in ("ping_pong", "pair_uni", "pair_bidir", "tcp_ping_pong", "tcp_stream")]
    dataset = pool((synthetic_run(asked, world, machine=Machine(usable_cores=2), samples=5),))
    peaks = {series.key.op: peak_of(series, hardware(dataset)) for series in dataset.series}
    for op in ("ping_pong", "pair_uni"):
        peak = require_type(Peak, peaks[op])
        assert peak.busbw == peak.algbw == pytest.approx(4e9, rel=1e-3)
        assert "tcp_ping_pong" in peak.denominator
    assert isinstance(peaks["pair_bidir"], Unavailable)


@pytest.mark.parametrize("group", ["0,1", "0,3;1,2"])
def test_other_ranks_and_several_pairs_at_once_have_no_part_in_that_peak(group: str) -> None:
    asked = [case("ping_pong", 16 * MIB, group=group), case("tcp_ping_pong", 16 * MIB), case("tcp_stream", 16 * MIB)]
    dataset = pool((synthetic_run(asked, QUIET, machine=Machine(usable_cores=4), samples=5),))
    for series in dataset.series:
        if series.key.op == "ping_pong":
            peak = peak_of(series, hardware(dataset))
            assert isinstance(peak, Peak)
            assert "tcp_stream" in peak.denominator


def test_the_largest_copy_is_the_peak() -> None:
    world = World(by_op={"memory_copy": (Piece(0.0, 1e-10), Piece(0.0, 5e-10, 64 * MIB))}, sample_noise=0.0)
    cases = [case("memory_copy", size) for size in (MIB, 64 * MIB)]
    dataset = pool((synthetic_run(cases, world),))
    copied = host_rates(dataset.summaries, dataset.facts)["memory_copy", "node0"]
    assert copied.size_bytes == 64 * MIB
    assert copied.bytes_per_second == pytest.approx(4 / 5e-10, rel=1e-3)


def test_ranks_that_copy_one_after_the_other_do_not_double_the_peak() -> None:
    late = World(pieces=(Piece(1e-3, 0.0),), sample_noise=0.0, late_rank=1, late_seconds=1e-3)
    dataset = pool((synthetic_run([case("memory_copy", 4 * MIB, 2)], late),))
    group = dataset.summaries[0].only
    copied = host_rates(dataset.summaries, dataset.facts)["memory_copy", "node0"]
    assert group is not None
    assert group.time_ns == pytest.approx(1e6, rel=1e-3)
    assert group.span_ns == pytest.approx(2e6, rel=1e-3)
    assert copied.bytes_per_second == pytest.approx(2 * 4 * MIB / 2e-3, rel=1e-3)
    assert copied.whole


def test_without_a_copy_there_is_no_peak_and_the_reason_is_said() -> None:
    unavailable = require_type(Unavailable, peak_of_op("all_reduce", copies=()))
    assert unavailable.code == "no-memory-copy"


@pytest.mark.parametrize(
    ("op", "ranks", "code"),
    [
        ("all_reduce", 1, "no-wire"),
        ("barrier", 4, "no-wire"),
        ("memory_copy", 4, "memory-not-known"),
        ("storage_read", 4, "storage-not-recorded"),
        ("matmul", 4, "see-roofline"),
    ],
)
def test_what_has_no_peak(op: str, ranks: int, code: str) -> None:
    unavailable = require_type(Unavailable, peak_of_op(op, ranks=ranks))
    assert unavailable.code == code


def test_of_unlike_hosts_the_slowest_is_the_peak() -> None:
    fast, slow = (
        synthetic_run(
            [case("all_to_all", 4 * MIB)],
            QUIET,
            machine=Machine(hosts=("node0", "node1"), interface_bytes_per_second=rate),
            samples=5,
        )
        for rate in (12.5e9, 1.25e9)
    )
    environments = {**fast.run.environments, "node1": slow.run.environments["node1"]}
    dataset = pool((replace(fast, run=msgspec.structs.replace(fast.run, environments=environments)),))
    peak = peak_of(dataset.series[0], hardware(dataset))
    # 2 ranks a host, each sends 2 of its 4 blocks to the other host: S through the interface.
    assert isinstance(peak, Peak)
    assert (peak.algbw, peak.busbw) == pytest.approx((1.25e9, 1.25e9 * 3 / 4))
    assert not peak.measured


@pytest.mark.parametrize(
    ("driver", "rate", "practical"), [("e1000e", 125e6, 117.6e6), ("mlx5_core", 50e9, None), ("cxi_ss1", 25e9, None)]
)
def test_sockets_are_held_against_what_sockets_reach(driver: str, rate: float, practical: float | None) -> None:
    nic = {"name": "eth0", "kind": "physical", "up": True, "driver": driver, "speed_bytes_per_second": rate}
    peak = require_type(Peak, over_network("gloo", nics=[nic]))
    assert peak.algbw * LEAST_CROSSING["all_reduce"](["a", "a", "b", "b"], 0) == pytest.approx(rate)
    assert peak.practical == (None if practical is None else pytest.approx(practical))
    assert ("iperf3-results" in peak.denominator) == bool(practical)


def test_an_unknown_interface_speed_is_no_peak() -> None:
    unavailable = require_type(Unavailable, peak_of_op("all_reduce", machine=Machine(hosts=("node0", "node1"))))
    assert unavailable.code == "network-not-known"


INTERFACES: list[JSON] = [
    {"name": "lo", "speed_bytes_per_second": 1.0, "up": True, "kind": "loopback"},
    {"name": "eth0", "speed_bytes_per_second": 1e9, "up": True, "kind": "physical"},
    {"name": "ens1", "speed_bytes_per_second": 5e9, "up": True, "kind": "physical"},
    {"name": "ens2", "speed_bytes_per_second": 5e9, "up": True, "kind": "physical"},
    {"name": "ens3", "speed_bytes_per_second": 1e8, "up": False, "kind": "physical"},
    {"name": "wan0", "speed_bytes_per_second": None, "up": True, "kind": "physical"},
    {"name": "docker0", "speed_bytes_per_second": None, "up": True, "kind": "virtual"},
]


@pytest.mark.parametrize(
    ("backend", "variables", "rate", "said"),
    [
        ("gloo", {"GLOO_SOCKET_IFNAME": "ens1"}, 5e9, "ens1"),
        ("gloo", {"GLOO_SOCKET_IFNAME": "ens1,ens2,ens3,lo"}, 5e9, "ens1"),
        ("gloo", {"GLOO_SOCKET_IFNAME": "ens1,ens2"}, 5e9, "ens1"),
        ("nccl", {"NCCL_SOCKET_IFNAME": "eth"}, 1e9, "eth0"),
        ("nccl", {"NCCL_SOCKET_IFNAME": "ens"}, 10e9, "ens2"),
        ("nccl", {"NCCL_SOCKET_IFNAME": "=ens2"}, 5e9, "ens2"),
        ("nccl", {"NCCL_SOCKET_IFNAME": "^eth,wan,docker"}, 10e9, "ens2"),
        ("mpi", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "ens1"}, 5e9, "ens1"),
        (
            "mpi",
            {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "ens1,ens2"},
            10e9,
            "ens2",
        ),
        ("mpi", {"FI_PROVIDER": "tcp;ofi_rxm", "FI_TCP_IFACE": "eth0"}, 1e9, "eth0"),
    ],
)
def test_sockets_are_under_the_interface_that_was_named(
    backend: str, variables: dict[str, str], rate: float, said: str
) -> None:
    peak = require_type(Peak, over_network(backend, nics=INTERFACES, variables=variables))
    assert peak.algbw == pytest.approx(rate)
    assert said in peak.denominator


@pytest.mark.parametrize(
    ("backend", "variables", "names", "said"),
    [
        ("gloo", {}, ["lo", "eth0", "ens1"], "eth0"),
        ("nccl", {}, ["eth0", "ens1"], "with NCCL_SOCKET_IFNAME"),
        ("nccl", {}, ["ens1", "ens2"], "NCCL_SOCKET_IFNAME"),
        ("mpi", {}, ["eth0", "ens1"], "OMPI_MCA_btl_tcp_if_include"),
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth0,ens1"}, ["eth0", "ens1"], "GLOO_SOCKET_IFNAME"),
        ("gloo", {}, ["eth0", "wan0"], "wan0"),
        ("gloo", {"GLOO_SOCKET_IFNAME": "ens"}, ["ens1"], "GLOO_SOCKET_IFNAME"),
        ("mpi", {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "10.0.0.0/8"}, ["ens1"], "UCX_NET_DEVICES"),
    ],
)
def test_a_guess_among_interfaces_is_no_peak(
    backend: str, variables: dict[str, str], names: list[str], said: str
) -> None:
    unavailable = require_type(
        Unavailable,
        over_network(backend, nics=[nic for nic in INTERFACES if nic["name"] in names], variables=variables),
    )
    assert said in unavailable.reason


@pytest.mark.parametrize(
    ("value", "names", "rate"),
    [
        ("10.0.0.0/8", ("eth0", "ens1"), None),
        ("ens1,10.0.0.0/8", ("ens1", "ens2"), None),
        ("10.0.0.0/8", ("lo", "ens1", "ens3", "docker0"), 5e9),
    ],
)
def test_which_interfaces_are_of_a_subnet_is_not_told_unless_one_alone_is_up(
    value: str, names: tuple[str, ...], rate: float | None
) -> None:
    variables = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": value}
    peak = over_network("mpi", nics=[nic for nic in INTERFACES if nic["name"] in names], variables=variables)
    assert (peak.algbw if isinstance(peak, Peak) else None) == rate
    if isinstance(peak, Unavailable):
        assert f"OMPI_MCA_btl_tcp_if_include={value}" in peak.reason


@pytest.mark.parametrize(
    ("variables", "transport", "rate"),
    [
        ({}, None, 50e9),
        ({}, {"pml": "ucx", "UCX_TLS": "not reported by the library"}, 50e9),
        ({"UCX_TLS": "rc_x,sm,self"}, None, 50e9),
        ({"UCX_TLS": "^cuda_ipc"}, {"netmod": "ucx", "UCX_TLS": "^cuda_ipc"}, 50e9),
        ({"UCX_NET_DEVICES": "mlx5_0:1"}, None, 50e9),
        ({"UCX_NET_DEVICES": "eth0"}, {"pml": "ucx"}, 1e9),
        ({"UCX_TLS": "tcp"}, {"pml": "ucx", "UCX_TLS": "tcp"}, 1e9),
        ({"UCX_TLS": "^ib"}, {"pml": "ucx", "UCX_TLS": "^ib"}, 1e9),
        # What is said to a library that does not run is nothing.
        ({"UCX_TLS": "tcp"}, {"netmod": "ofi", "provider": "verbs;ofi_rxm"}, 50e9),
        ({"FI_PROVIDER": "tcp"}, {"pml": "ucx"}, 50e9),
        ({"OMPI_MCA_btl": "tcp,self"}, {"pml": "ucx", "btl": "tcp,self"}, 50e9),
        ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}, None, 1e9),
        ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "openib,self,vader"}, None, 50e9),
        ({}, {"pml": "ob1", "btl": "self,sm,tcp"}, 1e9),
        ({"FI_PROVIDER": "tcp"}, {"netmod": "ofi", "provider": "tcp"}, 1e9),
        ({"I_MPI_OFI_PROVIDER": "tcp;ofi_rxm"}, {"fabrics": "shm:ofi", "provider": "tcp;ofi_rxm"}, 1e9),
        ({"I_MPI_OFI_PROVIDER": "tcp"}, {"netmod": "ofi"}, 50e9),
        ({}, {"netmod": "tcp"}, 1e9),
        ({}, {"netmod": "not reported by the library", "MPIR_CVAR_NEMESIS_NETMOD": "tcp"}, 1e9),
    ],
)
def test_mpi_is_under_rdma_ports_only_where_tcp_was_not_forced(
    variables: dict[str, str], transport: dict[str, str] | None, rate: float
) -> None:
    facts: dict[str, JSON] = {} if transport is None else {"mpi": {"transport": transport}}
    nic = {"name": "eth0", "speed_bytes_per_second": 1e9, "up": True, "kind": "physical"}
    peak = require_type(Peak, over_network("mpi", rdma=[port("mlx5_0", 400)], nics=[nic], variables=variables, **facts))
    assert peak.algbw == pytest.approx(rate)


def test_an_mpich_of_before_sends_over_tcp_by_the_interface_that_it_is_told() -> None:
    two: list[JSON] = [nic for nic in INTERFACES if nic["name"] in {"eth0", "ens1"}]
    mpi: JSON = {"device": "ch3:nemesis", "transport": {"netmod": "not reported by the library"}}
    named = {"MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE": "ens1"}
    peak = require_type(Peak, over_network("mpi", rdma=[port("mlx5_0", 400)], nics=two, mpi=mpi, variables=named))
    assert peak.algbw == pytest.approx(5e9)
    guessed = require_type(Unavailable, over_network("mpi", rdma=[port("mlx5_0", 400)], nics=two, mpi=mpi))
    assert guessed.reason.endswith(
        "name the interface that leads to the other hosts with MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE"
    )


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"UCX_TLS": "tcp"}, "UCX_TLS"),
        ({"FI_PROVIDER": "tcp"}, "FI_PROVIDER"),
        ({"OMPI_MCA_btl": "tcp,self"}, "OMPI_MCA_btl"),
        ({"UCX_NET_DEVICES": "ens1"}, "UCX_NET_DEVICES"),
        ({"OMPI_MCA_pml": "ob1"}, "OMPI_MCA_btl"),
    ],
)
def test_mpi_that_may_have_been_kept_off_rdma_has_no_peak(variables: dict[str, str], said: str) -> None:
    unavailable = require_type(Unavailable, over_network("mpi", rdma=[port("mlx5_0", 400)], variables=variables))
    assert said in unavailable.reason


def test_every_op_with_a_wire_says_what_must_cross_between_hosts() -> None:
    without_wire = {op.name for op in OPS.values() if op.bus_factor is None}
    crossing = {name for name, op in OPS.items() if op.least_crossing is not None}
    assert crossing | without_wire | {"pair_matrix"} | set(UNMODELLED) == set(OPS)


@pytest.mark.parametrize(
    ("op", "placement", "least"),
    [
        ("all_reduce", "aabb", 1.0),
        ("all_reduce", "abcd", 1.5),
        ("all_gather", "aabb", 0.5),
        ("all_gather", "abcd", 0.75),
        ("all_gather", "aaab", 0.75),
        ("reduce_scatter", "abcd", 0.75),
        ("reduce_scatter", "aabb", 0.5),
        ("reduce_scatter", "aaab", 0.75),
        ("reduce_scatter", "aaaab", 0.8),
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
    crossing = require(OPS[op].least_crossing)
    assert crossing(placement, 0) == pytest.approx(least)


def test_groups_at_the_same_time_share_the_host() -> None:
    cases = [case("all_gather", 4 * MIB, group="div:2"), case("memory_copy", 64 * MIB)]
    dataset = pool((synthetic_run(cases, QUIET, samples=5),))
    alone = peak_of(replace(dataset.series[0], sharing=1.0), hardware(dataset))
    shared = peak_of(dataset.series[0], hardware(dataset))
    assert isinstance(alone, Peak)
    assert isinstance(shared, Peak)
    assert shared.algbw == pytest.approx(alone.algbw / 2)


@pytest.mark.parametrize(("hosts", "sharing"), [(("node0",), 2.0), (("node0", "node1"), 1.0)])
def test_a_curve_knows_who_works_beside_it_on_its_hosts(hosts: tuple[str, ...], sharing: float) -> None:
    """Of 4 ranks in 2 groups, those of the other group count only on the same host."""
    run = synthetic_run([case("all_gather", 4 * MIB, group="div:2")], QUIET, machine=Machine(hosts=hosts), samples=5)
    first, second = pool((run,)).series
    assert (first.sharing, second.sharing) == (sharing, sharing)
    assert first.at_work == {"node0": 2 * sharing}
    assert second.at_work == {hosts[-1]: 2 * sharing}


def test_a_small_copy_is_no_peak() -> None:
    dataset = pool((synthetic_run([case("all_reduce", MIB), case("memory_copy", 64 * 1024)], World()),))
    assert not host_rates(dataset.summaries, dataset.facts)


def gpu(index: int, name: str = "NVIDIA H200", **nvlink: JSON) -> dict[str, JSON]:
    """A GPU as run.json has it, with 18 NVLinks to a switch unless told otherwise."""
    usual = {"generation": 4, "up": 18, "down": 0, "switch": 18, "peers": {}, "unknown": 0}
    trained = {"gigatransfers": 32.0, "lanes": 16}
    return {
        "index": index,
        "name": name,
        "id": None,
        "address": f"0000:{index}0:00.0",
        "nvlink": None if nvlink == {"up": 0} else {**usual, **nvlink},
        "link": {"trained": trained, "card": trained, "port": trained, "narrowest": None},
    }


def on_gpus(
    op: str, gpus: list[dict[str, JSON]], ranks: int | None = None, *, known: bool = True, rows: Catalogue = ROWS
) -> Peak | Unavailable:
    """The peak of ``op`` over NCCL, with every rank on the GPU of its number."""
    count = len(gpus) if ranks is None else ranks
    seats = [{"rank": rank, "local_rank": rank, "gpu": rank if known else None} for rank in range(count)]
    machine = Machine(facts={"pci": {"gpus": gpus, "nics": [], "drives": []}, "ranks": seats})
    size = case(op, 64 * MIB, count, backend="nccl", device="cuda")
    dataset = pool((synthetic_run([size], QUIET, machine=machine, samples=5),))
    assert not host_rates(dataset.summaries, dataset.facts), (
        "a copy on a GPU is no peak over what ranks send each other"
    )
    return peak_of(dataset.series[0], hardware(dataset, rows))


@pytest.mark.parametrize(
    ("op", "busbw"),
    [
        ("all_reduce", 450e9),
        ("all_gather", 450e9),
        ("reduce_scatter", 450e9),
        ("all_to_all", 450e9),
        ("broadcast", 450e9),
        ("send_recv", 450e9),
    ],
)
def test_gpus_of_one_host_are_under_their_nvlinks(op: str, busbw: float) -> None:
    peak = require_type(Peak, on_gpus(op, [gpu(number) for number in range(4)]))
    assert peak.busbw == pytest.approx(busbw)
    assert (peak.level, peak.holder) == ("links of GPUs", "GPU 0 on node0")
    link = require(ROWS.rate("nvlink", "NVLink 4"))
    assert peak.practical_busbw == pytest.approx(18 * require(link.practical_bytes_per_second))
    assert not peak.measured


def test_the_gpu_with_the_fewest_links_is_the_peak() -> None:
    peak = require_type(Peak, on_gpus("all_reduce", [gpu(0), gpu(1, up=16, switch=16, down=2)]))
    assert peak.busbw == pytest.approx(400e9)


def test_without_a_switch_only_links_to_the_group_count() -> None:
    bridged = [gpu(number, up=12, switch=0, peers={f"0000:{number ^ 1}0:00.0": 12}) for number in range(2)]
    peak = require_type(Peak, on_gpus("all_reduce", bridged))
    assert peak.busbw == pytest.approx(300e9)
    apart = [gpu(number, up=12, switch=0, peers={"0000:99:00.0": 12}) for number in range(2)]
    lost = require_type(Peak, on_gpus("all_reduce", apart))
    assert lost.level == "PCIe"


def test_gpus_without_nvlink_are_under_pcie_as_it_is_trained() -> None:
    plain = [{**gpu(number, "NVIDIA H100 PCIe", up=0)} for number in range(2)]
    plain[1]["link"] = {"trained": {"gigatransfers": 32.0, "lanes": 8}, "card": None, "port": None, "narrowest": None}
    peak = require_type(Peak, on_gpus("all_gather", plain))
    assert peak.busbw == pytest.approx(31.5e9, rel=1e-3)
    assert (peak.level, peak.holder) == ("PCIe", "GPU 1 on node0")


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        ([gpu(0, up=0), gpu(1)], "GPU 0: NVML reports no NVLink"),
        ([gpu(0)], "the run has no facts of GPU 1 on node0"),
        ([gpu(0, generation=9), gpu(1)], "GPU 0: no row for 'NVLink 9' of kind nvlink; add one to your peaks file"),
    ],
)
def test_links_that_are_not_known_are_no_peak(gpus: list[dict[str, JSON]], reason: str) -> None:
    unavailable = on_gpus("all_reduce", gpus, ranks=2)
    assert unavailable == Unavailable("links-not-known", reason)
    not_recorded = require_type(Unavailable, on_gpus("all_reduce", gpus, ranks=2, known=False))
    assert not_recorded.code == "links-not-known"


def test_gpus_without_nvml_are_known_by_their_place_on_pci() -> None:
    """As with AMD's: nobody numbers them, and the kernel knows their identity."""
    address = "0002:0d:00.0"
    link = {"trained": {"gigatransfers": 32.0, "lanes": 16}, "card": None, "port": None, "narrowest": None}
    mine = {"index": None, "name": None, "id": "1002:74a1", "address": address, "nvlink": None, "link": link}
    facts: dict[str, JSON] = {
        "pci": {"gpus": [{**mine, "id": "1002:740f", "address": "0001:0d:00.0"}, mine], "nics": [], "drives": []},
        "ranks": [{"rank": 0, "local_rank": 0, "gpu": None, "gpu_address": address}],
    }
    for op, level, holder in (("memory_copy", "HBM", "MI300X"), ("host_to_device", "PCIe", "PCIe 5 x16")):
        copy = case(op, 64 * MIB, 1, backend="nccl", device="cuda")
        dataset = pool((synthetic_run([copy], QUIET, machine=Machine(facts=facts), samples=5),))
        peak = peak_of(dataset.series[0], hardware(dataset))
        assert isinstance(peak, Peak), peak
        assert peak.level == level
        assert holder in peak.denominator
        assert address in peak.denominator


def test_a_copy_in_a_gpu_is_under_its_memory() -> None:
    peak = require_type(Peak, on_gpus("memory_copy", [gpu(0), gpu(1, "NVIDIA H100 80GB HBM3")]))
    assert peak.algbw == pytest.approx(3.35e12 / 2), "every byte is read and written"
    assert peak.busbw is None
    unknown = require_type(Unavailable, on_gpus("memory_copy", [gpu(0, "NVIDIA Fast 9000")]))
    assert unknown.code == "memory-not-known"
    assert (peak.level, peak.holder) == ("HBM", "GPU 1 on node0")


MODULES = {"kind": "DDR5", "megatransfers": 4800, "channels": 8}


@pytest.mark.parametrize(
    ("op", "ranks", "moved"),
    [("stream_copy", 1, 2), ("stream_triad", 1, 3), ("memory_read", 1, 1), ("memory_copy", 4, 8)],
)
def test_kernels_in_the_memory_of_a_host_are_under_its_modules(op: str, ranks: int, moved: int) -> None:
    """Eight channels of DDR5-4800 have 8 · 38.4 GB/s, which ranks of one host share."""
    peak = require_type(
        Peak, peak_of_op(op, ranks=ranks, machine=Machine(facts={"memory_modules": MODULES}), copies=())
    )
    assert peak.algbw == pytest.approx(8 * 38.4e9 / moved)
    assert not peak.measured


@pytest.mark.parametrize("op", ["host_to_device", "device_to_host", "host_and_device"])
def test_copies_between_host_and_gpu_are_under_the_link_as_it_is_trained(op: str) -> None:
    trained = {"trained": {"gigatransfers": 32.0, "lanes": 8}, "card": {"gigatransfers": 32.0, "lanes": 16}}
    peak = require_type(Peak, on_gpus(op, [{**gpu(0), "link": trained}], ranks=1))
    assert peak.algbw == pytest.approx(31.5e9, rel=0.01)
    unknown = require_type(Unavailable, on_gpus(op, [{**gpu(0), "link": None}], ranks=1))
    assert unknown.code == "link-not-known"


@pytest.mark.parametrize("op", ["host_to_device", "device_to_host", "host_and_device"])
def test_copies_of_a_superchip_are_under_its_link_between_chips(op: str) -> None:
    peak = require_type(Peak, on_gpus(op, [{**gpu(0, "NVIDIA GH200 480GB"), "link": None}], ranks=1))
    assert peak.algbw == pytest.approx(450e9)
    assert peak.level == "NVLink-C2C"


def over_network(backend: str, **facts: JSON) -> Peak | Unavailable:
    """The peak of an all_reduce of two hosts."""
    machine = Machine(hosts=("node0", "node1"), facts=facts)
    size = case("all_reduce", 64 * MIB, backend=backend)
    dataset = pool((synthetic_run([size], QUIET, machine=machine, samples=5),))
    return peak_of(dataset.series[0], hardware(dataset))


def test_ports_of_efa_are_the_network_of_their_instance() -> None:
    ports = [
        {"device": f"rdmap{slot}", "port": 1, "bytes_per_second": 12.5e9, "rate": "4X EDR", "up": True, "driver": "efa"}
        for slot in range(4)
    ]
    peak = require_type(Peak, over_network("mpi", rdma=ports))
    assert peak.practical == pytest.approx(42.5e9)
    assert "rdmap3" in peak.denominator


def test_cards_of_slingshot_carry_messages_together() -> None:
    nics = [
        {"name": f"hsn{n}", "kind": "physical", "up": True, "driver": "cxi_ss1", "speed_bytes_per_second": 25e9}
        for n in range(4)
    ]
    peak = require_type(Peak, over_network("mpi", nics=nics))
    assert "hsn3" in peak.denominator
    over_tcp = require_type(Peak, over_network("gloo", nics=nics))
    assert "hsn0" in over_tcp.denominator


DRIVE = {
    "address": "0000:81:00.0",
    "names": ["nvme0"],
    "model": "Fast 9000",
    "link": {"trained": {"gigatransfers": 16.0, "lanes": 4}, "card": {"gigatransfers": 32.0, "lanes": 4}},
}


def files_on(device: str) -> Machine:
    storage = {"path": "/scratch", "type": "ext4", "device": device}
    return Machine(facts={"storage": storage, "pci": {"gpus": [], "nics": [], "drives": [DRIVE]}})


@pytest.mark.parametrize(
    ("op", "practical"), [("storage_read", 6.5e9), ("storage_write", None), ("checkpoint_save", None)]
)
def test_files_are_under_the_link_of_their_drive_and_reads_under_what_it_reads_in_practice(
    op: str, practical: float | None
) -> None:
    peak = require_type(Peak, peak_of_op(op, machine=files_on("/dev/nvme0n1p2")))
    assert peak.algbw == pytest.approx(7.87692e9 / 4), "4 ranks share it"
    assert peak.practical == (None if practical is None else pytest.approx(practical / 4))
    assert (peak.practical_left_out is None) == (practical is not None)
    assert "shared by 4 ranks: ÷ 4 = 1.97 GB/s for each" in peak.denominator


def test_the_eleventh_drive_is_not_the_second() -> None:
    def drive(name: str, gigatransfers: float) -> dict[str, JSON]:
        return {**DRIVE, "names": [name], "link": {"trained": {"gigatransfers": gigatransfers, "lanes": 4}}}

    storage = {"path": "/scratch", "type": "ext4", "device": "/dev/nvme10n1p1"}
    drives = [drive("nvme1", 8.0), drive("nvme10", 16.0)]
    facts: dict[str, JSON] = {"storage": storage, "pci": {"gpus": [], "nics": [], "drives": drives}}
    peak = require_type(Peak, peak_of_op("storage_read", machine=Machine(facts=facts)))
    assert peak.algbw == pytest.approx(7.87692e9 / 4)
    facts["pci"]["drives"] = drives[:1]
    assert require_type(Unavailable, peak_of_op("storage_read", machine=Machine(facts=facts))).code == "drive-not-known"


def port(device: str, gigabits: float, *, up: bool = True, layer: str = "InfiniBand", rate: str = "4X NDR") -> JSON:
    return {
        "device": device,
        "port": 1,
        "bytes_per_second": gigabits * 1e9 / 8,
        "rate": rate,
        "layer": layer,
        "up": up,
    }


@pytest.mark.parametrize(
    ("backend", "variables", "rate", "said"),
    [
        ("nccl", {}, 100e9, "mlx5_1"),
        ("mpi", {}, 100e9, "mlx5_1"),
        ("nccl", {"NCCL_IB_HCA": "mlx5_1"}, 50e9, "mlx5_1"),
        ("nccl", {"NCCL_IB_HCA": "=mlx5_0:1"}, 50e9, "mlx5_0"),
        ("nccl", {"NCCL_IB_HCA": "^mlx5_0"}, 50e9, "mlx5_1"),
        ("nccl", {"NCCL_IB_DISABLE": "1"}, 3.125e9, "eth0"),
        ("gloo", {}, 3.125e9, "eth0"),
    ],
)
def test_hosts_with_rdma_are_under_the_ports_that_the_backend_uses(
    backend: str, variables: dict[str, str], rate: float, said: str
) -> None:
    ports = [port("mlx5_0", 400), port("mlx5_1", 400), port("mlx5_2", 400, up=False)]
    machine = Machine(
        hosts=("node0", "node1"),
        interface_bytes_per_second=3.125e9,
        facts={"rdma": ports, "variables": variables},
    )
    broadcast = case("broadcast", 4 * MIB, 4, backend=backend, nodes=2)
    dataset = pool((synthetic_run([broadcast], QUIET, machine=machine, samples=5),))
    peak = peak_of(dataset.series[0], hardware(dataset))
    assert isinstance(peak, Peak)
    assert peak.busbw == pytest.approx(rate)
    assert said in peak.denominator


HOSTS_OF_EIGHT_H100 = [
    # Eight ports of 50 GB/s beside 450 GB/s of links: an eighth of the ports each, 500 GB/s out of a GPU. 47.5 GB/s a
    # port in practice, and a ring passes every host once: 380 GB/s.
    ("all_reduce", 2, 500e9, 380e9),
    ("all_reduce", 4, 500e9, 380e9),  # the ports alone: 400e9 / (2 · 3/4) · 2 · 31/32 = 516.7e9
    ("all_gather", 2, 500e9, 380e9),
    ("all_gather", 4, 500e9, 380e9),
    ("reduce_scatter", 2, 500e9, 380e9),
    ("reduce_scatter", 4, 500e9, 380e9),
    # Eight ranks send half of S each, or three quarters: 400e9 / 4 · 15/16, 400e9 / 6 · 31/32.
    ("all_to_all", 2, 93.75e9, 0.95 * 93.75e9),
    ("all_to_all", 4, 400e9 / 6 * 31 / 32, 0.95 * 400e9 / 6 * 31 / 32),
    # The root has eight of sixteen blocks to come from the other host, by the one port near by.
    ("gather", 2, 500e9, 47.5e9 / (8 / 16) * 15 / 16),
    # One rank of a host sends to another one, and has one of the ports near by.
    ("send_recv", 2, 400e9, 47.5e9),
    ("send_recv", 4, 400e9, 47.5e9),
]


def on_hosts_of_gpus(op: str, hosts: int, ports: int = 8, **machine: JSON) -> Peak | Unavailable:
    """The peak of ``op`` over NCCL on ``hosts`` of eight H100, with a rank on each."""
    names = tuple(f"node{number}" for number in range(hosts))
    seats = [{"rank": rank, "local_rank": rank % 8, "gpu": rank % 8} for rank in range(8 * hosts)]
    rdma = [port(f"mlx5_{number}", 400) for number in range(ports)]
    gpus = [gpu(number, "NVIDIA H100 80GB HBM3") for number in range(8)]
    facts: dict[str, JSON] = {"pci": {"gpus": gpus, "nics": [], "drives": []}, "ranks": seats, "rdma": rdma, **machine}
    planned = case(op, 64 * MIB, 8 * hosts, backend="nccl", device="cuda", nodes=hosts)
    dataset = pool((synthetic_run([planned], QUIET, machine=Machine(hosts=names, facts=facts), samples=5),))
    return peak_of(dataset.series[0], hardware(dataset))


@pytest.mark.parametrize(("op", "hosts", "busbw", "practical"), HOSTS_OF_EIGHT_H100)
def test_hosts_of_gpus_are_under_links_and_network(op: str, hosts: int, busbw: float, practical: float) -> None:
    peak = require_type(Peak, on_hosts_of_gpus(op, hosts))
    assert peak.busbw == pytest.approx(busbw)
    assert peak.practical_busbw == pytest.approx(practical)
    assert peak.level == ("network" if op in {"all_to_all", "send_recv"} else "links of GPUs")


def test_one_slow_card_for_eight_gpus_is_the_peak_and_a_message_has_all_of_it() -> None:
    collective, message = (on_hosts_of_gpus(op, 2, ports=1) for op in ("all_reduce", "send_recv"))
    assert isinstance(collective, Peak)
    assert collective.level == "network"
    assert collective.busbw == pytest.approx(50e9 * 2 * 15 / 16)
    assert collective.practical_busbw == pytest.approx(47.5e9)
    assert isinstance(message, Peak)
    assert message.practical_busbw == pytest.approx(47.5e9)


def test_links_between_gpus_that_are_not_known_leave_the_network_and_say_so() -> None:
    peak = require_type(Peak, on_hosts_of_gpus("all_reduce", 2, pci={"gpus": [], "nics": [], "drives": []}))
    assert peak.busbw == pytest.approx(750e9)
    assert peak.practical_busbw == pytest.approx(380e9)


def test_the_only_gpu_of_a_host_is_under_its_link_to_the_host() -> None:
    seats = [{"rank": 0, "local_rank": 0, "gpu": 0}, {"rank": 1, "local_rank": 0, "gpu": 0}]
    facts: dict[str, JSON] = {
        "pci": {"gpus": [gpu(0)], "nics": [], "drives": []},
        "ranks": seats,
        "rdma": [port(f"mlx5_{number}", 400) for number in range(4)],
    }
    all_reduce = case("all_reduce", 64 * MIB, 2, backend="nccl", device="cuda", nodes=2)
    dataset = pool((synthetic_run([all_reduce], QUIET, machine=Machine(hosts=("a", "b"), facts=facts), samples=5),))
    peak = peak_of(dataset.series[0], hardware(dataset))
    assert isinstance(peak, Peak)
    assert peak.level == "PCIe"
    assert 60e9 < require(peak.busbw) < 66e9


def test_a_share_of_a_copys_peak_is_printed_with_its_denominator() -> None:
    seats = [{"rank": 0, "local_rank": 0, "gpu": 0}]
    machine = Machine(facts={"pci": {"gpus": [gpu(0)], "nics": [], "drives": []}, "ranks": seats})
    copy = case("memory_copy", 256 * MIB, 1, backend="nccl", device="cuda")
    world = World(by_op={"memory_copy": (Piece(0.0, 1 / 2.1e12),)}, sample_noise=0.0, jitter_seconds=0.0)
    (row,) = show_rows(judge(pool((synthetic_run([copy], world, machine=machine, samples=5),)), rows=ROWS))
    assert row.peak_share == pytest.approx(2.1 / 2.4, rel=1e-3)


def test_odd_hardware_is_remarked_with_its_hosts() -> None:
    narrow = {"trained": {"gigatransfers": 32.0, "lanes": 8}, "card": {"gigatransfers": 32.0, "lanes": 16}}
    slow = {"trained": {"gigatransfers": 2.5, "lanes": 16}, "card": {"gigatransfers": 32.0, "lanes": 16}}
    gpus = [{**gpu(number), "link": {**link, "port": None}} for number, link in enumerate((narrow, slow))]
    machine = Machine(hosts=("node0", "node1"), facts={"pci": {"gpus": gpus, "nics": [], "drives": []}})
    judged = judge(pool((synthetic_run([case("all_reduce", MIB, nodes=2)], machine=machine),)), rows=ROWS)
    (finding,) = [finding for finding in judged.findings if finding.code == "gpu-hardware"]
    assert finding.severity == "caution"
    assert finding.text.startswith("On node0, node1: GPU 0 (0000:00:00.0) runs on 8 of its 16 PCIe lanes")
    severities = [finding.severity for finding in judged.findings]
    assert severities == sorted(severities, key=["bad", "caution", "note"].index)


def test_many_findings_of_a_host_are_counted() -> None:
    gpus = [gpu(number, up=9, switch=9, down=9) for number in range(8)]
    machine = Machine(facts={"pci": {"gpus": gpus, "nics": [], "drives": []}})
    judged = judge(pool((synthetic_run([case("all_reduce", MIB)], machine=machine),)), rows=ROWS)
    texts = [finding.text for finding in judged.findings if finding.code == "gpu-hardware"]
    assert len(texts) == 5
    assert texts[-1].startswith("On node0: 4 more findings of this kind")
