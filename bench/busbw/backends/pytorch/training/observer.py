"""Observing a training step: its torch.distributed calls and its matrix products.

A mode of torch's dispatcher sees both, whatever library makes them. It counts collectives, omits them, or replaces
products by waits.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.distributed_c10d import _coalescing_manager, _resolve_process_group  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from busbw.backends.parts import Interval
from busbw.system.device import Device, Mark


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Base class of modes that see every operation on plain tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run one operation on plain tensors; a DTensor is first resolved into them."""
        if any(issubclass(kind, torch.Tensor) and kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - as torch has it
        """Run one operation."""
        return func(*args, **kwargs)


class Alive(_Watcher):
    """Dispatch mode that records ``peak_bytes``: the peak of all live storages.

    It counts storages of ``tensors`` and of tensors that operations take or return, not temporaries within operations.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = WeakIdKeyDictionary()
        self._most_bytes = 0  # upper bound: freed and shrunk storages count until the next full recount
        self.peak_bytes = 0
        self._see(tensors)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run one operation and note the storages of its tensors."""
        result = func(*args, **kwargs)
        self._see(value for value in tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor))
        return result

    def _see(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if type(tensor) in {torch.Tensor, torch.nn.Parameter}:
                storage = tensor.untyped_storage()
                size, before = storage.nbytes(), self._storages.get(storage, 0)  # type: ignore[no-untyped-call]
                if size != before:
                    self._storages[storage] = size
                    self._most_bytes += max(0, size - before)
        # A full recount, because storages are freed and resized unnoticed (fully sharded weights, for example). Only if
        # a new peak is possible, because a large model has thousands of storages and of operations.
        if self._most_bytes > self.peak_bytes:
            sizes = [(storage, storage.nbytes()) for storage in self._storages]
            for storage, size in sizes:
                self._storages[storage] = size
            self._most_bytes = sum(size for _, size in sizes)
            self.peak_bytes = max(self.peak_bytes, self._most_bytes)


_LEAST_SLEEP = 3e-4
"""Shortest sleep, s: a shorter one takes longer than requested, so shorter waits are accumulated."""


def _bytes(tensors: Any) -> int:  # noqa: ANN401 - a tensor or a list of them
    return sum(
        tensor.numel() * tensor.element_size() for tensor in (tensors if isinstance(tensors, list) else [tensors])
    )


NONBLOCKING: dict[str, tuple[str, int]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::alltoall_base_": ("all_to_all", 0),
    "c10d::send": ("send_recv", 0),
    "c10d::recv_": ("", 0),
    "c10d::recv_any_source_": ("", 0),
}
"""Nonblocking calls → op, and index of the argument whose bytes are S. "": a receive, which is counted at its
sender."""

FUNCTIONAL: dict[str, tuple[str, int | None]] = {
    "_c10d_functional::all_reduce": ("all_reduce", None),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 1),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", None),
}
"""Functional collectives (used by DTensor), which return a tensor → op, and index of the argument that multiplies the
bytes of the given tensor to S (None: S is the bytes of the tensor)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One observed collective, which can be repeated with separate tensors.

    op, size_bytes, group: op, S, and number of ranks in its group.
    again: repeats it.
    among: process group and device of a point-to-point message on a device (None: anything else). NCCL needs messages
        that wait for each other in one call.
    """

    op: str
    size_bytes: int
    group: int
    again: Callable[[], Any]
    among: tuple[Any, torch.device] | None = None


@dataclass(slots=True)
class Waits:
    """Replaces products by waits.

    seconds_per_flop: duration of one FLOP.
    until: when the products so far would be finished, by ``time.perf_counter``.
    """

    seconds_per_flop: float
    until: float = 0.0

    def owe(self, flop: int) -> None:
        """Add the time of ``flop`` and wait once the total is long enough to sleep."""
        self.until = max(self.until, time.perf_counter()) + flop * self.seconds_per_flop
        self.settle(_LEAST_SLEEP)

    def settle(self, least: float = 0.0) -> None:
        """Wait for the accumulated time if it is longer than ``least`` seconds."""
        if (owed := self.until - time.perf_counter()) > least:
            time.sleep(owed)


@dataclass(eq=False)
class Observer(_Watcher):
    """Dispatch mode that records collectives and counts FLOP.

    silent: omit all communication; received data are then arbitrary.
    waits: replaces products by waits, with zeros as results (None: compute them).
    keep: record collectives in ``calls``.
    calls: recorded collectives, in order.
    flop: FLOP of the observed products.
    """

    silent: bool = False
    waits: Waits | None = None
    keep: bool = False
    calls: list[Call] = field(default_factory=list)
    flop: int = 0

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run, count, omit or replace one operation."""
        name = func.name()
        if name in NONBLOCKING or name in FUNCTIONAL:
            if self.waits is not None:
                self.waits.settle()
            if self.keep:
                self._count(func, name, args, kwargs)
            return _omitted_result(name, args) if self.silent else func(*args, **kwargs)
        if name in _PRODUCTS:
            flop = _PRODUCTS[name](args)
            self.flop += flop
            if self.waits is not None:
                self.waits.owe(flop)
                return _zeros(name, args)
        return func(*args, **kwargs)

    def _count(self, func: Any, name: str, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        ours = tree_map_only(torch.Tensor, torch.zeros_like, args)
        among = None
        if name in NONBLOCKING:
            op, which = NONBLOCKING[name]
            ranks = dist.ProcessGroup.unbox(args[2 if op in _TWO_BUFFERS else 1])
            size, group = _bytes(args[which]), ranks.size()
            if op in _MESSAGES and args[0][0].device.type != "cpu":
                among = ranks, args[0][0].device
        else:
            op, factor = FUNCTIONAL[name]
            size = _bytes(args[0]) * (1 if factor is None else args[factor])
            group = _resolve_process_group(args[-1]).size()
        if op == "all_to_all" and any(len(set(rows)) > 1 for rows in args[3:5]):
            # The larger direction determines the duration.
            op, size = "all_to_all_v", max(_bytes(args[0]), _bytes(args[1]))
        self.calls.append(Call(op, size, 2 if op == "send_recv" else group, lambda: func(*ours, **kwargs), among))


_MESSAGES = frozenset({"send_recv", ""})
_TWO_BUFFERS = frozenset({"all_gather", "reduce_scatter", "all_to_all"})


def _omitted_result(name: str, args: Any) -> Any:  # noqa: ANN401
    """Result of an omitted collective."""
    if name in NONBLOCKING:
        from torch._C._distributed_c10d import FakeWork  # noqa: PLC0415

        done = FakeWork().boxed()
        if name == "c10d::_allgather_base_":
            # Own data in place of uninitialised memory, because subnormal numbers are slow to multiply. The input may
            # be a view of the output.
            args[0].view(-1, args[1].numel()).copy_(args[1].clone().view(1, -1))
        if name == "c10d::alltoall_base_":
            args[0].zero_()
        return done if name in _WITHOUT_TENSORS else (args[0], done)
    tensor, op = args[0], FUNCTIONAL[name][0]
    ranks = args[1] if op == "all_gather" else args[2] if op == "reduce_scatter" else 1
    rows = tensor.shape[0] * ranks if op == "all_gather" else tensor.shape[0] // ranks
    return tensor.new_empty((rows, *tensor.shape[1:]))


_WITHOUT_TENSORS = frozenset({"c10d::send", "c10d::recv_", "c10d::recv_any_source_", "c10d::alltoall_base_"})


def _work_of(result: Any) -> Any:  # noqa: ANN401
    return result[-1] if isinstance(result, tuple | list) else result


def replay(calls: list[Call]) -> None:
    """Repeat the collectives in order; each is waited for before the next, point-to-point messages at the end."""
    messages: list[Any] = []
    for among, row in groupby(calls, key=lambda call: call.among):
        if among is not None:
            group, device = among
            with _coalescing_manager(group, device, async_ops=True) as together:
                for call in row:
                    call.again()
            messages += together.works
            continue
        for call in row:
            result = call.again()
            if isinstance(result, torch.Tensor):
                torch.ops._c10d_functional.wait_tensor(result)  # noqa: SLF001 - torch names it so
                continue
            if call.op in _MESSAGES:
                messages.append(_work_of(result))
            else:
                _work_of(result).wait()
    for work in messages:
        work.wait()


def counted(calls: list[Call]) -> dict[tuple[str, int, int], int]:
    """(Op, ranks of the group, S) → number of calls."""
    return dict(Counter((call.op, call.group, call.size_bytes) for call in calls if call.op))


# --- matrix products -------------------------------------------------------------------------------------------------


def _product(left: torch.Tensor, right: torch.Tensor) -> int:
    return 2 * left.numel() * right.shape[-1]


def _attention(query: torch.Tensor, key: torch.Tensor) -> int:
    """Two products over all tokens: 4 T² d per head (Dao 2023, https://arxiv.org/abs/2307.08691, section 4.1)."""
    return 4 * math.prod(query.shape) * key.shape[-2]


_FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"
_ALL_FUSED = (
    _FUSED,
    *(f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")),
)
"""Fused attention of the CPU and of GPUs (native_functions.yaml): query and key come first, or after the gradient."""
_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "aten::mm": lambda args: _product(args[0], args[1]),
    "aten::addmm": lambda args: _product(args[1], args[2]),
    "aten::bmm": lambda args: _product(args[0], args[1]),
    **{name: lambda args: _attention(args[0], args[1]) for name in _ALL_FUSED},
    **{f"{name}_backward": lambda args: 2 * _attention(args[1], args[2]) for name in _ALL_FUSED},
}
"""Operations that multiply matrices → their FLOP; recomputation of scores in a backward pass does not count."""


def _zeros(name: str, args: Any) -> Any:  # noqa: ANN401
    """Zeros in place of the result of a product."""
    if name == _FUSED:
        query = args[0]
        return torch.zeros_like(query), query.new_zeros(query.shape[:-1])
    if name.startswith(_FUSED):
        return tuple(torch.zeros_like(tensor) for tensor in args[1:4])
    left, right = args[-2:] if name == "aten::addmm" else args[:2]
    return left.new_zeros((*left.shape[:-1], right.shape[-1]))


COMPUTE = "compute"
_WAITED_FOR = "_c10d_functional::wait_tensor"


@dataclass(slots=True)
class _Span:
    """Computation or a communication call; ``end`` is None until it has been seen to end."""

    name: str
    begin: Any
    end: Any = None


@dataclass(eq=False)
class Recorder(Observer):
    """An observer that records start and end of what it sees, with times from ``now`` (integers or device marks).

    A collective ends when its library reports completion, or otherwise when its wait returns. A sent message ends when
    it is posted.
    """

    now: Callable[[], Any] = lambda: 0
    _spans: list[_Span] = field(default_factory=list)
    _open: dict[int, _Span] = field(default_factory=dict)
    _works: list[Any] = field(default_factory=list)
    """Keeps works alive, so that their ids stay unique."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Wait for given tensors here, because the wait inside the operation would not be seen."""
        if any(kind.__name__ == "AsyncCollectiveTensor" for kind in types):
            tree_map_only(AsyncCollectiveTensor, self._wait_for, (args, kwargs))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401
        """Run and record one operation."""
        name, began = func.name(), self.now()
        if self.waits is not None and (name in NONBLOCKING or name in FUNCTIONAL):
            self.waits.settle()
            self._spans.append(_Span(COMPUTE, began, self.now()))
            began = self.now()
        result = super().run(func, args, kwargs)
        if name in NONBLOCKING:
            self._posted(_Span(NONBLOCKING[name][0] or "receive", began), result)
        elif name in FUNCTIONAL:
            self._open[result.data_ptr()] = call = _Span(FUNCTIONAL[name][0], began)
            self._spans.append(call)
        elif name == _WAITED_FOR:
            self._ended(args[0].data_ptr())
        else:
            self._spans.append(_Span(COMPUTE, began, self.now()))
        return result

    def _posted(self, call: _Span, result: Any) -> None:  # noqa: ANN401
        self._spans.append(call)
        work = None if call.name == "send_recv" else dist.Work.unbox(_work_of(result))
        if work is None:  # NCCL has no work for a message that is grouped with others in one call
            call.end = self.now()
            return
        self._works.append(work)
        self._open[id(work)] = call
        with suppress(RuntimeError):  # Gloo's messages and reduce_scatter have no future
            work.get_future().add_done_callback(lambda _: self._ended(id(work)))

    def _wait_for(self, result: AsyncCollectiveTensor) -> None:
        result.trigger_wait()  # type: ignore[no-untyped-call]
        self._ended(result.elem.data_ptr())

    def _ended(self, key: int) -> None:
        call = self._open.pop(key, None)
        if call is not None:
            call.end = self.now()

    @contextmanager
    def seeing_waits(self) -> Iterator[None]:
        """Context in which the end of a wait in Python ends its call; Gloo's messages have no other sign of it."""
        wait = dist.Work.wait

        def noted(work: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as torch has it
            done = wait(work, *arguments, **options)
            self._ended(id(work))
            return done

        setattr(dist.Work, "wait", noted)  # noqa: B010 - mypy knows it as a method
        try:
            yield
        finally:
            setattr(dist.Work, "wait", wait)  # noqa: B010

    def spans(self) -> list[tuple[str, Any, Any]]:
        """Spans of computation and calls; a call that was not seen to end ends with the step."""
        last = self.now()
        return [(span.name, span.begin, last if span.end is None else span.end) for span in self._spans]


def record(
    step: Callable[[], None], now: Callable[[], int], waits: Waits | None = None, device: Device | None = None
) -> list[Interval]:
    """Spans of ``step`` by the clock ``now``, sorted by start.

    A ``device`` executes work after it is enqueued, so times there are marks in its stream, which are read at the end;
    the first mark is placed on the clock ``now``.
    """
    if device is None:
        spans = _seen(step, Recorder(waits=waits, now=now))
    else:
        device.synchronise()
        first, began = _marked(device), now()
        marked = _seen(step, Recorder(waits=waits, now=lambda: _marked(device)))
        device.synchronise()
        spans = [(name, began + start.ns_since(first), began + end.ns_since(first)) for name, start, end in marked]
    return sorted(spans, key=lambda span: span[1])


def _seen(step: Callable[[], None], observed: Recorder) -> list[tuple[str, Any, Any]]:
    with observed.seeing_waits(), observed:
        step()
    return observed.spans()


def _marked(device: Device) -> Mark:
    """A mark at the current position of the stream."""
    mark = device.mark()
    mark.record()
    return mark
