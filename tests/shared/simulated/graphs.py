"""CUDA graphs: what is captured does not run; a replay runs it on a branch for every captured stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from simulated.device import Stream


@dataclass(frozen=True, slots=True)
class Node:
    """A captured piece of work of ``stream``: it takes ``duration`` ns, and ``run`` executes it.

    duration: None if ``run`` returns it
    together: of a call of several ranks: from when this one can begin to when all begin, and how long it takes
    """

    stream: int
    duration: int | None
    run: Callable[[], Any]
    read: Sequence[torch.Tensor] = ()
    wrote: Sequence[torch.Tensor] = ()
    together: Callable[[int], tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """In a capture: ``stream`` waits for all work of ``source`` that was captured before ``position``."""

    stream: int
    source: int
    position: int


class Capture:
    """The work that is captured from a stream and from those that wait for its events."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.nodes: list[Node | Wait] = []
        self.streams = {origin}
        self.ended = self.spoilt = False
        origin.capture = self

    def spoil(self) -> None:
        """A call that a capture does not allow was made: the capture is lost."""
        self.spoilt = True

    def mark(self) -> int:
        """The position of an event that is recorded now."""
        return len(self.nodes)

    def wait(self, stream: Stream, source: Stream, position: int) -> None:
        """Let ``stream`` wait for an event of ``source``; it then belongs to the capture."""
        self.streams.add(stream)
        self.nodes.append(Wait(stream.stream_id, source.stream_id, position))

    @cached_property
    def read(self) -> list[torch.Tensor]:
        """What the captured work reads, each once."""
        return list({id(tensor): tensor for node in self._work() for tensor in node.read}.values())

    @cached_property
    def wrote(self) -> list[torch.Tensor]:
        """What the captured work writes, each once."""
        return list({id(tensor): tensor for node in self._work() for tensor in node.wrote}.values())

    def _work(self) -> Iterator[Node]:
        return (node for node in self.nodes if isinstance(node, Node))

    def end(self) -> str | None:
        """End the capture; returns why it is lost, in the words of CUDA, or None."""
        self.ended = True
        for stream in self.streams:
            stream.capture = None
        if self.spoilt:
            return "operation failed due to a previous error during capture"
        return None if self._joined() else "capturing stream has unjoined work"

    def _joined(self) -> bool:
        """Whether the first stream waits, directly or through others, for the last work of every other stream."""
        seen = {self.origin.stream_id: len(self.nodes)}
        for at in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[at]
            if isinstance(node, Wait) and at < seen.get(node.stream, -1):
                seen[node.source] = max(seen.get(node.source, -1), node.position)
        return all(isinstance(node, Wait) or at < seen.get(node.stream, -1) for at, node in enumerate(self.nodes))

    def replay(self, begin: int) -> int:
        """Run all work from ``begin`` on; returns when the last of it is done."""
        ends: dict[int, int] = {}
        before: list[dict[int, int]] = []
        for node in self.nodes:
            before.append(dict(ends))
            if isinstance(node, Wait):
                source = before[node.position] if node.position < len(before) else ends
                ends[node.stream] = max(ends.get(node.stream, begin), source.get(node.source, begin))
            else:
                start, duration = ends.get(node.stream, begin), node.duration
                if node.together is not None:
                    start, duration = node.together(start)
                took = node.run()
                ends[node.stream] = start + (took if duration is None else duration)
        return max(ends.values(), default=begin)
