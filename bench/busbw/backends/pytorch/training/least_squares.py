"""Least squares: a problem that is real, small and convex, and whose optimum is known.

W minimises f(W) = |X W − Y|² / 2 m over m samples. The columns of X are orthogonal, so that XᵀX / m is diagonal with
eigenvalues Λ, and f(W) − f(W*) = Σ Λ_j |w_j − w*_j|² / 2 over the rows of W. Targets follow from weights whose singular
values fall fast, as those of gradients do, and from noise, so that each rank's samples have an optimum of their own.
"""

from typing import Final

import torch

from busbw.ops.training import SAMPLES

SEED: Final = 1
CONDITION: Final = 8.0
"""The largest eigenvalue, 1, over the smallest."""
NOISE: Final = 0.05
"""Standard deviation of what the weights do not explain over that of what they do."""
DECAY: Final = 0.6
"""Each singular value of the weights over the one before."""
LEARNING_RATE: Final = 0.4
"""Below 1, from where on gradients that are one step late would swing ever wider."""


Gram = tuple[torch.Tensor, torch.Tensor]
"""A and B of some samples: their gradient is A W − B, which is Xᵀ (X W − Y) added up in another order."""


class LeastSquares:
    """The problem of ``width`` × ``width`` weights whose samples ``shares`` ranks divide."""

    def __init__(self, width: int, ranks: int, shares: int) -> None:
        made = torch.Generator().manual_seed(SEED)

        def random(rows: int) -> torch.Tensor:
            return torch.randn(rows, width, generator=made, dtype=torch.float64)

        self.width, self.samples = width, SAMPLES * width * ranks
        self._eigenvalues = CONDITION ** -torch.linspace(0, 1, width, dtype=torch.float64)
        given = torch.linalg.qr(random(self.samples)).Q * (self.samples * self._eigenvalues).sqrt()
        singular = width * DECAY ** torch.arange(width, dtype=torch.float64)
        told = given @ (torch.linalg.qr(random(width)).Q * singular @ torch.linalg.qr(random(width)).Q)
        wanted = told + NOISE * told.std() * random(self.samples)
        self._optimum = given.T @ wanted / self.samples / self._eigenvalues[:, None]
        self.given = given.float().contiguous().tensor_split(shares)
        self.wanted = wanted.float().contiguous().tensor_split(shares)
        self.factor = shares / self.samples
        """The mean of the shares' gradients with it is the gradient of the whole."""

    @property
    def flop(self) -> int:
        """Of the gradient of all samples: two products."""
        return 4 * self.samples * self.width**2

    def gap(self, weights: torch.Tensor) -> float:
        """f(W) − f(W*); at the start the weights are 0."""
        apart = weights.to("cpu", torch.float64) - self._optimum
        return float((self._eigenvalues[:, None] * apart.square()).sum() / 2)

    def grams(self, dtype: torch.dtype) -> list[Gram]:
        """Those of every share."""
        return [
            (self.factor * given.to(dtype).T @ given.to(dtype), self.factor * given.to(dtype).T @ wanted.to(dtype))
            for given, wanted in zip(self.given, self.wanted, strict=True)
        ]
