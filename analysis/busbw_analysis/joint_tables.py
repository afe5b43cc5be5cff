"""What ``busbw fit`` prints of joint fits: one block a regime, for machines in base units and the same in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.records import JSON
from busbw.units import format_rate, format_time
from busbw_analysis.columns import MISSING, Row, aligned, validation_row
from busbw_analysis.evidence import LIBRARY
from busbw_analysis.theory.identify import SYMBOLS
from busbw_analysis.theory.joint import Estimate, Joint, OneRegime, Parameter, Together

_PARAMETER_COLUMNS: Final = (("parameter", ""), ("value", ""), ("low", ""), ("high", ""), ("note", ""))
_ALGORITHM_COLUMNS: Final = (("op", ""), ("algorithm", ""), ("held-out", ""), ("seen", ""), ("note", ""))

_A_CALL: Final = frozenset({"alpha", "per_call", "inner_alpha"})
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
    where = f"{row['placement']}{', more ranks than cores' if row['oversubscribed'] else ''}"
    if row["refused"] is not None:
        yield f"joint fit · {where}"
        yield f"  no joint fit: {row['refused']}"
        yield from (f"# left out: {reason}" for reason in row["left_out"])
        return
    ranks = ", ".join(map(str, row["ranks"]))
    yield f"joint fit · {row['backend']} · {where} · {ranks} ranks · {', '.join(row['ops'])}"
    yield aligned(_PARAMETER_COLUMNS, list(_parameter_lines(row)), [])
    if row["algorithms"]:
        yield aligned(_ALGORITHM_COLUMNS, [_algorithm_line(one) for one in row["algorithms"]], [])
        own = f"({row['backend']})"
        if any(own in f"{one['algorithm']}" and one["ties"] for one in row["algorithms"]):
            yield f"# {own}: as {row['backend']} runs it, where a step may take several delays; others take one a round"
    yield from (f"  not separated: {mixed['reason']}; {mixed['needs']}" for mixed in row["not_separated"])
    yield from (f"  held out, {check['held_out']}: {_verdict(check)}" for check in row["validations"])
    fitted = _fitted(row)
    carrier = "moved / R" if "shared" in fitted else "sent by a host / C" if "card" in fitted else "sent · β"
    inside = " + inside a host rounds · α_i + sent · β_i" if _INNER & fitted else ""
    yield f"# T = c0 + rounds · α + {carrier}{inside} + added · γ, one set for all; {row['interval_note']}"
    if row["by_hand"]:
        yield f"# by hand, so that their algorithm is known: {', '.join(row['by_hand'])}"
    yield from (f"# {note}" for note in row["notes"])
    yield from (f"# left out: {reason}" for reason in row["left_out"])


def _fitted(row: Row) -> set[str]:
    return {*row["parameters"], *(name for mixed in row["not_separated"] for name in mixed["parameters"])}


def _parameter_lines(row: Row) -> Iterator[list[str]]:
    for name, estimate in row["parameters"].items():
        where = " between hosts" if name in _BETWEEN and _INNER & _fitted(row) else ""
        yield _line(SYMBOLS[name], name, estimate, _MEANING[name] + where)
    for mixed in row["not_separated"]:
        if mixed["estimate"] is not None:
            yield _line(mixed["sum"], mixed["parameters"][0], mixed["estimate"], "only together")


def _line(symbol: str, name: Parameter, estimate: dict[str, JSON], note: str) -> list[str]:
    value = estimate["value"]
    ends = estimate["interval"] or [None, None]
    rate = "" if name in _A_CALL or not value else f": {format_rate(1 / value)}"
    bound = "; at 0, the fit would have liked less" if estimate["at_bound"] else ""
    return [symbol, _in_units(name, value), *(_in_units(name, end) for end in ends), f"{note}{rate}{bound}"]


def _in_units(name: Parameter, value: float | None) -> str:
    if value is None:
        return MISSING
    return format_time(value * 1e9) if name in _A_CALL else f"{value * 1e9:.3g} ns/B"


def _algorithm_line(one: dict[str, JSON]) -> list[str]:
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


def _verdict(check: dict[str, JSON]) -> str:
    if check["median_error"] is None:
        return str(check["note"])
    errors = f"{check['median_error']:.1%} (median), {check['worst_error']:.1%} (worst) of {check['count']}"
    return f"{check['note']}; off by {errors}"
