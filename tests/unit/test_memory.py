"""Memory, storage and the hierarchy in an analysis: rates that can be checked by hand, and sections that say them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run, with_changes

from busbw.ops import LATENCIES
from busbw.ops.settings import Access, host_settings
from busbw.runs.records import JSON, Case, CrossCheck, Measurement
from busbw.runs.store import StoredRun
from busbw.system.catalog import catalogue
from busbw_analysis.assembly import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.node.hierarchy import HierarchyLevel
from busbw_analysis.node.memory import MemoryCurve, compared_at_largest, scaling
from busbw_analysis.node.plateaus import Plateaus
from busbw_analysis.node.sections.memory import memory
from busbw_analysis.node.slice import Node
from busbw_analysis.node.storage import storage
from busbw_analysis.report.document import Block, Figure, Paragraph, Section, Table
from busbw_analysis.report.show import show_blocks, show_rows
from busbw_analysis.report.to_terminal import render

KIB, MIB = 1 << 10, 1 << 20
ROWS = catalogue(environment={})
MODULES = {"kind": "DDR5", "megatransfers": 4800, "channels": 2}
"""Two channels of 38.4 GB/s."""
DRAM = 76.8e9
SIZES = tuple(1 << exponent for exponent in range(12, 28))
DRIVE: dict[str, JSON] = {
    "address": "0000:81:00.0",
    "names": ["nvme0"],
    "model": "Fast 9000",
    "link": {"trained": {"gigatransfers": 16.0, "lanes": 4}, "card": None, "port": None, "narrowest": None},
}


def memory_section(judgement: Judgement) -> Section | None:
    hosts = [host for stored in judgement.runs for host in stored.run.environments.values()]
    return memory(judgement.of(Node).memory, judgement.cases, {str(host.thp) for host in hosts})


def storage_section(judgement: Judgement) -> Section | None:
    return storage(judgement.of(Node).files)


def stepped(factor: float, rates: Sequence[float], ends: Sequence[int]) -> tuple[Piece, ...]:
    """Traffic of ``rates`` up to the working sets ``ends``, as times over S."""
    firsts = (0, *(round(end / factor) + 1 for end in ends))
    return tuple(Piece(0.0, factor / rate, first) for rate, first in zip(rates, firsts, strict=True))


CACHES = (200e9, 80e9, 20e9)
ENDS = (32 * KIB, MIB)
WORLD = World(
    by_op={
        "stream_copy": stepped(2, CACHES, ENDS),
        "memory_copy": stepped(2, (200e9, 80e9, 30e9), ENDS),
        "memory_write": stepped(1, (100e9, 40e9, 10e9), ENDS),
        "memory_touch": (Piece(0.0, 1 / 2e9),),
    },
    sample_noise=0.0,
)


def kernels(*ops: str, threads: Sequence[int] = (1, 2), sizes: Sequence[int] = SIZES, ranks: int = 1) -> list[Case]:
    return [
        case(op, size, ranks, threads=number, mode="isolated" if op == "memory_touch" else "pipelined")
        for op in ops
        for number in threads
        for size in sizes
    ]


def judged(
    cases: Sequence[Case], world: World = WORLD, facts: dict[str, JSON] | None = None, *, launches: int = 3
) -> Judgement:
    machine = Machine(facts=facts or {})
    return judge(pool((synthetic_run(cases, world, machine=machine, launches=launches, samples=8),)), rows=ROWS)


def curve_of(judgement: Judgement, op: str, threads: int = 1) -> MemoryCurve:
    return next(curve for curve in judgement.of(Node).memory if curve.key.op == op and curve.threads == threads)


def every_text(section: Section | None) -> str:
    assert section is not None
    return "\n".join(_texts(section))


def _texts(section: Section) -> Iterator[str]:
    for block in section.blocks:
        yield from _of_block(block)
    for part in section.parts:
        yield part.heading
        yield from _texts(part)


def _of_block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield block.text
    elif isinstance(block, Figure):
        yield block.caption
        yield from _of_block(block.table)
    elif isinstance(block, Table):
        yield f"{block.caption}: {' | '.join(column.heading for column in block.columns)}"
        yield from (" | ".join(cell.text for cell in row) for row in block.rows)
        yield block.note


def level(judgement: Judgement, kind: str) -> HierarchyLevel:
    return next(level for level in judgement.of(Node).levels if level.kind == kind)


# --- memory ----------------------------------------------------------------------------------------------------------


def test_traffic_is_counted_as_stream_counts_it_and_the_working_set_is_all_arrays() -> None:
    judgement = judged(kernels("stream_copy"))
    last = curve_of(judgement, "stream_copy").points[-1]
    assert last.working_set_bytes == 2 * last.size_bytes
    assert last.rate == pytest.approx(20e9, rel=1e-3)
    assert last.rate == pytest.approx(2 * last.size_bytes / last.time_ns * 1e9, rel=1e-6)


def test_plateaus_of_a_run_are_those_of_its_memory() -> None:
    plateaus = require_type(Plateaus, curve_of(judged(kernels("stream_copy")), "stream_copy").plateaus)
    assert [plateau.rate for plateau in plateaus.plateaus] == pytest.approx(CACHES, rel=0.01)
    assert [plateau.last_bytes for plateau in plateaus.plateaus[:2]] == list(ENDS)
    assert plateaus.end == "flat"


def test_the_share_is_of_the_modules_and_above_100_percent_in_a_cache() -> None:
    curve = curve_of(judged(kernels("stream_copy"), facts={"memory_modules": MODULES}), "stream_copy")
    assert curve.nominal == pytest.approx(DRAM)
    assert curve.points[-1].share == pytest.approx(20e9 / DRAM, rel=1e-3)
    first = require(curve.points[0].share)
    assert first > 1


def test_the_answer_does_not_deny_the_nominal_rate_that_it_names() -> None:
    nothing = "neither a peak nor a model"
    known = compose.compose(judged(kernels("stream_copy"), facts={"memory_modules": MODULES})).answers[""]
    assert nothing not in known.answer
    assert nothing in compose.compose(judged(kernels("stream_copy"))).answers[""].answer


def test_without_modules_there_is_no_percentage_and_the_reason_is_said() -> None:
    judgement = judged(kernels("stream_copy"))
    curve = curve_of(judgement, "stream_copy")
    assert isinstance(curve.peak, Unavailable)
    assert curve.peak.code == "memory-not-known"
    assert curve.points[-1].share is None


def test_a_kernel_of_two_sizes_can_be_the_one_that_gets_the_most() -> None:
    """As the suite has them: a sweep for triad and two sizes for the rest, of which one reads faster."""
    world = World(
        by_op={"stream_triad": stepped(3, CACHES, ENDS), "memory_read": (Piece(0.0, 1 / 37.4e9),)}, sample_noise=0.0
    )
    cases = [*kernels("stream_triad"), *kernels("memory_read", sizes=[64 * MIB, 128 * MIB])]
    judgement = judged(cases, world)
    text = every_text(memory_section(judgement))
    rows = [row for row in text.splitlines() if row.startswith(("stream_triad | ", "memory_read | "))]
    shares = {row.split(" | ")[0]: float(row.split(" | ")[-1]) for row in rows}
    assert shares == {"stream_triad": pytest.approx(53.5, abs=0.1), "memory_read": pytest.approx(100)}
    assert level(judgement, "DRAM").measured == pytest.approx(37.4e9, rel=1e-3)
    few = [*kernels("stream_triad"), *kernels("memory_read", sizes=[256 * KIB, 512 * KIB])]
    assert level(judged(few, world), "DRAM").measured == pytest.approx(20e9, rel=0.01), "caches are no memory"


def test_ranks_of_a_host_share_its_memory() -> None:
    judgement = judged(kernels("stream_copy", ranks=4), facts={"memory_modules": MODULES})
    curve = curve_of(judgement, "stream_copy")
    assert curve.together == 4
    assert curve.nominal == pytest.approx(DRAM)
    assert curve.points[-1].rate == pytest.approx(4 * 20e9, rel=1e-3)


def test_ranks_that_take_turns_do_not_add_up() -> None:
    late = replace(WORLD, by_op={"stream_copy": (Piece(1e-3, 0.0),)}, late_rank=1, late_seconds=1e-3)
    curve = curve_of(judged(kernels("stream_copy", threads=[1], sizes=[MIB], ranks=2), late), "stream_copy")
    assert curve.points[0].rate == pytest.approx(2 * 2 * MIB / 2e-3, rel=1e-2), "both copy in 2 ms, not in 1"


def test_ranks_of_other_groups_share_the_memory_at_the_same_moment() -> None:
    cases = [case("stream_copy", 64 * MIB, 4, group="0,1;2,3"), case("stream_copy", 64 * MIB, 4, group="0")]
    curves = judged(cases, facts={"memory_modules": MODULES}).of(Node).memory
    assert [(curve.key.ranks, curve.together) for curve in curves] == [((0, 1), 4), ((2, 3), 4), ((0,), 1)]
    assert [curve.points[0].rate for curve in curves] == pytest.approx([80e9, 80e9, 20e9], rel=1e-3)
    assert [curve.nominal for curve in curves] == pytest.approx([DRAM] * 3)


def test_a_gpu_does_not_wait_for_the_others_in_its_own_memory() -> None:
    gpus = [{"address": f"0000:0{number}:00.0", "index": number, "name": "NVIDIA H200"} for number in range(2)]
    facts: dict[str, JSON] = {
        "pci": {"gpus": gpus, "nics": [], "drives": []},
        "ranks": [{"rank": rank, "local_rank": rank, "gpu": rank} for rank in range(2)],
    }
    late = World(
        by_op={"stream_copy": (Piece(0.0, 2 / 2e12),), "memory_copy": (Piece(0.0, 2 / 4e12),)},
        sample_noise=0.0,
        late_rank=1,
        late_seconds=1e-3,
    )
    cases = [case(op, 256 * MIB, 2, backend="nccl", device="cuda") for op in ("stream_copy", "memory_copy")]
    judgement = judged(cases, late, facts)
    assert [curve.points[0].rate for curve in judgement.of(Node).memory] == pytest.approx([2e12, 4e12], rel=1e-2)
    text = every_text(memory_section(judgement))
    assert "fetches" not in text, "that is what stores of a processor do"


def test_launches_of_unlike_sizes_are_not_called_one_launch() -> None:
    run = synthetic_run(kernels("stream_copy", threads=[1]), WORLD, samples=8)
    rows = [
        row
        for row in run.rows
        if not (isinstance(row, Measurement) and row.launch == 2 and row.case.size_bytes >= 64 * MIB)
    ]
    section = memory_section(judge(pool((replace(run, rows=tuple(rows)),)), rows=ROWS))
    assert "No interval: the launches measured different sizes." in every_text(section)


def test_threads_are_laid_over_one_thread_at_the_largest_size_of_all() -> None:
    cases = [*kernels("stream_copy", threads=[1]), *kernels("stream_copy", threads=[4], sizes=SIZES[:-2])]
    rows = scaling(judged(cases).of(Node).memory)
    assert [(row.curve.threads, row.point.size_bytes) for row in rows] == [(1, SIZES[-3]), (4, SIZES[-3])]
    assert [row.times_one for row in rows] == pytest.approx([1.0, 1.0], rel=1e-3)


def test_threads_in_memory_of_another_node_are_laid_over_one_thread_there() -> None:
    cases = [
        case("stream_copy", size, 1, threads=number, numa_node=node, mode="pipelined")
        for node in (0, 1)
        for number in (1, 4)
        for size in SIZES
    ]
    judgement = judged(cases)
    rows = scaling(judgement.of(Node).memory)
    placed = [host_settings(row.curve.key.settings) for row in rows]
    assert [(settings.threads, settings.numa_node) for settings in placed] == [(1, 0), (4, 0), (1, 1), (4, 1)]
    assert [row.times_one for row in rows] == pytest.approx([1.0] * 4, rel=1e-3)


def test_the_copy_of_the_library_is_laid_beside_the_plain_loop() -> None:
    judgement = judged(kernels("memory_copy", "stream_copy"))
    pairs = compared_at_largest(judgement.of(Node).memory, "memory_copy", "stream_copy")
    assert [curve.threads for curve, _, _ in pairs] == [1, 2]
    assert [copied.rate / plain.rate for _, copied, plain in pairs] == pytest.approx([1.5, 1.5], rel=1e-3)


def test_a_first_touch_stands_beside_a_warm_write_and_has_no_plateau() -> None:
    judgement = judged(kernels("memory_touch", "memory_write", threads=[1]))
    touch = curve_of(judgement, "memory_touch")
    assert require_type(Unavailable, touch.plateaus).code == "fresh-pages"
    text = every_text(memory_section(judgement))
    # 4 KiB take 2048 ns instead of 410: 1638 ns more.
    assert "1 | 128 MiB | 67.1 ms | 13.4 ms | 5.00 | 1\u202f640" in text


def test_rotated_buffers_have_no_plateaus() -> None:
    cases = [with_changes(kernel, cache="rotating") for kernel in kernels("stream_copy", threads=[1])]
    plateaus = curve_of(judged(cases), "stream_copy").plateaus
    assert isinstance(plateaus, Unavailable)
    assert plateaus.code == "cold-caches"


def test_a_sweep_of_two_sizes_is_shown_without_plateaus_and_says_why() -> None:
    judgement = judged(kernels("stream_copy", threads=[1], sizes=[MIB, 64 * MIB]))
    unavailable = require_type(Unavailable, curve_of(judgement, "stream_copy").plateaus)
    assert unavailable.code == "few-sizes"


def test_a_run_of_collectives_alone_has_no_section_on_memory_and_one_level() -> None:
    judgement = judged([case("all_reduce", size) for size in (MIB, 16 * MIB)], World(sample_noise=0.0))
    assert memory_section(judgement) is None
    assert storage_section(judgement) is None
    assert [level.kind for level in judgement.of(Node).levels] == ["ranks of a host"]


def test_show_tells_the_traffic_of_kernels_in_memory() -> None:
    rows = show_rows(judged(kernels("stream_copy", threads=[1], sizes=[64 * MIB])))
    assert [row.traffic for row in rows] == [pytest.approx(20e9, rel=1e-3)]
    assert "traffic" not in render(show_blocks(show_rows(judged([case("all_reduce", MIB)]))))


# --- storage ---------------------------------------------------------------------------------------------------------

ACCESS = Access(1 << 20, 4, "direct")
ON_DRIVE: dict[str, JSON] = {
    "storage": {"path": "/scratch", "type": "ext4", "device": "/dev/nvme0n1p1"},
    "pci": {"gpus": [], "nics": [], "drives": [DRIVE]},
}
STORING = World(
    by_op={op: (Piece(0.0, 1 / 1e9),) for op in ("storage_write", "storage_read", "checkpoint_save")}, sample_noise=0.0
)


def test_the_rate_of_storage_is_that_of_all_ranks_together() -> None:
    judgement = judged([case("storage_write", 64 * MIB, 2, access=ACCESS)], STORING, ON_DRIVE)
    (file,) = judgement.of(Node).files
    assert (file.access, file.ranks) == (ACCESS, 2)
    assert file.rate == pytest.approx(2e9, rel=1e-3)
    assert file.whole
    assert file.nominal == pytest.approx(7.87692e9)


def test_ranks_that_store_one_after_the_other_do_not_add_up() -> None:
    late = replace(STORING, by_op={"storage_read": (Piece(1.0, 0.0),)}, late_rank=1, late_seconds=1.0)
    (file,) = judged([case("storage_read", 64 * MIB, 2, access=ACCESS)], late).of(Node).files
    assert file.rate == pytest.approx(2 * 64 * MIB / 2.0, rel=1e-2)


def test_a_drive_is_shared_by_the_ranks_that_store_at_the_same_moment_and_no_others() -> None:
    cases = [case("storage_write", 64 * MIB, 4, access=ACCESS, group=group) for group in ("all", "0", "0,1;2,3")]
    files = judged(cases, STORING, ON_DRIVE).of(Node).files
    link = 7.87692e9
    assert [file.ranks for file in files] == [4, 1, 2, 2]
    assert [file.nominal for file in files] == pytest.approx([link, link, link / 2, link / 2])


def test_files_in_memory_are_not_shown_as_a_drive() -> None:
    access = Access(1 << 20, 1, "memory")
    assert level(judged([case("storage_write", MIB, 1, access=access)], STORING), "storage").name == (
        "storage write, in memory"
    )


def test_another_tool_stands_beside_and_is_named() -> None:
    run = synthetic_run([case("storage_read", 64 * MIB, 2, access=ACCESS)], STORING, samples=8)
    check = CrossCheck(tool="fio", version="3.33", settings="--direct=1", bytes_per_second=(1e9, 0.6e9))
    judgement = judge(pool((with_check(run, check),)), rows=ROWS)
    (file,) = judgement.of(Node).files
    assert file.cross_check is not None
    assert file.cross_check.tool == "fio 3.33"
    assert file.cross_check.rate == pytest.approx(1.6e9)
    text = every_text(storage_section(judgement))
    left_out = "It uses whole blocks only"
    assert left_out not in text
    odd = synthetic_run([case("storage_read", 64 * MIB + 4096, 2, access=ACCESS)], STORING, samples=8)
    assert left_out in every_text(storage_section(judge(pool((with_check(odd, check),)), rows=ROWS)))
    split = synthetic_run(
        [case("storage_read", 64 * MIB, 2, access=ACCESS, group=group) for group in ("0;1", "1;0")], STORING
    )
    files = judge(pool((with_check(split, check),)), rows=ROWS).of(Node).files
    assert [file.cross_check.rate for file in files if file.cross_check] == [1e9, 0.6e9, 0.6e9, 1e9], (
        "each of its own ranks"
    )


def with_check(run: StoredRun, check: CrossCheck) -> StoredRun:
    rows = tuple(
        msgspec.structs.replace(row, supplement=check) if isinstance(row, Measurement) else row for row in run.rows
    )
    return replace(run, rows=rows)


def test_a_checkpoint_is_durable_after_its_time() -> None:
    judgement = judged([case("checkpoint_save", 64 * MIB, 2)], STORING)
    (file,) = judgement.of(Node).files
    assert file.blocked_ns is None
    assert file.rate == pytest.approx(2e9, rel=1e-3)


def test_what_is_written_has_no_share_of_practical() -> None:
    for op in ("storage_write", "checkpoint_save", "storage_read"):
        access = ACCESS if op != "checkpoint_save" else None
        (files,) = judged([case(op, 64 * MIB, 2, access=access)], STORING, ON_DRIVE).of(Node).files
        assert (files.practical is None) == (op != "storage_read")


@pytest.mark.parametrize(("gigatransfers", "lanes"), [(8.0, 4), (16.0, 2)])
@pytest.mark.parametrize("op", ["storage_write", "checkpoint_save"])
def test_a_drive_of_which_no_practical_rate_is_known_needs_no_reason(op: str, gigatransfers: float, lanes: int) -> None:
    """The row of PCIe 3 x4 has none, and PCIe 4 x2 has no row."""
    drive = {**DRIVE, "link": {"trained": {"gigatransfers": gigatransfers, "lanes": lanes}}}
    facts: dict[str, JSON] = {**ON_DRIVE, "pci": {"gpus": [], "nics": [], "drives": [drive]}}
    judgement = judged([case(op, 64 * MIB, 2, access=ACCESS if op == "storage_write" else None)], STORING, facts)
    (file,) = judgement.of(Node).files
    assert file.nominal == pytest.approx(7.87692e9 / 2)
    assert file.practical is None


# --- the hierarchy ---------------------------------------------------------------------------------------------------


def test_the_hierarchy_goes_from_the_caches_to_storage() -> None:
    cases = [
        *kernels("stream_copy", "memory_copy"),
        case("all_reduce", 16 * MIB, 2),
        case("storage_read", 64 * MIB, 2, access=ACCESS),
    ]
    judgement = judged(
        cases, replace(WORLD, by_op={**WORLD.by_op, **STORING.by_op}), {"memory_modules": MODULES, **ON_DRIVE}
    )
    kinds = [level.kind for level in judgement.of(Node).levels]
    assert kinds == ["cache", "cache", "DRAM", "ranks of a host", "storage"]
    assert [level.measured for level in judgement.of(Node).levels[:2]] == [
        pytest.approx(200e9, rel=0.01),
        pytest.approx(80e9, rel=0.01),
    ]
    dram = level(judgement, "DRAM")
    assert dram.measured == pytest.approx(30e9, rel=0.01), "the most that any kernel gets out of it"
    assert dram.nominal == pytest.approx(DRAM)
    assert dram.share == pytest.approx(30 / 76.8, rel=0.01)
    assert "memory_copy" in dram.how
    assert dram.name == "memory behind the caches"
    assert level(judgement, "ranks of a host").nominal is None, "a peak that was measured is no datasheet"
    assert level(judgement, "ranks of a host").practical is not None


def test_a_copy_of_few_sizes_may_still_be_in_a_cache() -> None:
    dram = level(judged(kernels("memory_copy", sizes=[MIB, 64 * MIB])), "DRAM")
    assert dram.name == "memory, perhaps with caches"


def test_caches_that_the_host_states_withhold_what_is_said_of_memory() -> None:
    """A processor with 256 MiB of cache, and triad up to 192 MiB: its second level is the last cache, and no memory."""
    stated: dict[str, JSON] = {"cpu": {"usable_cores": 64, "last_level_cache_bytes": 256 * MIB}}
    world = World(by_op={"stream_triad": stepped(3, (3000e9, 1500e9), (32 * MIB,))}, sample_noise=0.0)
    cases = kernels("stream_triad", threads=[1], sizes=[size for size in SIZES if size <= 64 * MIB])
    without, held = judged(cases, world), judged(cases, world, stated)
    assert level(without, "DRAM").name == "memory behind the caches"
    assert level(held, "DRAM").name == "memory, perhaps with caches"
    assert [level.name for level in held.of(Node).levels if level.kind == "cache"] == ["plateau 1 (up to 24 MiB)"], (
        "whether the last plateau is a cache is not known, either"
    )
    four = [with_changes(kernel, ranks=4) for kernel in cases]
    assert level(judged(four, world, stated), "DRAM").name == "memory, perhaps with caches", "4 × 192 MiB are 3 × 256"
    few: dict[str, JSON] = {"cpu": {"usable_cores": 64, "last_level_cache_bytes": 192 * MIB}}
    assert level(judged(four, world, few), "DRAM").name == "memory behind the caches", "4 × 192 MiB are 4 × 192"


def test_what_was_not_measured_is_an_outline() -> None:
    judgement = judged([case("all_reduce", MIB)], World(sample_noise=0.0), {"memory_modules": MODULES, **ON_DRIVE})
    dram, drive = level(judgement, "DRAM"), level(judgement, "NVMe")
    assert dram.measured is drive.measured is None
    assert dram.nominal == pytest.approx(DRAM)
    assert drive.nominal == pytest.approx(7.87692e9)


def test_hosts_reach_each_other_by_the_network() -> None:
    machine = Machine(hosts=("node0", "node1"), interface_bytes_per_second=12.5e9)
    run = synthetic_run([case("all_gather", 64 * MIB, 2, nodes=2)], World(sample_noise=0.0), machine=machine, samples=8)
    judgement = judge(pool((run,)), rows=ROWS)
    network = level(judgement, "network")
    assert network.nominal == pytest.approx(12.5e9)
    assert network.measured is not None
    assert "all_gather" in network.how


def test_copies_to_a_gpu_are_beside_their_link() -> None:
    gpu = {
        "address": "0000:01:00.0",
        "index": 0,
        "name": "NVIDIA H200",
        "link": {"trained": {"gigatransfers": 32.0, "lanes": 16}, "card": None, "port": None, "narrowest": None},
    }
    seats = [{"rank": 0, "local_rank": 0, "gpu": 0}]
    facts: dict[str, JSON] = {"pci": {"gpus": [gpu], "nics": [], "drives": []}, "ranks": seats}
    world = World(
        by_op={"memory_copy": (Piece(0.0, 1 / 2.1e12),), "host_to_device": (Piece(0.0, 1 / 55e9),)}, sample_noise=0.0
    )
    cases = [
        case(op, size, 1, backend="nccl", device="cuda")
        for op in ("memory_copy", "host_to_device")
        for size in (MIB, 256 * MIB)
    ]
    judgement = judged(cases, world, facts)
    link, memory = level(judgement, "PCIe"), level(judgement, "HBM")
    assert link.share == pytest.approx(55 / 63, rel=0.01)
    assert memory.measured == pytest.approx(4.2e12, rel=0.01)
    assert memory.share == pytest.approx(4.2 / 4.8, rel=0.01)


def test_levels_of_a_gpu_have_the_latency_of_their_working_sets() -> None:
    ends = (48 * MIB,)
    loads = (Piece(270e-9, 0.0), Piece(700e-9, 0.0, *ends))
    world = World(
        by_op={"stream_copy": stepped(2, (10e12, 3e12), (ends[0] // 2,)), "memory_latency": loads}, sample_noise=0.0
    )
    sizes = [MIB << exponent for exponent in range(10)]
    cases = [
        case(op, size, 1, backend="nccl", device="cuda", mode="pipelined")
        for op in ("stream_copy", "memory_latency")
        for size in sizes
    ]
    judgement = judged(cases, world)
    seen = [level for level in judgement.of(Node).levels if level.measured]
    assert [level.kind for level in seen] == ["GPU cache", "HBM"]
    assert [level.latency_ns for level in seen] == pytest.approx([270, 700], rel=0.01)
    assert {group.algbw for row in judgement.cases if row.case.op in LATENCIES for group in row.groups} == {None}
    (loaded,) = [curve for curve in judgement.curves if curve.series.key.op in LATENCIES]
    assert getattr(loaded.fit, "code", None) == "latency"


def test_the_json_of_a_report_has_memory_storage_and_hierarchy() -> None:
    cases = [*kernels("stream_copy", threads=[1]), case("storage_read", 64 * MIB, 1, access=ACCESS)]
    judgement = judged(cases, replace(WORLD, by_op={**WORLD.by_op, **STORING.by_op}), {"memory_modules": MODULES})
    document = json.loads(compose.compose(judgement).json)
    (curve,) = document["memory"]
    assert [round(plateau["rate"] / 1e9) for plateau in curve["plateaus"]["plateaus"]] == [200, 80, 20]
    assert curve["threads"] == 1
    assert curve["peak"]["denominator"].startswith("memory of node0")
    assert document["storage"][0]["peak"]["code"] == "storage-not-recorded"
    assert [level["kind"] for level in document["hierarchy"]] == ["cache", "cache", "DRAM", "storage"]


@pytest.mark.parametrize(("size", "known"), [(8, False), (8 * MIB, True)])
def test_a_working_set_of_a_few_bytes_has_no_rate_of_the_memory(size: int, *, known: bool) -> None:
    """DRAM had 712 kB/s after a copy of 8 B."""
    judgement = judged(kernels("memory_copy", threads=(1,), sizes=(size,)), facts={"memory_modules": MODULES})
    measured = [level.measured for level in judgement.of(Node).levels if level.kind == "DRAM"]
    assert any(measured) == known
    assert ("GB/s" in require(memory_section(judgement)).gist) == known


def test_ranks_that_do_not_wait_for_each_other_have_no_skew() -> None:
    """A copy of 8 B had a skew of 201 % and no flag."""
    world = World(jitter_seconds=1e-4)
    cases = [case(op, 8, 4, mode="isolated") for op in ("memory_copy", "all_reduce")]
    judgement = judge(pool((synthetic_run(cases, world, launches=3, samples=8),)))
    rows = {row.case.op: row for row in show_rows(judgement)}
    assert all(require(require(row.group).skew_share) > 0.1 for row in rows.values())
    tables = [block for block in show_blocks([*rows.values()]) if isinstance(block, Table)]
    skewed = {table.caption.split(" ")[0]: "skew" in [column.heading for column in table.columns] for table in tables}
    assert skewed == {"memory_copy": False, "all_reduce": True}
