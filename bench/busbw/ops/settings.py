"""Settings that only some operations have: what the families of settings share.

A family is two records in one module: what a sweep of a plan asks for (``SweepSettings``), and what one case has
(``CaseSettings``). ``runs.plan.Sweep`` and ``runs.records.Case`` list the families.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import msgspec

from busbw.errors import UsageError, nearest, what_is_known
from busbw.ops.base import Op
from busbw.ops.limits import MOST_VALUES

Way = Literal["direct", "dropped", "memory"]
"""How the page cache is bypassed: O_DIRECT, dropping a file's pages before reading, or not at all because the file
system is memory. Ordered from best to worst.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a plan, beside the type of its field.

    check: raises UsageError for a value that is not allowed; is not called for None
    taken_by: whether an op has the setting; None: every op, or every op of the family
    option: its option, if that has another name
    any_length: ``check`` limits the length of its list, or the value is one matrix
    """

    check: Callable[[Any], object] = bool
    taken_by: Callable[[Op], bool] | None = None
    option: str | None = None
    any_length: bool = False


@cache
def keys_of(record: type[msgspec.Struct]) -> Mapping[str, Key]:
    """Field of ``record`` → its key, for the fields that have one."""
    return {
        field.name: extra
        for field in msgspec.structs.fields(record)
        for extra in get_args(field.type)[1:]
        if isinstance(extra, Key)
    }


class Keyed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record whose fields are checked by their keys."""

    def __post_init__(self) -> None:
        for name, key in keys_of(type(self)).items():
            given = getattr(self, name)
            try:
                if isinstance(given, tuple) and not key.any_length and len(given) > MOST_VALUES:
                    raise UsageError(f"{len(given)} values are too many; use at most {MOST_VALUES}")  # noqa: TRY301 - the key is put before it below
                if given is not None:
                    key.check(given)
            except UsageError as error:
                raise UsageError(f"key {name!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the cases of a sweep depend on besides the plan.

    size: number of ranks
    cores: fewest cores of any rank
    way: how the page cache can be bypassed for files below the plan's path
    """

    size: int
    cores: int
    way: Way


class CaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="family"):
    """Settings of one case, of one family."""

    @property
    def words(self) -> Mapping[str, str]:
        """Setting → its text, without settings that are not given."""
        raise NotImplementedError

    def flaws(self, ranks: int) -> Iterator[str]:  # noqa: ARG002 - most settings do not depend on the ranks
        """What is wrong with a stored case of ``ranks`` ranks, beyond the ranges of the fields."""
        yield from ()


class SweepSettings(Keyed, frozen=True):
    """What a sweep asks for in one family; every field has a default."""

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """Whether ``op`` has settings of this family. No op has those of two families."""
        raise NotImplementedError

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:
        """The settings of every case of ``op``; None: all are the defaults. Raises UsageError."""
        raise NotImplementedError


# --- checks --------------------------------------------------------------------------------------------------------


def not_empty(given: Collection[object]) -> None:
    """Raise UsageError for an empty list."""
    if not given:
        raise UsageError("want at least one; given none")


def within(least: float, most: float) -> Callable[[float | tuple[float, ...]], None]:
    """A check that raises UsageError for a number, or one of several, outside ``least`` to ``most``, and for NaN."""

    def check(given: float | tuple[float, ...]) -> None:
        for number in given if isinstance(given, tuple) else (given,):
            if not least <= number <= most:
                raise UsageError(f"want at least {least} and at most {most}; given {number!s:.40}")

    return check


def among(what: str, allowed: Collection[object]) -> Callable[[Any], None]:
    """A check that raises UsageError for a value, or one of several, that is not ``allowed``, and for an empty list."""

    def check(given: object) -> None:
        names = given if isinstance(given, tuple) else (given,)
        unknown = [name for name in names if name not in allowed]
        if unknown or not names:
            names_allowed = [f"{allowed[0]} to {allowed[-1]}"] if isinstance(allowed, range) else [*map(str, allowed)]
            wrong = f"{what} {', '.join(map(repr, unknown))} is unknown" if unknown else f"the list of {what}s is empty"
            likely = nearest(str(unknown[0]), map(str, allowed)) if unknown else None
            raise UsageError(f"{wrong}; {what_is_known(names_allowed, likely)}")

    return check
