"""The table of operations: what each one is, what its size means, what it must move and what must come out."""

from busbw.errors import refuse_unknown
from busbw.ops.base import Op
from busbw.ops.collectives import COLLECTIVES
from busbw.ops.compute import COMPUTE
from busbw.ops.copies import COPIES
from busbw.ops.gpu_copies import DEVICE_COPIES
from busbw.ops.p2p import PLAIN_SOCKETS, POINT_TO_POINT
from busbw.ops.storage import STORAGE
from busbw.ops.training import TRAINING

FAMILIES: dict[str, tuple[Op, ...]] = {
    "collectives": COLLECTIVES,
    "point-to-point": (*POINT_TO_POINT, *PLAIN_SOCKETS),
    "memory": COPIES,
    "storage": STORAGE,
    "copies of GPUs": DEVICE_COPIES,
    "computation": COMPUTE,
    "training": TRAINING,
}
"""What an operation works on → all that do."""

OPS: dict[str, Op] = {op.name: op for family in FAMILIES.values() for op in family}

SYNCHRONISING = frozenset(name for name, op in OPS.items() if op.synchronising)
"""No rank can leave them before the last one has come: the shortest time is usually that of the late rank."""
LOCAL = frozenset(name for name, op in OPS.items() if op.local)
"""No other rank takes part: who comes late delays nobody."""
PAIRED = frozenset(name for name, op in OPS.items() if op.members == "pairs")
"""Every ordered pair of ranks is measured in turn."""
OF_TWO_RANKS = frozenset(name for name, op in OPS.items() if op.members == "ends")
"""Between the two ends of a group, however many ranks it has."""
ON_SOCKETS = frozenset(op.name for op in PLAIN_SOCKETS)
"""Over TCP sockets of one host without a library: what ranks that use sockets are held against."""
MESSAGES = frozenset(op.name for op in POINT_TO_POINT)
"""Ops of single messages, whose cost is known on every backend."""
STORING = frozenset(name for name, op in OPS.items() if op.stores)
"""Their bytes end in files."""
TRAINED = frozenset(name for name, op in OPS.items() if op.splits)
"""Steps of training."""
TO_THE_HOST = frozenset(name for name, op in OPS.items() if op.host_memory)
"""Copies between a GPU and its host."""
MEMORY_TRAFFIC = {name: op.memory_traffic for name, op in OPS.items() if op.memory_traffic is not None}
"""Ops in memory → bytes that it reads and writes for every byte of S."""
ARITHMETIC = frozenset(name for name, op in OPS.items() if op.least_traffic is not None)
"""Bound by arithmetic as well as by memory: a roofline tells by which."""

FLOP = {name: op.flop for name, op in OPS.items() if op.flop is not None}
"""Ops with a place below a roofline → FLOP of a call whose S has so many elements. A copy computes nothing."""
LEAST_TRAFFIC = {name: OPS[name].least_traffic or OPS[name].memory_traffic or 0.0 for name in FLOP}
"""Of these ops: bytes that must be read and written at least for every byte of S."""
LEAST_CROSSING = {name: op.least_crossing for name, op in OPS.items() if op.least_crossing is not None}
"""Ops over a network → the least that must cross between hosts."""
LOWER_BOUNDS = {name: op.lower_bound for name, op in OPS.items() if op.lower_bound is not None}
"""Collectives → the least that any algorithm has to do."""


def bus_factor(name: str, ranks: int) -> float | None:
    """What algbw times is busbw, as nccl-tests has it; None where there is no wire, and for an op that is unknown."""
    op = OPS.get(name)
    return None if op is None else op.factor(ranks)


def op_named(name: str) -> Op:
    """The row of one operation. Raises UsageError that lists the known ones."""
    if name not in OPS:
        refuse_unknown("op", name, OPS)
    return OPS[name]
