"""What is said of joint fits, by ``busbw fit`` and by the report: one block a regime, in base units and in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.runs.records import JSON
from busbw.units import format_rate, format_time
from busbw_analysis.fitting.identify import A_CALL, SYMBOLS
from busbw_analysis.fitting.joint import Estimate, Joint, OneRegime, Parameter, Together
from busbw_analysis.predict.selection import LIBRARY
from busbw_analysis.report.tables.layout import MISSING, Row, aligned, validation_row

PARAMETER_COLUMNS: Final = (("parameter", ""), ("value", ""), ("low", ""), ("high", ""), ("note", ""))
ALGORITHM_COLUMNS: Final = (("op", ""), ("algorithm", ""), ("held-out", ""), ("seen", ""), ("note", ""))

_BETWEEN: Final = frozenset({"alpha", "beta"})
_INNER: Final = frozenset({"inner_alpha", "inner_beta"})
_MEANING: Final[dict[Parameter, str]] = {
    "alpha": "a round",
    "beta": "a byte through the link of one rank",
    "shared": "a byte of all that the ranks of the host move",
    "per_call": "a call, whatever it does",
    "gamma": "a byte that is added up",
    "inner_alpha": "a round inside a host",
    "inner_beta": "a byte inside a host, through the link of one rank",
    "card": "a byte of all that the ranks of a host send to others",
}


def joint_rows(found: Sequence[OneRegime]) -> list[Row]:
    """One row a regime: the joint fit (seconds, seconds per byte), or in ``refused`` why there is none."""
    return [_row(one) for one in found]


def _row(one: OneRegime) -> Row:
    common: Row = {
        "placement": one.regime.placement,
        "oversubscribed": one.regime.oversubscribed,
        "refused": one.refused,
        "left_out": list(one.left_out),
    }
    if one.joint is None:
        return common
    joint = one.joint
    return {
        **common,
        "backend": joint.backend,
        "ops": list(dict.fromkeys(seen.op for seen in joint.observations)),
        "ranks": sorted({seen.ranks for seen in joint.observations}),
        "observations": len(joint.observations),
        "parameters": {name: _estimate(estimate) for name, estimate in joint.parameters.items()},
        "not_separated": [_together(mixed) for mixed in joint.together],
        "algorithms": [_algorithm(joint, op) for op in joint.algorithms],
        "by_hand": sorted({f"{seen.op} by {seen.algorithm}" for seen in joint.observations if seen.algorithm}),
        "validations": [validation_row(check) for check in joint.validations],
        "interval_note": joint.interval_note,
        "notes": list(joint.notes),
    }


def _estimate(estimate: Estimate | None) -> dict[str, JSON] | None:
    if estimate is None:
        return None
    interval: list[JSON] | None = None if estimate.low is None else [estimate.low, estimate.high]
    return {"value": estimate.value, "interval": interval, "at_bound": estimate.at_bound}


def _together(mixed: Together) -> dict[str, JSON]:
    return {
        "parameters": list(mixed.parameters),
        "weights": list(mixed.weights),
        "sum": mixed.sum,
        "estimate": _estimate(mixed.estimate),
        "reason": mixed.reason,
        "needs": mixed.needs,
    }


def _algorithm(joint: Joint, op: str) -> dict[str, JSON]:
    rivals: list[JSON] = [
        {"algorithm": rival.algorithm, "held_out_error": rival.held_out, "seen_error": rival.seen}
        for rival in joint.rivals.get(op, ())
    ]
    return {"op": op, "algorithm": joint.algorithms[op], "ties": list(joint.ties.get(op, ())), "rivals": rivals}


def joint_text(rows: Sequence[Row]) -> str:
    """``rows`` of ``joint_rows`` as blocks of aligned columns and sentences."""
    return "\n\n".join("\n".join(_block(row)) for row in rows)


def _block(row: Row) -> Iterator[str]:
    if row["refused"] is not None:
        yield f"joint fit · {place(row)}"
        yield f"  no joint fit: {row['refused']}"
        yield from (f"# left out: {reason}" for reason in row["left_out"])
        return
    ranks = ", ".join(map(str, row["ranks"]))
    yield f"joint fit · {row['backend']} · {place(row)} · {ranks} ranks · {', '.join(row['ops'])}"
    yield aligned(PARAMETER_COLUMNS, list(parameter_lines(row)), [])
    if row["algorithms"]:
        yield aligned(ALGORITHM_COLUMNS, [algorithm_line(one) for one in row["algorithms"]], [])
        yield from (f"# {said}" for said in names_explained(row))
    yield from (f"  not separated: {mixed['reason']}; {mixed['needs']}" for mixed in row["not_separated"])
    yield from (f"  held out, {check['held_out']}: {verdict_on(check)}" for check in row["validations"])
    yield f"# {formula(row)}, one set for all; {row['interval_note']}"
    yield from (f"# {note}" for note in notes_on(row))
    yield from (f"# left out: {reason}" for reason in row["left_out"])


def place(row: Row) -> str:
    """Where the ranks of a regime sit."""
    return f"{row['placement']}{', more ranks than cores' if row['oversubscribed'] else ''}"


def formula(row: Row) -> str:
    """What was fitted, by the parameters that were looked for."""
    fitted = _fitted(row)
    carrier = "moved / R" if "shared" in fitted else "sent by a host / C" if "card" in fitted else "sent · β"
    inside = " + inside a host rounds · α_i + sent · β_i" if _INNER & fitted else ""
    return f"T = c0 + rounds · α + {carrier}{inside} + added · γ"


def names_explained(row: Row) -> tuple[str, ...]:
    """What the backend behind the name of an algorithm means, where one that is tied with another has it."""
    own = f"({row['backend']})"
    if not any(own in f"{one['algorithm']}" and one["ties"] for one in row["algorithms"]):
        return ()
    return (f"{own}: as {row['backend']} runs it, where a step may take several delays; others take one a round",)


def notes_on(row: Row) -> tuple[str, ...]:
    """What was by hand, and what the fit says of itself."""
    known = f"by hand, so that their algorithm is known: {', '.join(row['by_hand'])}"
    return (*((known,) if row["by_hand"] else ()), *row["notes"])


def _fitted(row: Row) -> set[str]:
    return {*row["parameters"], *(name for mixed in row["not_separated"] for name in mixed["parameters"])}


def parameter_lines(row: Row) -> Iterator[list[str]]:
    """The cells of PARAMETER_COLUMNS: every parameter that was told, and every sum that was told alone."""
    for name, estimate in row["parameters"].items():
        where = " between hosts" if name in _BETWEEN and _INNER & _fitted(row) else ""
        yield _line(SYMBOLS[name], name, estimate, _MEANING[name] + where)
    for mixed in row["not_separated"]:
        if mixed["estimate"] is not None:
            yield _line(mixed["sum"], mixed["parameters"][0], mixed["estimate"], "only together")


def _line(symbol: str, name: Parameter, estimate: dict[str, JSON], note: str) -> list[str]:
    value = estimate["value"]
    ends = estimate["interval"] or [None, None]
    rate = "" if name in A_CALL or not value else f": {format_rate(1 / value)}"
    bound = "; at 0, the fit would have liked less" if estimate["at_bound"] else ""
    return [symbol, _in_units(name, value), *(_in_units(name, end) for end in ends), f"{note}{rate}{bound}"]


def _in_units(name: Parameter, value: float | None) -> str:
    if value is None:
        return MISSING
    return format_time(value * 1e9) if name in A_CALL else f"{value * 1e9:.3g} ns/B"


def algorithm_line(one: dict[str, JSON]) -> list[str]:
    """The cells of ALGORITHM_COLUMNS for one op."""
    rival = next((rival for rival in one["rivals"] if rival["algorithm"] == one["algorithm"]), None)
    # The same name without the backend's behind it is the formula of the textbook, which counts other delays.
    own = f"{one['algorithm']}".partition(" (")[0]
    ties = [f"{name} (textbook)" if name == own else name for name in one["ties"]]
    if not ties:
        note = "" if rival is None else "the others do worse"
    elif rival is None:
        note = f"not told from {_some(ties)}"
    else:
        note = f"a tie with {_some(ties)}"
    errors = [MISSING] * 2 if rival is None else [f"{rival[name]:.1%}" for name in ("held_out_error", "seen_error")]
    return [one["op"], one["algorithm"] or LIBRARY, *errors, note]


_NAMED: Final = 4


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:_NAMED])} and {rest} more"


def verdict_on(check: dict[str, JSON]) -> str:
    """What a fit came to on data that were kept from it."""
    if check["median_error"] is None:
        return str(check["note"])
    errors = f"{check['median_error']:.1%} (median), {check['worst_error']:.1%} (worst) of {check['count']}"
    return f"{check['note']}; off by {errors}"
