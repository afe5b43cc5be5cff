"""One rank of several that train by every way to exchange, whole and with faults: what it found, as JSON."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

from busbw.backends.pytorch.training.descent import BoundDescent
from busbw.ops.training import EVERY_EXCHANGE, LEAST_SQUARES, Workload

RANKS: Final = 3
SCALE: Final = 1 / 32


def bound(exchange: str, rank: int, **other: Any) -> BoundDescent:  # noqa: ANN401 - fields of a workload
    workload = Workload(
        model=LEAST_SQUARES,
        scale=SCALE,
        dp=RANKS,
        tp=1,
        pp=1,
        micro_batches=1,
        interleave=1,
        exchange=exchange,
        **other,
    )
    return BoundDescent(workload, rank, RANKS, None, None)


def whole(exchange: str, rank: int) -> dict[str, Any]:
    bound_descent = bound(exchange, rank)
    wrong = []
    for _ in range(2):  # libraries settle in the first
        bound_descent.descent.begin()
        bound_descent.call()
        wrong.append(bound_descent.wrong())
    parts = bound_descent.parts()
    for call in (parts.compute, parts.communicate):
        parts.prepare()
        call()
    parts.prepare()
    spans = parts.timeline(time.perf_counter_ns)
    parts.prepare()
    parts.step()
    wrong.append(bound_descent.wrong())
    expected = bound_descent.expected(bound_descent.order())
    assert expected is not None
    off = (bound_descent.descent.weights.detach() - expected.weights[rank]).abs().max()
    return {
        "wrong": wrong,
        "sent": [(*kind, calls) for kind, calls in parts.sent.items()],
        "gaps": parts.gaps,
        "spans": spans,
        "off": float(off) / expected.off,
    }


def _no_error_feedback(bound_descent: BoundDescent) -> None:
    descent: Any = bound_descent.descent
    step = descent.step

    def forgetful() -> None:
        descent._left = torch.zeros_like(descent._left)
        step()

    descent.step = forgetful


def _wrong_scale(bound_descent: BoundDescent) -> None:
    bound_descent.descent.model.factor *= 1.1


def _never_averaged(bound_descent: BoundDescent) -> None:
    descent: Any = bound_descent.descent
    begin = descent.begin

    def alone() -> None:
        begin()
        descent._averager.period = 1 << 30

    descent.begin = alone


def _stale_by_two(bound_descent: BoundDescent) -> None:
    """Each gradient is that of the weights of the step before."""
    loss, seen = bound_descent.descent.model.loss, list[torch.Tensor]()

    def older(weights: torch.Tensor) -> torch.Tensor:
        seen.append(weights.detach().clone())
        return loss(weights - seen[-1] + seen[-2 if len(seen) > 1 else -1])

    bound_descent.descent.model.loss = older  # type: ignore[method-assign]


def _unbounded(bound_descent: BoundDescent) -> None:
    """The server lets workers go on as far as they like; the last one is slow."""
    if bound_descent.descent.me == 0:
        bound_descent.descent.number = 48
    if bound_descent.descent.me == RANKS - 1:
        bound_descent.descent.model.late_seconds = 0.002


FAULTS: Final[dict[str, dict[str, Callable[[BoundDescent], None]]]] = {
    "exact": {"wrong scale": _wrong_scale, "stale": _stale_by_two},
    "int8": {"no error feedback": _no_error_feedback, "wrong scale": _wrong_scale},
    "local_sgd:4": {"never averaged": _never_averaged, "stale": _stale_by_two},
    "server:2": {"stale": _stale_by_two, "unbounded": _unbounded},
}
"""Exchange → its planted faults."""


def faulty(exchange: str, plant: Callable[[BoundDescent], None], rank: int) -> int:
    bound_descent = bound(exchange, rank)
    number = bound_descent.descent.number
    plant(bound_descent)
    bound_descent.descent.begin()
    bound_descent.call()
    bound_descent.descent.number = number
    return bound_descent.wrong()


def main() -> None:
    rank = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=RANKS)
    record: dict[str, Any] = {exchange: whole(exchange, rank) for exchange in EVERY_EXCHANGE}
    record["faults"] = {
        exchange: {name: faulty(exchange, plant, rank) for name, plant in planted.items()}
        for exchange, planted in FAULTS.items()
    }
    sys.stdout.write(json.dumps(record))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
