"""Measurements after the samples of a block, which only some operations have: one row for each kind."""

from collections.abc import Callable
from dataclasses import dataclass

from busbw.measure.bench import Bench, Part
from busbw.measure.cross_check import measure_cross_check
from busbw.measure.steps import measure_step_parts
from busbw.measure.stopping import Budget
from busbw.ops import OPS
from busbw.ops.base import Op
from busbw.runs.records import Case, Supplement


@dataclass(frozen=True, slots=True)
class SupplementRow:
    """One kind of measurement.

    belongs_to: whether an op has it; the same on every rank.
    measure: measures it; collective, also for ranks without a part. None: nothing to be measured here.
    """

    belongs_to: Callable[[Op], bool]
    measure: Callable[[Bench, Case, Part | None, int, Budget], Supplement | None]


SUPPLEMENTS = (
    SupplementRow(lambda op: bool(op.splits), measure_step_parts),
    SupplementRow(lambda op: op.local and op.stores, measure_cross_check),
)


def measure_supplement(bench: Bench, case: Case, part: Part | None, launch: int, budget: Budget) -> Supplement | None:
    """The further measurement of the op of ``case``; None if it has none. Raises BackendError and StoreError."""
    row = next((row for row in SUPPLEMENTS if row.belongs_to(OPS[case.op])), None)
    return None if row is None else row.measure(bench, case, part, launch, budget)
