"""Upgrades of runs from older schemas, step by step. They add nothing that was not measured.

Of a row only the case is decoded. Outside of the case, fields were only added or renamed, and a new name is put into
the text of the row: decoding a long row twice takes seconds. A failure by wrong data gets its cause, which its error
says in every schema.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from busbw.errors import UsageError
from busbw.escape import with_texts
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


def _with_facts(run: JSON, words: dict[str, str]) -> JSON:
    """The run with other ``words`` in the facts of its hosts, as names and as values, at any depth."""
    facts = with_texts(run.get("environments"), lambda text: words.get(text, text))
    return {**run, "environments": facts} if "environments" in run else run


def _run_of_schema_9(run: JSON) -> JSON:
    upgraded = dict(_with_facts(run, {"not told by the library": "not reported by the library"}))
    plan = run.get("plan")
    if isinstance(plan, dict) and "timing" in plan:
        timing = _renamed(plan["timing"], {"warmup_calls_cap": "max_warmup_calls"})
        upgraded["plan"] = {**plan, "timing": timing}
    return upgraded


_GROUP_NAMES = {b"late_rank": b"fastest_rank", b"moved_factor": b"traffic_factor", b"beside_ns": b"other_clock_ns"}
_GROUP_NAME = re.compile(rb'"(late_rank|moved_factor|beside_ns)"(?=\s*:)')
"""These names as keys: a quotation mark within a string of JSON has a backslash before it, at both ends of a word."""
_STOP_REASONS = {b"cap_time": b"time_limit", b"cap_samples": b"sample_limit"}
_STOP_REASON = re.compile(rb'("stop_reason"\s*:\s*)"(cap_time|cap_samples)"')


def _row_of_schema_9(line: bytes) -> bytes:
    line = _STOP_REASON.sub(lambda found: found[1] + b'"' + _STOP_REASONS[found[2]] + b'"', line, count=1)
    return _GROUP_NAME.sub(lambda found: b'"' + _GROUP_NAMES[found[1]] + b'"', line)


_WRONG: FailureCause = "wrong_data"


def _with_cause(line: bytes) -> bytes:
    """A row of a failure by wrong data with its cause, which is stored since schema 4."""
    if WRONG_DATA.encode() not in line:
        return line
    row = msgspec.json.decode(line)
    if not isinstance(row, dict) or row.get("kind") != "failed" or row.get("cause") is not None:
        return line
    return msgspec.json.encode({**row, "cause": _WRONG}) if str(row.get("error")).startswith(WRONG_DATA) else line


@dataclass(frozen=True, slots=True)
class Step:
    """Upgrades from a schema to the next one.

    run: of ``run.json``
    case: of a case of a row
    row: of the text of a row outside of its case
    """

    run: Upgrade = _as_it_is
    case: Upgrade = _as_it_is
    row: Callable[[bytes], bytes] = _as_it_is


UPGRADES: dict[int, Step] = {
    1: Step(),
    2: Step(),  # so far Python made all calls, the default of loop
    3: Step(row=_with_cause),
    4: Step(run=lambda run: _lifted(run, _typed_case, _renamed_skew), case=_typed_case),
    5: Step(run=_renamed_run, case=_pre_enqueued_case),
    6: Step(),
    7: Step(run=lambda run: _with_facts(run, {"untold": "unknown", "told_by": "source"})),
    8: Step(run=_run_of_schema_9, row=_row_of_schema_9),
    9: Step(),
}
"""Schema n → its upgrades to n + 1."""


def run_as_now(run: JSON, schema: int) -> JSON:
    """A ``run.json`` of ``schema`` in the current schema. Raises ValidationError if it cannot be upgraded."""
    for step in range(schema, SCHEMA):
        run = UPGRADES[step].run(run)
    return {**run, "schema": SCHEMA}


class _OnlyCase(msgspec.Struct, frozen=True):
    """Decoded part of a row."""

    case: msgspec.Raw = msgspec.Raw()


_ONLY_CASE = msgspec.json.Decoder(_OnlyCase)


def row_as_now(line: bytes, schema: int) -> bytes:
    """A row of ``schema`` in the current schema; raises the decoder's exceptions. Only its case is decoded."""
    steps = [UPGRADES[step] for step in range(schema, SCHEMA)]
    if any(step.case is not _as_it_is for step in steps) and (case := bytes(_ONLY_CASE.decode(line).case)):
        line = line.replace(case, case_as_now(case, schema), 1)
    for step in steps:
        line = step.row(line)
    return line


@lru_cache(_MOST_KEPT)
def case_as_now(case: bytes, schema: int) -> bytes:
    """The JSON of a case of ``schema`` in the current schema. Cached, because a run repeats the same cases."""
    if schema == SCHEMA:
        return case
    document = msgspec.json.decode(case)
    for step in range(schema, SCHEMA):
        document = UPGRADES[step].case(document)
    return msgspec.json.encode(document)
