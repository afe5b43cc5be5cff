"""The result of ``--fail-on`` for a CI job: whether a condition holds, and whether it could have been detected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from busbw_analysis.diagnosis.compare import Compared, Comparison, LeftOut
from busbw_analysis.diagnosis.hypothesis_tests import launches_needed

Outcome = Literal["passed", "failed", "cannot tell"]
Finding = Literal["slower", "cannot tell", "missing", "too few launches", "too much scatter", "no result"]

FAILURES: Final = ("slower", "cannot-tell", "missing")
"""The conditions of ``--fail-on``. ``missing``: a case has a result in A and none in B."""

EXIT_STATUS: Final[dict[Outcome, int]] = {"passed": 0, "failed": 1, "cannot tell": 3}
"""2 is the status of a wrong request, which no outcome shares."""

DETECT: Final = 0.1
"""The slowdown, as a share, that a gate must be able to see unless told otherwise."""

_NEED_A_VERDICT: Final = {"slower", "cannot-tell"}
"""Conditions that can only be detected if every band can be judged."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a gate does not pass.

    outcome: ``failed`` if a condition holds, ``cannot tell`` if it could not have been detected.
    bands, cases: what the reason is about.
    needed: launches per side (paired: pairs) that would decide all of ``bands``; None: more than 1000.
    """

    outcome: Literal["failed", "cannot tell"]
    finding: Finding
    bands: tuple[Compared, ...] = ()
    cases: tuple[LeftOut, ...] = ()
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of ``--fail-on``.

    detect: the slowdown, as a share, that every band had to be able to show.
    """

    fail_on: tuple[str, ...]
    detect: float
    reasons: tuple[Reason, ...]

    @property
    def outcome(self) -> Outcome:
        """``failed`` if a condition holds, even if other bands could not be judged; else whether all could be."""
        outcomes = {reason.outcome for reason in self.reasons}
        return "failed" if "failed" in outcomes else "cannot tell" if outcomes else "passed"

    @property
    def code(self) -> int:
        """The exit status."""
        return EXIT_STATUS[self.outcome]


def gate_of(comparison: Comparison, fail_on: Sequence[str], detect: float = DETECT) -> Gate:
    """Check the conditions ``fail_on`` (a selection of ``FAILURES``), and whether they could have been detected.

    detect: a slowdown of this share must have been visible; at least ``comparison.within``, which counts as equal.
    """
    slower = tuple(band for band in comparison.bands if band.verdict.word == "slower")
    undecided = [band for band in comparison.bands if band.verdict.word == "cannot tell"]
    few = tuple(band for band in undecided if band.verdict.fewest is not None)
    unsure = tuple(band for band in undecided if band.verdict.fewest is None)
    blind = tuple(band for band in unsure if not _sees(band, detect))
    missing = tuple(left for left in comparison.left_out if left.missing == "B")
    unjudged = tuple(left for left in comparison.left_out if left.unjudged)
    judging = bool(_NEED_A_VERDICT & set(fail_on))
    candidates = (
        ("slower" in fail_on, Reason("failed", "slower", slower)),
        ("cannot-tell" in fail_on, Reason("failed", "cannot tell", unsure)),
        ("missing" in fail_on, Reason("failed", "missing", cases=missing)),
        (judging, Reason("cannot tell", "too few launches", few, needed=_needed(few, comparison, detect))),
        (
            "slower" in fail_on,
            Reason("cannot tell", "too much scatter", blind, needed=_needed(blind, comparison, detect)),
        ),
        (judging, Reason("cannot tell", "no result", cases=unjudged)),
    )
    reasons = tuple(reason for asked, reason in candidates if asked and (reason.bands or reason.cases))
    return Gate(tuple(fail_on), detect, reasons)


def _sees(band: Compared, detect: float) -> bool:
    """Whether an undecided band speaks against a slowdown of ``detect``: its interval excludes one, or one would
    probably have been detected and the estimate is smaller.
    """
    high, detectable = band.estimate.high, band.verdict.detectable
    excluded = high is not None and high <= 1 + detect
    return excluded or (detectable is not None and detectable <= detect and band.estimate.ratio < 1 + detect)


def _needed(bands: Sequence[Compared], comparison: Comparison, detect: float) -> int | None:
    """The launches that decide whether B is slower by ``detect`` in all ``bands``, of the scatter between launches."""
    counts = [_needed_by(band, comparison, detect) for band in bands]
    launches = [count for count in counts if count is not None]
    return max(launches, default=None) if len(launches) == len(counts) else None


def _needed_by(band: Compared, comparison: Comparison, detect: float) -> int | None:
    scatter, verdict = band.estimate.scatter, band.verdict
    if scatter is None:
        return verdict.fewest
    count = launches_needed(scatter, detect, len(comparison.bands), paired=comparison.paired)
    if count is not None and count <= min(band.estimate.launches):  # enough for ``detect``, not for what was observed
        return None if verdict.needed is None else verdict.needed.launches
    return count
