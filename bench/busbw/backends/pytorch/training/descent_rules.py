"""Single-process reference of every ``train_exchange`` method: expected weights and distance from the optimum."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import torch

from busbw.backends.pytorch.training.least_squares import LEARNING_RATE, Gram, LeastSquares

LEVELS: Final = 127
"""Quantisation levels of int8 on either side of 0."""
SMALLEST: Final = torch.finfo(torch.float32).tiny
"""Least quantisation step, so that it is never 0."""

_TOLERANCE: Final = 4
"""Allowed difference as a multiple of the effect of rounding."""

Gradients = list[torch.Tensor]
Combine = Callable[[Gradients], torch.Tensor]
Weights = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected result of a training.

    weights: final weights of every rank.
    gaps: f(W) − f(W*) before the first and after every step, for the mean W of the ranks.
    off: allowed difference of a measured weight.
    """

    weights: Weights
    gaps: tuple[float, ...]
    off: float


def expected_result(
    problem: LeastSquares, name: str, number: int, ranks: int, steps: int, order: Sequence[int]
) -> Expected | None:
    """Repeat the training by method ``name`` with parameter ``number`` in one process.

    order: ranks whose gradients the server received, in order (other methods: empty).
    Returns None if that order violates the server's staleness bound.
    """
    if name == "server" and not _bounded(order, number, ranks, steps):
        return None
    trained, exact = (
        _trained(problem.grams(dtype), name, number, ranks, steps, order) for dtype in (torch.float32, torch.float64)
    )
    gaps = tuple(problem.gap(torch.stack(weights).mean(0)) for weights in trained)
    return Expected(trained[-1], gaps, _TOLERANCE * _uncertain(trained[-1], exact[-1]))


def _trained(grams: list[Gram], name: str, number: int, ranks: int, steps: int, order: Sequence[int]) -> list[Weights]:
    """Weights of all ranks before the first and after every step."""
    start = torch.zeros_like(grams[0][0])
    if name == "server":
        after = _by_server(grams, start, number, order)
    elif name == "local_sgd":
        after = _averaged(grams, start, number)
    else:
        after = _combined(grams, start, _COMBINED[name]())
    return [[start] * ranks, *islice(after, steps)]


def _uncertain(trained: Weights, exact: Weights) -> float:
    """Effect of rounding on the weights, estimated by the difference between float32 and float64.

    It is not small: a value on the other side of a quantisation boundary changes the weights by a whole step.
    """
    return max(float((weights - other).abs().max()) for weights, other in zip(trained, exact, strict=True))


def _gradient(gram: Gram, weights: torch.Tensor) -> torch.Tensor:
    return gram[0] @ weights - gram[1]


def _combined(grams: list[Gram], start: torch.Tensor, combine: Combine) -> Iterator[Weights]:
    """All ranks have the same weights and step with the combined gradient."""
    weights = start
    while True:
        weights = weights - LEARNING_RATE * combine([_gradient(gram, weights) for gram in grams])
        yield [weights] * len(grams)


def _averaged(grams: list[Gram], start: torch.Tensor, period: int) -> Iterator[Weights]:
    """Each rank steps on its own; every ``period`` steps all continue from the mean of their weights."""
    weights, step = [start] * len(grams), 0
    while True:
        weights = [
            vector - LEARNING_RATE * _gradient(gram, vector) for gram, vector in zip(grams, weights, strict=True)
        ]
        step += 1
        if step % period == 0:
            weights = [_mean(weights)] * len(grams)
        yield weights


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).mean(0)


def _int8() -> Combine:
    left: Gradients = []

    def combine(gradients: Gradients) -> torch.Tensor:
        whole = [
            gradient + rest
            for gradient, rest in zip(gradients, left or [torch.zeros(())] * len(gradients), strict=True)
        ]
        levels = [(gradient.abs().max() / LEVELS).clamp_min(SMALLEST) for gradient in whole]
        sent = [torch.round(gradient / level) * level for gradient, level in zip(whole, levels, strict=True)]
        left[:] = [gradient - rounded for gradient, rounded in zip(whole, sent, strict=True)]
        return _mean(sent)

    return combine


_COMBINED: Final[dict[str, Callable[[], Combine]]] = {"exact": lambda: _mean, "int8": _int8}


def _bounded(order: Sequence[int], bound: int, ranks: int, steps: int) -> bool:
    """Whether ``order`` is valid: each worker once per step, never more than ``bound`` steps ahead of the slowest."""
    done = dict.fromkeys(range(1, ranks), 0)
    for worker in order:
        if worker not in done or done[worker] > min(done.values()) + bound:
            return False
        done[worker] += 1
    return set(done.values()) == {steps}


def _by_server(grams: list[Gram], start: torch.Tensor, bound: int, order: Sequence[int]) -> Iterator[Weights]:
    """Weights of the server after every round of gradients (one per worker); at the end all ranks have them."""
    workers = len(grams)
    weights, done = start, [0] * workers
    copies, waiting = [start] * workers, set[int]()
    for count, worker in enumerate((rank - 1 for rank in order), 1):
        weights = weights - LEARNING_RATE / workers * _gradient(grams[worker], copies[worker])
        done[worker] += 1
        waiting.add(worker)
        for waiter in [waiter for waiter in waiting if done[waiter] <= min(done) + bound]:
            copies[waiter] = weights
            waiting.remove(waiter)
        if count % workers == 0:
            yield [weights] * (workers + 1)
