"""Runs whose rounds are chosen while they run: a controller asks for one, sees its outcome, and asks for the next.

The instrument judges nothing: controllers belong to the analysis and are loaded by name, on rank 0 only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, Protocol

from busbw.runs.facts import HostFacts
from busbw.runs.records import Case, Failed, Measurement, Record, Skipped

CONTROLLERS: Final[dict[str, tuple[str, str]]] = {
    "fleet": ("busbw_analysis.fleet.controller", "FleetController"),
}
"""Name of a controller → its module and class. It is made with the plan."""
LEAST_NODES: Final = 4
"""Of fewer nodes, a controller does not know what is usual."""


class Ask(Record, frozen=True, kw_only=True):
    """A round.

    case: place in the run's cases
    groups: ranks of each group that calls at the same time; of a pair op sender and receiver, of a local op one rank
    """

    case: int
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.groups or not all(self.groups):
            raise ValueError("a round has at least one group, and a group at least one rank")
        twice = sorted(rank for rank, times in Counter(chain.from_iterable(self.groups)).items() if times > 1)
        if twice:
            raise ValueError(f"the groups of a round are disjoint; ranks {twice!s:.60} are in two")


class Controller(Protocol):
    """Chooses the rounds of a run, from what was measured in those before."""

    def begin(self, cases: Sequence[Case], hosts: Sequence[str], facts: Mapping[str, HostFacts]) -> None:
        """Before the first round. cases: of the run; hosts: of each rank; facts: of each host."""

    def next(self, measured: Measurement | Failed | Skipped | None) -> Ask | None:
        """The next round, given the outcome of the one before (None at the start); None: the question is answered."""
