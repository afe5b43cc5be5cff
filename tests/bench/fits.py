"""How often a fit finds what is there, and how often its intervals hold it, over seeded trials. Nothing is asserted.

    PYTHONPATH=tests/shared .venv/bin/python tests/bench/fits.py [--trials N] [curves] [few]

A sample scatters by 5 % (lognormal), 5 % of them take longer by once as much again on average (exponential), and a
whole launch by 3 %: alike at all of its sizes, or at each size by itself. Bias is that of the median of all trials
against the undisturbed truth; an interval is to hold the median call, which such outliers make 0.3 % longer.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, norm
from testing.synthetic import Piece

from busbw_analysis.fitting import curve
from busbw_analysis.fitting.curve import fit_points

Floats = npt.NDArray[np.float64]

TRIALS: Final = 500
LAUNCHES: Final = (5, 6, 10, 20)
FEW: Final = (2, 3, 4)
TARGET: Final = (0.90, 0.97)
SAMPLES: Final = 20
SAMPLE_NOISE, OUTLIERS, LAUNCH_NOISE = 0.05, 0.05, 0.03
MEDIAN_CALL: Final = float(np.exp(SAMPLE_NOISE * norm.ppf(0.5 / (1 - OUTLIERS))))
"""The median of a call over the undisturbed one: outliers are all above it."""

SIZES: Final = tuple(32 << step for step in range(20))


@dataclass(frozen=True, slots=True)
class Shape:
    """A curve with a known truth. ``common``: the launches differ by as much at every size."""

    words: str
    pieces: tuple[Piece, ...]
    common: bool = True


SHAPES: Final = (
    Shape("one piece", (Piece(20e-6, 1e-10),)),
    Shape("one piece, each size for itself", (Piece(20e-6, 1e-10),), common=False),
    Shape("a jump at 64 KiB", (Piece(20e-6, 1e-10), Piece(400e-6, 2e-10, 64 << 10))),
    Shape(
        "jumps at 4 KiB and 512 KiB", (Piece(20e-6, 1e-10), Piece(100e-6, 1e-10, 4 << 10), Piece(9e-4, 3e-10, 1 << 19))
    ),
)


def launch_medians(truth: Floats, launches: int, generator: np.random.Generator, *, common: bool) -> Floats:
    """Launches × sizes: what a run of such launches would store."""
    samples = np.exp(generator.normal(0, SAMPLE_NOISE, (SAMPLES, launches, len(truth))))
    late = generator.random(samples.shape) < OUTLIERS
    samples *= np.where(late, 1 + generator.exponential(1.0, samples.shape), 1.0)
    each = np.exp(generator.normal(0, LAUNCH_NOISE, (launches, 1 if common else len(truth))))
    return np.asarray(truth * np.median(samples, axis=0) * each)


def curves(trials: int) -> None:
    """The segmented fit of one curve: α, the rate it tends to, and the number of pieces."""
    say_head("curve", "pieces right")
    for shape in SHAPES:
        for launches in LAUNCHES:
            say(shape.words, launches, of_curves(shape, launches, trials), ("α", "rate"))


def of_curves(shape: Shape, launches: int, trials: int) -> list["Outcome"]:
    """``trials`` fits of ``shape``."""
    generator = np.random.default_rng(launches)
    sizes = np.asarray(SIZES, dtype=np.float64)
    piece = np.searchsorted([part.first_bytes for part in shape.pieces], sizes, side="right") - 1
    alpha, beta = (
        np.asarray(values)
        for values in zip(*((p.alpha_seconds, p.beta_seconds_per_byte) for p in shape.pieces), strict=True)
    )
    truth = alpha[piece] + beta[piece] * sizes
    outcomes = []
    for _ in range(trials):
        medians = launch_medians(truth, launches, generator, common=shape.common) * 1e9
        fit = fit_points(SIZES, np.median(medians, axis=0).tolist(), launch_medians_ns=medians.T.tolist())
        intervals = fit.intervals
        assert intervals is not None
        rate = intervals.algbw
        outcomes.append(
            Outcome(
                ratios=(fit.alpha_seconds / alpha[0], (fit.algbw or np.inf) * beta[-1]),
                covered=(
                    intervals.alpha_seconds.low <= alpha[0] * MEDIAN_CALL <= intervals.alpha_seconds.high,
                    rate is not None and rate.low <= 1 / (beta[-1] * MEDIAN_CALL) <= rate.high,
                ),
                right=len(fit.segments) == len(shape.pieces),
            )
        )
    return outcomes


def few(trials: int) -> None:
    """The same with fewer launches than give an interval: how often one would hold the truth."""
    say_head("curve", "pieces right")
    with patch.object(curve, "LAUNCHES_FOR_A_BOOTSTRAP", FEW[0]):
        for shape in SHAPES[:2]:
            for launches in FEW:
                say(shape.words, launches, of_curves(shape, launches, trials), ("α", "rate"))


# --- what is printed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial: found over true, whether the intervals held the truth, and whether the structure was found."""

    ratios: tuple[float, ...]
    covered: tuple[bool, ...]
    right: bool


def say_head(what: str, right: str) -> None:
    """The names of the columns."""
    print(
        f"# {what:<32} launches  trials  of            bias  scatter  covered, wanted 90–97 %        {right}",
        flush=True,
    )


def say(words: str, launches: int, outcomes: Sequence[Outcome], names: Sequence[str]) -> None:
    """A line of the table for each parameter."""
    right = sum(outcome.right for outcome in outcomes) / len(outcomes)
    for position, name in enumerate(names):
        ratios = np.asarray([outcome.ratios[position] for outcome in outcomes])
        hits = sum(outcome.covered[position] for outcome in outcomes)
        rate, ends = hits / len(outcomes), binomtest(hits, len(outcomes)).proportion_ci()
        inside = "ok " if TARGET[0] <= rate <= TARGET[1] else "OUT"
        print(
            f"  {words:<32} {launches:8d} {len(outcomes):7d}  {name:<10} {np.nanmedian(ratios) - 1:+7.1%} "
            f"{np.nanstd(ratios):8.1%}  {rate:6.1%} ({ends.low:.1%} … {ends.high:.1%}) {inside} {right:9.1%}",
            flush=True,
        )


PROOFS: Final[dict[str, Callable[[int], None]]] = {"curves": curves, "few": few}


def main() -> None:
    """Run the proofs that were named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("proofs", nargs="*", default=list(PROOFS), help=" or ".join(PROOFS))
    parser.add_argument("--trials", type=int, default=TRIALS, help="of every line of the table")
    given = parser.parse_args()
    if unknown := [name for name in given.proofs if name not in PROOFS]:
        parser.error(f"unknown proof {', '.join(unknown)}; known: {', '.join(PROOFS)}")
    for name in given.proofs:
        began = time.perf_counter()
        PROOFS[name](given.trials)
        print(f"# {name} took {time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    main()
