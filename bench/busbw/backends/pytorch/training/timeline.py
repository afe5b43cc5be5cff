"""Timeline of a step on one rank: intervals of computation and of each communication call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_map_only

from busbw.backends.pytorch.training.observer import FUNCTIONAL, NONBLOCKING, Observer, Waits
from busbw.backends.supplements import Interval
from busbw.system.device import Device, Mark

COMPUTE = "compute"
_WAITED_FOR = "_c10d_functional::wait_tensor"


@dataclass(slots=True)
class _Call:
    """A communication call; ``end`` is None until it has been seen to end."""

    name: str
    begin: Any
    end: Any = None


@dataclass(eq=False)
class Recorder(Observer):  # type: ignore[no-untyped-call]
    """An observer that records start and end of what it sees, with times from ``now`` (integers or device marks).

    A collective ends when its library reports completion, or otherwise when its wait returns. A sent message ends when
    it is posted.
    """

    now: Callable[[], Any] = lambda: 0
    computed: list[tuple[str, Any, Any]] = field(default_factory=list)
    _begun: list[_Call] = field(default_factory=list)
    _open: dict[int, _Call] = field(default_factory=dict)
    _works: list[Any] = field(default_factory=list)
    """Keeps works alive, so that their ids stay unique."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run and record one operation."""
        if any(kind.__name__ == "AsyncCollectiveTensor" for kind in types):
            # Wait here, because the wait inside the operation would not be seen.
            tree_map_only(AsyncCollectiveTensor, self._wait_for, (args, kwargs))
        name, began = func.name(), self.now()
        if self.waits is not None and (name in NONBLOCKING or name in FUNCTIONAL):
            self.waits.settle()
            self.computed.append((COMPUTE, began, self.now()))
            began = self.now()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if result is NotImplemented:
            return result
        if name in NONBLOCKING:
            self._posted(_Call(NONBLOCKING[name][0] or "receive", began), result)
        elif name in FUNCTIONAL:
            self._open[result.data_ptr()] = call = _Call(FUNCTIONAL[name][0], began)
            self._begun.append(call)
        elif name == _WAITED_FOR:
            self._ended(args[0].data_ptr())
        else:
            self.computed.append((COMPUTE, began, self.now()))
        return result

    def _posted(self, call: _Call, result: Any) -> None:  # noqa: ANN401
        self._begun.append(call)
        given = result[-1] if isinstance(result, tuple | list) else result
        work = None if call.name == "send_recv" else dist.Work.unbox(given)
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
        calls = ((call.name, call.begin, last if call.end is None else call.end) for call in self._begun)
        return [*self.computed, *calls]


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
