"""The table of operations: what each one is, what its size means, what it must move and what must come out."""

from busbw.errors import UsageError
from busbw.ops.base import Op
from busbw.ops.collectives import COLLECTIVES
from busbw.ops.compute import COMPUTE
from busbw.ops.copies import COPIES
from busbw.ops.gpu_copies import DEVICE_COPIES
from busbw.ops.p2p import POINT_TO_POINT
from busbw.ops.storage import STORAGE

OPS: dict[str, Op] = {
    op.name: op for op in (*COLLECTIVES, *POINT_TO_POINT, *COPIES, *STORAGE, *DEVICE_COPIES, *COMPUTE)
}


def op_named(name: str) -> Op:
    """The row of one operation. Raises UsageError that lists the known ones."""
    try:
        return OPS[name]
    except KeyError:
        message = f"op {name!r} is unknown; known: {', '.join(OPS)}"
        raise UsageError(message) from None
