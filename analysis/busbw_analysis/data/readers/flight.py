"""Reader of dumps of torch's flight recorder, one a rank: which rank is missing in which call of a job that hangs.

They have no rates, so that they are refused with what they say. Sources: ``dump`` and ``dump_json`` in
``FlightRecorderDetail.hpp``, and ``torch/distributed/flight_recorder/components`` of pytorch/pytorch, 2.5 to 2.13.
"""

import io
import json
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Never

from busbw.errors import LogError
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, text
from busbw_analysis.data.readers.lines import whole
from busbw_analysis.data.readers.watchdog import WHY_LATE, ranks_in_words

SIGN: Final = re.compile(rb'"pg_config"\s*:|"collective_seq_id"\s*:')
_RANK: Final = re.compile(r"(\d{1,7})(?:\.\w+)*$")
"""Number at the end of the name of a dump: its rank."""
_PLAIN: Final = re.compile(
    "PROTO|EMPTY_(?:DICT|LIST|TUPLE)|MARK|(?:SHORT_)?BINUNICODE|BININT[12]?|LONG1|BINFLOAT|NEWTRUE|NEWFALSE|NONE"
    "|(?:LONG_)?BIN(?:PUT|GET)|SETITEMS?|APPENDS?|TUPLE[123]?|STOP"
)
_MOST_MEMO: Final = 1 << 22


class _Plain(pickle.Unpickler):
    """Loads numbers, texts, lists and dictionaries; anything else is an error."""

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"{module}.{name}")


def dump_of(content: bytes) -> dict[str, Any] | None:
    """A dump, JSON or pickled; None for anything else. No pickle is executed: its operations are checked before."""
    try:
        if not content.startswith(b"\x80"):
            value = json.loads(content) if SIGN.search(content) is not None else None
        elif all(map(_is_plain, pickletools.genops(content))):
            value = _Plain(io.BytesIO(content)).load()
        else:
            return None
    except Exception:  # noqa: BLE001 - damaged pickles raise errors of any kind
        return None
    return value if isinstance(value, dict) and "entries" in value else None


def _is_plain(step: tuple[pickletools.OpcodeInfo, Any, int | None]) -> bool:
    operation, argument, _ = step
    is_memo = operation.name.endswith(("PUT", "GET"))
    return _PLAIN.fullmatch(operation.name) is not None and not (is_memo and argument > _MOST_MEMO)


@dataclass(frozen=True, slots=True)
class _Calls:
    """What a rank recorded of a process group: the number of its last call, and of the first that is not complete."""

    rank: int
    last: int
    waits_in: int | None
    named: Mapping[int, str]


def read(draft: Draft, lines: Iterable[str]) -> None:
    """One dump; :func:`refuse` says of several what they show together."""
    refuse(draft.source, {draft.source: document(draft.source, lines)})


def refuse(source: str, dumps: Mapping[str, Mapping[str, Any]]) -> Never:
    """Raises LogError with code ``hang`` that names the ranks that are missing in a call, by process group.

    dumps: by the name of their file, which ends in the number of the rank
    """
    calls: dict[str, list[_Calls]] = {}
    members: dict[str, set[int]] = {}
    for name, dump in dumps.items():
        match = _RANK.search(name)
        rank = 0 if match is None else int(match[1])
        for key, group in mapping(dump.get("pg_config")).items():
            listed = re.findall(r"\d{1,7}", text(mapping(group).get("ranks")) or "")
            members.setdefault(str(mapping(group).get("name", key)), set()).update(map(int, listed))
        entries = by_key((_group(entry), entry) for entry in map(mapping, items(dump.get("entries"))))
        for group, own in entries.items():
            numbered = [(whole(entry.get("collective_seq_id")), entry) for entry in own if not entry.get("is_p2p")]
            named = {number: _call(entry) for number, entry in numbered if number}
            waits = [number for number, entry in numbered if number and entry.get("state") != "completed"]
            if named:
                calls.setdefault(group, []).append(_Calls(rank, max(named), min(waits, default=None), named))
    texts = [words for group, own in calls.items() for words in _of_group(group, own, members.get(group, set()))]
    if not texts:
        raise LogError(f"{source}: torch's flight recorder has no call that is not complete", code="no-results")
    raise LogError(f"{source}: torch's flight recorder says where the job hangs: {'; '.join(texts)}", code="hang")


def _group(entry: Mapping[str, Any]) -> str:
    return str(next(iter(items(entry.get("process_group"))), "0"))


def _call(entry: Mapping[str, Any]) -> str:
    shapes = ", ".join(map(str, items(entry.get("input_sizes"))))
    return f"{(text(entry.get('profiling_name')) or 'unknown')[:99].partition(':')[2]} of {shapes[:99] or 'no input'}"


def _of_group(group: str, calls: list[_Calls], members: set[int]) -> Iterator[str]:
    """What the ranks of a process group wait for, and who is missing there."""
    waits = [own.waits_in for own in calls if own.waits_in is not None]
    at = min(waits, default=None)
    if at is None:
        return
    here = f"group {group}, call {at}"
    made = by_key((own.named[at], own.rank) for own in calls if at in own.named)
    if len(made) > 1:
        yield f"{here} differs: " + ", ".join(f"{ranks_in_words(ranks)} {call}" for call, ranks in made.items())
        return
    late = [own.rank for own in calls if own.last < at]
    silent = sorted(members - {own.rank for own in calls})
    call, waiting = next(iter(made.items()))
    stuck = [own.rank for own in calls if own.waits_in == at]
    yield f"{here}, {call}: made by {ranks_in_words(waiting)}, not complete on {ranks_in_words(stuck)}"
    if late:
        yield f"{ranks_in_words(late)} did not make it: look there for {WHY_LATE}"
    if silent:
        yield f"{ranks_in_words(silent)} without a dump"
    elif not late:
        yield "all have made it: the network or a GPU hangs"
