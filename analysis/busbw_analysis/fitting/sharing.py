"""Whose bytes a joint fit counts: those of each rank through a link of its own, those of all on one host, or those that
the ranks of a host send to others through one card; and what is known of an algorithm by each.
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
"""What is fitted, the most wanted first: bytes that go through each rank's own link, or all through one host; between
hosts with several ranks each through a card of each rank, or all of a host through one.
"""

_Errors = dict[tuple[Parameter, ...], float]

_ALIKE: Final = 0.8
"""A smaller error than this share of the other is worth something."""

_NEGLIGIBLE: Final = 0.001
"""Errors below it are not compared."""


@dataclass(frozen=True, slots=True)
class LinkSharing:
    """The parameters that are ``wanted``, and in ``notes`` what has to be said of that. ``cards_told``: whether the
    data say that each rank has a card of its own, or that those of a host share one.
    """

    wanted: tuple[Parameter, ...]
    notes: tuple[str, ...] = ()
    cards_told: bool = False


def link_sharing(observations: Observed) -> LinkSharing:
    """Whether each rank's own bytes count or those of all, by the error of a fit to all but the largest n. Where no
    byte was sent there is nothing to say of that.
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
        "with the bytes of each rank and by {:.1%} with those of all",
        "whether ranks share one path cannot be told, so each is taken to have its own",
        "each rank has a path of its own",
        "the ranks share one path, whose rate is R",
    )


def _decided(errors: _Errors, way: str, alike: str, own: str, shared: str) -> LinkSharing:
    """What is wanted by the ``errors`` of both, that with a way for each rank first, and what is said in each case."""
    (apart, of_own), (together, of_shared) = errors.items()
    told = f"times are off by {of_own:.1%} on average {way.format(of_shared)}"
    if min(of_own, of_shared) > _ALIKE * max(of_own, of_shared):
        return LinkSharing(apart, (f"{alike}: {told}",))
    wanted, said = (together, shared) if of_shared < of_own else (apart, own)
    return LinkSharing(wanted, (f"{said}: {told}",), cards_told=True)


def _cards(observations: Observed) -> LinkSharing:
    """Whether what a rank sends to other hosts counts or what all of its host do, by the error of a fit to all."""
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
        "with a card for each rank and by {:.1%} with one for a host",
        "whether ranks of a host share a card cannot be told, so each has its own here",
        "each rank has a way of its own to other hosts",
        "the ranks of a host share one way to the others, whose rate is C",
    )


def unknown_by_card(model: CostModel) -> str:
    """Why ``model`` has no part in a fit with one card for a host, and no answer from it."""
    return (
        f"{model.op} by {model.algorithm}: what the ranks of a host send through one card is not known of this formula"
    )


def through_one_card(observations: Observed) -> tuple[tuple[Observation, ...], list[str]]:
    """Those of ``observations`` that can take part in a fit with one card for a host, and why the others cannot: of
    what a library runs, that which it is known or first taken to run has to.
    """
    out: dict[Curve, str] = {}
    for curve in dict.fromkeys(one.curve for one in observations):
        own = [one for one in observations if one.curve == curve]
        first = next((model for model in design.candidates_of(own) if design.possible_for(model, own, ())), None)
        if first is not None and not design.possible_for(first, own, _ONE_CARD):
            out[curve] = f"left out: {unknown_by_card(first)}"
    return tuple(one for one in observations if one.curve not in out), list(out.values())


def by_cards(observations: Observed, models: Models) -> tuple[tuple[float, ...], ...]:
    """The coefficients (in the order of PARAMETERS) of a fit with a card for each rank and of one with one card for a
    host. Both are to the same: that of which it is known what goes through one card, or all where that sends nothing.
    """
    told = [one for one in observations if design.known_in(models[one.curve], _ONE_CARD, *one.where)]
    branched, times = design.branches_of(told, models), design.times_of(told)
    if not branched[:, 0, columns_of(("card",))].any():
        branched, times = design.branches_of(observations, models), design.times_of(observations)
    return tuple(tuple(settled(branched, times, wanted)[1].tolist()) for wanted in (_OWN_CARDS, _ONE_CARD))
