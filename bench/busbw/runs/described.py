"""What tells runs apart: settings of cases, environment variables and facts of hosts, each by its name."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, get_args

from msgspec import structs

from busbw.ops.settings import explicit_algorithm
from busbw.runs.facts import SAME_FACTS, SAME_VARIABLES, HostFacts, fact_of
from busbw.runs.placement import Variable, variables_of
from busbw.runs.records import Case, Settings
from busbw.units import format_size

_OF_CASE: Final = (
    *("device", "dtype", "redop", "in_place", "mode", "sync", "cache", "pre_enqueue", "registered", "group"),
)
"""Fields of a case that are settings, without its op and backend."""


def in_words(values: Iterable[object]) -> str | None:
    """The distinct ``values`` as text; None if there are none."""
    return ", ".join(sorted({str(value) for value in values})) or None


def setting_of(case: Case, name: str) -> object:
    """A setting of ``case``: a field, or one that only some ops have; None: the default, or ``case`` has none."""
    return getattr(case, name) if name in Case.__struct_fields__ else getattr(case.settings, name, None)


def value_in_words(name: str, value: object) -> str:
    """A value of the setting ``name`` as its option takes it."""
    if value is None:
        return "library" if name == "algorithm" else "default"
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


@cache
def setting_names() -> tuple[str, ...]:
    """All settings: first those that every op has."""
    families = (field.name for family in get_args(Settings) for field in structs.fields(family))
    return (*_OF_CASE, *dict.fromkeys(families))


def settings_in_words(cases: Iterable[Case]) -> dict[str, str]:
    """Sizes and settings → their values over ``cases``, without those that no op has."""
    values: dict[str, dict[str, None]] = {}
    sizes: set[int] = set()
    for case in cases:
        sizes.add(case.size_bytes)
        of_all = {name: value_in_words(name, value) for name in _OF_CASE if (value := getattr(case, name)) is not None}
        own = {"algorithm": value_in_words("algorithm", explicit_algorithm(case.settings))}
        for name, words in (of_all | dict(case.setting_words) | own).items():
            values.setdefault(name, {})[words] = None
    ends = dict.fromkeys(format_size(size) for size in (min(sizes), max(sizes))) if sizes else ()
    return {"sizes": " to ".join(ends)} | {name: ", ".join(words) for name, words in values.items()}


def fact_over_hosts(environments: Mapping[str, HostFacts], name: str) -> str | None:
    """The distinct values of a fact over the hosts of a run; None if no host recorded a value."""
    values = (value for host in environments.values() if (value := fact_of(host, name)) not in (None, {}))
    return in_words(" ".join(map(" ".join, value.items())) if isinstance(value, dict) else value for value in values)


def variables_over_hosts(environments: Mapping[str, HostFacts]) -> dict[Variable, str | None]:
    """Each environment variable that changes results → its values over the hosts of a run."""
    values: dict[Variable, list[str]] = {}
    for host in environments.values():
        for variable, value in variables_of(host).items():
            if variable.name.startswith(SAME_VARIABLES):
                values.setdefault(variable, []).append(value)
    return {variable: in_words(of_hosts) for variable, of_hosts in values.items()}


def variables_in_words(environments: Mapping[str, HostFacts]) -> dict[str, str]:
    """Each of these variables by its name → its values over hosts and ranks."""
    names: dict[str, list[str]] = {}
    for variable, value in variables_over_hosts(environments).items():
        names.setdefault(variable.name, []).append(str(value))
    return {name: ", ".join(dict.fromkeys(values)) for name, values in names.items()}


def facts_in_words(environments: Mapping[str, HostFacts]) -> dict[str, str]:
    """Each fact of ``SAME_FACTS`` that is known → its values over the hosts."""
    facts = {name: fact_over_hosts(environments, name) for name in SAME_FACTS}
    return {name: value for name, value in facts.items() if value is not None}
