"""What gives no result: broken clocks, ops that raise, buffers that cannot be had, wrong data, refused cases."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from testing.blocks import failures, measure_everywhere, measured, noisy
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.narrow import require_type
from testing.synthetic import case

from busbw.backends.base import Backend, Bound, Operation
from busbw.backends.faults import CorruptingBackend, WrappingBackend
from busbw.errors import BackendError, BusbwError, ClockError
from busbw.measure import block as instrument
from busbw.measure import verify
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops import OPS
from busbw.ops.base import Op, Share
from busbw.runs.records import Case, Failed, GroupSamples, Measurement
from busbw.system.environment import in_blocks

WARM = 1 + 1 + QUICK.warmup_calls  # the check, the call that tells the pace and the warm-up come before sample 0

HERE = Place(oversubscribed=False, comparable=True)


def samples_of(made: Measurement) -> int:
    return len(made.groups[0].slowest_ns)


# --- what goes wrong -------------------------------------------------------------------------------------------


def errors_of(outcomes: Sequence[object]) -> list[BusbwError]:
    return [outcome for outcome in outcomes if isinstance(outcome, BusbwError)]


@pytest.mark.parametrize("takes", [0, -5])
def test_a_clock_that_stands_still_or_runs_backwards_is_refused(takes: int) -> None:
    def durations(rank: int, index: int, _case: Case) -> int:
        return takes if (rank, index) == (1, WARM + 2) else 1_000

    errors = errors_of(measure_everywhere(FakeWorld(3, Script(durations=durations)), case("send_recv", 64, 3)))
    assert [type(error) for error in errors] == [BackendError, ClockError, BackendError]
    assert "rank 1" in str(errors[1])


def failing(ranks: set[int], indices: set[int]) -> Script:
    def durations(rank: int, index: int, _case: Case) -> int:
        if rank in ranks and index in indices:
            message = f"no such luck on rank {rank}"
            raise BackendError(message)
        return 1_000

    return Script(durations=durations)


def test_an_op_that_raises_everywhere_is_a_failed_case() -> None:
    assert failures(FakeWorld(3, failing({0, 1, 2}, {0})), case("all_reduce", 64, 3)) == {"backend"}


def test_an_op_that_raises_on_one_rank_breaks_the_world() -> None:
    errors = errors_of(measure_everywhere(FakeWorld(3, failing({1}, {0})), case("all_reduce", 64, 3)))
    assert [type(error) for error in errors] == [BackendError] * 3


class Cramped(WrappingBackend):
    """One rank that has no memory for its buffers."""

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        if self.rank == 1:
            message = f"no room for {count} elements of {dtype}"
            raise BackendError(message)
        return self.inner.allocate(count, dtype)


def test_buffers_that_one_rank_cannot_make_are_a_failed_case_for_all() -> None:
    assert failures(FakeWorld(3), case("all_reduce", 64, 3), wrap=Cramped) == {"backend"}


@dataclasses.dataclass(frozen=True)
class Connecting:
    """Ranks of which ``unbound`` cannot bind, or which are ``cut`` off; the ranks that connected, in ``connected``."""

    unbound: int | None = None
    cut: bool = False
    connected: list[int] = dataclasses.field(default_factory=list)

    def __call__(self, inner: Backend) -> Backend:
        plan = self

        class Wrapped(WrappingBackend):
            def bind(self, bound: Bound) -> Operation:
                if self.rank == plan.unbound:
                    message = "no room"
                    raise BackendError(message)
                return dataclasses.replace(self.inner.bind(bound), connect=self._connect)

            def _connect(self) -> None:
                plan.connected.append(self.rank)
                if plan.cut:
                    message = "no way"
                    raise BackendError(message)

        return Wrapped(inner)


def test_no_rank_connects_before_all_have_bound() -> None:
    setting, every, some = case("all_reduce", 64, 3), Connecting(), Connecting(unbound=1)
    assert isinstance(measure_everywhere(FakeWorld(3), setting, wrap=every)[0], Measurement)
    assert set(every.connected) == {0, 1, 2}
    assert failures(FakeWorld(3), setting, wrap=some) == {"backend"}
    assert some.connected == []


def test_ranks_that_cannot_connect_fail_the_case() -> None:
    assert failures(FakeWorld(3), case("all_reduce", 64, 3), wrap=Connecting(cut=True)) == {"backend"}


class Filling(WrappingBackend):
    """Rank 1 has memory for one set of buffers; a second one is what its library raises by itself."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.raises: tuple[type[Exception], ...] = (BackendError, MemoryError)
        self.held = 0
        self.bound = 0

    def bind(self, bound: Bound) -> Operation:
        if self.rank == 1 and self.held:
            message = "no room for what the operation needs besides"
            raise MemoryError(message)
        self.held += 1
        self.bound += 1
        operation = self.inner.bind(bound)
        return dataclasses.replace(operation, free=self.given_back)

    def given_back(self) -> None:
        self.held -= 1


def test_what_one_rank_cannot_bind_is_a_failed_case_for_all_and_everything_is_given_back() -> None:
    backends: list[Filling] = []

    def filling(inner: Backend) -> Filling:
        backends.append(Filling(inner))
        return backends[-1]

    assert failures(FakeWorld(3), case("all_reduce", 64, 3, cache="rotating"), wrap=filling) == {"backend"}
    assert [backend.held for backend in backends] == [0, 0, 0]
    assert all(backend.bound > 0 for backend in backends)


class OutOfMemory(WrappingBackend):
    """What torch raises when a GPU is full is no BackendError."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.raises: tuple[type[Exception], ...] = (BackendError, torch.OutOfMemoryError)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("count_wrong", "the operation or its check raised on 1 of 3 ranks: rank 1 says: no room on rank 1"),
        ("fill", "cannot be prepared: rank 1 says: no room on rank 1"),
        ("poison", "cannot be prepared: rank 1 says: no room on rank 1"),
    ],
)
@pytest.mark.parametrize("fails_at", [1, 2])
def test_data_that_one_rank_has_no_room_to_check_are_a_failed_case_for_all(
    step: str, said: str, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before timing and after it."""
    there = getattr(verify, step)
    turns = {rank: itertools.count(1) for rank in range(3)}
    ranks: dict[int, int] = {}

    def without_room(buffer: torch.Tensor, *given: object) -> object:
        rank = ranks[buffer.data_ptr()]
        if rank == 1 and next(turns[rank]) == fails_at:
            message = "no room on rank 1"
            raise torch.OutOfMemoryError(message)
        return there(buffer, *given)

    class Known(OutOfMemory):
        """Its buffers tell whose they are; and before a call its ranks wait for each other, as for a checkpoint."""

        def bind(self, bound: Bound) -> Operation:
            operation = self.inner.bind(bound)
            return dataclasses.replace(operation, prepare=self.inner.barrier)

        def allocate(self, count: int, dtype: str) -> torch.Tensor:
            made = self.inner.allocate(count, dtype)
            ranks[made.data_ptr()] = self.rank
            return made

    monkeypatch.setattr(verify, step, without_room)
    for outcome in measure_everywhere(FakeWorld(3), case("all_reduce", 64, 3), wrap=Known):
        assert isinstance(outcome, Failed), outcome
        assert outcome.error == said


def test_buffers_that_cannot_be_settled_are_an_error_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_room(_buffer: torch.Tensor, _redop: str) -> None:
        message = "no room"
        raise torch.OutOfMemoryError(message)

    monkeypatch.setattr(instrument, "settle", without_room)
    setting = case("all_reduce", 64, 3, in_place=True)
    errors = errors_of(measure_everywhere(FakeWorld(3), setting, wrap=OutOfMemory))
    assert [(type(error), str(error)) for error in errors] == [(BackendError, "no room")] * 3


def test_an_op_that_raises_while_it_is_timed_breaks_the_world() -> None:
    errors = errors_of(measure_everywhere(FakeWorld(3, failing({1}, {WARM})), case("all_reduce", 64, 3)))
    assert len(errors) == 3


def corrupting(rank: int, when: Callable[[int], bool], elements: int = 1) -> Callable[[FakeBackend], Backend]:
    def wrap(backend: FakeBackend) -> Backend:
        if backend.rank != rank:
            return backend
        return CorruptingBackend(backend, lambda _case, index: when(index), elements=elements)

    return wrap


def receives(op: Op) -> bool:
    return op.layout(Share(1, 2, 2, root=1, traffic=((1, 1), (1, 1)))).receive_count > 0


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if receives(op)])
def test_one_wrong_bit_on_one_rank_fails_the_case_everywhere(name: str) -> None:
    setting = case(
        name, 64, 2, pairs="together" if name == "pair_matrix" else None, root=1 if OPS[name].rooted else None
    )
    assert failures(FakeWorld(2), setting, wrap=corrupting(1, lambda index: index == 0)) == {"wrong_data"}


def test_data_that_went_wrong_during_the_timing_fail_the_case() -> None:
    assert failures(FakeWorld(3), case("all_gather", 96, 3), wrap=corrupting(2, lambda i: i > WARM, 5)) == {
        "wrong_data"
    }


class OnlyOnce(WrappingBackend):
    """Moves the data in the first call, and then only says that it did."""

    def bind(self, bound: Bound) -> Operation:
        inner, left = self.inner.bind(bound), bound.receive.clone()
        numbers = itertools.count()

        def moving_once() -> None:
            left.copy_(bound.receive)
            inner.call()
            if next(numbers):
                bound.receive.copy_(left)

        return Operation(moving_once)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "memory_copy"])
def test_right_data_that_were_left_from_an_earlier_call_do_not_count(name: str) -> None:
    assert failures(FakeWorld(2), case(name, 64, 2), wrap=OnlyOnce) == {"wrong_data"}


def test_what_happens_to_data_that_nobody_checks_is_not_seen() -> None:
    """Only the calls before and after the timing are checked; the ones between run on settled data."""
    require_type(
        Measurement,
        measure_everywhere(FakeWorld(2), case("all_gather", 64, 2), wrap=corrupting(1, lambda index: 0 < index < WARM))[
            0
        ],
    )


def test_an_average_that_cannot_be_exact_is_measured_but_not_checked() -> None:
    made = measured(FakeWorld(12), case("reduce_scatter", 48, 12, dtype="int8", redop="avg"))
    assert made.check.state == "not checked"
    assert "int8" in (made.check.reason or "")


def test_a_rank_that_is_gone_ends_the_wait_of_the_others() -> None:
    def work(backend: FakeBackend) -> None:
        if backend.rank == 1:
            message = "I am leaving"
            raise BackendError(message)
        backend.barrier()

    errors = errors_of(FakeWorld(3).run(work))
    assert ["rank 1 is gone" in str(error) for error in errors] == [True, False, True]


# --- what is refused -------------------------------------------------------------------------------------------


REFUSALS: list[tuple[Case, str | None]] = [
    (case("all_reduce", 64), None),
    (case("broadcast", 64, in_place=False), None),
    (case("all_to_all", 64, in_place=True), "supports only out-of-place"),
    (case("ping_pong", 64, group="div:1"), "communication needs at least 2 ranks in a group, but every group has 1"),
    (case("ping_pong", 64, group="0;1,2"), "needs at least 2 ranks in every group; the smallest has 1"),
    (case("broadcast", 64, root=3), None),
    (case("broadcast", 64, root=4), "root 4 is not in every group; the smallest has 4 ranks"),
    (case("broadcast", 64, root=2, group="div:2"), "the smallest has 2 ranks"),
    (case("all_to_all_v", 64, 3, group="div:2", imbalance=0.5), "groups of equal size"),
    (case("barrier", 0), None),
]


@pytest.mark.parametrize(("setting", "said"), REFUSALS)
def test_what_cannot_run_here_is_refused_with_its_reason(setting: Case, said: str | None) -> None:
    reason = skip_reason(setting, FakeWorld(setting.ranks).backends[0], HERE)
    assert (reason is None) if said is None else (said in str(reason))


@pytest.mark.parametrize(
    ("threads", "cache", "said"),
    [(2, "flushed", "flushed"), (1, "flushed", None), (2, "warm", None), (5, "warm", "host")],
)
def test_caches_of_other_threads_cannot_be_flushed(threads: int, cache: str, said: str | None) -> None:
    setting = case("memory_copy", 64, 1, threads=threads, cache=cache)
    reason = skip_reason(setting, FakeWorld(1).backends[0], dataclasses.replace(HERE, cores=4))
    assert (reason is None) if said is None else (said in str(reason))


@pytest.mark.parametrize("hosts", ["aabb", "aabbcc", "aaabbb", "abab", "abba", "aaab", "aabbb"])
def test_what_goes_host_by_host_is_refused_where_ranks_lie_otherwise(hosts: str) -> None:
    here = dataclasses.replace(HERE, in_blocks=in_blocks(tuple(hosts)))
    ring, by_hosts = (
        skip_reason(
            case("all_reduce", 960, len(hosts), algorithm=name, nodes=len(set(hosts))),
            FakeWorld(len(hosts)).backends[0],
            here,
        )
        for name in ("ring", "hierarchical")
    )
    assert ring is None
    if hosts in {"aabb", "aabbcc", "aaabbb"}:
        assert by_hosts is None
    else:
        assert by_hosts is not None


def test_the_backend_has_the_last_word() -> None:
    world = FakeWorld(2, Script(refuse=lambda op, _case: f"no {op.name} today"))
    assert skip_reason(case("all_reduce", 64, 2), world.backends[0], HERE) == "no all_reduce today"


def test_a_group_has_vectors_of_one_length() -> None:
    made = measured(FakeWorld(4, Script(durations=noisy(3))), case("all_reduce", 64, group="div:2"))
    for group in made.groups:
        assert isinstance(group, GroupSamples)
        assert {len(group.slowest_ns), len(group.fastest_ns), len(group.fastest_rank)} == {samples_of(made)}
