"""How often busbw is right when the truth is known, as rates over many seeded trials. Nothing is asserted.

    PYTHONPATH=tests/shared .venv/bin/python tests/bench/metrology.py [PROOF ...]     # all of PROOFS, or those named

Every proof prints lines of rate, its own 95 % interval, trials, target, and whether the rate lies in the target. To add
one, write a function that prints such lines with ``say`` and give it a row in ``PROOFS``.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import late_ranks
import numpy as np
import numpy.typing as npt
import overhead
import slow_pairs
import stopping
from scipy.stats import binomtest, mannwhitneyu, nct, t
from testing.noise import Noise, simulated

from busbw.statistics import median_interval
from busbw_analysis.data.intervals import interval_of, resampled
from busbw_analysis.diagnosis.hypothesis_tests import Estimate, Launches, adjusted, estimate, launches_needed, verdicts

Floats = npt.NDArray[np.float64]
Target = tuple[float, float]

TRIALS: Final = 4000
LAUNCHES: Final = 10
SLOWDOWN: Final = 1.05
WITHIN: Final = 0.05

FALSE_ALARMS: Final = (0.03, 0.07)
FOUND: Final = (0.95, 1.0)
COVERED: Final = (0.92, 0.97)
NAMED: Final = (0.99, 1.0)
NOBODY: Final = (0.95, 1.0)

ONE_MODE: Final = Noise()
SLOW_MODE: Final = Noise(slow_share=0.1)
TWO_MODES: Final = Noise(slow_share=0.5)


def main(names: Iterable[str]) -> None:
    """Run the proofs that were named, or all."""
    wanted = list(names) or list(PROOFS)
    unknown = [name for name in wanted if name not in PROOFS]
    if unknown:
        sys.exit(f"unknown proof {', '.join(unknown)}; known: {', '.join(PROOFS)}")
    for name in wanted:
        began = time.perf_counter()
        proof = PROOFS[name]
        print(f"# {name}: {(proof.__doc__ or '').partition('.')[0]}")
        print("#  rate  (95 % interval)  trials  target")
        proof()
        print(f"# {name} took {time.perf_counter() - began:.0f} s\n")


def say(what: str, hits: int, trials: int, target: Target | None = None) -> None:
    """One line: how often, how sure that is, and whether it is in the target."""
    ends = binomtest(hits, trials).proportion_ci()
    rate = hits / trials
    inside = "" if target is None else ("ok    " if target[0] <= rate <= target[1] else "OUT   ")
    wanted = "  –" if target is None else f"  {100 * target[0]:.0f}…{100 * target[1]:.0f} %"
    print(
        f"{100 * rate:6.2f} % ({100 * ends.low:5.2f} … {100 * ends.high:5.2f})  {trials:6d}{wanted:>11}  {inside:6}"
        f"{what}"
    )


# --- simulated launches ---------------------------------------------------------------------------------------


def launch_values(
    noise: Noise, launches: int, *, trials: int = TRIALS, cases: int = 1, statistic: str = "median", seed: int = 1
) -> Iterator[Floats]:
    """One array (cases × launches) of launch medians or means for each trial."""
    generator = np.random.default_rng(seed)
    at_once = max(1, 4000 // (launches * cases))
    for start in range(0, trials, at_once):
        count = min(at_once, trials - start)
        times = simulated(noise, generator, launches=count * launches, cases=cases)
        values = np.median(times, axis=2) if statistic == "median" else times.mean(axis=2)
        yield from np.moveaxis(values.reshape(cases, count, launches), 1, 0)


def side(name: str, values: Iterable[float]) -> Launches:
    """One side of a comparison."""
    return {(name, number): float(value) for number, value in enumerate(values)}


def held(values: Floats, ratio: float = 1.0, *, paired: bool = False) -> Estimate:
    """The estimate of every second launch against the others, which take ``ratio`` times as long."""
    one, two = side("a", values[::2]), side("b", ratio * values[1::2])
    return estimate(one, two, list(zip(one, two, strict=True)) if paired else None)


def band(values: Floats) -> Floats:
    """Cases × launches → what a band makes of them."""
    return np.asarray(np.exp(np.log(values).mean(axis=0)))


def rejected(difference: Estimate) -> bool:
    """Whether the test alone says that there is a difference."""
    return difference.p_value is not None and difference.p_value <= 0.05


# --- the proofs -----------------------------------------------------------------------------------------------


def false_alarms() -> None:
    """Like sides are called different in 5 % of all trials. The nominal 5 % is what an exact test may not exceed."""
    for name, kind, statistic in (
        ("one mode", ONE_MODE, "median"),
        ("a slow mode of 10 %", SLOW_MODE, "median"),
        ("two modes, by their means", TWO_MODES, "mean"),
    ):
        estimates = [held(values[0]) for values in launch_values(kind, 2 * LAUNCHES, statistic=statistic)]
        say(f"{LAUNCHES} launches a side, {name}", sum(map(rejected, estimates)), TRIALS, FALSE_ALARMS)
    for launches in (4, 6, 8, 20):
        estimates = [held(values[0]) for values in launch_values(ONE_MODE, 2 * launches)]
        say(f"{launches} launches a side, one mode", sum(map(rejected, estimates)), TRIALS)
    estimates = [held(values[0], paired=True) for values in launch_values(ONE_MODE, 2 * LAUNCHES)]
    say(f"{LAUNCHES} pairs, signed-rank", sum(map(rejected, estimates)), TRIALS, FALSE_ALARMS)
    any_band = 0
    trials = TRIALS // 4
    kind = replace(ONE_MODE, shared=0.25)
    for values in launch_values(kind, 2 * LAUNCHES, trials=trials, cases=12):
        bands = [held(band(values[start : start + 4])) for start in (0, 4, 8)]
        any_band += any(p_value is not None and p_value <= 0.05 for p_value in adjusted(bands))
    say("any of 3 bands of 4 sizes after Holm", any_band, trials, (0.0, FALSE_ALARMS[1]))
    pooled = 0
    trials = 300
    generator = np.random.default_rng(1)
    for _ in range(trials):
        times = simulated(ONE_MODE, generator, launches=2 * LAUNCHES)[0]
        pooled += mannwhitneyu(times[::2].ravel(), times[1::2].ravel()).pvalue <= 0.05
    say("for contrast: all samples of the same launches in one pot (busbw has no such test)", pooled, trials)


def slowdown() -> None:
    """A slowdown of 5 % is found: the verdict is "slower" where differences within 5 % are called equal."""
    freedom = 2 * LAUNCHES - 2
    shift = np.log(SLOWDOWN) / 0.03 * np.sqrt(LAUNCHES / 2)
    best = nct.sf(t.ppf(0.975, freedom), freedom, shift)
    print(
        f"arithmetic: one case, cv 3 % and normal: no unbiased test at 5 % finds it more often than {best:.1%} (t test)"
    )
    cases = (
        ("one size", 1, 0.0, FOUND),
        ("a band of 2 sizes, a quarter of the launch's variance shared", 2, 0.25, FOUND),
        ("a band of 3 sizes, a quarter shared", 3, 0.25, FOUND),
        ("a band of 4 sizes, a quarter shared", 4, 0.25, FOUND),
        ("a band of 4 sizes, half shared", 4, 0.5, FOUND),
    )
    for name, count, shared, target in cases:
        kind = replace(ONE_MODE, shared=shared)
        estimates = [held(band(values), SLOWDOWN) for values in launch_values(kind, 2 * LAUNCHES, cases=count)]
        say(f"{LAUNCHES} launches a side, {name}", slower(estimates), TRIALS, target)
    for launches in (12, 14, 16):
        estimates = [held(values[0], SLOWDOWN) for values in launch_values(ONE_MODE, 2 * launches)]
        say(f"{launches} launches a side, one size", slower(estimates), TRIALS)
    estimates = [held(neighbours(values[0]), SLOWDOWN, paired=True) for values in launch_values(ONE_MODE, 3 * LAUNCHES)]
    say(
        f"{LAUNCHES} pairs, one size, half of the launch's variance shared by neighbours",
        slower(estimates),
        TRIALS,
        FOUND,
    )


def neighbours(values: Floats) -> Floats:
    """Launches in turns: the first two thirds of ``values`` are their own, the last third is shared by each two."""
    own, shared = np.log(values[: 2 * len(values) // 3]), np.log(values[2 * len(values) // 3 :])
    return np.asarray(np.exp((own + np.repeat(shared, 2)) / np.sqrt(2)) * np.median(values) ** (1 - np.sqrt(2)))


def slower(estimates: Iterable[Estimate]) -> int:
    """How many of them get the verdict, each as the only test of its family."""
    return sum(verdicts([difference], WITHIN)[0].word == "slower" for difference in estimates)


def coverage() -> None:
    """Intervals of nominal 95 % hold the truth."""
    for launches in (4, 6, 10):
        estimates = [held(values[0], SLOWDOWN) for values in launch_values(ONE_MODE, 2 * launches)]
        inside = sum((difference.low or 0.0) <= SLOWDOWN <= (difference.high or 0.0) for difference in estimates)
        say(f"ratio B/A, {launches} launches a side", inside, TRIALS, COVERED if launches == LAUNCHES else None)
    estimates = [held(values[0], SLOWDOWN, paired=True) for values in launch_values(ONE_MODE, 2 * LAUNCHES)]
    inside = sum((difference.low or 0.0) <= SLOWDOWN <= (difference.high or 0.0) for difference in estimates)
    say(f"ratio B/A, {LAUNCHES} pairs", inside, TRIALS, COVERED)
    for name, kind in (("one mode", ONE_MODE), ("a slow mode of 10 %", SLOW_MODE)):
        truth = float(np.median(np.concatenate([values[0] for values in launch_values(kind, 20000, trials=1, seed=2)])))
        for launches in (6, 7, 8, 10, 20):
            over = [interval_of(values[0]) for values in launch_values(kind, launches)]
            inside = sum((end.low_ns or 0.0) <= truth <= (end.high_ns or 0.0) for end in over)
            say(f"median over {launches} launches, {name}", inside, TRIALS, COVERED)
        for launches in (6, 7, 8, 10):
            ends = [median_interval(values[0]) for values in launch_values(kind, launches)]
            inside = sum((end.low or 0.0) <= truth <= (end.high or 0.0) for end in ends)
            say(f"for contrast: order statistics alone, {launches} launches, {name}", inside, TRIALS)


def bootstrap() -> None:
    """Bootstrap intervals of nominal 95 % hold the truth. From 6 launches on they are shown as intervals."""
    trials = TRIALS // 4
    statistics: tuple[tuple[str, Callable[[Floats], float]], ...] = (
        ("mean", lambda times: float(times.mean())),
        ("99 % quantile", lambda times: float(np.quantile(times, 0.99))),
    )
    for share in (0.1, 0.5):
        kind = Noise(slow_share=share)
        everything = simulated(kind, np.random.default_rng(2), launches=20000)[0]
        for name, of_launch in statistics:
            truth = float(np.mean([of_launch(times) for times in everything]))
            for launches in (3, 4, 6, 10, 20):
                generator = np.random.default_rng(3)
                inside = 0
                for _ in range(trials):
                    drawn = simulated(kind, generator, launches=launches)[0]
                    interval = resampled([of_launch(times) for times in drawn])
                    inside += (interval.low or 0.0) <= truth <= (interval.high or 0.0)
                target = COVERED if launches >= LAUNCHES else None
                say(f"{name}, {launches} launches, {share:.0%} in the slow mode", inside, trials, target)


def needed() -> None:
    """With as many launches as are said to be needed a verdict is reached in at least 80 % of all trials."""
    for scatter in (0.02, 0.03, 0.05, 0.1):
        launches = launches_needed(scatter, WITHIN)
        if launches is None:
            continue
        generator = np.random.default_rng(4)
        for name, ratio, word in (("equal", 1.0, "equal"), ("5 % slower", SLOWDOWN, "slower")):
            draws = generator.lognormal(0, scatter, (TRIALS // 2, 2 * launches))
            reached = sum(verdicts([held(values, ratio)], WITHIN)[0].word == word for values in draws)
            say(f"cv {scatter:.0%}: {launches} launches a side, truth {name}", reached, TRIALS // 2, (0.8, 1.0))


def late() -> None:
    """A rank that is 2 ms late in 30 % of samples is named alone, and no healthy one: launches of real Gloo ranks."""
    for outcome in late_ranks.outcomes(settings=late_ranks.SETTINGS[:4]):
        say(outcome.words, outcome.right, outcome.trials, NAMED if outcome.setting.late is not None else NOBODY)


def pairs() -> None:
    """A slow host, direction or pair of a matrix is named and nothing else, where it takes 1.4 times the usual."""
    for outcome in slow_pairs.outcomes():
        say(outcome.words, outcome.right, outcome.trials, NOBODY if outcome.healthy else None)


def stop_in_time() -> None:
    """Time to an interval of ± 5 % against the fixed loops of other tools, in one world of real ranks."""
    stopping.stopping()


def own_time() -> None:
    """The harness's own time: busbw's loops against the barest ones, isolated and pipelined."""
    overhead.calls()


PROOFS: Final[dict[str, Callable[[], None]]] = {
    "false-alarms": false_alarms,
    "slowdown": slowdown,
    "coverage": coverage,
    "bootstrap": bootstrap,
    "needed": needed,
    "late": late,
    "pairs": pairs,
    "stopping": stop_in_time,
    "overhead": own_time,
}


if __name__ == "__main__":
    main(sys.argv[1:])
