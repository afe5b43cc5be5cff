"""Storage: a file of each rank, or a checkpoint of all ranks. No known wire is crossed, so there is no bus bandwidth.

Block size, depth and cache bypass change the result, so they are part of the case.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import Op, Shape, own
from busbw.ops.limits import MOST_DEPTH
from busbw.ops.settings import CaseSettings, Key, Ranks, SweepSettings, Way
from busbw.units import LARGEST_SIZE, format_size, parse_size

GRAIN_BYTES = 4096
"""O_DIRECT requires offsets, lengths and addresses in multiples of the device's block, today at most 4096 B."""


class Access(CaseSettings, frozen=True, tag="storage"):
    """How a file is accessed: sequentially, in blocks, with ``depth`` blocks in flight."""

    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
    depth: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEPTH)]
    way: Way

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        return {"access": f"{format_size(self.block_bytes)} blocks, depth {self.depth}, {self.way}"}


class StorageSweep(SweepSettings, frozen=True):
    """Block sizes of file accesses, blocks in flight, and whether to bypass the page cache."""

    blocks: Annotated[tuple[str, ...], Key(lambda sizes: accesses(sizes, (1,), "direct"))] = ("1MiB",)
    depths: Annotated[tuple[int, ...], Key(lambda depths: accesses(("1MiB",), depths, "direct"))] = (1,)
    direct: bool = True

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """As in the base class."""
        return op.stores and op.local

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:  # noqa: ARG002 - the same for all
        """As in the base class."""
        return accesses(self.blocks, self.depths, "dropped" if ranks.way == "direct" and not self.direct else ranks.way)


def accesses(blocks: Sequence[str], depths: Sequence[int], way: Way) -> Iterator[Access]:
    """All combinations of blocks and depths. Raises UsageError for a block or depth that is not allowed."""
    if not blocks or not depths:
        raise UsageError("blocks and depths: want at least one of each; given none")
    for block in blocks:
        if parse_size(block) % GRAIN_BYTES or not parse_size(block):
            raise UsageError(f"block {block} cannot bypass the page cache; use a multiple of {GRAIN_BYTES} B")
    for depth in depths:
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"depth {depth} is not allowed; use 1 to {MOST_DEPTH} blocks in flight")
    return (Access(parse_size(block), depth, way) for block in blocks for depth in depths)


def _whole_grains(count: int) -> int:
    return max(GRAIN_BYTES, count // GRAIN_BYTES * GRAIN_BYTES)


_GRAINS = Shape(_whole_grains, f"a multiple of {GRAIN_BYTES} elements, the block of storage devices")


_file = partial(Op, size_meaning="bytes of the file of one rank", layout=own, local=True, stores=True, shape=_GRAINS)

STORAGE = (
    _file("storage_write", "every rank writes its own file sequentially and waits until it is on the device (fsync)"),
    _file("storage_read", "every rank reads its own file sequentially, bypassing the page cache"),
    Op(
        "checkpoint_save",
        "all ranks save one sharded state with torch.distributed.checkpoint, until it is on the device",
        size_meaning="bytes of one rank's shard",
        layout=own,
        stores=True,
    ),
)
