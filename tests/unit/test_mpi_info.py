"""What is known of an MPI library without ranks: what it says of itself, and calls of its functions in the making."""

from __future__ import annotations

import pytest
import torch
from simulated.install import simulated
from simulated.machine import EXACT
from simulated.management import Driver, ManagedGpu, managed
from testing.narrow import require
from testing.synthetic import case

from busbw.backends import BACKENDS
from busbw.backends.base import World
from busbw.errors import LaunchError
from busbw.ops import OPS
from busbw.runs import placement
from busbw.runs.facts import HostFacts
from busbw.runs.records import JSON
from busbw.system.environment import rank_facts

mpi = pytest.importorskip("busbw.backends.mpi.backend", exc_type=ImportError)

from mpi4py import MPI  # noqa: E402 - busbw's settings come first

from busbw.backends.mpi import backend as cuda  # noqa: E402 - as above
from busbw.backends.mpi import info, native  # noqa: E402 - as above
from busbw.backends.mpi.native import native_calls  # noqa: E402 - as above

_INTEL = "Intel(R) MPI Library 2021.18"
_MPICH = "MPICH Version:      5.0.2\nMPICH ABI:          18:2:6\nMPICH Device:       ch4:ucx ofi\nMPICH CC: cc"


def test_the_device_of_mpich_is_in_its_version() -> None:
    assert info.device_in(_MPICH) == "ch4:ucx ofi"
    assert info.device_in("Open MPI v5.0.11, package: Open MPI") is None


@pytest.mark.parametrize(
    ("device", "variables", "netmod"),
    [
        ("ch4:ucx ofi", {}, "ucx"),
        ("ch4:ucx,ofi", {"MPIR_CVAR_CH4_NETMOD": "OFI"}, "ofi"),
        ("ch4", {}, info.NOT_REPORTED),
        ("ch3:nemesis:tcp", {}, info.NOT_REPORTED),
        ("ch3:sock", {"MPIR_CVAR_CH4_NETMOD": "ofi"}, info.NOT_REPORTED),
    ],
)
def test_the_module_of_mpich_is_the_one_that_is_named_or_the_first(
    device: str, variables: dict[str, str], netmod: str
) -> None:
    assert info.netmod_of(device, variables) == netmod


@pytest.mark.parametrize(
    ("version", "variables", "transport"),
    [
        (_MPICH, {}, {"netmod": "ucx"}),
        ("Open MPI v5.0.11", {}, {"pml": "ob1"}),
        (_INTEL, {}, {"fabrics": info.NOT_REPORTED, "provider": info.NOT_REPORTED}),
        (_INTEL, {"I_MPI_FABRICS": "shm:ofi", "FI_PROVIDER": "tcp"}, {"fabrics": "shm:ofi", "provider": "tcp"}),
        (
            _INTEL,
            {"I_MPI_OFI_PROVIDER": "psm3", "FI_PROVIDER": "tcp"},
            {"fabrics": info.NOT_REPORTED, "provider": "psm3"},
        ),
        ("MVAPICH 4.1", {}, {"transport": info.NOT_REPORTED}),
        ("", {}, {"transport": info.NOT_REPORTED}),
    ],
)
def test_the_transport_is_what_the_library_reports(
    version: str, variables: dict[str, str], transport: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "library", lambda: version)
    monkeypatch.setattr(info, "selected", lambda _name: "ob1")
    for name in ("I_MPI_FABRICS", "I_MPI_OFI_PROVIDER", "FI_PROVIDER", "MPIR_CVAR_CH4_NETMOD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert info.transport() == transport


@pytest.mark.parametrize(("answer", "aware"), [(None, None), (lambda: 0, False), (lambda: 1, True)])
def test_whether_gpu_memory_is_taken_is_what_the_library_says(
    answer: object, *, aware: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "function", lambda name: answer if name == "MPIX_Query_cuda_support" else None)
    assert info.cuda_aware() is aware


@pytest.mark.parametrize(("aware", "said"), [(True, None), (False, "CUDA"), (None, "whether")])
def test_a_library_that_does_not_say_yes_gets_no_address_of_a_gpu(*, aware: bool | None, said: str | None) -> None:
    reason = info.unaware("Some MPI 1.0", aware=aware)
    assert reason is None if said is None else reason is not None and "Some MPI 1.0" in reason and said in reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_backend_says_what_is_missing_and_does_not_open() -> None:
    assert BACKENDS["mpi-cuda"].missing() is not None
    with pytest.raises(LaunchError):
        cuda.MpiCudaBackend(World(0, 1, 0, "local", 60.0))


def test_ranks_that_share_a_gpu_over_mpi_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their backend has no device whose clock would time them; the GPU is recorded all the same."""

    made: list[cuda.MpiCudaBackend] = []
    monkeypatch.setattr(mpi.MpiBackend, "__init__", lambda self, _world: made.append(self))
    monkeypatch.setattr(cuda, "cuda_aware", lambda: True)
    hidden = [ManagedGpu(uuid=f"GPU-{number}", address=f"0000:0{number}:00.0") for number in range(4)]
    seen = [ManagedGpu(uuid=f"GPU-0000000{number}-1111-2222-3333-444455556666") for number in range(2)]
    with simulated(EXACT), managed(Driver([*hidden, *seen])):
        for rank in range(3):
            cuda.MpiCudaBackend(World(rank, 3, rank, "mpirun", 60.0))
        stands = [backend.conditions() for backend in made]
    ranks = tuple(
        rank_facts(rank, rank, gpu=None if conditions is None else conditions.index)
        for rank, conditions in enumerate(stands)
    )
    environments = {"n0": HostFacts(ranks=ranks)}
    hosts = ("n0",) * 3
    assert placement.shared_resources(placement.rank_placements(hosts, environments), environments) == (
        "ranks share a GPU on n0: ranks 0,2 have GPU 4",
    )


@pytest.mark.parametrize(
    ("op", "changes", "said"),
    [
        ("all_reduce", {"mode": "graph"}, "graph"),
        ("all_reduce", {"pre_enqueue": True}, "pre-enqueued"),
        ("all_reduce", {"mode": "overlap"}, "overlap"),
        ("all_reduce", {"cache": "flushed"}, "flushed"),
        ("memory_copy", {}, "block"),
    ],
)
def test_what_calls_that_block_the_host_cannot_be_timed_as(op: str, changes: dict[str, JSON], said: str) -> None:
    assert said in str(cuda.why_not(OPS[op], case(op, 64, 2, device="cuda", **changes)))
    assert cuda.why_not(OPS["all_reduce"], case("all_reduce", 64, 2, mode="persistent")) is None


# --- calls of C ------------------------------------------------------------------------------------------------


def _buffer(count: int, pretended: int | None = None) -> tuple[MPI.buffer, int, MPI.Datatype]:
    return MPI.buffer.allocate(4 * count), pretended or count, MPI.FLOAT


def _steps(name: str, *arguments: object) -> tuple[int, ...]:
    (step,) = require(native_calls(MPI.COMM_SELF, (name, arguments))).steps
    assert step[0] == native.address(f"MPI_{name}")
    assert step[-1] == MPI._handleof(MPI.COMM_SELF)
    return step[1:-1]


def test_arguments_are_those_of_c() -> None:
    send, receive = _buffer(2), _buffer(4)
    real, total, in_place = MPI._handleof(MPI.FLOAT), MPI._handleof(MPI.SUM), int(MPI.IN_PLACE)
    assert _steps("Allreduce", MPI.IN_PLACE, receive, MPI.SUM) == (in_place, receive[0].address, 4, real, total)
    assert _steps("Reduce", send, None, MPI.SUM, 1) == (send[0].address, 0, 2, real, total, 1)
    assert _steps("Bcast", receive, 1) == (receive[0].address, 4, real, 1)
    assert _steps("Gather", send, None, 1) == (send[0].address, 2, real, 0, 2, real, 1)
    assert _steps("Scatter", None, receive, 0) == (0, 4, real, receive[0].address, 4, real, 0)
    assert _steps("Allgather", MPI.IN_PLACE, receive) == (in_place, 4, real, receive[0].address, 4, real)
    assert _steps("Barrier") == ()


def test_what_is_no_call_of_c_is_left_to_python() -> None:
    memory, _, datatype = _buffer(4)
    spread = memory, ([1, 1 << 31], [0, 1]), datatype
    assert native_calls(MPI.COMM_SELF, ("Bcast", (_buffer(1, 1 << 31), 0))) is None
    assert native_calls(MPI.COMM_SELF, ("Alltoallv", (spread, spread))) is None
    assert native.address("MPI_Allreduce_tomorrow") is None
    assert native_calls(MPI.COMM_SELF, ("Barrier", ()), ("Allreduce_tomorrow", ())) is None


def test_prepared_collectives_are_refused_where_the_library_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "address", lambda name: None if name.endswith("_init") else 1)
    backend = mpi.MpiBackend.__new__(mpi.MpiBackend)
    prepared = case("all_reduce", 64, 2, mode="persistent")
    assert backend.refuse(OPS["all_reduce"], prepared) is not None
    assert backend.refuse(OPS["send_recv"], case("send_recv", 64, 2, mode="persistent")) is None
    assert backend.refuse(OPS["all_reduce"], case("all_reduce", 64, 2)) is None
