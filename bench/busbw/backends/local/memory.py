"""Copies in memory: of the host, or of the device that the buffers are on."""

from functools import partial

from busbw.backends.base import Operation
from busbw.backends.local.base import Bound, Local
from busbw.records import Case


def _copy(bound: Bound) -> Operation:
    return Operation(partial(bound.receive.copy_, bound.send))


def _refuse_copy(case: Case) -> str | None:
    obstacles = (
        (case.mode == "persistent", "a copy is nothing that could be prepared"),
        (
            case.mode == "overlap" and case.device == "cpu",
            "a copy by the processor is computation itself; it does not overlap with any",
        ),
        (
            case.mode == "overlap" and case.device != "cpu",
            f"{case.op} is one step, which cannot be posted first and waited for later",
        ),
    )
    return next((reason for applies, reason in obstacles if applies), None)


OPERATIONS: dict[str, Local] = {"memory_copy": Local(_copy, _refuse_copy)}
