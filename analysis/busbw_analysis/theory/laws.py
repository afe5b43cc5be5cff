"""The time of a call for any number of ranks: what an algorithm contributes, times parameters that were found in the
same data, with what is known of how wrong that is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from busbw.units import format_rate, format_time
from busbw_analysis.series import Series
from busbw_analysis.theory.joint import PARAMETERS, Joint, Parameter
from busbw_analysis.theory.models import Parameters
from busbw_analysis.theory.terms import Term, candidates

BY_MESSAGES, JOINTLY = "messages between two ranks", "a joint fit over numbers of ranks"
"""What a law can rest on."""

VALID_SIZES, VALID_RANKS = 0.10, 0.20
"""Median relative error of held-out data up to which a prediction is called validated: sizes, and numbers of ranks."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How wrong the same way of predicting was on measurements that were kept from it. ``how`` says on which; errors
    are relative, and None where nothing could be held out. ``no_test_of`` is what it was asked for and that says
    nothing of: then it has not ``passed``, however small the errors.
    """

    how: str
    median_error: float | None
    worst_error: float | None
    passed: bool
    no_test_of: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The whole as a line."""
        verdict = "validated" if self.passed else "not validated"
        if self.median_error is None or self.worst_error is None:
            return f"{verdict}: {self.how}"
        errors = f"were off by {self.median_error:.1%} (median) and {self.worst_error:.1%} (worst)"
        beyond = f"; that is no test of {', nor of '.join(self.no_test_of)}" if self.no_test_of else ""
        return f"{verdict}: {self.how} {errors}{beyond}"

    def asked_for(self, *beyond: str) -> "HeldOut":
        """The same for a question that goes ``beyond`` what was tested."""
        return replace(self, no_test_of=(*self.no_test_of, *beyond), passed=self.passed and not beyond)


@dataclass(frozen=True, slots=True)
class Value:
    """A number that was found and both ends of its 95 % interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Law:
    """The time of one call for any number of ranks and hosts and any size, by one algorithm: ``at(n, k, S)``, which
    raises AnalysisError where its parameters do not tell. ``parameters`` says in words what they are and where from,
    ``tested_ranks`` up to how many ranks ``held_out`` reached as far as the question.

    ``chosen``: it is the one that answers, and no other candidate of the same data. ``tied``: the data cannot tell it
    from the chosen one.
    """

    term: Term
    at: Callable[[int, int, float], Value]
    basis: str
    parameters: str
    interval_note: str
    held_out: HeldOut
    tested_ranks: float
    chosen: bool = True
    tied: bool = False


def _scored(term: Term, at: Callable[[int, int, float], Value], curves: Sequence[Series]) -> HeldOut:
    """How far it is off on the largest number of ranks, of which its parameters have seen nothing."""
    largest = max((len(one.key.ranks) for one in curves), default=0)
    errors = [
        abs(at(largest, one.key.hosts, point.size_bytes).value / (point.time_ns / 1e9) - 1)
        for one in curves
        if len(one.key.ranks) == largest
        for point in one.points
    ]
    if not errors:
        return HeldOut(f"{term.op} by {term.algorithm} was not measured", None, None, passed=False)
    how = f"measured times on {largest} ranks ({len(errors)}), which the parameters have not seen,"
    middle = median(errors)
    return HeldOut(how, middle, max(errors), middle <= VALID_RANKS)


def from_messages(term: Term, parameters: Parameters, curves: Sequence[Series], *, chosen: bool = True) -> Law:
    """The law of ``term`` with α, β and R from messages between two ranks: no sums and no constant of a call are known.

    ``curves`` are the measured ones of the same op and algorithm, which it is scored on.
    """
    rate = parameters.host_bytes_per_second

    def at(ranks: int, hosts: int, size_bytes: float) -> Value:
        moving = term.sent_bytes(ranks, hosts, size_bytes) * parameters.beta_seconds_per_byte
        if rate is not None:
            moving = max(moving, term.moved_bytes(ranks, hosts, size_bytes) / rate)
        return Value(term.rounds(ranks, hosts, size_bytes) * parameters.alpha_seconds + moving)

    return Law(
        term=term,
        at=at,
        basis=BY_MESSAGES,
        parameters=f"{parameters.origin}; sums (γ) and what a call costs by itself (c0) are left out",
        interval_note="no interval: α and β of messages have none",
        held_out=_scored(term, at, curves),
        # Two ranks said what so many take: as far as that, once more.
        tested_ranks=max((len(one.key.ranks) for one in curves), default=2) ** 2 / 2,
        chosen=chosen,
    )


def from_joint(joint: Joint, op: str, algorithm: str | None = None) -> tuple[Law, ...]:
    """The laws of ``op`` with the parameters of a joint fit: the one of ``algorithm`` where it is named, else of every
    algorithm, of which the one is chosen that explains the library best.
    """
    chosen = algorithm or joint.algorithms[op]
    tied = joint.ties.get(op, ()) if algorithm is None else ()
    held_out, parameters = _of_ranks(joint), _in_words(joint)

    def law(term: Term) -> Law:
        def at(ranks: int, hosts: int, size_bytes: float) -> Value:
            value = joint.seconds(term, ranks, hosts, size_bytes)
            ends = joint.interval(term, ranks, hosts, size_bytes)
            # Where resamples choose otherwise, what all launches say may lie outside.
            return Value(value) if ends is None else Value(value, min(ends[0], value), max(ends[1], value))

        return Law(
            term=term,
            at=at,
            basis=JOINTLY,
            parameters=parameters,
            interval_note=joint.interval_note,
            held_out=held_out,
            tested_ranks=_tested_ranks(joint),
            chosen=term.algorithm == chosen,
            tied=term.algorithm in tied and term.algorithm != chosen,
        )

    return tuple(law(term) for term in candidates(op, joint.backend, algorithm))


def _of_ranks(joint: Joint) -> HeldOut:
    found = next((one for one in joint.validations if one.held_out == "the largest number of ranks"), None)
    if found is None or found.passed is None:
        why = "no number of ranks was held out" if found is None else found.note
        return HeldOut(why, None, None, passed=False)
    largest = max(one.ranks for one in joint.observations)
    how = f"times on {largest} ranks ({found.count}), predicted from fewer ranks,"
    return HeldOut(how, found.median_error, found.worst_error, found.passed)


def _tested_ranks(joint: Joint) -> float:
    """As many times the largest number of ranks as that is the one before it."""
    counts = sorted({one.ranks for one in joint.observations})
    return counts[-1] ** 2 / counts[-2] if len(counts) > 1 else counts[-1]


def _in_words(joint: Joint) -> str:
    said: list[str] = []
    for name, estimate in joint.parameters.items():
        symbol, rate = _SYMBOLS[name]
        if rate:
            said.append(f"{symbol} {format_rate(1 / estimate.value) if estimate.value > 0 else 'without limit'}")
        else:
            said.append(f"{symbol} {format_time(estimate.value * 1e9)}")
    ops = sorted({one.op for one in joint.observations})
    ranks = sorted({one.ranks for one in joint.observations})
    told = ", ".join(said) or "none that the data tell apart"
    if joint.coefficients[PARAMETERS.index("shared")] > 0:
        told += " (in place of S β the bytes that all ranks move, over R)"
    return f"{told}, from {', '.join(ops)} on {', '.join(map(str, ranks))} ranks"


_SYMBOLS: Final[dict[Parameter, tuple[str, bool]]] = {
    "alpha": ("α", False),
    "beta": ("1/β", True),
    "shared": ("R", True),
    "per_call": ("c0", False),
    "gamma": ("1/γ", True),
}
"""How each is written, and whether as a rate."""
