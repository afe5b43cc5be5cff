"""How often the right plateaus are found in a curve of rates, over seeded curves whose plateaus are known.

Each size differs by the noise named, and one in ten is slower by a one-sided tail of 15 % besides. Ramps between levels
take so many octaves. Found is right: as many plateaus as there are, every level within 5 %. Nothing is asserted.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.node.plateaus import Plateaus, find_plateaus

Floats = npt.NDArray[np.float64]

TRIALS = 200
TAIL_SHARE = 0.1
TAIL_MEAN = 0.15
LEVEL_WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class Truth:
    """Rates (B/s) up to the sizes where they end (log₂ of bytes), with ramps of so many octaves between them, of a
    sweep from ``first`` to ``last`` in ``steps`` an octave; ``start`` bytes reach half of the first rate. ``fall`` is
    the slope after the last end, in ln(rate) an octave.
    """

    name: str
    rates: tuple[float, ...]
    ends: tuple[float, ...]
    ramp: float = 1.0
    first: float = 12.0
    last: float = 28.0
    steps: int = 1
    start: float = 0.0

    def working_sets(self) -> list[int]:
        """The sizes of the sweep, in bytes."""
        count = round((self.last - self.first) * self.steps) + 1
        return [round(2 ** (self.first + index / self.steps)) for index in range(count)]

    def rate(self, working_set: Floats) -> Floats:
        """The true rates."""
        knots = [end + side * self.ramp / 2 for end in self.ends for side in (-1, 1)]
        levels = [self.rates[0], *(rate for rate in self.rates[1:-1] for _ in range(2)), self.rates[-1]]
        if not knots:
            rates = np.full(len(working_set), self.rates[0])
        else:
            rates = np.exp(np.interp(np.log2(working_set), knots, np.log(levels)))
        return np.asarray(rates / (1 + self.start / working_set))


TRUTHS = (
    Truth("flat", (20e9,), ()),
    Truth("flat, two sizes an octave", (20e9,), (), steps=2),
    Truth("flat behind the cost of a call", (20e9,), (), start=16384),
    Truth("3 levels", (200e9, 80e9, 20e9), (15.5, 20.5)),
    Truth("3 levels, two sizes an octave", (200e9, 80e9, 20e9), (15.5, 20.5), steps=2),
    Truth("3 levels, ramps of 2 octaves", (200e9, 80e9, 20e9), (15.5, 21.5), ramp=2.0),
    Truth("3 levels that differ by 30 %", (100e9, 70e9, 49e9), (16.5, 21.5)),
    Truth("4 levels", (250e9, 120e9, 60e9, 18e9), (15.5, 20.5, 24.5)),
    Truth("4 levels, two sizes an octave", (250e9, 120e9, 60e9, 18e9), (15.5, 20.5, 24.5), steps=2),
    Truth("4 levels, ramps of 2 octaves, two sizes", (250e9, 120e9, 60e9, 18e9), (15.5, 20.5, 25.0), 2.0, steps=2),
    Truth("4 levels behind the cost of a call", (250e9, 120e9, 60e9, 18e9), (15.5, 20.5, 24.5), start=600.0, steps=2),
)
NOISES = (0.01, 0.03)


def curve(truth: Truth, noise: float, seed: int, tails: float = TAIL_SHARE) -> tuple[list[int], list[float]]:
    """One measured sweep of a truth: working sets in bytes and rates in B/s."""
    generator = np.random.default_rng(seed)
    working_sets = truth.working_sets()
    rates = truth.rate(np.asarray(working_sets, dtype=np.float64))
    late = np.where(generator.random(len(rates)) < tails, generator.exponential(TAIL_MEAN, len(rates)), 0.0)
    return working_sets, (rates * np.exp(generator.normal(0, noise, len(rates)) - late)).tolist()


def right(truth: Truth, found: Plateaus | Unavailable) -> bool:
    """Whether the plateaus are those that there are."""
    if isinstance(found, Unavailable) or len(found.plateaus) != len(truth.rates):
        return False
    pairs = zip(found.plateaus, truth.rates, strict=True)
    return all(abs(plateau.rate / rate - 1) <= LEVEL_WITHIN for plateau, rate in pairs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of how many of ``trials`` curves the plateaus were found; ``counts``: how many had so many plateaus."""

    words: str
    flat: bool
    right: int
    trials: int
    counts: tuple[tuple[int, int], ...]


def outcomes(trials: int = TRIALS) -> Iterator[Outcome]:
    """Judge ``trials`` seeded curves of every truth and noise."""
    for truth in TRUTHS:
        for noise in NOISES:
            found = [find_plateaus(*curve(truth, noise, seed)) for seed in range(trials)]
            numbers = [0 if isinstance(one, Unavailable) else len(one.plateaus) for one in found]
            yield Outcome(
                words=f"{truth.name}, noise {noise:.0%}",
                flat=len(truth.rates) == 1,
                right=sum(right(truth, one) for one in found),
                trials=trials,
                counts=tuple((number, numbers.count(number)) for number in sorted(set(numbers))),
            )


def main(arguments: Sequence[str]) -> None:
    """Print one line a truth and noise; the first argument is the number of curves."""
    trials = int(arguments[0]) if arguments else TRIALS
    print(f"# plateaus: as many as there are, each within {LEVEL_WITHIN:.0%}; behind it how many of how many plateaus")
    for outcome in outcomes(trials):
        counts = ", ".join(f"{number}: {times}" for number, times in outcome.counts)
        print(
            f"{outcome.right / outcome.trials:7.1%} of {outcome.trials} right: {outcome.words} ({counts})", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
