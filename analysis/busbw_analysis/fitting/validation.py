"""Held-out errors of a joint fit: sizes, the largest number of ranks, launches."""

from dataclasses import dataclass, replace

import numpy as np

from busbw.units import counted
from busbw_analysis.data.grouped import grouped
from busbw_analysis.fitting import design
from busbw_analysis.fitting.design import Curve, Floats, Models, Observation, Observed, Wanted
from busbw_analysis.fitting.identify import determined_by, identify, settled
from busbw_analysis.fitting.score import VALID_LAUNCHES, VALID_RANKS, VALID_SIZES, Validation, validation
from busbw_analysis.fitting.selection import LEAST_RANK_COUNTS, chosen_models
from busbw_analysis.models.costs import CostModel


@dataclass(frozen=True, slots=True)
class OfCurve:
    """The error of one op with one algorithm on its largest number of ranks, when the fit uses only fewer ranks.

    ``tested``: the observations on the largest number of ranks.
    ``seen``: the observations of the same curve on fewer ranks.
    ``errors``: the relative error of each of ``tested``; empty if it cannot be predicted.
    ``note``: why there are no errors; else a remark on them.
    """

    tested: tuple[Observation, ...]
    seen: tuple[Observation, ...]
    errors: tuple[float, ...]
    note: str


def by_curve(observations: Observed, models: Models, wanted: Wanted) -> dict[Curve, OfCurve]:
    """Each curve validated separately, because the error of one op says nothing about another."""
    found: dict[Curve, OfCurve] = {}
    below: dict[int, Models] = {}
    for curve in models:
        own = [one for one in observations if one.curve == curve]
        largest = max(one.ranks for one in own)
        seen = [one for one in own if one.ranks < largest]
        tested = [one for one in own if one.ranks == largest]
        counts = len({one.ranks for one in own})
        known, note = models, ""
        if curve[1] is None and counts > LEAST_RANK_COUNTS:
            if largest not in below:
                below[largest] = _chosen_below(largest, observations, models, wanted)
            known = below[largest]
        elif curve[1] is None and counts == LEAST_RANK_COUNTS:
            note = "which were also used to select the algorithm"
        fewer = [one for one in observations if one.ranks < largest]
        errors = _errors(fewer, tested, known, wanted) if seen else None
        if errors is None:
            why = f"and fewer ranks do not determine {largest}" if seen else "so none can be held out"
            note = f"{curve[0]} was measured on {counted(counts, 'number')} of ranks, {why}"
        values = () if errors is None else tuple(errors.tolist())
        found[curve] = OfCurve(tuple(tested), tuple(seen), values, note)
    return found


def _chosen_below(largest: int, observations: Observed, models: Models, wanted: Wanted) -> dict[Curve, CostModel]:
    """``models`` as selected without the observations on ``largest`` ranks, so that these are held out of the selection
    as well.
    """
    earlier = chosen_models([one for one in observations if one.ranks < largest], wanted)
    own = grouped(observations, lambda one: one.curve)
    possible = {curve: model for curve, model in earlier.items() if design.possible_for(model, own[curve], wanted)}
    return {**models, **possible}


def _held_out_ranks(observations: Observed, models: Models, wanted: Wanted) -> Floats | None:
    """Errors on the largest n of a fit to all others; None if the others do not determine it."""
    largest = max(one.ranks for one in observations)
    seen = [one for one in observations if one.ranks < largest]
    tested = [one for one in observations if one.ranks == largest]
    if not seen or any(one.curve not in {other.curve for other in seen} for one in tested):
        return None
    return _errors(seen, tested, models, wanted)


def _held_out_sizes(observations: Observed, models: Models, wanted: Wanted) -> Floats | None:
    """Errors on every second size of each curve, except its first and last, of a fit to the others."""
    tested: list[Observation] = []
    for members in grouped(observations, lambda one: (one.curve, one.ranks, one.hosts)).values():
        tested += sorted(members, key=lambda one: one.size_bytes)[1:-1:2]
    return _errors([one for one in observations if one not in tested], tested, models, wanted)


def _errors(seen: Observed, tested: Observed, models: Models, wanted: Wanted) -> Floats | None:
    """Like ``fitted``; None if ``seen`` does not determine the times of ``tested``."""
    rows, coefficients = settled(design.branches_of(seen, models), design.times_of(seen), wanted)
    unknown = identify(rows, design.times_of(seen), wanted).unknown
    asked = design.longer_of(design.branches_of(tested, models), coefficients)
    if not all(determined_by(row, unknown) for row in asked):
        return None
    return design.relative_errors(asked, design.times_of(tested), coefficients)


def fitted(seen: Observed, tested: Observed, models: Models, wanted: Wanted) -> Floats:
    """Errors on ``tested`` of a fit to ``seen``."""
    _, coefficients = settled(design.branches_of(seen, models), design.times_of(seen), wanted)
    longer = design.longer_of(design.branches_of(tested, models), coefficients)
    return design.relative_errors(longer, design.times_of(tested), coefficients)


def _left_out_launches(observations: Observed, models: Models, wanted: Wanted) -> Floats | None:
    """Errors on each launch of a fit to the others; None with a single launch. Of several runs, the first launch of
    each is left out together, then the second, and so on.
    """
    sets = design.launch_sets(observations)
    found: list[Floats] = []
    for left in range(max(len(keys) for keys in sets.values())):
        out = {name: keys[left] for name, keys in sets.items() if 1 < len(keys) > left}
        apart = [_without_launch(one, out.get(design.launch_set_of(one))) for one in observations]
        alone = [tested for _, tested in apart if tested is not None]
        errors = _errors([seen for seen, _ in apart if seen is not None], alone, models, wanted) if alone else None
        found += [] if errors is None else [errors]
    return np.concatenate(found) if found else None


def _without_launch(one: Observation, left: object) -> tuple[Observation | None, Observation | None]:
    """The observation without the launch ``left``, and with only that launch; None if no launches remain."""
    apart: tuple[list[float], list[float]] = [], []
    for key, time in zip(design.launch_keys_of(one), one.launches, strict=True):
        apart[left is not None and key == left].append(time)
    rest, alone = (replace(one, launches=tuple(times), launch_keys=()) if times else None for times in apart)
    return rest, alone


def validations(observations: Observed, models: Models, wanted: Wanted) -> tuple[Validation, ...]:
    """All validations of a fit to ``observations``."""
    largest = max(one.ranks for one in observations)
    counts = len({one.ranks for one in observations})
    note = f"{largest} ranks, from fewer"
    known = models
    if counts > LEAST_RANK_COUNTS:
        known = _chosen_below(largest, observations, models, wanted)
    elif counts == LEAST_RANK_COUNTS:
        note += ", which were also used to select the algorithms"
    sizes = _held_out_sizes(observations, models, wanted)
    no_size = "no size lies between two others that determine it"
    ranks = _held_out_ranks(observations, known, wanted)
    few = f"{counted(counts, 'number')} of ranks, and fewer ranks do not determine {largest}"
    launches = _left_out_launches(observations, models, wanted)
    return (
        validation("every second size", sizes, VALID_SIZES, why_not=no_size),
        validation("the largest number of ranks", ranks, VALID_RANKS, note, few),
        validation("each launch in turn", launches, VALID_LAUNCHES, why_not="there is only one launch"),
    )
