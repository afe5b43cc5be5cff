"""Upgrades of runs from older schemas, step by step. They add nothing that was not measured.

Since schema 1 only the case of a row has changed its format, so only the case is upgraded, and the cause of a failure
by wrong data is added, which its error says in every schema.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import msgspec

from busbw.errors import UsageError
from busbw.runs.causes import WRONG_DATA
from busbw.runs.records import JSON, SCHEMA, FailureCause
from busbw.units import parse_size

Upgrade = Callable[[JSON], JSON]

_MOST_KEPT = 1 << 14


def _as_it_is(document: JSON) -> JSON:
    """For steps that only added fields: a missing field takes its default."""
    return document


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


_VALUES: dict[str, tuple[str, Callable[[str], JSON]]] = {
    "threads": ("threads", int),
    "node": ("numa_node", int),
    "block": ("block_bytes", parse_size),
    "depth": ("depth", int),
    "skew": ("imbalance", _finite),
    "matrix": ("traffic", str),
}
"""Word before the colon → field of the case or its access, and parser of the value."""
_NAMES = {"together": "pairs", "alone": "pairs", "pinned": "pinning", "pageable": "pinning"}
_NAMES |= dict.fromkeys(("direct", "dropped", "memory"), "way")
_BY_HAND = "by hand: "


def _settings_of(variant: str) -> dict[str, JSON]:
    """The fields in a text such as ``block:1MiB depth:4 direct``. Raises KeyError, ValueError and UsageError for a text
    that no busbw has written.
    """
    if variant.startswith(_BY_HAND):
        return {"algorithm": variant.removeprefix(_BY_HAND)}
    found: dict[str, JSON] = {}
    for word in variant.split():
        name, colon, value = word.partition(":")
        if colon:
            field, read = _VALUES[name]
            found[field] = read(value)
        else:
            found[_NAMES[word]] = word
    access = {field: found.pop(field) for field in ("block_bytes", "depth", "way") if field in found}
    return {**found, "access": access} if access else found


def _typed_case(case: JSON) -> JSON:
    if not isinstance(case, dict) or not isinstance(variant := case.get("variant"), str | None):
        return case
    try:
        settings = {} if variant is None else _settings_of(variant)
    except (KeyError, ValueError, UsageError) as error:
        raise msgspec.ValidationError(f"variant {variant!r:.80} is not one that a case can have") from error
    return {name: value for name, value in case.items() if name != "variant"} | settings


def _renamed_skew(sweep: JSON) -> JSON:
    """The sweep with the number of its cases, whose text had six digits."""
    if not isinstance(sweep, dict) or not isinstance(skew := sweep.get("skew"), int | float):
        return sweep
    return {name: value for name, value in sweep.items() if name != "skew"} | {"imbalance": float(f"{skew:g}")}


_SWEEP_NAMES = {"held": "pre_enqueue", "placement": "in_place", "memory_nodes": "numa_nodes"}
_IN_PLACE = {"in": "yes", "out": "no"}


def _renamed(of: JSON, names: dict[str, str]) -> JSON:
    return {names.get(name, name): value for name, value in of.items()} if isinstance(of, dict) else of


def _pre_enqueued_case(case: JSON) -> JSON:
    return _renamed(case, {"held": "pre_enqueue"})


def _sweep_in_place(sweep: JSON) -> JSON:
    lifted = _renamed(sweep, _SWEEP_NAMES)
    if isinstance(lifted, dict) and isinstance(chosen := lifted.get("in_place"), str):
        lifted["in_place"] = _IN_PLACE.get(chosen, chosen)
    return lifted


_TRAITS = {
    "gloo": {"cost_models": "gloo", "transport": "gloo-tcp"},
    "nccl": {"cost_models": "nccl", "transport": "nccl-net"},
    "mpi": {"cost_models": "mpi", "transport": "mpi-net"},
    "mpi-cuda": {"cost_models": "mpi-cuda", "transport": "mpi-net"},
}
"""Traits of the backends up to schema 5."""


def _renamed_run(run: JSON) -> JSON:
    cases = run.get("cases")
    first = cases[0] if isinstance(cases, list) and cases else None
    backend = first.get("backend") if isinstance(first, dict) else None
    traits = _TRAITS.get(backend) if isinstance(backend, str) else None
    return {**_lifted(run, _pre_enqueued_case, _sweep_in_place), "backend": traits}


def _lifted(run: JSON, of_case: Upgrade, of_sweep: Upgrade) -> JSON:
    """A ``run.json`` with each case, and each sweep of its plan, upgraded."""
    lifted = dict(run)
    if isinstance(cases := run.get("cases"), list):
        lifted["cases"] = [of_case(case) for case in cases]
    if isinstance(plan := run.get("plan"), dict) and isinstance(sweeps := plan.get("sweep"), list):
        lifted["plan"] = {**plan, "sweep": [of_sweep(sweep) for sweep in sweeps]}
    return lifted


_FACT_NAMES = {"untold": "unknown", "told_by": "source"}


def _renamed_facts(facts: JSON) -> JSON:
    """Facts of hosts with the names of schema 8, at any depth."""
    if isinstance(facts, dict):
        return {_FACT_NAMES.get(name, name): _renamed_facts(value) for name, value in facts.items()}
    return [_renamed_facts(value) for value in facts] if isinstance(facts, list) else facts


def _run_with_renamed_facts(run: JSON) -> JSON:
    return {**run, "environments": _renamed_facts(run["environments"])} if "environments" in run else run


UPGRADES: dict[int, tuple[Upgrade, Upgrade]] = {
    1: (_as_it_is, _as_it_is),
    2: (_as_it_is, _as_it_is),  # so far Python made all calls, the default of loop
    3: (_as_it_is, _as_it_is),
    4: (lambda run: _lifted(run, _typed_case, _renamed_skew), _typed_case),
    5: (_renamed_run, _pre_enqueued_case),
    6: (_as_it_is, _as_it_is),
    7: (_run_with_renamed_facts, _as_it_is),
}
"""Schema n → upgrades of its run.json, and of the case of a row, to n + 1."""


def run_as_now(run: JSON, schema: int) -> JSON:
    """A ``run.json`` of ``schema`` in the current schema. Raises ValidationError if it cannot be upgraded."""
    for step in range(schema, SCHEMA):
        run = UPGRADES[step][0](run)
    return {**run, "schema": SCHEMA}


class _Parts(msgspec.Struct, frozen=True):
    """Decoded parts of a row."""

    case: msgspec.Raw = msgspec.Raw()
    kind: JSON = None
    error: JSON = None
    cause: JSON = None


_PARTS = msgspec.json.Decoder(_Parts)
_FIRST_WITH_CAUSE = 4
"""Schema from which on a failure has its cause."""
_WRONG: FailureCause = "wrong_data"


def row_as_now(line: bytes, schema: int) -> bytes:
    """A row of ``schema`` in the current schema; raises the decoder's exceptions. Only its parts are decoded."""
    if all(UPGRADES[step][1] is _as_it_is for step in range(schema, SCHEMA)):
        return line
    parts = _PARTS.decode(line)
    if case := bytes(parts.case):
        line = line.replace(case, case_as_now(case, schema), 1)
    if schema < _FIRST_WITH_CAUSE and parts.kind == "failed" and parts.cause is None:
        line = _with_cause(line, str(parts.error))
    return line


def _with_cause(line: bytes, error: str) -> bytes:
    if not error.startswith(WRONG_DATA):
        return line
    return msgspec.json.encode({**msgspec.json.decode(line), "cause": _WRONG})


@lru_cache(_MOST_KEPT)
def case_as_now(case: bytes, schema: int) -> bytes:
    """The JSON of a case of ``schema`` in the current schema. Cached, because a run repeats the same cases."""
    if schema == SCHEMA:
        return case
    document = msgspec.json.decode(case)
    for step in range(schema, SCHEMA):
        document = UPGRADES[step][1](document)
    return msgspec.json.encode(document)
