"""Arrays that do not fit into the memory of a host are refused, with what is there and what is needed."""

import dataclasses
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from testing.devices import DeviceScript
from testing.fakes import QUICK, FakeWorld, Script
from testing.synthetic import case

from busbw.backends.base import World
from busbw.errors import UsageError
from busbw.launch import on_one_host
from busbw.launch.run_session import Listener, refuse_impossible
from busbw.launch.worker import Job, run
from busbw.measure.unsupported import Place, anywhere, out_of_memory, skip_reason
from busbw.ops import OPS
from busbw.ops.base import Op, Share
from busbw.ops.traffic import imbalanced, split
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Case, Measurement
from busbw.system import environment

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def why_not(case: Case, memory: Mapping[str, int], *hosts: str) -> str | None:
    place = Place(oversubscribed=False, comparable=True, hosts=hosts, memory=memory)
    return skip_reason(case, FakeWorld(case.ranks).backends[0], place)


def test_the_arrays_of_all_ranks_of_a_host_must_fit_into_its_memory() -> None:
    triad = case("stream_triad", GIB, 2)
    assert why_not(triad, {"a": 8 * GIB}, "a", "a") is None
    assert why_not(triad, {"a": 6 * GIB}, "a", "a") is not None
    assert why_not(triad, {"a": 4 * GIB, "b": 4 * GIB}, "a", "b") is None, "a memory of its own in each"
    assert "b had 3 GiB" in str(why_not(triad, {"a": 4 * GIB, "b": 3 * GIB}, "a", "b"))
    alone = case("stream_triad", GIB, 2, group="1")
    assert why_not(alone, {"a": 4 * GIB}, "a", "a") is None, "the other rank has no arrays"


@pytest.mark.parametrize(
    ("op", "arrays"),
    [("memory_copy", 2), ("stream_add", 3), ("memory_read", 1), ("memory_touch", 1), ("storage_read", 3)],
)
def test_every_array_of_a_call_counts(op: str, arrays: int) -> None:
    planned = case(op, GIB, 1)
    assert f"1 rank, up to {arrays} GiB" in str(why_not(planned, {"a": arrays * GIB}, "a"))
    assert "too little memory" not in str(why_not(planned, {"a": 2 * arrays * GIB}, "a"))


def test_buffers_in_turns_are_counted_as_often_as_they_are_there() -> None:
    assert "1 rank, up to 4 GiB" in str(why_not(case("memory_copy", GIB, 1, cache="rotating"), {"a": GIB}, "a"))


def test_what_is_not_known_refuses_nothing() -> None:
    assert why_not(case("memory_copy", GIB, 1), {}) is None
    assert why_not(case("memory_copy", GIB, 2), {"a": 3 * GIB}, "a", "b") is None
    weighed = case("all_to_all_v", GIB, 2, traffic="00000000")
    assert why_not(weighed, {"a": 1}, "a", "a") is None, "the shares of a given matrix are not known"
    assert why_not(case("checkpoint_save", GIB, 2), {"a": 1}, "a", "a") is None, "it is held against its disk"


@pytest.mark.parametrize(
    ("planned", "gibibytes"),
    [
        (case("all_reduce", GIB, 2), 2),
        (case("all_reduce", GIB, 2, cache="rotating"), 4),
        (case("all_gather", GIB, 2), 3),
        (case("all_gather", GIB, 2, in_place=True), 2),
        (case("reduce_scatter", GIB, 2, in_place=True), 2),
        (case("broadcast", GIB, 3, root=2), 3),
        (case("gather", GIB, 4), 2),
        (case("all_to_all_v", GIB, 2, imbalance=1.0), 2),
        (case("send_recv", GIB, 2), 4),
        (case("ping_pong", GIB, 4), 4),
        (case("pair_uni", GIB, 4), 2),
        (case("pair_matrix", GIB, 4), 4),
        (case("pair_matrix", GIB, 3), 2),
        (case("pair_matrix", GIB, 4, pairs="alone"), 2),
        (case("tcp_ping_pong", GIB, 4), 4),
        (case("all_reduce", GIB, 4, group="0,1"), 2),
    ],
    ids=lambda value: f"{value.op} {value.ranks}" if isinstance(value, Case) else None,
)
def test_the_buffers_of_all_ranks_of_a_host_are_counted(planned: Case, gibibytes: float) -> None:
    def fits(available: int) -> bool:
        hosts = ("a",) * planned.ranks
        return out_of_memory(planned, dataclasses.replace(anywhere(), hosts=hosts, memory={"a": available})) is None

    needed = round(1.1 * gibibytes * GIB)  # and the margin
    assert fits(needed + MIB)
    assert not fits(needed - MIB)


_MESSAGES = [op for op in OPS.values() if op.sized and not op.local and not op.stores and op.members == "all"]


@pytest.mark.parametrize("op", _MESSAGES)
def test_buffers_are_counted_as_they_are_laid_out(op: Op) -> None:
    for ranks, in_place in product((1, 2, 3, 5), op.in_place):
        for root in {0, ranks - 1} if op.rooted else {0}:
            count = 60_000  # enough that the rounding of uneven blocks is less than what is spare
            matrix = split(imbalanced(ranks, 0.5), count) if op.uneven else ()
            layouts = [op.layout(Share(rank, ranks, count, in_place, root, matrix)) for rank in range(ranks)]
            elements = sum(
                max(layout.send_count, layout.receive_count)
                if (layout.receives_into_send, layout.sends_from_receive) != (None, None)
                else layout.send_count + layout.receive_count
                for layout in layouts
            )
            changes = {"root": root} if op.rooted else {"imbalance": 0.5} if op.uneven else {}
            scaled = case(op.name, count * KIB, ranks, in_place=in_place, **changes)
            place = dataclasses.replace(anywhere(), hosts=("a",) * ranks)
            for spare, fits in ((60, True), (-60, False)):
                available = round(1.1 * elements * KIB) + spare * KIB
                here = dataclasses.replace(place, memory={"a": available})
                assert (out_of_memory(scaled, here) is None) == fits, (ranks, in_place, root)


def test_each_host_is_asked_for_the_buffers_of_its_own_ranks() -> None:
    reduced = case("all_reduce", GIB, 3)
    assert why_not(reduced, {"a": 3 * GIB, "b": 2 * GIB}, "a", "a", "b") is None
    assert "b had 1 GiB" in str(why_not(reduced, {"a": 3 * GIB, "b": GIB}, "a", "a", "b"))
    assert "a had 2 GiB" in str(why_not(reduced, {"a": 2 * GIB, "b": 2 * GIB}, "a", "a", "b"))


def test_a_small_message_fits_wherever_it_does() -> None:
    assert why_not(case("all_reduce", 8, 2), {"a": KIB}, "a", "a") is None


@pytest.mark.parametrize(("sizes", "fits"), [("23GiB", False), ("8,23GiB", False), ("10GiB", True)])
def test_a_plan_whose_ranks_do_not_fit_together_is_refused(
    sizes: str, monkeypatch: pytest.MonkeyPatch, *, fits: bool
) -> None:
    monkeypatch.setattr(environment, "available_memory_bytes", lambda: 24 * GIB)
    # This process forks the ranks: it must not start the libraries of GPUs that other facts come from.
    monkeypatch.setattr(environment, "host_facts", lambda: pytest.fail("the launcher asked for all facts"))
    plan = Plan(sweep=(Sweep(ops=("all_reduce",), sizes=sizes),))
    if fits:
        refuse_impossible(plan, 2, on_one_host=True)
        return
    refuse_impossible(plan, 2, on_one_host=False)
    with pytest.raises(UsageError) as refused:
        refuse_impossible(plan, 2, on_one_host=True)
    for words in ("'sizes'", "24 GiB", "50.6 GiB", "2 ranks, up to 23 GiB"):
        assert words in str(refused.value)


def test_a_plan_with_kernels_of_any_size_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "available_memory_bytes", lambda: GIB)
    refuse_impossible(Plan(sweep=(Sweep(ops=("memory_copy",), sizes="8GiB"),)), 2, on_one_host=True)


def test_ranks_of_a_launcher_on_one_host_are_counted_like_local_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=a", "MASTER_PORT=1"):
        monkeypatch.setenv(*variable.split("="))
    for local, here in (("2", True), ("1", False)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert on_one_host(2) is here


def test_what_did_not_fit_in_the_first_launch_is_in_no_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(launches=2, sweep=(Sweep(ops=("memory_copy",), sizes="4KiB,1MiB", modes=("pipelined",)),), timing=QUICK)
    folder = tmp_path / "machine" / "run"
    folder.mkdir(parents=True)
    for launch, available in enumerate((65 * MIB, GIB)):
        monkeypatch.setattr(environment, "available_memory_bytes", lambda available=available: available)
        world = FakeWorld(1)
        run(Job(plan, folder, launch, "local", world.row()), World(0, 1, 0, "local", 5.0), Listener())
    stored = store.read(folder)
    assert [skip.case.size_bytes for skip in stored.skipped] == [MIB]
    assert [(row.case.size_bytes, row.launch) for row in stored.rows if isinstance(row, Measurement)] == [
        (4096, 0),
        (4096, 1),
    ]
    (facts,) = stored.run.environments.values()
    assert facts.memory.available_bytes == 65 * MIB


def test_the_buffers_of_a_rank_must_fit_into_what_is_free_of_its_gpu(tmp_path: Path) -> None:
    copy = case("memory_copy", GIB, 2, device="cuda")
    for free, fits in ((2 * GIB, True), (2 * GIB - 1, False), (None, True)):
        assert (out_of_memory(copy, dataclasses.replace(anywhere(), gpu_memory=free)) is None) == fits
    plan = Plan(launches=2, sweep=(Sweep(ops=("memory_copy",), sizes="4KiB,1MiB"),), timing=QUICK)
    folder = tmp_path / "machine" / "run"
    folder.mkdir(parents=True)
    for launch, free in enumerate((MIB, GIB)):
        world = FakeWorld(1, Script(device=DeviceScript(free_bytes=free)))
        run(Job(plan, folder, launch, "local", world.row()), World(0, 1, 0, "local", 5.0), Listener())
    stored = store.read(folder)
    assert [skip.case.size_bytes for skip in stored.skipped] == [MIB]
    assert {row.case.size_bytes for row in stored.measurements} == {4096}
    assert [of_rank.gpu_free_bytes for facts in stored.run.environments.values() for of_rank in facts.ranks] == [MIB]


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 8 * GIB),
        (
            {"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/memory.current": "5"},
            8 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "0::/job/step",
                "/sys/fs/cgroup/job/memory.max": str(4 * GIB),
                "/sys/fs/cgroup/job/memory.current": str(2 * GIB),
                "/sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7",
                "/sys/fs/cgroup/job/step/memory.max": "max",
                "/sys/fs/cgroup/job/step/memory.current": "7",
            },
            3 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "5:devices:/other\n4:memory:/job\n0::/",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GIB),
                "/sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(GIB),
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            },
            GIB,
        ),
    ],
)
def test_available_memory_is_what_control_groups_leave(
    files: dict[str, str], available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "text_of", lambda path: files.get(str(path)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=8 * GIB, total=9 * GIB))
    assert environment.available_memory_bytes() == available
