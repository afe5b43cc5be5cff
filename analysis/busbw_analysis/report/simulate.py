"""Output of ``busbw simulate``: one row per algorithm and size, and the utilisation of the network's links."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from busbw.ops import bus_factor
from busbw.units import format_rate, format_seconds, format_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.models.simulate import Simulation
from busbw_analysis.report.document import Block, Column, Paragraph, table

_NOTES: Final = (
    "formula: closed form, each message alone on the network, without changed links; ratio: time over formula",
    "formula of host-aware algorithms: separate rates inside and between hosts; NICs as in --network",
    "used: share of the busiest link's capacity in this time; one of n: so many links of its kind are as busy",
)


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Utilisation of the links of one kind.

    number: links of this kind; ``as_busy``: links as busy as the ``busiest``.
    bytes_per_second: the lowest and the highest rate among them.
    mean_utilisation, utilisation: bytes over capacity in the time, of all of them and of the busiest.
    """

    kind: str
    number: int
    bytes_per_second: tuple[float, float]
    mean_utilisation: float
    busiest: str
    busiest_bytes_per_second: float
    busiest_bytes: float
    utilisation: float
    as_busy: int

    @property
    def name(self) -> str:
        """The busiest link, and how many links are as busy."""
        return self.busiest + (f" (one of {self.as_busy})" if self.as_busy > 1 else "")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One algorithm at one size (0 for an op without one): seconds and B/s, None if undefined.

    formula_seconds: by the closed form; ``ratio`` is the simulated time over it.
    links: each kind of links, the busiest first.
    """

    op: str
    algorithm: str
    size_bytes: int
    ranks: int
    seconds: float
    algbw: float | None
    busbw: float | None
    formula_seconds: float | None
    ratio: float | None
    links: tuple[LinkUse, ...]


def simulated(
    op: str, algorithm: str, size_bytes: int, ranks: int, simulation: Simulation, formula: float | None
) -> Simulated:
    """The result of a simulation, with the seconds of a formula."""
    seconds, factor = simulation.seconds, bus_factor(op, ranks)
    algbw = size_bytes / seconds if size_bytes and seconds else None
    busbw = None if algbw is None or factor is None else algbw * factor
    links = tuple(sorted(_kinds(simulation), key=lambda kind: -kind.utilisation))
    ratio = seconds / formula if formula else None
    return Simulated(op, algorithm, size_bytes, ranks, seconds, algbw, busbw, formula, ratio, links)


_EQUAL: Final = 1e-6


def _kinds(simulation: Simulation) -> Iterator[LinkUse]:
    """Kinds of links, except those that carried nothing."""
    used = simulation.utilisation()
    kinds = by_key((link.kind, number) for number, link in enumerate(simulation.links))
    for kind, numbers in kinds.items():
        alike = [number for number in numbers if used[number] >= used[numbers].max() * (1 - _EQUAL)]
        busiest = simulation.links[alike[0]]
        rates = [simulation.links[number].bytes_per_second for number in numbers]
        if used[alike[0]] > 0:
            yield LinkUse(
                kind=kind,
                number=len(numbers),
                bytes_per_second=(min(rates), max(rates)),
                mean_utilisation=float(used[numbers].mean()),
                busiest=busiest.name,
                busiest_bytes_per_second=busiest.bytes_per_second,
                busiest_bytes=float(simulation.carried[alike[0]]),
                utilisation=float(used[alike[0]]),
                as_busy=len(alike),
            )


def _percent(share: float) -> str:
    return f"{share * 100:.1f}"


_COLUMNS: Final[tuple[Column[Simulated], ...]] = (
    Column("algorithm", lambda row: row.algorithm),
    Column("size", lambda row: row.size_bytes or None, format_size),
    Column("time", lambda row: row.seconds, format_seconds),
    Column("busbw", lambda row: row.busbw, format_rate),
    Column("ratio", lambda row: row.ratio, "{:.2f}".format),
    Column("used", lambda row: row.links[0].utilisation if row.links else None, _percent, "%"),
    Column("busiest", lambda row: row.links[0].name if row.links else None),
    Column("algbw", lambda row: row.algbw, format_rate),
    Column("formula", lambda row: row.formula_seconds, format_seconds),
)
_LINK_COLUMNS: Final[tuple[Column[LinkUse], ...]] = (
    Column("links", lambda link: link.kind),
    Column("number", lambda link: link.number, str),
    Column("rate", lambda link: " to ".join(dict.fromkeys(map(format_rate, link.bytes_per_second))), str),
    Column("mean", lambda link: link.mean_utilisation, _percent, "%"),
    Column("most", lambda link: link.utilisation, _percent, "%"),
    Column("busiest", lambda link: link.name),
)


def simulate_tables(caption: str, rows: Sequence[Simulated], cautions: Sequence[str]) -> Iterator[Block]:
    """One row per algorithm and size; with a single row, also its links. ``cautions`` come first."""
    if cautions:
        yield Paragraph("\n".join(f"CAUTION: {caution}" for caution in cautions), tone="caution")
    yield table(caption, _COLUMNS, rows, *_NOTES)
    if len(rows) == 1 and rows[0].links:
        yield table("", _LINK_COLUMNS, rows[0].links)
