"""Rooflines: known machines give known peaks, ridges and shares, and the report says them in words."""

import json
from collections.abc import Mapping

import pytest
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.ops.local import TOKEN
from busbw.runs.records import JSON, Case
from busbw.runs.store import StoredRun
from busbw.system.catalog import catalogue
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.node.roofline import ComputePeak, Kernel, MemoryPeak, Roofline, fusions_of, intensity_of
from busbw_analysis.node.sections.roofline import draw
from busbw_analysis.node.slice import Node
from busbw_analysis.report.curves import Side, operations
from busbw_analysis.report.document import Figure

MIB = 1 << 20
BETA = 20e9
PI = 100e9


def taking(case: Case, seconds: float) -> tuple[Piece, ...]:
    return (Piece(seconds, 0.0, case.size_bytes),)


def judged(times: Mapping[Case, float], machine: Machine | None = None, launches: int = 6) -> Judgement:
    """A run in which every case took so many seconds, without any noise."""
    return judge(pool((run_of(times, machine, launches),)), rows=catalogue())


def run_of(times: Mapping[Case, float], machine: Machine | None = None, launches: int = 6, seed: int = 0) -> StoredRun:
    by_op: dict[str, tuple[Piece, ...]] = {}
    for timed, seconds in sorted(times.items(), key=lambda item: item[0].size_bytes):
        by_op[timed.op] = (*by_op.get(timed.op, ()), *taking(timed, seconds))
    world = World(by_op=by_op, sample_noise=0.0)
    return synthetic_run(list(times), world, machine=machine, launches=launches, seed=seed)


def one_core(**changes: JSON) -> dict[Case, float]:
    """64 MiB of triad at 20 GB/s, products at up to 100 GFLOP/s, attention at half of what is attainable."""
    triad = case("stream_triad", 64 * MIB, 1, **changes)
    small, large = (case("matmul", side * side * 4, 1, **changes) for side in (16, 1024))
    attention = case("attention", 256 * 1024 * 4, 1, **changes)
    return {
        triad: 3 * 64 * MIB / BETA,
        small: 2 * 16**3 / 1e9,
        large: 2 * 1024**3 / PI,
        attention: 4 * 8 * 256**2 * 128 / (PI / 2),
    }


def only(judgement: Judgement) -> Roofline:
    (roofline,) = judgement.of(Node).rooflines
    return roofline


def kernel(roofline: Roofline, op: str, size: int | None = None) -> Kernel:
    (row,) = [row for row in roofline.kernels if row.op == op and size in {None, row.size_bytes}]
    return row


# --- what is counted -------------------------------------------------------------------------------------------


def test_arithmetic_is_shown_with_its_time_and_without_a_rate_of_bytes() -> None:
    times = {case("matmul", 1 << size, mode="pipelined"): 1e-9 * (1 << size) ** 1.5 for size in (10, 14, 18, 22)}
    part = operations([Side(judged(times))], {}).parts[0]
    figure = require_type(Figure, part.blocks[0])
    assert len(figure.pictures) == 1
    assert "algbw" not in figure.caption


@pytest.mark.parametrize(
    ("op", "count", "dtype", "wanted"),
    [
        ("stream_triad", 1000, "float64", 1 / 12),
        ("stream_triad", 1000, "float32", 1 / 6),
        ("stream_add", 1000, "float64", 1 / 24),
        ("stream_scale", 1000, "float64", 1 / 16),
        ("matmul", 1024**2, "float32", 1024 / 6),
        ("matmul", 1024**2, "bfloat16", 1024 / 3),
        # 4 h T² d FLOP over 4 h T d elements of 2 bytes
        ("attention", 512 * TOKEN, "bfloat16", 256.0),
        # and over 6 h T² scores more
        ("attention_unfused", 512 * TOKEN, "float64", 64.0 / (1 + 1.5 * 512 / 128)),
    ],
)
def test_intensities_are_those_of_the_textbook(op: str, count: int, dtype: str, wanted: float) -> None:
    assert intensity_of(op, count, dtype) == pytest.approx(wanted, rel=1e-12)


# --- peaks -----------------------------------------------------------------------------------------------------


def test_the_peaks_of_a_known_machine_are_found() -> None:
    roofline = only(judged(one_core()))
    assert (roofline.holder, roofline.workers) == ("node0", 1)
    (memory,), (compute,), (balance,) = roofline.memory, roofline.compute, roofline.balances
    assert memory.bytes_per_second == pytest.approx(BETA, rel=1e-3)
    assert compute.flop_per_second == pytest.approx(PI, rel=1e-3)
    assert memory.measured
    assert compute.measured
    assert balance.flop_per_byte == pytest.approx(PI / BETA, rel=1e-3)


def test_every_kernel_stands_below_the_peak_that_is_nearer() -> None:
    roofline = only(judged(one_core()))
    triad = kernel(roofline, "stream_triad")
    assert triad.flop_per_second == pytest.approx(BETA / 6, rel=1e-3)
    assert triad.bound == "memory"
    assert triad.share == pytest.approx(1.0, rel=1e-3)
    large = kernel(roofline, "matmul", 4 * MIB)
    assert large.bound == "arithmetic"
    assert large.share == pytest.approx(1.0)
    small = kernel(roofline, "matmul", 1024)
    assert small.bound == "memory"
    assert small.attainable == pytest.approx(BETA * 16 / 6, rel=1e-3)
    assert small.share == pytest.approx(1e9 / (BETA * 16 / 6), rel=1e-3)
    attention = kernel(roofline, "attention")
    assert attention.bound == "arithmetic"
    assert attention.share == pytest.approx(0.5, rel=1e-3)
    assert attention.nominal_share is None
    assert require(attention.low) <= attention.flop_per_second <= require(attention.high)


def test_fused_attention_saves_the_traffic_of_the_scores() -> None:
    fused, unfused = (case(op, 256 * TOKEN * 4, 2) for op in ("attention", "attention_unfused"))
    judgement = judged({case("stream_triad", 64 * MIB, 2): 3 * 64 * MIB / BETA, fused: 0.01, unfused: 0.025})
    roofline = only(judgement)
    assert kernel(roofline, "attention").intensity == pytest.approx(4 * kernel(roofline, "attention_unfused").intensity)
    (saved,) = fusions_of(roofline)
    assert (saved.tokens, saved.fused_bytes, saved.unfused_bytes) == (256, 4 * 4 * 256 * TOKEN, 16 * 4 * 256 * TOKEN)
    assert [saved.fused_ns, saved.unfused_ns] == pytest.approx([1e7, 2.5e7], rel=1e-3)
    assert saved.faster == pytest.approx(2.5, rel=1e-3)
    assert require(saved.low) <= saved.faster <= require(saved.high)
    # Both ranks at once, on a memory that both together saturate.
    assert saved.moving_ns == pytest.approx(2 * 12 * 4 * 256 * TOKEN / (2 * BETA) * 1e9, rel=1e-3)
    (document,) = json.loads(compose.compose(judgement).json)["rooflines"]
    assert document["fusions"][0]["saved_bytes"] == saved.saved_bytes
    assert list(fusions_of(only(judged({fused: 0.01, case("matmul", 4 * MIB, 2): 0.1})))) == []


def test_ranks_of_a_host_work_together() -> None:
    times = {
        case("stream_triad", 64 * MIB, 4): 3 * 64 * MIB / (BETA / 4),
        case("matmul", 4 * MIB, 4): 2 * 1024**3 / (PI / 4),
    }
    roofline = only(judged(times))
    assert roofline.workers == 4
    assert roofline.memory[0].bytes_per_second == pytest.approx(BETA, rel=1e-3)
    assert roofline.compute[0].flop_per_second == pytest.approx(PI, rel=1e-3)


def test_what_some_ranks_of_a_host_did_alone_is_not_the_work_of_all() -> None:
    times = {case("matmul", 4 * MIB, 4): 1.0, case("matmul", MIB, 4, group="0"): 2 * 512**3 / PI}
    assert only(judged(times)).compute[0].flop_per_second == pytest.approx(4 * 2 * 1024**3, rel=1e-3)


def test_hosts_alike_have_one_roofline_between_them() -> None:
    times = {case("matmul", 4 * MIB, 4, nodes=2): 2 * 1024**3 / PI}
    roofline = only(judged(times, Machine(hosts=("a", "b"))))
    assert roofline.workers == 2
    assert roofline.compute[0].flop_per_second == pytest.approx(2 * PI, rel=1e-3)


def test_data_types_have_peaks_of_their_own() -> None:
    single, double = (case("matmul", 1024 * 1024 * size, 1, dtype=f"float{8 * size}") for size in (4, 8))
    roofline = only(judged({single: 2 * 1024**3 / PI, double: 4 * 1024**3 / PI}))
    assert {peak.dtype: peak.flop_per_second for peak in roofline.compute} == {
        "float32": pytest.approx(PI, rel=1e-3),
        "float64": pytest.approx(PI / 2, rel=1e-3),
    }
    assert {kernel.bound for kernel in roofline.kernels} == {None}, "no memory was measured: nothing is attainable"


def test_a_sweep_of_working_sets_shows_the_caches() -> None:
    """100 GB/s up to 1 MiB of working set, 20 GB/s beyond."""
    sizes = [1 << exponent for exponent in range(12, 28)]
    times = {case("stream_triad", size, 1): 3 * size / (100e9 if 3 * size <= MIB else BETA) for size in sizes} | {
        case("matmul", 4 * MIB, 1): 2 * 1024**3 / PI
    }
    roofline = only(judged(times))
    inner, outer = roofline.memory
    assert inner.bytes_per_second == pytest.approx(100e9, rel=0.01)
    assert outer.name == "memory"
    assert outer.bytes_per_second == pytest.approx(BETA, rel=0.01)
    assert [kernel.size_bytes for kernel in roofline.kernels if kernel.op == "stream_triad"] == [sizes[-1]]
    assert kernel(roofline, "stream_triad").bound == "memory"
    assert {balance.memory: round(balance.flop_per_byte) for balance in roofline.balances} == {
        inner.name: 1,
        "memory": 5,
    }


def test_the_roofline_and_the_hierarchy_show_the_same_caches() -> None:
    """Two threads are faster and show one cache, one thread shows two: these are two answers to one question."""
    times = {case("matmul", 4 * MIB, 1): 2 * 1024**3 / PI}
    pieces: dict[int, list[tuple[int, float]]] = {
        1: [(96 << 10, 100e9), (3 * MIB, 50e9), (1 << 40, 10e9)],
        2: [(3 * MIB, 150e9), (1 << 40, 20e9)],
    }
    runs = []
    for threads, levels in pieces.items():
        mine = dict(times) if threads == 1 else {}
        for size in (1 << exponent for exponent in range(12, 28)):
            rate = next(rate for end, rate in levels if 3 * size <= end)
            mine[case("stream_triad", size, 1, threads=threads)] = 3 * size / rate
        runs.append(mine)
    whole = judge(pool(tuple(run_of(timing, seed=seed) for seed, timing in enumerate(runs))), rows=catalogue())
    caches = [(level.name, level.measured) for level in whole.of(Node).levels if level.kind == "cache"]
    peaks = [(peak.name, peak.bytes_per_second) for peak in only(whole).memory if peak.name != "memory"]
    assert caches == peaks
    assert [round(rate / 1e9) for _, rate in caches if rate is not None] == [100, 50]


def test_small_copies_are_no_peak_of_memory() -> None:
    times = {case("memory_copy", 64 << 10, 1): 1e-6, case("matmul", 4 * MIB, 1): 0.02}
    assert only(judged(times)).memory == ()


@pytest.mark.parametrize("op", ["memory_copy", "stream_triad"])
def test_kernels_in_memory_alone_have_no_roofline(op: str) -> None:
    judgement = judged({case(op, 64 * MIB, 1): 0.01})
    assert judgement.of(Node).rooflines == ()
    assert 'id="roofline"' not in compose.compose(judgement).html


# --- a GPU -----------------------------------------------------------------------------------------------------


H200: dict[str, JSON] = {
    "pci": {"gpus": [{"index": 0, "name": "NVIDIA H200", "id": "10de:2335", "address": "0000:04:00.0", "link": None}]},
    "ranks": [{"rank": 0, "local_rank": 0, "cores": "0-3", "numa_nodes": [0], "gpu": 0, "variables": {}}],
}


def test_a_kernel_that_ends_at_smaller_arrays_is_no_peak_of_memory() -> None:
    times = {
        case("stream_copy", MIB, 1): 2 * MIB / 100e9,
        case("stream_triad", 64 * MIB, 1): 3 * 64 * MIB / BETA,
        case("matmul", 4 * MIB, 1): 0.02,
    }
    assert only(judged(times)).memory[0].bytes_per_second == pytest.approx(BETA, rel=1e-3)


def test_a_gpu_has_nominal_peaks_with_their_sources() -> None:
    changes: dict[str, JSON] = {"backend": "nccl", "device": "cuda", "dtype": "bfloat16"}
    times = {
        case("stream_triad", 1 << 30, 1, **changes): 3 * (1 << 30) / 4.2e12,
        case("matmul", 8192 * 8192 * 2, 1, **changes): 2 * 8192**3 / 700e12,
    }
    roofline = only(judged(times, Machine(facts=H200)))
    assert [(peak.name, peak.measured) for peak in roofline.memory] == [("memory", True), ("HBM", False)]
    assert [(peak.dtype, peak.measured) for peak in roofline.compute] == [("bfloat16", True), ("bfloat16", False)]
    assert roofline.memory[1].bytes_per_second == 4.8e12
    assert roofline.compute[1].flop_per_second == 989e12
    assert "https://" in roofline.compute[1].what
    assert [(balance.memory, balance.measured, round(balance.flop_per_byte)) for balance in roofline.balances] == [
        ("memory", True, 167),
        ("HBM", False, 206),
    ]
    assert kernel(roofline, "matmul").nominal_share == pytest.approx(700 / 989, rel=1e-3)
    assert kernel(roofline, "stream_triad").nominal_share == pytest.approx(4.2 / 4.8, rel=1e-3)


def test_a_gpu_that_the_catalogue_does_not_know_has_measured_peaks_only_and_it_is_said() -> None:
    gpus = [{"index": 0, "name": "Unheard of", "id": "10de:0001", "address": "0000:04:00.0", "link": None}]
    facts: dict[str, JSON] = {**H200, "pci": {"gpus": gpus}}
    times = {case("matmul", 8 * MIB, 1, backend="nccl", device="cuda", dtype="bfloat16"): 1e-3}
    roofline = only(judged(times, Machine(facts=facts)))
    assert [peak.measured for peak in roofline.compute] == [True]
    assert any("Unheard" in reason for reason in roofline.unknown)


# --- the network -----------------------------------------------------------------------------------------------


def test_the_roofline_of_the_network_is_flop_for_each_byte_that_a_rank_sends() -> None:
    """4 ranks with 25 GFLOP/s each that send 2.5 GB/s each: 10 FLOP for each byte."""
    times = {
        case("matmul", 4 * MIB, 4): 2 * 1024**3 / (PI / 4),
        case("all_reduce", 16 * MIB, 4): 1.5 * 16 * MIB / 2.5e9,
        case("all_reduce", 64 << 10, 4): 1e-9,
    }
    judgement = judged(times)
    (network,) = judgement.of(Node).networks
    assert network.flop_per_second == pytest.approx(PI / 4, rel=1e-3)
    assert network.bytes_per_second == pytest.approx(2.5e9, rel=1e-3)
    assert network.flop_per_byte == pytest.approx(10.0, rel=1e-2)
    assert network.tokens == pytest.approx(10.0 * 1.5 * 4 / 4, rel=1e-2)
    assert network.network_measured


def test_an_all_reduce_of_some_ranks_is_not_what_all_of_them_send() -> None:
    times = {case("matmul", 4 * MIB, 4): 0.02, case("all_reduce", 16 * MIB, 4, group="0,1"): 0.01}
    assert judged(times).of(Node).networks == ()


def test_without_an_all_reduce_the_link_that_the_system_states_is_shared_by_the_ranks() -> None:
    times = {case("matmul", 4 * MIB, 4, nodes=2): 2 * 1024**3 / PI}
    machine = Machine(hosts=("a", "b"), interface_bytes_per_second=12.5e9)
    (network,) = judged(times, machine).of(Node).networks
    assert not network.network_measured
    assert network.bytes_per_second == 12.5e9 / 2
    assert network.flop_per_byte == pytest.approx(PI / 6.25e9, rel=1e-3)
    assert "eth0" in network.network


@pytest.mark.parametrize("ranks", [1, 4])
def test_where_nothing_is_known_of_the_network_nothing_is_said(ranks: int) -> None:
    assert judged({case("matmul", 4 * MIB, ranks): 0.02}).of(Node).networks == ()


# --- in the report ---------------------------------------------------------------------------------------------


def test_the_report_shows_peaks_points_and_balance_in_all_three_files() -> None:
    written = compose.compose(judged(one_core()))
    document = json.loads(written.json)
    (roofline,) = document["rooflines"]
    assert roofline["balances"][0]["flop_per_byte"] == pytest.approx(5.0, rel=1e-3)
    assert {kernel["op"] for kernel in roofline["kernels"]} == {"stream_triad", "matmul", "attention"}
    assert document["network_rooflines"] == []


def test_a_curve_of_a_kernel_that_computes_is_not_judged_as_if_it_sent_something() -> None:
    peaks = {curve.series.key.op: curve.peak for curve in judged(one_core()).curves}
    assert isinstance(peaks["matmul"], Unavailable)


# --- the drawing -----------------------------------------------------------------------------------------------


def picture(measured: tuple[bool, ...] = (True, False)) -> Roofline:
    slopes = tuple(
        MemoryPeak("DRAM", BETA * (1 + number), is_measured, "") for number, is_measured in enumerate(measured)
    )
    ceilings = tuple(
        ComputePeak("float32", PI * (1 + number), is_measured, "") for number, is_measured in enumerate(measured)
    )
    return Roofline("vm", "cpu", 1, slopes, ceilings, (), (dot("matmul", 100.0, 9e10), dot("stream_add", 0.1, 1e9)), ())


def dot(op: str, intensity: float, rate: float) -> Kernel:
    return Kernel(0, op, "float32", 8, None, None, "isolated", intensity, rate, None, None, None, None, None)


def drawn(roofline: Roofline, identity: str = "a", title: str = "t", words: str = "d") -> str:
    return draw(roofline, "float32", {"matmul": 0, "stream_add": 3}, identity, title, words)


def test_the_same_picture_is_drawn_byte_for_byte_the_same_and_with_its_words() -> None:
    svg = drawn(picture(), "roofline-0", "a <title>", "words & more")
    assert svg == drawn(picture(), "roofline-0", "a <title>", "words & more")
    assert "a &lt;title&gt;" in svg


def test_measured_peaks_are_solid_and_nominal_ones_broken() -> None:
    assert "stroke-dasharray" not in drawn(picture((True,)))
    assert "stroke-dasharray" in drawn(picture((True, False)))


def test_a_picture_without_any_peak_of_memory_is_drawn() -> None:
    ceilings = (ComputePeak("float32", PI, measured=True, what=""),)
    assert "100 GFLOP/s" in drawn(Roofline("vm", "cpu", 1, (), ceilings, (), (dot("matmul", 100.0, PI),), ()))
