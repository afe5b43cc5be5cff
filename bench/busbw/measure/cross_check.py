"""The rate that another tool measures for the same operation."""

import msgspec

from busbw.backends.base import records_of_every_rank
from busbw.backends.supplements import OtherTool
from busbw.measure.bench import Bench, Part
from busbw.measure.stopping import Budget
from busbw.runs.records import Case, CrossCheck


def measure_cross_check(
    bench: Bench,
    _case: Case,
    part: Part | None,
    _launch: int,
    _budget: Budget,
) -> CrossCheck | None:
    """Rates that another tool measures on all ranks concurrently.

    Returns the rates of all ranks, or the first error; None if no rank has such a tool.
    """
    tool = None if part is None else part.sets[0].operation.supplement
    bench.backend.barrier()
    # Half the timeout: the other ranks wait for this one, and would otherwise consider it lost.
    own = tool.run(bench.timing.timeout_seconds / 2) if isinstance(tool, OtherTool) else None
    gathered = records_of_every_rank(bench.backend, () if own is None else (own,), tuple[CrossCheck, ...])
    checks = [check for of_rank in gathered for check in of_rank]
    if not checks:
        return None
    if failure := next((check for check in checks if check.error is not None), None):
        return failure
    rates = tuple(rate for check in checks for rate in check.bytes_per_second)
    return msgspec.structs.replace(checks[0], bytes_per_second=rates)
