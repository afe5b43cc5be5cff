"""The table of operations: definition, meaning of the size, minimum traffic and expected result of each."""

from busbw.errors import refuse_unknown
from busbw.ops.base import Op, always
from busbw.ops.communication import COLLECTIVES, PLAIN_SOCKETS, POINT_TO_POINT
from busbw.ops.local import COMPUTE, COPIES, DEVICE_COPIES, STORAGE
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
"""Family → its operations."""

OPS: dict[str, Op] = {op.name: op for family in FAMILIES.values() for op in family}
"""Name → operation. A stored run may have one of another version: of its name, ask the sets and functions below, which
know nothing of it but do not fail.
"""

SYNCHRONISING = frozenset(name for name, op in OPS.items() if op.synchronising)
"""No rank can leave before the last one has entered: the shortest time is usually the straggler's."""
PERSONALISED = frozenset(name for name, op in OPS.items() if op.personalised)
"""Every rank sends each other rank a block of its own."""
REDUCING = frozenset(name for name, op in OPS.items() if op.reduces)
"""Sum or otherwise combine the data of the ranks."""
LOCAL = frozenset(name for name, op in OPS.items() if op.local)
"""No other rank takes part, so a straggler delays nobody."""
PAIRED = frozenset(name for name, op in OPS.items() if op.members == "pairs")
"""Every ordered pair of ranks is measured in turn."""
OF_TWO_RANKS = frozenset(name for name, op in OPS.items() if op.members == "ends")
"""Between the two ends of a group, whatever its size."""
ON_SOCKETS = frozenset(op.name for op in PLAIN_SOCKETS)
"""Plain TCP sockets of one host: the reference for backends that use sockets."""
BETWEEN_RANKS = tuple(op.name for op in (*COLLECTIVES, *POINT_TO_POINT))
"""Collectives and messages over a library: the operations of ``busbw run --op all``."""
MESSAGES = frozenset(op.name for op in POINT_TO_POINT)
"""Single messages; their cost model is known on every backend."""
STORING = frozenset(name for name, op in OPS.items() if op.stores)
"""Write their data to files."""
STRATEGIES = {name: op.strategy for name, op in OPS.items() if op.strategy is not None}
"""Training steps → how their ranks divide them."""
TRAINED = frozenset(STRATEGIES)
"""Training steps."""
TO_THE_HOST = frozenset(name for name, op in OPS.items() if op.host_memory)
"""Copies between a GPU and its host."""
MEMORY_TRAFFIC = {name: op.memory_traffic for name, op in OPS.items() if op.memory_traffic is not None}
"""Memory ops → bytes read and written per byte of S."""
LATENCIES = frozenset(name for name, op in OPS.items() if op.local and op.trips > 1)
"""Time loads that wait for each other: the size over their time is no rate."""
ARITHMETIC = frozenset(name for name, op in OPS.items() if op.least_traffic is not None)
"""Limited by arithmetic or by memory; a roofline shows which."""

FLOP = {name: op.flop for name, op in OPS.items() if op.flop is not None}
"""Roofline ops → FLOP of a call, given the number of elements in S. Copies are excluded: they compute nothing."""
LEAST_TRAFFIC = {name: OPS[name].least_traffic or always(OPS[name].memory_traffic or 0.0) for name in FLOP}
"""The same ops → minimum bytes read and written per byte of S, given the number of elements in S."""
LEAST_CROSSING = {name: op.least_crossing for name, op in OPS.items() if op.least_crossing is not None}
"""Network ops → minimum traffic between hosts."""
LOWER_BOUNDS = {name: op.lower_bound for name, op in OPS.items() if op.lower_bound is not None}
"""Collectives → minimum cost of any algorithm."""


def bus_factor(name: str, ranks: int) -> float | None:
    """busbw / algbw as in nccl-tests; None if no wire is crossed, or if the op is unknown."""
    op = OPS.get(name)
    return None if op is None else op.factor(ranks)


def op_named(name: str) -> Op:
    """The row of one operation. Raises UsageError that lists the known operations."""
    if name not in OPS:
        refuse_unknown("op", name, OPS)
    return OPS[name]
