"""Settings of pair matrices: how the pairs of ranks are measured."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, get_args

from busbw.ops.base import Op
from busbw.ops.settings import CaseSettings, Key, Ranks, SweepSettings, among

Pairs = Literal["together", "alone"]
"""How a pair matrix is measured: disjoint pairs concurrently, or one pair at a time."""


class PairSettings(CaseSettings, frozen=True, tag="pairs"):
    """``pairs``: whether disjoint pairs of a matrix ran concurrently."""

    pairs: Pairs

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        return {"pairs": f"pairs {self.pairs}"}


def run_together(settings: CaseSettings | None) -> bool:
    """Whether disjoint pairs of a matrix run concurrently."""
    return not isinstance(settings, PairSettings) or settings.pairs == "together"


class PairSweep(SweepSettings, frozen=True):
    """``pairs``: whether disjoint pairs of a matrix run concurrently."""

    pairs: Annotated[Pairs, Key(among("pairs", get_args(Pairs)))] = "together"

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """As in the base class."""
        return op.members == "pairs"

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:  # noqa: ARG002 - the same for all
        """As in the base class."""
        yield PairSettings(self.pairs)
