"""What every operation means, written down a second time: the reference that layouts and backends are held against."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from busbw.ops.base import REDUCED, Layout, Matrix, Op, Share, Span


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call as rank ``me`` of a group sees it: ``sent[r]`` is what rank r of the group put in."""

    sent: Sequence[torch.Tensor]
    me: int
    root: int = 0
    redop: str | None = None
    traffic: Matrix = ()

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return len(self.sent)

    def reduced(self) -> torch.Tensor:
        """The reduction, rank after rank in the type of the data, as a library that keeps no wider sum does it."""
        total = self.sent[0].clone()
        for part in self.sent[1:]:
            total = _COMBINE[self.redop or "sum"](*map(_wide, (total, part))).to(part.dtype)
        if self.redop == "avg":
            rounding = None if total.is_floating_point() else "trunc"
            return torch.div(_wide(total), self.ranks, rounding_mode=rounding).to(total.dtype)
        return total

    def block(self, buffer: torch.Tensor, number: int) -> torch.Tensor:
        """Block ``number`` of a buffer that holds an equal one for each rank."""
        length = len(buffer) // self.ranks
        return buffer[number * length : (number + 1) * length]

    def half(self, number: int) -> torch.Tensor:
        """The first or the second of the two arrays that rank ``me`` put in."""
        own = self.sent[self.me]
        return own[number * (len(own) // 2) :][: len(own) // 2]


def _wide(data: torch.Tensor) -> torch.Tensor:
    """8-bit floats in a type with which torch can compute."""
    return data.float() if data.is_floating_point() and data.itemsize == 1 else data


_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def _exchanged_unevenly(exchange: Exchange) -> torch.Tensor:
    starts = [sum(row[: exchange.me]) for row in exchange.traffic]
    lengths = [row[exchange.me] for row in exchange.traffic]
    parts = zip(exchange.sent, starts, lengths, strict=True)
    return torch.cat([buffer[start : start + length] for buffer, start, length in parts])


def _at_root(what: Callable[[Exchange], torch.Tensor]) -> Callable[[Exchange], torch.Tensor | None]:
    return lambda exchange: what(exchange) if exchange.me == exchange.root else None


def _of_the_other(exchange: Exchange) -> torch.Tensor:
    return exchange.sent[1 - exchange.me]


def _of_the_other_end(exchange: Exchange) -> torch.Tensor | None:
    last = len(exchange.sent) - 1
    return exchange.sent[last - exchange.me] if exchange.me in {0, last} else None


def _at_the_second(exchange: Exchange) -> torch.Tensor | None:
    return exchange.sent[0] if exchange.me == 1 else None


def _by_the_first(exchange: Exchange) -> torch.Tensor | None:
    return exchange.sent[0] if exchange.me == 0 else None


MEANINGS: dict[str, Callable[[Exchange], torch.Tensor | None]] = {
    "all_reduce": Exchange.reduced,
    "all_gather": lambda exchange: torch.cat(list(exchange.sent)),
    "reduce_scatter": lambda exchange: exchange.block(exchange.reduced(), exchange.me),
    "all_to_all": lambda exchange: torch.cat([exchange.block(buffer, exchange.me) for buffer in exchange.sent]),
    "all_to_all_v": _exchanged_unevenly,
    "broadcast": lambda exchange: exchange.sent[exchange.root],
    "reduce": _at_root(Exchange.reduced),
    "gather": _at_root(lambda exchange: torch.cat(list(exchange.sent))),
    "scatter": lambda exchange: exchange.block(exchange.sent[exchange.root], exchange.me),
    "barrier": lambda _exchange: None,
    **dict.fromkeys(("send_recv", "tcp_stream"), lambda exchange: exchange.sent[exchange.me - 1]),
    "ping_pong": _of_the_other,
    "tcp_ping_pong": _of_the_other_end,
    "pair_uni": _at_the_second,
    "pair_bidir": _of_the_other,
    "pair_matrix": _at_the_second,
    **dict.fromkeys(
        ("host_to_device", "device_to_host", "host_and_device", "peer_copy_both"),
        lambda exchange: exchange.sent[exchange.me],
    ),
    **dict.fromkeys(("peer_copy", "peer_copy_sm", "peer_copy_driver", "peer_copy_staged"), _by_the_first),
    "peer_all_to_one": lambda exchange: None if exchange.me == exchange.root else exchange.sent[exchange.me],
    "peer_one_to_all": lambda exchange: exchange.sent[exchange.me] if exchange.me == exchange.root else None,
    "memory_copy": lambda exchange: exchange.sent[exchange.me],
    **dict.fromkeys(("storage_write", "storage_read", "checkpoint_save"), lambda exchange: exchange.sent[exchange.me]),
    "stream_copy": lambda exchange: exchange.sent[exchange.me],
    "stream_scale": lambda exchange: 3 * exchange.sent[exchange.me],
    "stream_add": lambda exchange: exchange.half(0) + exchange.half(1),
    "stream_triad": lambda exchange: exchange.half(0) + 3 * exchange.half(1),
    "memory_read": lambda _exchange: None,
    "memory_touch": lambda _exchange: None,
    "memory_latency": lambda _exchange: None,
    # Operands of both are no part of the exchange, so here every element of the product is the same.
    "signature": lambda exchange: torch.full((1,), 7, dtype=exchange.sent[exchange.me].dtype),
    "matmul": lambda exchange: torch.full((1,), 7, dtype=exchange.sent[exchange.me].dtype),
    **dict.fromkeys(("attention", "attention_unfused"), lambda _exchange: None),
    "memory_write": lambda exchange: torch.full((1,), 3, dtype=exchange.sent[exchange.me].dtype),
}
"""Every operation as a function of what the ranks put in: what rank ``me`` gets, None when it gets nothing. A single
element stands for a buffer that is full of it.
"""


def meaning(op: Op, share: Share) -> Callable[[Exchange], torch.Tensor | None]:
    """What a call leaves: by the row above, and by the layouts where ``op`` has none."""
    return MEANINGS.get(op.name) or partial(by_layout, op, share)


def by_layout(op: Op, share: Share, exchange: Exchange) -> torch.Tensor | None:
    """What the ranks put in, where the layout of rank ``me`` expects it. Raises LookupError where nobody sends that."""
    layouts = [op.layout(replace(share, rank=rank)) for rank in range(exchange.ranks)]
    parts = [
        exchange.reduced()[span.phase :][: span.length]
        if span.source == REDUCED
        else _sent(exchange.sent[span.source], layouts[span.source], span)
        for span in layouts[exchange.me].expect
    ]
    return torch.cat(parts) if parts else None


def _sent(data: torch.Tensor, layout: Layout, wanted: Span) -> torch.Tensor:
    start = 0
    for span in layout.send:
        if 0 <= wanted.phase - span.phase <= span.length - wanted.length:
            return data[start + wanted.phase - span.phase :][: wanted.length]
        start += span.length
    raise LookupError(f"rank {wanted.source} does not send {wanted}")
