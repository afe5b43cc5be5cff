"""Storage: files of a rank's own, and a checkpoint of all ranks. No wire that is known of, and no bus bandwidth.

How a file is read and written is part of what is measured, so a case has it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import Op, Shape, own
from busbw.ops.limits import MOST_DEPTH
from busbw.units import parse_size

Way = Literal["direct", "dropped", "memory"]
"""How the page cache is kept out: past it (O_DIRECT), by dropping the pages of a file before it is read, or not at all,
because the file system is memory. Later ones are worse.
"""

GRAIN_BYTES = 4096
"""O_DIRECT wants offsets, lengths and addresses in multiples of the device's block: 4096 B at most of today's."""


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a file is gone through: from its start, in blocks, ``depth`` of them under way at any time."""

    block_bytes: int
    depth: int
    way: Way


def accesses(blocks: Sequence[str], depths: Sequence[int], way: Way) -> tuple[Access, ...]:
    """Those of a sweep over blocks and depths. Raises UsageError for a block or depth that cannot be."""
    if not blocks or not depths:
        raise UsageError("blocks and depths: want at least one of each; given none")
    for block in blocks:
        if parse_size(block) % GRAIN_BYTES or not parse_size(block):
            raise UsageError(f"block {block} cannot be read past the page cache; want a multiple of {GRAIN_BYTES} B")
    for depth in depths:
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"depth {depth} cannot be; want 1 to {MOST_DEPTH} blocks under way")
    return tuple(Access(parse_size(block), depth, way) for block in blocks for depth in depths)


def _whole_grains(count: int) -> int:
    return max(GRAIN_BYTES, count // GRAIN_BYTES * GRAIN_BYTES)


_GRAINS = Shape(_whole_grains, f"a multiple of {GRAIN_BYTES} elements, as storage has its blocks")


_file = partial(Op, size_meaning="bytes of the file of one rank", layout=own, local=True, stores=True, shape=_GRAINS)

STORAGE = (
    _file(
        name="storage_write",
        summary="every rank writes a file of its own from start to end, and waits until it is on the device (fsync)",
    ),
    _file(
        name="storage_read",
        summary="every rank reads a file of its own from start to end, and not out of the page cache",
    ),
    Op(
        name="checkpoint_save",
        summary="all ranks save a sharded state together, by torch.distributed.checkpoint, until it is on the device",
        size_meaning="bytes of one rank's shard",
        layout=own,
        stores=True,
    ),
)
