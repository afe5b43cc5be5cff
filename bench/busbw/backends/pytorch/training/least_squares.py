"""Least squares: a small convex problem with a known optimum.

W minimises f(W) = |X W − Y|² / 2 m over m samples. The columns of X are orthogonal, so XᵀX / m is diagonal with
eigenvalues Λ, and f(W) − f(W*) = Σ Λ_j |w_j − w*_j|² / 2 over the rows of W. Targets are made from weights with fast
decaying singular values, like those of gradients, plus noise, so that each rank's samples have a different optimum.
"""

from typing import Final

import torch

from busbw.ops.training import SAMPLES

SEED: Final = 1
CONDITION: Final = 8.0
"""Ratio of the largest eigenvalue, 1, to the smallest."""
NOISE: Final = 0.05
"""Standard deviation of the noise over that of the noise-free targets."""
DECAY: Final = 0.6
"""Ratio of each singular value of the weights to the previous one."""
LEARNING_RATE: Final = 0.4
"""Below 1, where descent with gradients that are one step late would diverge."""


Gram = tuple[torch.Tensor, torch.Tensor]
"""A and B of some samples: their gradient is A W − B, which is Xᵀ (X W − Y) in another order of summation."""


class LeastSquares:
    """The problem with ``width`` × ``width`` weights; its samples are divided into ``shares`` parts."""

    def __init__(self, width: int, ranks: int, shares: int) -> None:
        generator = torch.Generator().manual_seed(SEED)

        def random(rows: int) -> torch.Tensor:
            return torch.randn(rows, width, generator=generator, dtype=torch.float64)

        self.width, self.samples = width, SAMPLES * width * ranks
        self._eigenvalues = CONDITION ** -torch.linspace(0, 1, width, dtype=torch.float64)
        given = torch.linalg.qr(random(self.samples)).Q * (self.samples * self._eigenvalues).sqrt()
        singular = width * DECAY ** torch.arange(width, dtype=torch.float64)
        explained = given @ (torch.linalg.qr(random(width)).Q * singular @ torch.linalg.qr(random(width)).Q)
        targets = explained + NOISE * explained.std() * random(self.samples)
        self._optimum = given.T @ targets / self.samples / self._eigenvalues[:, None]
        self.given = given.float().contiguous().tensor_split(shares)
        self.wanted = targets.float().contiguous().tensor_split(shares)
        self.factor = shares / self.samples
        """Factor of each share's gradient, so that their mean is the gradient of all samples."""

    @property
    def flop(self) -> int:
        """FLOP of the gradient of all samples: two products."""
        return 4 * self.samples * self.width**2

    def gap(self, weights: torch.Tensor) -> float:
        """f(W) − f(W*), the distance of ``weights`` from the optimum."""
        difference = weights.to("cpu", torch.float64) - self._optimum
        return float((self._eigenvalues[:, None] * difference.square()).sum() / 2)

    def grams(self, dtype: torch.dtype) -> list[Gram]:
        """A and B of every share."""
        return [
            (self.factor * given.to(dtype).T @ given.to(dtype), self.factor * given.to(dtype).T @ target.to(dtype))
            for given, target in zip(self.given, self.wanted, strict=True)
        ]
