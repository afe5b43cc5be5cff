"""What every method of ``train_exchange`` comes to, told again in one process: what the weights of ranks are held
against, and how far from the optimum they are after every step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import numpy as np
import torch

from busbw.backends.pytorch.training.least_squares import LEARNING_RATE, Gram, LeastSquares

LEVELS: Final = 127
"""Of int8, on either side of 0."""
SMALLEST: Final = torch.finfo(torch.float32).tiny
"""In place of a level of 0."""

Gradients = list[torch.Tensor]
Combine = Callable[[Gradients], torch.Tensor]
Weights = list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Told:
    """What a training comes to: the ``weights`` of every rank behind it, by how much those of ranks may be ``off``, and
    the ``gaps`` f(W) − f(W*) before the first step and behind every one, of the mean W of ranks.
    """

    weights: Weights
    gaps: tuple[float, ...]
    off: float


def retell(problem: LeastSquares, name: str, number: int, ranks: int, steps: int, order: Sequence[int]) -> Told | None:
    """The training by the method ``name`` with its ``number``. ``order``: the ranks whose gradients the server got, one
    after another; None where its bound allows no such order.
    """
    if name == "server" and not _bounded(order, number, ranks, steps):
        return None
    trained, exact = (
        _trained(problem.grams(dtype), name, number, ranks, steps, order) for dtype in (torch.float32, torch.float64)
    )
    gaps = tuple(problem.gap(torch.stack(weights).mean(0)) for weights in trained)
    return Told(trained[-1], gaps, _TIMES.get(name, 4) * _uncertain(trained[-1], exact[-1]))


def _trained(grams: list[Gram], name: str, number: int, ranks: int, steps: int, order: Sequence[int]) -> list[Weights]:
    """Weights of all ranks before the first step and behind every one."""
    start = torch.zeros_like(grams[0][0])
    if name == "server":
        after = _by_server(grams, start, number, order)
    elif name == "local_sgd":
        after = _averaged(grams, start, number)
    else:
        after = _combined(grams, start, _COMBINED[name](number))
    return [[start] * ranks, *islice(after, steps)]


def _uncertain(trained: Weights, exact: Weights) -> float:
    """What rounding makes of these weights: a number that falls to the other side of a level moves them by as much as
    the level is. The same in float64 tells how much that is.
    """
    return max(float((one - other).abs().max()) for one, other in zip(trained, exact, strict=True))


_TIMES: Final = {"powersgd": 16}
"""How many times as much another order of sums may do, where it is more than 4: what is small among the factors is
uncertain, and stretched to the length of 1.
"""


def _gradient(gram: Gram, weights: torch.Tensor) -> torch.Tensor:
    return gram[0] @ weights - gram[1]


def _combined(grams: list[Gram], start: torch.Tensor, combine: Combine) -> Iterator[Weights]:
    """All ranks have the same weights, and step by what is made of their gradients."""
    weights = start
    while True:
        weights = weights - LEARNING_RATE * combine([_gradient(gram, weights) for gram in grams])
        yield [weights] * len(grams)


def _averaged(grams: list[Gram], start: torch.Tensor, period: int) -> Iterator[Weights]:
    """Each steps on its own; every ``period`` steps all go on from their mean."""
    weights, step = [start] * len(grams), 0
    while True:
        weights = [one - LEARNING_RATE * _gradient(gram, one) for gram, one in zip(grams, weights, strict=True)]
        step += 1
        if step % period == 0:
            weights = [_mean(weights)] * len(grams)
        yield weights


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(tensors).mean(0)


def _late() -> Combine:
    """The gradients of the step before; there are none before the first."""
    kept: Gradients = []

    def combine(gradients: Gradients) -> torch.Tensor:
        kept.append(_mean(gradients))
        return kept.pop(0) if len(kept) > 1 else torch.zeros_like(kept[0])

    return combine


def _rounded(dtype: torch.dtype, gradients: Gradients) -> torch.Tensor:
    """The sum in ``dtype`` itself, whose order matters: in float64 it is the other way round."""
    total = gradients[0].new_zeros(gradients[0].shape, dtype=dtype)
    for one in gradients if gradients[0].dtype == torch.float32 else gradients[::-1]:
        total += one.to(dtype) / len(gradients)
    return total.to(gradients[0].dtype)


def _int8() -> Combine:
    left: Gradients = []

    def combine(gradients: Gradients) -> torch.Tensor:
        whole = [one + rest for one, rest in zip(gradients, left or [torch.zeros(())] * len(gradients), strict=True)]
        levels = [(one.abs().max() / LEVELS).clamp_min(SMALLEST) for one in whole]
        sent = [torch.round(one / level) * level for one, level in zip(whole, levels, strict=True)]
        left[:] = [one - told for one, told in zip(whole, sent, strict=True)]
        return _mean(sent)

    return combine


def _powersgd(rank: int) -> Combine:
    """One step of the power iteration, which begins with the factor of the step before."""
    left: Gradients = []
    factor: list[torch.Tensor] = []

    def combine(gradients: Gradients) -> torch.Tensor:
        whole = [one + rest for one, rest in zip(gradients, left or [torch.zeros(())] * len(gradients), strict=True)]
        if not factor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(np.random.RandomState(0).randint(1_000_000_000)))
                factor.append(torch.randn(gradients[0].shape[1], rank).to(gradients[0].dtype))
        right = torch.linalg.qr(factor.pop()).Q
        first = torch.linalg.qr(_mean(whole) @ right).Q
        factor.append(_mean(whole).T @ first)
        told: torch.Tensor = first @ factor[0].T
        left[:] = [one - told for one in whole]
        return told

    return combine


_COMBINED: Final[dict[str, Callable[[int], Combine]]] = {
    "exact": lambda _: _mean,
    "late": lambda _: _late(),
    "fp16": lambda _: partial(_rounded, torch.float16),
    "bf16": lambda _: partial(_rounded, torch.bfloat16),
    "int8": lambda _: _int8(),
    "powersgd": _powersgd,
}


def _bounded(order: Sequence[int], bound: int, ranks: int, steps: int) -> bool:
    """Whether workers could come in this order: each as often as there are steps, and none of them when it was more
    than ``bound`` steps ahead of the last.
    """
    done = dict.fromkeys(range(1, ranks), 0)
    for worker in order:
        if worker not in done or done[worker] > min(done.values()) + bound:
            return False
        done[worker] += 1
    return set(done.values()) == {steps}


def _by_server(grams: list[Gram], start: torch.Tensor, bound: int, order: Sequence[int]) -> Iterator[Weights]:
    """Behind as many gradients as there are workers the weights of the server, which all have in the end."""
    workers = len(grams)
    weights, done = start, [0] * workers
    known, waiting = [start] * workers, set[int]()
    for count, worker in enumerate((rank - 1 for rank in order), 1):
        weights = weights - LEARNING_RATE / workers * _gradient(grams[worker], known[worker])
        done[worker] += 1
        waiting.add(worker)
        for one in [one for one in waiting if done[one] <= min(done) + bound]:
            known[one] = weights
            waiting.remove(one)
        if count % workers == 0:
            yield [weights] * (workers + 1)
