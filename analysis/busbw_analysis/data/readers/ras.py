"""Reader of the status that NCCL's RAS prints (``ncclras``): which ranks are behind in a job that hangs.

It has no rates, so that a log of it is refused with what it says. Source: ``src/ras/client_support.cc`` of NVIDIA/nccl,
2.24 to 2.30: text, and JSON (``ncclras -f json``) since 2.28.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from busbw.errors import LogError
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, text
from busbw_analysis.data.readers.lines import whole

SIGN: Final = re.compile(
    rb"#\d+-\d+ \([0-9a-f]{16}\) (?:MISMATCH|INCOMPLETE)|ranks have different \w+ operation counts"
    rb"|Communicators\.\.\. \(\d"
)
JSON: Final = re.compile(rb'"communicators_count"\s*:')
_NO_COMMA: Final = re.compile(r'(?<=[\d"el}\]])(?=[^\S\n]*\n\s*")')
"""Where 2.28.9 leaves one out."""
_KIND: Final = re.compile(r"Communicator ranks have different (\w+) operation counts")
_MISSING: Final = re.compile(r"Missing communicator data from (\d+) ranks?")
_COUNT: Final = re.compile(r"(\d+) ranks have (?:launched up to operation (\d+)|not launched any operations)")
_RANK: Final = re.compile(
    r"Rank (\d+)(?: has launched up to operation (?P<at>\d+)|(?P<none> has not launched any operations))?"
    r" -- (?P<where>.+)"
)
_FLAW: Final = re.compile("MISMATCH|INCOMPLETE|ERROR|ABORT|TIMEOUT|DEAD")
"""States that it prints of what is not as it should be."""
_FLAWS: Final = ("async_error", "abort_flag")
"""The same as JSON, of a rank; 0: none."""
_MOST: Final = 8
"""Ranks that are named."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks that have launched as many operations; None: nothing is known of them. ``named``: those that are listed."""

    operations: int | None
    count: int
    named: list[str] = field(default_factory=list)


def read(draft: Draft, lines: Iterable[str]) -> None:
    """Raises LogError with code ``hang`` that names the ranks that are behind or do not answer, by operation; with code
    ``healthy`` if there are none, and no other state that should not be.
    """
    groups: dict[str, list[_Group]] = {}
    kind, is_healthy = "collective", True
    for line in draft.scan(lines):
        is_healthy = is_healthy and _FLAW.search(line.text) is None
        if (match := _KIND.search(line.text)) is not None:
            kind = match[1]
        elif (match := _MISSING.search(line.text)) is not None:
            kind = "missing"
            groups.setdefault(kind, []).append(_Group(None, int(match[1])))
        elif (match := _COUNT.match(line.text)) is not None:
            groups.setdefault(kind, []).append(_Group(int(match[2] or 0), int(match[1])))
        elif (match := _RANK.match(line.text)) is not None:
            if match["at"] is not None or match["none"] is not None:
                groups.setdefault(kind, []).append(_Group(int(match["at"] or 0), 1))
            if groups.get(kind):
                groups[kind][-1].named.append(f"rank {match[1]} ({match['where']})")
    _refuse(draft, groups, is_healthy=is_healthy)


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """As :func:`read`."""
    parsed = document(draft.source, [_NO_COMMA.sub(",", "".join(lines))])
    groups: dict[str, list[_Group]] = {}
    is_healthy = True
    for communicator in map(mapping, items(parsed.get("communicators"))):
        states = [mapping(mapping(rank).get("status")) for rank in items(communicator.get("ranks"))]
        is_healthy = is_healthy and not any(state.get(flaw) for state in states for flaw in _FLAWS)
        missing = [_named(rank) for rank in map(mapping, items(communicator.get("missing_ranks")))]
        if missing:
            groups.setdefault("missing", []).append(_Group(None, len(missing), missing))
        counts = by_key(
            ((kind, whole(count) or 0), _named(rank))
            for rank in map(mapping, items(communicator.get("ranks")))
            for kind, count in mapping(rank.get("collective_counts")).items()
        )
        for (kind, count), named in counts.items():
            groups.setdefault(f"{communicator.get('hash')} {kind}", []).append(_Group(count, len(named), named))
    _refuse(draft, groups, is_healthy=is_healthy)


def _named(rank: Mapping[str, object]) -> str:
    return f"rank {text(rank.get('rank'))} ({text(rank.get('host'))}, process {text(rank.get('pid'))})"


def _refuse(draft: Draft, groups: Mapping[str, list[_Group]], *, is_healthy: bool) -> NoReturn:
    texts = [words for kind, members in groups.items() if (words := _in_words(kind.split()[-1], members))]
    if not texts:
        says = "healthy as far as NCCL's RAS tells" if is_healthy else "NCCL's RAS says that something is wrong"
        raise LogError(f"{draft.source}: {says}: no rank is behind", code="healthy" if is_healthy else "no-results")
    raise LogError(f"NCCL's RAS says where the job hangs: {'; '.join(texts)}", code="hang", log=draft.source)


def _in_words(kind: str, groups: list[_Group]) -> str:
    """Who does not answer, or is behind those that have launched most operations; "" if all are equal."""
    if kind == "missing":
        return f"{_names(groups)} {'does' if sum(group.count for group in groups) == 1 else 'do'} not answer"
    most = max(group.operations or 0 for group in groups)
    behind = [group for group in groups if group.operations != most]
    if not behind:
        return ""
    last = " and ".join(str(group.operations) for group in behind)
    ahead = [group for group in groups if group.operations == most]
    few = sum(group.count for group in ahead) < sum(group.count for group in behind)
    others = _names(ahead) if few else "the others"
    return f"{_names(behind)} launched {kind} operations up to {last} only, {others} up to {most}"


def _names(groups: list[_Group]) -> str:
    names = [name for group in groups for name in group.named]
    more = sum(group.count for group in groups) - min(len(names), _MOST)
    return ", ".join([*names[:_MOST], *([f"{more} {'more ' if names else ''}ranks"] if more else [])])
