"""Everything that a run recorded of its machine, software and settings, as key → text: what may explain a change."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from busbw.escape import plain_text
from busbw.runs.described import variables_over_hosts
from busbw.runs.records import JSON
from busbw.runs.run import Run
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.likeness import CHECKED, is_unknown

_PASSING: Final = frozenset(
    {
        *("host", "memory", "node", "ranks", "resumed", "machines"),
        *("storage.free_bytes", "cpu.allowed_cores"),
    }
)
"""Facts of a host that differ from job to job; ``CHECKED`` has what matters of them."""
_OF_CASES: Final = frozenset({"machine", "ranks", "hosts", "backend", "device", "warm-up", "drivers", "firmware"})
"""Facts in ``CHECKED`` that tell cases apart, or that are listed in more detail."""
_OF_PLAN: Final = ("name", "timing", "path")
_NAMES: Final = ("name", "device", "address", "index")
"""Fields that name a record in a list, the first of them that it has."""


def facts_of(run: Run) -> dict[str, str]:
    """The facts of ``run`` by key, such as ``nccl.version``; several values of its hosts are one text. What was not
    recorded is missing.
    """
    of_hosts = by_key(
        (key, value)
        for host in run.environments.values()
        for name, part in msgspec.to_builtins(host).items()
        if name not in _PASSING
        for key, value in _flat(name, part)
        if key not in _PASSING
    )
    log = run.imported
    variables = variables_over_hosts(run.environments) if log is None else {}
    of_run: dict[str, JSON] = {
        **{name: value_of(run) for name, value_of in CHECKED if name not in _OF_CASES},
        "variables": {variable.in_words: value for variable, value in variables.items()},
        "label": run.plan.label,
        "launcher": run.launcher,
        "plan": {name: value for name, value in run.plan.as_json().items() if name in _OF_PLAN},
        "host names": None if is_unknown(run, "hosts") else sorted(set(run.hosts)),
        "tool": None if log is None else {"version": log.tool_version, "command": log.command},
    }
    facts = {key: ", ".join(sorted(set(values))) for key, values in of_hosts.items()}
    facts |= {key: value for name, part in of_run.items() for key, value in _flat(name, part)}
    return {plain_text(key): plain_text(value) for key, value in sorted(facts.items())}


def _flat(name: str, value: JSON) -> Iterator[tuple[str, str]]:
    """The values in ``value`` as text, with a key for each: fields behind dots, members of a list by their names."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{name}.{key}", part)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for number, part in enumerate(value):
            given = (part[key] for key in _NAMES if part.get(key) is not None)
            yield from _flat(f"{name}.{next(given, number)}", part)
    elif isinstance(value, list | tuple):
        yield from [(name, ", ".join(map(str, value)))] if value else []
    elif value is not None:
        yield name, str(value)
