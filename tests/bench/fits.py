"""How often a fit finds what is there, and how often its intervals hold it, over seeded trials. Nothing is asserted.

    PYTHONPATH=tests/shared .venv/bin/python tests/bench/fits.py [--trials N] [curves] [few] [joint]

A sample scatters by 5 % (lognormal), 5 % of them take longer by once as much again on average (exponential), and a
whole launch by 3 %: alike at all of its sizes, or at each size by itself. Bias is that of the median of all trials
against the undisturbed truth; an interval is to hold the median call, which such outliers make 0.3 % longer.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, norm
from testing.synthetic import Piece

from busbw_analysis.fitting import curve
from busbw_analysis.fitting.curve import fit_points
from busbw_analysis.fitting.design import Observation, Parameter
from busbw_analysis.fitting.joint import fit_jointly

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
    piece = np.searchsorted([one.first_bytes for one in shape.pieces], sizes, side="right") - 1
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


@dataclass(frozen=True, slots=True)
class Design:
    """What was measured for a joint fit: algorithms on numbers of ranks and hosts, by parameters that are ``true``."""

    words: str
    true: Mapping[Parameter, float]
    shapes: tuple[tuple[int, int], ...]
    curves: tuple[tuple[str, str], ...]
    seconds: Callable[[Mapping[Parameter, float], str, int, int, int], float]


def by_rings(true: Mapping[Parameter, float], op: str, ranks: int, _hosts: int, size: int) -> float:
    """A ring: once around, and in an all-reduce once before to add."""
    share = (ranks - 1) / ranks
    once = true["per_call"] + (ranks - 1) * true["alpha"] + share * size * true["beta"]
    if op == "all_gather":
        return once
    return once + (ranks - 1) * true["alpha"] + share * size * (true["beta"] + true["gamma"])


def by_two_levels(true: Mapping[Parameter, float], op: str, ranks: int, hosts: int, size: int) -> float:
    """Rings on every host and between hosts, or an exchange on every host and one between them."""
    each, times = ranks // hosts, 2 if op == "all_reduce" else 1
    inside, between = (each - 1) / each, (hosts - 1) / hosts / (each if op == "all_reduce" else 1)
    rounds = (each - 1) * true["inner_alpha"] + (hosts - 1) * true["alpha"]
    moving = times * size * (inside * true["inner_beta"] + between * true["beta"])
    adding = (inside + between) * size * true["gamma"] if op == "all_reduce" else 0.0
    return true["per_call"] + times * rounds + moving + adding


DESIGNS: Final = (
    Design(
        "rings on 2, 4 and 8 hosts",
        {"alpha": 20e-6, "beta": 1e-10, "gamma": 3e-11, "per_call": 50e-6},
        ((2, 2), (4, 4), (8, 8)),
        (("all_reduce", "ring"), ("all_gather", "ring")),
        by_rings,
    ),
    Design(
        "two levels, 2 x 2, 2 x 4, 4 x 4",
        {"alpha": 60e-6, "beta": 1e-9, "inner_alpha": 5e-6, "inner_beta": 2e-10, "gamma": 1e-10, "per_call": 20e-6},
        ((4, 2), (8, 2), (16, 4)),
        (("all_reduce", "hierarchical"), ("all_to_all", "two-level")),
        by_two_levels,
    ),
)


def joint(trials: int) -> None:
    """Joint fits: of a ring all-reduce and a ring all-gather on 2, 4 and 8 hosts for α, β, γ and c0, and of an
    all-reduce and an all-to-all in two levels on three shapes, for α and β inside hosts as well.
    """
    say_head("joint", "all told apart")
    for design in DESIGNS:
        for launches in LAUNCHES:
            say(design.words, launches, of_joint(design, launches, trials), tuple(design.true))


def of_joint(design: Design, launches: int, trials: int) -> list["Outcome"]:
    """``trials`` joint fits."""
    generator = np.random.default_rng(100 + launches)
    sizes = [1 << step for step in range(8, 25, 2)]
    outcomes = []
    for _ in range(trials):
        fitted = fit_jointly(list(observed(design, sizes, launches, generator)))
        both = [(fitted.parameters.get(name), true) for name, true in design.true.items()]
        outcomes.append(
            Outcome(
                ratios=tuple(np.nan if one is None else one.value / true for one, true in both),
                covered=tuple(
                    one is not None
                    and one.low is not None
                    and one.high is not None
                    and one.low <= true * MEDIAN_CALL <= one.high
                    for one, true in both
                ),
                right=all(one is not None for one, _ in both),
            )
        )
    return outcomes


def observed(
    design: Design, sizes: Sequence[int], launches: int, generator: np.random.Generator
) -> Iterator[Observation]:
    """What was measured of all curves; a launch is as much slower in all of it."""
    for ranks, hosts in design.shapes:
        where = [(op, algorithm, size) for op, algorithm in design.curves for size in sizes]
        seconds = np.asarray([design.seconds(design.true, op, ranks, hosts, size) for op, _, size in where])
        medians = launch_medians(seconds, launches, generator, common=True)
        for (op, algorithm, size), times in zip(where, medians.T, strict=True):
            yield Observation(
                op=op,
                backend="gloo",
                cost_models="gloo",
                ranks=ranks,
                hosts=hosts,
                size_bytes=size,
                seconds=float(np.median(times)),
                launches=tuple(times.tolist()),
                algorithm=algorithm,
            )


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
    right = sum(one.right for one in outcomes) / len(outcomes)
    for position, name in enumerate(names):
        ratios = np.asarray([one.ratios[position] for one in outcomes])
        hits = sum(one.covered[position] for one in outcomes)
        rate, ends = hits / len(outcomes), binomtest(hits, len(outcomes)).proportion_ci()
        inside = "ok " if TARGET[0] <= rate <= TARGET[1] else "OUT"
        print(
            f"  {words:<32} {launches:8d} {len(outcomes):7d}  {name:<10} {np.nanmedian(ratios) - 1:+7.1%} "
            f"{np.nanstd(ratios):8.1%}  {rate:6.1%} ({ends.low:.1%} … {ends.high:.1%}) {inside} {right:9.1%}",
            flush=True,
        )


PROOFS: Final[dict[str, Callable[[int], None]]] = {"curves": curves, "few": few, "joint": joint}


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
