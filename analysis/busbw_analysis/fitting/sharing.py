"""How ranks share links in a joint fit: each rank has its own link, all ranks of a host share one path, or all share
one card to other hosts.
"""

from dataclasses import dataclass
from typing import Final

from busbw_analysis.fitting import design
from busbw_analysis.fitting.design import Curve, Models, Observation, Observed, Parameter
from busbw_analysis.fitting.identify import INNER, columns_of, settled
from busbw_analysis.fitting.selection import chosen_models
from busbw_analysis.fitting.validation import fitted
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import candidates

_LINKS: Final[tuple[Parameter, ...]] = ("alpha", "beta", "per_call", "gamma")
_SHARED: Final[tuple[Parameter, ...]] = ("alpha", "shared", "per_call", "gamma")
_OWN_CARDS: Final[tuple[Parameter, ...]] = ("alpha", "beta", *INNER, "per_call", "gamma")
_ONE_CARD: Final[tuple[Parameter, ...]] = ("alpha", "card", *INNER, "per_call", "gamma")
"""The parameters of each sharing model, the most important first: own links or one shared path on one host; own cards
or one shared card between hosts with several ranks each.
"""

_Errors = dict[tuple[Parameter, ...], float]

_ALIKE: Final = 0.8
"""A sharing model is preferred if its error is below this fraction of the other's error."""

_NEGLIGIBLE: Final = 0.001
"""Smaller errors count as this."""


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """The selected sharing model.

    ``wanted``: the parameters to fit.
    ``notes``: how it was selected.
    ``cards_known``: whether the data determine if the ranks of a host share a card.
    """

    wanted: tuple[Parameter, ...]
    notes: tuple[str, ...] = ()
    cards_known: bool = False


def link_sharing(observations: Observed) -> LinkSharing:
    """The sharing model with the lower error. On one host, the fit leaves out the largest number of ranks. Without any
    bytes sent, each rank has its own link.
    """
    placement = observations[0].regime.placement
    sent = any(one.size_bytes for one in observations)
    if placement == "several ranks on several hosts":
        return _cards(observations) if sent else LinkSharing(_OWN_CARDS)
    if placement != "one host" or not sent:
        return LinkSharing(_LINKS)
    largest = max(one.ranks for one in observations)
    seen = [one for one in observations if one.ranks < largest]
    errors: _Errors = {}
    for wanted in (_LINKS, _SHARED):
        models = chosen_models(observations, wanted)
        known = seen if {one.curve for one in seen} >= set(models) else observations
        errors[wanted] = max(_NEGLIGIBLE, float(fitted(known, observations, models, wanted).mean()))
    return _decided(
        errors,
        "with a path per rank and {:.1%} with a shared path",
        "undecided whether ranks share one path; each is assumed to have its own",
        "each rank has its own path",
        "the ranks share one path with rate R",
    )


def _decided(errors: _Errors, comparison: str, alike: str, own: str, shared: str) -> LinkSharing:
    """The sharing model with the lower of two ``errors`` (own links first), with the words for each case."""
    (apart, of_own), (together, of_shared) = errors.items()
    why = f"the mean error is {of_own:.1%} {comparison.format(of_shared)}"
    if min(of_own, of_shared) > _ALIKE * max(of_own, of_shared):
        return LinkSharing(apart, (f"{alike}: {why}",))
    wanted, decision = (together, shared) if of_shared < of_own else (apart, own)
    return LinkSharing(wanted, (f"{decision}: {why}",), cards_known=True)


def _cards(observations: Observed) -> LinkSharing:
    """Whether the ranks of a host share a card, by the error of a fit to all data."""
    known, _ = through_one_card([one for one in observations if one.algorithm is not None])
    models = {one.curve: candidates(one.op, one.cost_models, one.algorithm)[0] for one in known}
    if not any(model.two_levels for model in models.values()):
        return LinkSharing(_OWN_CARDS)
    errors = {
        wanted: max(_NEGLIGIBLE, float(fitted(known, known, models, wanted).mean()))
        for wanted in (_OWN_CARDS, _ONE_CARD)
    }
    return _decided(
        errors,
        "with a card per rank and {:.1%} with one per host",
        "undecided whether the ranks of a host share a card; each is assumed to have its own",
        "each rank has its own card to other hosts",
        "the ranks of a host share one card with rate C to other hosts",
    )


def unknown_by_card(model: CostModel) -> str:
    """Why a fit with one card per host cannot use ``model``."""
    return f"{model.op} by {model.algorithm}: its formula does not give the bytes of a host through one shared card"


def through_one_card(observations: Observed) -> tuple[tuple[Observation, ...], list[str]]:
    """The ``observations`` that a fit with one card per host can use, and why it cannot use the others. For a library's
    own op, its known or first candidate algorithm decides.
    """
    out: dict[Curve, str] = {}
    for curve in dict.fromkeys(one.curve for one in observations):
        own = [one for one in observations if one.curve == curve]
        first = next((model for model in design.candidates_of(own) if design.possible_for(model, own, ())), None)
        if first is not None and not design.possible_for(first, own, _ONE_CARD):
            out[curve] = f"left out: {unknown_by_card(first)}"
    return tuple(one for one in observations if one.curve not in out), list(out.values())


def by_cards(observations: Observed, models: Models) -> tuple[tuple[float, ...], ...]:
    """The coefficients (in the order of PARAMETERS) of a fit with one card per rank and of a fit with one per host.

    Both use the observations whose bytes through one card are known; or all observations if those send nothing.
    """
    known = [one for one in observations if design.known_in(models[one.curve], _ONE_CARD, *one.where)]
    branched, times = design.branches_of(known, models), design.times_of(known)
    if not branched[:, 0, columns_of(("card",))].any():
        branched, times = design.branches_of(observations, models), design.times_of(observations)
    return tuple(tuple(settled(branched, times, wanted)[1].tolist()) for wanted in (_OWN_CARDS, _ONE_CARD))
