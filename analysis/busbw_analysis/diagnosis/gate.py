"""What a gate in CI asks of a comparison: whether what it is to fail on holds, and whether it could have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from busbw_analysis.diagnosis.compare import ComparedBand, Comparison, LeftOut

Finding = Literal["slower", "cannot tell", "missing", "too few launches", "no result"]

FAILURES: Final = ("slower", "cannot-tell", "missing")
"""What a comparison can be made to fail on; ``missing``: a case that A has a result of and B has not."""

_NEED_A_VERDICT: Final = {"slower", "cannot-tell"}
"""Those of ``FAILURES`` that can only hold where every band can be judged."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a gate does not pass: ``code`` 1 where what it looks for was found, 2 where it could not have been found.

    ``bands`` or ``cases`` are those that it is about; ``needed`` is how many launches a side it takes at least.
    """

    code: Literal[1, 2]
    finding: Finding
    bands: tuple[ComparedBand, ...] = ()
    cases: tuple[LeftOut, ...] = ()
    needed: int | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """What ``--fail-on`` comes to: exit 1 when any reason has that code, else 2 when any has that, else 0."""

    fail_on: tuple[str, ...]
    reasons: tuple[Reason, ...]

    @property
    def code(self) -> Literal[0, 1, 2]:
        """The exit status: a finding is sure, whatever else could not be judged."""
        codes = [reason.code for reason in self.reasons]
        return 0 if not codes else min(codes)


def gate_of(comparison: Comparison, fail_on: Sequence[str]) -> Gate:
    """What a gate in CI asks: whether one of ``fail_on`` (of ``FAILURES``) holds, and whether it could have."""
    slower = tuple(band for band in comparison.bands if band.verdict.word == "slower")
    few = tuple(band for band in comparison.bands if band.verdict.fewest is not None)
    unsure = tuple(band for band in comparison.bands if band.verdict.word == "cannot tell" and band not in few)
    missing = tuple(one for one in comparison.left_out if one.missing == "B")
    unjudged = tuple(one for one in comparison.left_out if one.unjudged)
    judging = bool(_NEED_A_VERDICT & set(fail_on))
    needed = max((band.verdict.fewest or 0 for band in few), default=None)
    found = (
        ("slower" in fail_on, Reason(1, "slower", slower)),
        ("cannot-tell" in fail_on, Reason(1, "cannot tell", unsure)),
        ("missing" in fail_on, Reason(1, "missing", cases=missing)),
        (judging, Reason(2, "too few launches", few, needed=needed)),
        (judging, Reason(2, "no result", cases=unjudged)),
    )
    return Gate(tuple(fail_on), tuple(one for asked, one in found if asked and (one.bands or one.cases)))
