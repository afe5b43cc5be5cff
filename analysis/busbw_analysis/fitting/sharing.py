"""Whose bytes a joint fit counts: those of each rank through a link of its own, those of all on one host, or those that
the ranks of a host send to others through one card; and what is known of an algorithm by each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from busbw_analysis.fitting.design import (
    Models,
    Observation,
    Parameter,
    branches_of,
    candidates_of,
    known_in,
    possible_for,
    times_of,
)
from busbw_analysis.fitting.identify import columns_of, settled
from busbw_analysis.fitting.selection import Curve, chosen_models
from busbw_analysis.fitting.validation import fitted
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import candidates

_LINKS: Final[tuple[Parameter, ...]] = ("alpha", "beta", "per_call", "gamma")
_SHARED: Final[tuple[Parameter, ...]] = ("alpha", "shared", "per_call", "gamma")
INNER: Final[tuple[Parameter, ...]] = ("inner_alpha", "inner_beta")
_OWN_CARDS: Final[tuple[Parameter, ...]] = ("alpha", "beta", *INNER, "per_call", "gamma")
_ONE_CARD: Final[tuple[Parameter, ...]] = ("alpha", "card", *INNER, "per_call", "gamma")
"""What is fitted, the most wanted first: bytes that go through each rank's own link, or all through one host; between
hosts with several ranks each through a card of each rank, or all of a host through one.
"""

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


def link_sharing(observations: Sequence[Observation]) -> LinkSharing:
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
    errors: dict[tuple[Parameter, ...], float] = {}
    for wanted in (_LINKS, _SHARED):
        models = chosen_models(observations, wanted)
        known = seen if {one.curve for one in seen} >= set(models) else observations
        errors[wanted] = max(_NEGLIGIBLE, float(fitted(known, observations, models, wanted).mean()))
    links, shared = errors[_LINKS], errors[_SHARED]
    told = f"times are off by {links:.1%} on average with the bytes of each rank and by {shared:.1%} with those of all"
    if min(links, shared) > _ALIKE * max(links, shared):
        said = f"whether ranks share one path cannot be told, so each is taken to have its own: {told}"
        return LinkSharing(_LINKS, (said,))
    if shared < links:
        return LinkSharing(_SHARED, (f"the ranks share one path, whose rate is R: {told}",))
    return LinkSharing(_LINKS, (f"each rank has a path of its own: {told}",))


def _cards(observations: Sequence[Observation]) -> LinkSharing:
    """Whether what a rank sends to other hosts counts or what all of its host do, by the error of a fit to all."""
    known, _ = through_one_card([one for one in observations if one.algorithm is not None])
    models = {one.curve: candidates(one.op, one.cost_models, one.algorithm)[0] for one in known}
    if not any(model.two_levels for model in models.values()):
        return LinkSharing(_OWN_CARDS)
    own, one_card = (
        max(_NEGLIGIBLE, float(fitted(known, known, models, wanted).mean())) for wanted in (_OWN_CARDS, _ONE_CARD)
    )
    told = f"times are off by {own:.1%} on average with a card for each rank and by {one_card:.1%} with one for a host"
    if min(own, one_card) > _ALIKE * max(own, one_card):
        said = f"whether ranks of a host share a card cannot be told, so each has its own here: {told}"
        return LinkSharing(_OWN_CARDS, (said,))
    if one_card < own:
        said = f"the ranks of a host share one way to the others, whose rate is C: {told}"
        return LinkSharing(_ONE_CARD, (said,), cards_told=True)
    return LinkSharing(_OWN_CARDS, (f"each rank has a way of its own to other hosts: {told}",), cards_told=True)


def unknown_by_card(model: CostModel) -> str:
    """Why ``model`` has no part in a fit with one card for a host, and no answer from it."""
    return (
        f"{model.op} by {model.algorithm}: what the ranks of a host send through one card is not known of this formula"
    )


def through_one_card(observations: Sequence[Observation]) -> tuple[tuple[Observation, ...], list[str]]:
    """Those of ``observations`` that can take part in a fit with one card for a host, and why the others cannot: of
    what a library runs, that which it is known or first taken to run has to.
    """
    out: dict[Curve, str] = {}
    for curve in dict.fromkeys(one.curve for one in observations):
        own = [one for one in observations if one.curve == curve]
        first = next((model for model in candidates_of(own) if possible_for(model, own, ())), None)
        if first is not None and not possible_for(first, own, _ONE_CARD):
            out[curve] = f"left out: {unknown_by_card(first)}"
    return tuple(one for one in observations if one.curve not in out), list(out.values())


def by_cards(observations: Sequence[Observation], models: Models) -> tuple[tuple[float, ...], ...]:
    """The coefficients (in the order of PARAMETERS) of a fit with a card for each rank and of one with one card for a
    host. Both are to the same: that of which it is known what goes through one card, or all where that sends nothing.
    """
    told = [one for one in observations if known_in(models[one.curve], _ONE_CARD, one.ranks, one.hosts, one.size_bytes)]
    branched, times = branches_of(told, models), times_of(told)
    if not branched[:, 0, columns_of(("card",))].any():
        branched, times = branches_of(observations, models), times_of(observations)
    return tuple(tuple(settled(branched, times, wanted)[1].tolist()) for wanted in (_OWN_CARDS, _ONE_CARD))
