"""The result of ``--fail-on`` for a CI job: whether a condition holds, and whether it could have been detected."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from busbw_analysis.diagnosis.compare import ComparedBand, Comparison, LeftOut

Finding = Literal["slower", "cannot tell", "missing", "too few launches", "no result"]

FAILURES: Final = ("slower", "cannot-tell", "missing")
"""The conditions of ``--fail-on``. ``missing``: a case has a result in A and none in B."""

_NEED_A_VERDICT: Final = {"slower", "cannot-tell"}
"""Conditions that can only be detected if every band can be judged."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a gate does not pass.

    code: 1 if a condition holds, 2 if it could not have been detected.
    bands, cases: what the reason is about.
    needed: fewest launches per side that would be enough.
    """

    code: Literal[1, 2]
    finding: Finding
    bands: tuple[ComparedBand, ...] = ()
    cases: tuple[LeftOut, ...] = ()
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of ``--fail-on``: exit status 1 if any reason has code 1, else 2 if any has code 2, else 0."""

    fail_on: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def code(self) -> Literal[0, 1, 2]:
        """The exit status. A condition that holds counts even if other bands could not be judged."""
        return min((reason.code for reason in self.reasons), default=0)


def gate_of(comparison: Comparison, fail_on: Sequence[str]) -> Gate:
    """Check the conditions ``fail_on`` (a selection of ``FAILURES``), and whether they could have been detected."""
    slower = tuple(band for band in comparison.bands if band.verdict.word == "slower")
    few = tuple(band for band in comparison.bands if band.verdict.fewest is not None)
    unsure = tuple(band for band in comparison.bands if band.verdict.word == "cannot tell" and band not in few)
    missing = tuple(left for left in comparison.left_out if left.missing == "B")
    unjudged = tuple(left for left in comparison.left_out if left.unjudged)
    judging = bool(_NEED_A_VERDICT & set(fail_on))
    needed = max((band.verdict.fewest or 0 for band in few), default=None)
    found = (
        ("slower" in fail_on, Reason(1, "slower", slower)),
        ("cannot-tell" in fail_on, Reason(1, "cannot tell", unsure)),
        ("missing" in fail_on, Reason(1, "missing", cases=missing)),
        (judging, Reason(2, "too few launches", few, needed=needed)),
        (judging, Reason(2, "no result", cases=unjudged)),
    )
    return Gate(tuple(fail_on), tuple(reason for asked, reason in found if asked and (reason.bands or reason.cases)))
