"""Tests of predictions for other numbers of ranks: the largest measured number is predicted without its own curve."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from busbw.units import about_size, format_size
from busbw_analysis.fitting.score import VALID_RANKS, Validation

ROUNDED: Final = 1.01
"""Sizes within this factor are equal: sizes are rounded to whole elements per rank (2 MiB on 6 ranks: 2,097,144 B)."""

Shape = tuple[int, int]
"""Ranks and hosts."""

_NEAREST: Final = 3
"""Number of held-out sizes near a requested size that must be predicted well."""


def on_a_host(shape: Shape) -> int:
    """Ranks on the fullest host."""
    return -(-shape[0] // shape[1])


@dataclass(frozen=True, slots=True)
class ValidationRange:
    """The range of questions that held-out measurements validate.

    ``ranks``, ``hosts``, ``on_a_host``: least and most allowed. The least is the fewest measured; the most is the most
    measured times the factor by which the held-out test itself extrapolated.
    ``errors``: (bytes, relative error) of every held-out measurement.
    """

    ranks: tuple[float, float]
    hosts: tuple[float, float]
    on_a_host: tuple[float, float]
    errors: tuple[tuple[int, float], ...]

    @classmethod
    def of(
        cls, held_out: Sequence[Shape], seen: Sequence[Shape], errors: Iterable[tuple[int, float]]
    ) -> "ValidationRange":
        """The range for ``held_out`` shapes that were predicted from the ``seen`` shapes with these errors."""

        def reach(amount: Callable[[Shape], int]) -> tuple[float, float]:
            most, before = max(map(amount, held_out)), max(map(amount, seen))
            return min(map(amount, [*held_out, *seen])), most * max(most / before, 1)

        return cls(reach(lambda shape: shape[0]), reach(lambda shape: shape[1]), reach(on_a_host), tuple(errors))

    def error_near(self, size_bytes: int) -> float:
        """The median error of the nearest sizes: the rate may be wrong although the time of a round is right."""
        nearest = sorted(self.errors, key=lambda tested: abs(math.log(max(tested[0], 1) / max(size_bytes, 1))))
        return median(error for _, error in nearest[:_NEAREST])

    def beyond(self, ranks: int, hosts: int, size_bytes: int) -> tuple[str, ...]:
        """The respects in which a question lies outside the range, in words."""
        each = on_a_host((ranks, hosts))
        rows = [(ranks, self.ranks, f"{ranks} ranks"), (hosts, self.hosts, f"{hosts} hosts")]
        if hosts > 1:
            rows.append((each, self.on_a_host, "one rank on each host" if each == 1 else f"{each} ranks on a host"))
        outside = [words for amount, (least, most), words in rows if not least <= amount <= most]
        least, most = (end(size for size, _ in self.errors) for end in (min, max))
        if size_bytes > most * ROUNDED:
            outside.append(f"sizes beyond {format_size(most)}")
        elif size_bytes < least:
            outside.append(f"sizes below {format_size(least)}")
        return tuple(outside)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The errors on held-out measurements and the range that these validate; None if nothing was held out."""

    result: Validation
    tested: ValidationRange | None = None

    def asked_for(self, ranks: int, hosts: int, size_bytes: int, *beyond: str) -> Validation:
        """The result as it applies to a question, which may lie outside the tested range, or ``beyond`` any test."""
        result = self.result
        if self.tested is None:
            return result.asked_for(*beyond)
        near = self.tested.error_near(size_bytes)
        if result.passed and near > VALID_RANKS:
            where = f" the sizes near {about_size(size_bytes)} off by {near:.1%},"
            result = replace(result, held_out=result.held_out + where, passed=False)
        return result.asked_for(*self.tested.beyond(ranks, hosts, size_bytes), *beyond)
