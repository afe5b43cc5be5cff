"""What ``busbw simulate`` prints: one row for each algorithm and size, and which links of the network were busy."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from busbw.ops import bus_factor
from busbw.runs.records import JSON
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.models.network_specs import kind_of
from busbw_analysis.models.simulate import Simulation
from busbw_analysis.report.tables.layout import MISSING, Row, aligned

_COLUMNS: Final = (
    ("algorithm", ""),
    ("size", ""),
    ("time", ""),
    ("algbw", ""),
    ("busbw", ""),
    ("formula", ""),
    ("ratio", ""),
    ("used", "(%)"),
    ("busiest", ""),
)
_LINK_COLUMNS: Final = (("links", ""), ("number", ""), ("rate", ""), ("mean", "(%)"), ("most", "(%)"), ("busiest", ""))
_NOTES: Final = (
    "formula: the closed form, every message alone on the network as it is without changed links; ratio: time over it",
    "formula of what knows hosts: inside and between by their own rates, ranks that send through one card share it",
    "used: the share of what the busiest link could have carried in this time; = n: so many of its kind as busy",
)


def row_of(op: str, algorithm: str, size_bytes: int, ranks: int, simulation: Simulation, formula: float | None) -> Row:
    """Seconds, bytes (0 of an op that has none) and B/s, and every kind of link with its lowest and highest rate and
    its busiest one; None where there is no such thing.
    """
    algbw = size_bytes / simulation.seconds if size_bytes and simulation.seconds else None
    factor = bus_factor(op, ranks)
    return {
        "op": op,
        "algorithm": algorithm,
        "size_bytes": size_bytes,
        "ranks": ranks,
        "seconds": simulation.seconds,
        "algbw": algbw,
        "busbw": None if algbw is None or factor is None else algbw * factor,
        "formula_seconds": formula,
        "ratio": simulation.seconds / formula if formula else None,
        "links": _kinds(simulation),
    }


_EQUAL: Final = 1e-6


def _kinds(simulation: Simulation) -> list[JSON]:
    """Kinds of links, the one with the busiest link first; those that carried nothing are left out."""
    used = simulation.utilisation()
    kinds: dict[str, list[int]] = defaultdict(list)
    for number, link in enumerate(simulation.links):
        kinds[kind_of(link.name)].append(number)
    rows: list[tuple[float, JSON]] = []
    for kind, numbers in kinds.items():
        alike = [number for number in numbers if used[number] >= used[numbers].max() * (1 - _EQUAL)]
        most = alike[0]
        if used[most] > 0:
            busiest = simulation.links[most]
            rates = [simulation.links[number].bytes_per_second for number in numbers]
            row: dict[str, JSON] = {
                "kind": kind,
                "number": len(numbers),
                "bytes_per_second": [min(rates), max(rates)],
                "mean_utilisation": float(used[numbers].mean()),
                "busiest": busiest.name,
                "busiest_bytes_per_second": busiest.bytes_per_second,
                "busiest_bytes": float(simulation.carried[most]),
                "utilisation": float(used[most]),
                "as_busy": len(alike),
            }
            rows.append((float(used[most]), row))
    return [row for _, row in sorted(rows, key=lambda one: -one[0])]


def text(rows: Sequence[Row]) -> str:
    """A line for each row; the links of all kinds where there is only one."""
    table = aligned(_COLUMNS, [_line(row) for row in rows], _NOTES)
    if len(rows) != 1:
        return table
    lines = [_link_line(kind) for kind in _links(rows[0])]
    return f"{table}\n\n{aligned(_LINK_COLUMNS, lines, ())}" if lines else table


def _links(row: Row) -> list[dict[str, JSON]]:
    links = row["links"]
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def _line(row: Row) -> list[str]:
    links = _links(row)
    return [
        str(row["algorithm"]),
        format_size(int(_number(row["size_bytes"]))) if row["size_bytes"] else MISSING,
        _time(row["seconds"]),
        _rate(row["algbw"]),
        _rate(row["busbw"]),
        _time(row["formula_seconds"]),
        MISSING if row["ratio"] is None else f"{_number(row['ratio']):.2f}",
        _percent(links[0]["utilisation"]) if links else MISSING,
        _busiest(links[0]) if links else "",
    ]


def _link_line(link: dict[str, JSON]) -> list[str]:
    return [
        str(link["kind"]),
        str(link["number"]),
        _rates(link["bytes_per_second"]),
        _percent(link["mean_utilisation"]),
        _percent(link["utilisation"]),
        _busiest(link),
    ]


def _busiest(link: dict[str, JSON]) -> str:
    return str(link["busiest"]) + (f" = {link['as_busy']}" if _number(link["as_busy"]) > 1 else "")


def _number(value: JSON) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _time(value: JSON) -> str:
    return MISSING if value is None else format_time(_number(value) * 1e9)


def _rate(value: JSON) -> str:
    return MISSING if value is None else format_rate(_number(value))


def _rates(ends: JSON) -> str:
    """One rate where all links of a kind have the same, both ends where some were changed."""
    named = dict.fromkeys(map(_rate, ends)) if isinstance(ends, list) else ()
    return " to ".join(named)


def _percent(value: JSON) -> str:
    return f"{_number(value) * 100:.1f}"
