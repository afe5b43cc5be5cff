"""How far predicted steps were from measured ones, by kind, and what was never held against a measurement.

The rows are those of ``tests/data/training/truth``. Three numbers were fitted to vTrain's rows that no
checksum holds out, ``LAUNCH``, ``STARTED`` and ``UNALIGNED`` of ``kernels.py``, and the delay of a call on vTrain's
node, which only the tests use.
``tests/unit/test_training_truth.py`` holds the rows to this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from typing import Final

from busbw_analysis.training.layout import Step
from busbw_analysis.training.step_time import Machine


@dataclass(frozen=True, slots=True)
class Kind:
    """Steps that were held against measurements: 95 % took between low and high times as long as predicted."""

    name: str
    low: float
    high: float


ONE_NODE: Final = Kind("one node", 0.87, 1.15)
SEVERAL_NODES: Final = Kind("several nodes", 0.94, 1.40)
GPUS: Final = frozenset({"A100 SXM4 80 GB", "H100 SXM5", "B200 SXM"})
MOST_GPUS: Final = 16384
MOST_MEMORY: Final = 1.08
"""The most memory that was measured over the computed one."""
_95: Final = 1.96


def kind_of(step: Step, per_host: int) -> Kind:
    """The kind of measured steps that ``step`` is closest to."""
    return ONE_NODE if step.layout.gpus <= per_host else SEVERAL_NODES


def never_held(step: Step, machine: Machine) -> Iterator[str]:
    """In which respects no such step was ever held against a measurement."""
    layout = step.layout
    if machine.gpu is not None and machine.gpu not in GPUS:
        yield f"on {machine.gpu}"
    if step.model.experts:
        yield "with experts"
    if layout.gpus > MOST_GPUS:
        yield f"on more than {MOST_GPUS} GPUs"
    if layout.schedule == "gpipe":
        yield "with gpipe"


def interval(step: Step, machine: Machine, seconds: float) -> tuple[float, float] | None:
    """The 95 % interval of a predicted time: of a calibrated machine, or of the kind. None for a measured machine."""
    if machine.deviation is not None:
        return seconds * exp(-_95 * machine.deviation), seconds * exp(_95 * machine.deviation)
    if machine.gpu is None:
        return None
    kind = kind_of(step, machine.per_host)
    return seconds * kind.low, seconds * kind.high
