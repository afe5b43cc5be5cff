"""NCCL as far as it can be held without a GPU: what it refuses, and how it says that it cannot run."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist
from simulated.install import simulated
from simulated.machine import EXACT
from testing.gpu import world_of_one
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw import backends, launch
from busbw.backends import BACKENDS
from busbw.backends.base import Bound, World, explained
from busbw.backends.cuda import CudaDevice
from busbw.backends.pytorch import calls, nccl, nccl_calls, nccl_tuning
from busbw.backends.pytorch.nccl import NcclBackend, View, shared_gpu, why_not
from busbw.backends.pytorch.nccl_tuning import choice_in, choice_of
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError, LaunchError, UsageError
from busbw.ops import OPS
from busbw.runs.facts import UNKNOWN_HOST, HostFacts, NcclFacts
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Case, Mode, NcclChoice
from busbw.system.environment import LIBRARIES

pytestmark = pytest.mark.usefixtures("lines_recorded")

DATA = Path(__file__).parents[1] / "data"
NVIDIA = "cuda: str = '12.6'\nhip: Optional[str] = None\n"
AMD = "cuda: Optional[str] = None\nhip: Optional[str] = '6.2.41133'\n"
NEITHER = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes torch one that was built as these notes say."""
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def build(notes: str) -> Path:
        file = tmp_path / "version.py"
        file.write_text(f"__version__ = '2.13.0'\ndebug = False\n{notes}")
        monkeypatch.setattr(backends, "_torch_version_file", lambda: file)
        return file

    return build


@pytest.mark.parametrize(
    ("notes", "cuda", "hip"), [(NEITHER, False, False), (NVIDIA, True, False), (AMD, False, True), ("", True, False)]
)
def test_how_torch_was_built_is_read_from_its_own_note(
    built: Callable[[str], Path],
    notes: str,
    cuda: bool,  # noqa: FBT001
    hip: bool,  # noqa: FBT001
) -> None:
    file = built(notes)
    assert (backends._built_with("cuda"), backends._built_with("hip")) == (cuda, hip)
    file.unlink()
    assert backends._built_with("cuda"), "then torch itself will say"


def test_gpus_of_amd_are_counted_by_their_driver_and_hidden_by_their_variables(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(AMD)
    for node, identity in enumerate(("0\n", "28851\n", "9876\n", "")):
        (tmp_path / "nodes" / str(node)).mkdir(parents=True)
        (tmp_path / "nodes" / str(node) / "gpu_id").write_text(identity)
    monkeypatch.setattr(backends, "_CUDA_DEVICES", ("null", "zero", "full"))
    monkeypatch.setattr(backends, "_AMD_NODES", tmp_path / "nodes")
    assert BACKENDS["nccl"].missing() is None
    assert BACKENDS["nccl"].places() == 2, "of two GPUs and a processor; NVIDIA's files are not theirs"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert BACKENDS["nccl"].places() == 1
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    assert "ROCR_VISIBLE_DEVICES" in str(BACKENDS["nccl"].missing())
    monkeypatch.setattr(backends, "_AMD_NODES", tmp_path / "no driver")
    assert BACKENDS["nccl"].missing() is not None


def test_every_reason_for_which_it_cannot_run_is_told_at_once(
    built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    built(NEITHER)
    monkeypatch.setattr(backends, "_CUDA_DEVICES", ("no such device",))
    missing = BACKENDS["nccl"].missing()
    assert str(missing).count(";") == 1


def test_a_hidden_gpu_is_called_hidden(built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    built(NVIDIA)
    monkeypatch.setattr(backends, "_CUDA_DEVICES", ("null",))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES" in str(BACKENDS["nccl"].missing())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert BACKENDS["nccl"].missing() is None


@pytest.mark.parametrize(
    ("shown", "gpus"), [(None, 3), ("0,1", 2), ("2", 1), ("0,-1,1", 1), ("", 0), ("-1", 0), ("0,1,2,3,4", 3)]
)
def test_there_is_a_place_for_a_rank_on_every_gpu_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, gpus: int
) -> None:
    monkeypatch.setattr(backends, "_CUDA_DEVICES", ("null", "zero", "full"))
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert BACKENDS["nccl"].places() == gpus
    plan = Plan(backend="nccl", sweep=(Sweep(ops=("all_reduce",)),))
    assert launch.ranks_of(plan, {}) == max(1, gpus)


@pytest.mark.parametrize(("shown", "gpus"), [(None, None), ("0,1", 2), ("", 0)])
def test_a_device_file_of_all_gpus_says_nothing_about_their_number(
    built: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, shown: str | None, gpus: int | None
) -> None:
    built(NVIDIA)
    monkeypatch.setattr(backends, "_CUDA_DEVICES", ("no such device",))
    monkeypatch.setattr(backends, "_CUDA_DEVICES_TOGETHER", ("null",))
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert BACKENDS["nccl"].places() == gpus
    assert (BACKENDS["nccl"].missing() is None) == (gpus != 0)
    plan = Plan(backend="nccl", sweep=(Sweep(ops=("all_reduce",)),))
    with pytest.raises(UsageError) if gpus is None else nullcontext():
        assert launch.ranks_of(plan, {}) == max(1, gpus or 0)


def test_gloo_has_a_place_for_any_number() -> None:
    assert BACKENDS["gloo"].places() is None


def test_a_rank_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(LaunchError):
        NcclBackend(World(1, 2, 1, "local", 1.0))


def _views(hosts: str, gpus: Sequence[str | None], address: Sequence[str | None] = ()) -> list[View]:
    places = zip(hosts, gpus, address or [None] * len(hosts), strict=True)
    return [View(host=host, gpu=gpu, address=pci, names={}, access=()) for host, gpu, pci in places]


def test_two_ranks_on_one_gpu_are_named() -> None:
    assert shared_gpu(_views("aab", ["GPU-1", "GPU-2", "GPU-1"])) is None
    message = require(shared_gpu(_views("aaa", ["GPU-1", "GPU-2", "GPU-1"])))
    assert message.startswith("ranks 0 and 2 share one GPU (GPU-1 on host a)")


def test_ranks_that_see_one_gpu_each_are_told_apart_by_what_torch_knows_of_it_and_never_by_its_number() -> None:
    unknown: tuple[str | None, ...] = (None, None)
    assert shared_gpu(_views("aa", unknown, ["0000:1b:00.0", "0000:1c:00.0"])) is None
    assert "0000:1b:00.0" in str(shared_gpu(_views("aa", unknown, ["0000:1b:00.0"] * 2)))
    assert shared_gpu(_views("aa", unknown)) is None, "nobody knows"


def test_an_average_that_is_not_exact_is_refused_and_any_other_is_not() -> None:
    def average(ranks: int, dtype: str) -> str | None:
        return why_not(OPS["all_reduce"], case("all_reduce", 96, ranks, redop="avg", dtype=dtype, device="cuda"))

    assert average(3, "float32") is not None
    assert average(4, "float32") is None
    assert average(3, "int32") is None


def chosen(algorithm: str, protocol: str | None, channels: int | None) -> NcclChoice:
    return NcclChoice(algorithm=algorithm, protocol=protocol, channels=channels)


def test_what_nccl_chose_is_read_from_its_own_lines() -> None:
    """Of 8 H100 with NCCL 2.30.7, and of 16 ranks on two hosts; the first line has no choice."""
    lines = (DATA / "nccl" / "tuning.txt").read_text(encoding="utf-8").splitlines()
    assert [choice_in(line) for line in lines] == [
        None,
        chosen("TREE", "LL", 1),
        chosen("RING", "LL", 1),
        chosen("RING", "LL", 24),
        chosen("NVLS", "SIMPLE", 16),
    ]
    assert choice_in("\n".join(lines)) == chosen("TREE", "LL", 1)


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        (
            "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
            chosen("AllReduce_AGxLL_R", None, 8),
        ),
        ("AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpyAsync", chosen("Copy Engine", None, None)),
        ("AllGather [Hierarchical CE]: 4096 Bytes -> RMA proxy + CE", chosen("Hierarchical CE", None, None)),
    ],
)
def test_kernels_of_symmetric_memory_and_copy_engines_have_no_protocol(line: str, choice: NcclChoice) -> None:
    """As the sources of 2.28 and 2.30 print them."""
    assert choice_in(f"node1:4:4 [0] NCCL INFO {line}") == choice


def test_the_file_of_the_user_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setenv("NCCL_DEBUG_FILE", "mine")
    monkeypatch.setattr(nccl_tuning, "reset_function", lambda: lambda: made.append("reset"))
    assert choice_of(lambda: made.append("call"), leads=True) is None
    assert made == ["call"]


def test_variables_are_as_before_when_nccl_has_told_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    names, seen = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"), []
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setattr(nccl_tuning, "reset_function", lambda: lambda: seen.append([*map(os.environ.get, names)]))

    def call() -> None:
        Path(os.environ.get("NCCL_DEBUG_FILE", os.devnull)).write_text(
            "4 Bytes -> Algo PAT proto LL128 channel{Lo..Hi}={2..5}\n"
        )

    assert choice_of(call, leads=True) == chosen("PAT", "LL128", 4)
    assert [values[:2] for values in seen] == [["INFO", "TUNING"], ["WARN", None]]
    assert not Path(str(seen[0][2])).exists()
    assert choice_of(call, leads=False) is None, "another rank makes the call, but NCCL prints nothing there"


@pytest.mark.parametrize(
    ("version", "capability", "op", "reason"),
    [
        ((2, 23, 4), (9, 0), "all_reduce", "here it is NCCL 2.23.4"),
        ((2, 24, 3), (8, 0), "all_reduce", "here a GPU has 8.0"),
        ((2, 24, 3), (9, 0), "all_reduce", None),
        ((2, 23, 4), (8, 0), "all_gather", None),
    ],
)
def test_8_bit_floats_are_reduced_where_nccl_can(
    version: tuple[int, ...], capability: tuple[int, int], op: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    refused = why_not(OPS[op], case(op, 96, 2, dtype="float8_e4m3", device="cuda"))
    assert refused is reason is None or str(refused).endswith(str(reason))


def test_a_barrier_is_not_captured_and_not_held() -> None:
    barrier = OPS["barrier"]
    assert "graph" in str(why_not(barrier, case("barrier", 0, device="cuda", mode="graph")))
    assert "pre-enqueued" in str(why_not(barrier, case("barrier", 0, device="cuda", pre_enqueue=True)))
    assert why_not(barrier, case("barrier", 0, device="cuda")) is None


def test_versions_are_among_those_that_a_run_records() -> None:
    assert set(BACKENDS["nccl"].packages) <= set(LIBRARIES)


@pytest.mark.parametrize(("runs", "version"), [((2, 27, 5), "2.27.5"), ((2, 22, 3, "rc1"), "2.22.3.rc1")])
def test_the_version_is_that_of_the_library_which_runs(
    monkeypatch: pytest.MonkeyPatch, runs: tuple[int | str, ...], version: str
) -> None:
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: runs)
    assert BACKENDS["nccl"].facts(UNKNOWN_HOST) == HostFacts(nccl=NcclFacts(version=version))


def test_a_gpu_sends_and_receives_in_one_batch_and_waits_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL would do one after the other: with every rank receiving first, nobody would ever send."""
    asked: list[object] = []

    class Work:
        def wait(self) -> None:
            asked.append("waited")

    def batch(both: list[tuple[object, ...]]) -> list[Work]:
        asked.append(both)
        return [Work(), Work()]

    monkeypatch.setattr(dist, "P2POp", lambda *what: what)
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    send, receive = (cast("torch.Tensor", SimpleNamespace(is_cuda=True)) for _ in range(2))
    operation = calls.CALLS["send_recv"](Bound(case("send_recv", 64, 4), send, receive, group=(3, 0, 1), me=1))
    assert asked == [], "everything that can be prepared is prepared"
    operation.call()
    assert asked == [[(dist.irecv, receive, 3), (dist.isend, send, 1)], "waited", "waited"]
    assert operation.post is not None
    wait = operation.post()
    assert len(asked) == 4
    wait()
    assert len(asked) == 6


@pytest.mark.parametrize("me", [0, 1])
def test_a_round_trip_of_gpus_makes_no_communicator_of_its_pair(me: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, torch.Tensor, int]] = []

    def batch(messages: list[tuple[object, torch.Tensor, int]]) -> list[dist.Work]:
        asked.extend(messages)
        return []

    monkeypatch.setattr(dist, "P2POp", lambda *what: what)
    monkeypatch.setattr(dist, "batch_isend_irecv", batch)
    with simulated(EXACT):
        send, receive = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
        for op in ("ping_pong", "pair_uni", "pair_matrix"):
            calls.CALLS[op](Bound(case(op, 16, 8, device="cuda"), send, receive, group=(3, 5), me=me)).call()
    assert {other for _, _, other in asked} == {(3, 5)[1 - me]}
    assert [kind for kind, _, _ in asked] == [dist.isend, dist.irecv][:: -1 if me else 1] * 3


@pytest.fixture
def world() -> Iterator[World]:
    with simulated(EXACT), world_of_one() as world:
        yield world


def test_torchs_threads_neither_end_a_rank_nor_record_its_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in chain.from_iterable(nccl._SETTINGS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000")
    seen: dict[str, str] = {}
    join = dist.init_process_group

    def joined(*given: object, **named: object) -> None:
        seen.update(os.environ)
        join(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(dist, "init_process_group", joined)
    NcclBackend(world).close()
    wanted: dict[str, str | None] = {names[0]: value for names, value in nccl._SETTINGS.items()}
    wanted["TORCH_FR_BUFFER_SIZE"] = None  # torch then takes the user's, by its older name
    assert {name: seen.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(("op", "is_lost"), [("all_reduce", True), ("memory_copy", False)])
def test_a_rank_that_waits_for_others_for_ever_says_so(world: World, op: str, *, is_lost: bool) -> None:
    errors: list[str] = []
    backend = NcclBackend(replace(world, timeout_seconds=0.3, lost=lambda error: errors.append(str(error))))
    data = torch.zeros(4, device="cuda")
    backend.bind(Bound(case(op, 16, 1, backend="nccl", device="cuda"), data, data.clone(), group=(0,)))
    until = time.monotonic() + (20 if is_lost else 1)
    while time.monotonic() < until and not errors:
        torch.ones(1).sum()  # as cudaDeviceSynchronize, it polls
    backend.close()
    assert bool(errors) == is_lost, "what needs no other rank takes as long as it takes"


def test_what_a_user_asked_wrongly_is_no_refusal_of_the_library(world: World) -> None:
    backend = NcclBackend(world)
    with pytest.raises(BackendError), explained(backend):
        raise ValueError("Tensors must be contiguous")
    with pytest.raises(UsageError), explained(backend):
        raise UsageError("--sizes 8..7")
    backend.close()


def apart(mode: Mode = "isolated") -> Case:
    return case("all_reduce", 16, 1, backend="nccl", device="cuda", in_place=False, mode=mode)


def test_only_the_nccl_of_torch_is_called() -> None:
    assert (nccl_calls.loaded() is None) == ("libnccl.so.2" not in Path("/proc/self/maps").read_text(encoding="utf-8"))


def test_out_of_place_is_refused_where_the_functions_of_nccl_cannot_be_called(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, op = NcclBackend(world), OPS["all_reduce"]
    assert backend.refuse(op, apart()) is None
    assert "overlap" in str(backend.refuse(op, apart("overlap")))
    assert "communicators" in str(nccl_calls.why_not(object())), "of an older torch"
    with monkeypatch.context() as patch:
        patch.setattr(nccl_calls, "loaded", lambda: None)
        assert "libnccl" in str(backend.refuse(op, apart()))
    backend.close()


def test_an_error_of_a_function_of_nccl_is_in_its_words(world: World) -> None:
    backend, data = NcclBackend(world), torch.zeros(4, device="cuda")
    bound = Bound(apart(), data, data.clone())
    with pytest.raises(BackendError, match="communicator"):
        nccl_calls.bind(bound, lambda: 0).call()
    with pytest.raises(BackendError, match=r"invalid argument \(4\)"):
        nccl_calls.bind(bound, lambda: 1 << 20).call()
    backend.close()


def test_a_barrier_names_its_gpu(world: World) -> None:
    """torch would guess it, with a warning, which is an error here."""
    backend = NcclBackend(world)
    data = torch.zeros(4, device="cuda")
    backend.bind(Bound(case("barrier", 0, 1, backend="nccl", device="cuda"), data, data, group=(0,))).call()
    backend.close()


def test_graphs_are_gone_before_the_communicators_that_they_hold(world: World) -> None:
    """While one is alive, NCCL waits for it for ever when its communicator is destroyed; so does the simulated one."""
    backend = NcclBackend(world)
    gpu = require_type(CudaDevice, backend.device)
    data = torch.zeros(4, device="cuda")
    replay = gpu.capture([partial(dist.all_reduce, data)])
    with pytest.raises(RuntimeError, match="graph"):
        dist.destroy_process_group()
    backend.close()
    with pytest.raises(RuntimeError, match="capture"):
        replay()


def test_float32_is_not_tf32_whatever_the_image_says(world: World) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        NcclBackend(world).close()
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("asked", ["device_count", "init"])
def test_a_driver_that_is_too_old_is_the_reason(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, asked, refuse)
    with pytest.raises(LaunchError, match="too old"):
        NcclBackend(World(1, 2, 1, "local", 1.0))


def test_the_cause_that_nccl_names_last_is_in_the_message() -> None:
    text = (
        "NCCL error in: /src/torch/csrc/distributed/c10d/NCCLUtils.hpp:317, remote process exited or there was a "
        "network error, NCCL version 2.20.5\nncclRemoteError: A call failed possibly due to a network error.\n"
        "Last error:\nsocketProgressOpt: Call to recv from 10.0.0.1<4444> failed : Connection reset by peer"
    )
    words = first_line(RuntimeError(text))
    assert words.startswith("remote process exited")
    assert words.endswith("Connection reset by peer")
