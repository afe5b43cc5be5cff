"""Settings of collectives: the explicit algorithm that replaces the backend's own."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS, LIBRARY
from busbw.ops.base import Op
from busbw.ops.settings import CaseSettings, Key, Ranks, SweepSettings, among

_EVERY = tuple(dict.fromkeys((LIBRARY, ALL_ALGORITHMS, *(name for named in ALGORITHMS.values() for name in named))))


class AlgorithmSettings(CaseSettings, frozen=True, tag="algorithm"):
    """``algorithm``: explicit algorithm over send and receive."""

    algorithm: str

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        return {"algorithm": f"{self.algorithm} over send/recv"}


def explicit_algorithm(settings: CaseSettings | None) -> str | None:
    """Name of the explicit algorithm; None: the backend's own."""
    return settings.algorithm if isinstance(settings, AlgorithmSettings) else None


class AlgorithmSweep(SweepSettings, frozen=True):
    """``algorithms``: explicit algorithms, ``library`` and ``all``; those of other ops are skipped."""

    algorithms: Annotated[tuple[str, ...], Key(among("algorithm", _EVERY), option="--algorithm")] = (LIBRARY,)

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """As in the base class."""
        return op.name in ALGORITHMS

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:  # noqa: ARG002 - the same for all
        """As in the base class."""
        every = (LIBRARY, *ALGORITHMS[op.name])
        for name in every if ALL_ALGORITHMS in self.algorithms else self.algorithms:
            if name in every:
                yield None if name == LIBRARY else AlgorithmSettings(name)
