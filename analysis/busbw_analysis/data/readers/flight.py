"""Reader of dumps of torch's flight recorder, one a rank: which rank is missing in which call of a job that hangs.

They have no rates, so that they are refused with what they say. Sources: ``dump`` and ``dump_json`` in
``FlightRecorderDetail.hpp``, and ``torch/distributed/flight_recorder/components`` of pytorch/pytorch, 2.5 to 2.13.
"""

import io
import json
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Never

from busbw.errors import LogError
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, text
from busbw_analysis.data.readers.lines import whole
from busbw_analysis.data.readers.progress import ranks_in_words
from busbw_analysis.data.readers.watchdog import WHY_LATE

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


def read(draft: Draft, lines: Iterable[str]) -> None:
    """One dump; :func:`refuse` says of several what they show together."""
    refuse(draft.source, {draft.source: document(draft.source, lines)})


def refuse(source: str, dumps: Mapping[str, Mapping[str, Any]]) -> Never:
    """Raises LogError with code ``hang`` that names the ranks that are missing in a call, by process group.

    dumps: by the name of their file, which ends in the number of the rank
    """
    made: dict[str, dict[int, dict[int, dict[str, Any]]]] = {}
    members: dict[str, list[int]] = {}
    for name, dump in dumps.items():
        match = _RANK.search(name)
        rank = 0 if match is None else int(match[1])
        for group in map(mapping, mapping(dump.get("pg_config")).values()):
            members[str(group.get("name"))] = [*map(int, re.findall(r"\d{1,7}", text(group.get("ranks")) or ""))]
        for entry in map(mapping, items(dump.get("entries"))):
            group_of = str(next(iter(items(entry.get("process_group"))), "0"))
            if (number := whole(entry.get("collective_seq_id"))) and not entry.get("is_p2p"):
                made.setdefault(group_of, {}).setdefault(rank, {})[number] = entry
    texts = [words for group, own in made.items() for words in _of_group(group, own, members.get(group, []))]
    if not texts:
        raise LogError(f"{source}: torch's flight recorder has no call that is not complete", code="no-results")
    raise LogError(f"torch's flight recorder says where the job hangs: {'; '.join(texts)}", code="hang", log=source)


def _call(entry: Mapping[str, Any]) -> str:
    shapes = ", ".join(map(str, items(entry.get("input_sizes"))))
    return f"{(text(entry.get('profiling_name')) or 'unknown')[:99].partition(':')[2]} of {shapes[:99] or 'no input'}"


def _of_group(group: str, made: Mapping[int, dict[int, dict[str, Any]]], members: Sequence[int]) -> Iterator[str]:
    """What the ranks of a process group wait for, and who is missing there.

    made: the calls of each rank, by their number in the group
    """
    waiting = {rank: [at for at in calls if calls[at].get("state") != "completed"] for rank, calls in made.items()}
    first = {rank: min(calls) for rank, calls in waiting.items() if calls}
    if not first:
        return
    at = min(first.values())
    kinds = by_key((_call(calls[at]), rank) for rank, calls in made.items() if at in calls)
    if len(kinds) > 1:
        by_rank = ", ".join(f"{ranks_in_words(ranks)} {call}" for call, ranks in kinds.items())
        yield f"group {group}, call {at} differs: {by_rank}"
        return
    stuck = [rank for rank, call in first.items() if call == at]
    late = [rank for rank, calls in made.items() if max(calls) < at]
    silent = sorted(set(members) - set(made))
    call, ranks = next(iter(kinds.items()))
    yield f"group {group}, call {at}, {call}: made by {ranks_in_words(ranks)}, not complete on {ranks_in_words(stuck)}"
    if late:
        yield f"{ranks_in_words(late)} did not make it: look there for {WHY_LATE}"
    if silent:
        yield f"{ranks_in_words(silent)} without a dump"
    elif not late:
        yield "all have made it: the network or a GPU hangs"
