"""Reader of the timeouts of torch's watchdog of NCCL or HCCL: in which collective a job hangs, which rank is behind.

It has no rates, so that a log of it is refused with what it says. Sources: ``WorkNCCL::checkTimeout``,
``ProcessGroupNCCL::watchdogHandler`` and ``logPrefix`` in ``ProcessGroupNCCL.cpp`` of pytorch/pytorch, 2.0 to 2.9.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from busbw.errors import LogError
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.failures import WORDS, may_fail
from busbw_analysis.data.readers.progress import ranks_in_words

TIMEOUT: Final = "Watchdog caught collective operation timeout"
SIGN: Final = re.compile(
    (
        rf"{TIMEOUT}: Work[A-Z]CCL\(|[Rr]ank \d+\].*[,:] last enqueued|dump signal due to|Not all ranks joining"
        r"|Collective sequence number: \d+ has |Culprit rank \d"
    ).encode()
)
_TRACE: Final = re.compile(
    r"Not all ranks joining collective,? (?:sequence number: )?\d{1,20}"
    r"|Collective sequence number: \d{1,20} has (?:errors|missing ranks \[[\d, ]{1,999}\])"
    r"|(?<!\w )collective: [\w:]{1,99}|missing ranks: \{[\d, ]{1,999}\}|Culprit rank .{1,200}"
)
"""What ``torchfrtrace`` says of the dumps of the flight recorder."""
_WORLD_RANK: Final = re.compile(r"\[rank(\d{1,7})\]:")
_WAIT: Final = re.compile(
    rf"(?:\[Rank (?P<rank>\d{{1,7}})\] )?{TIMEOUT}: Work[A-Z]CCL\(SeqNum=(?P<work>\d+), "
    r"OpType=(?P<op>\w+)(?:, NumelIn=(?P<elements>\d+)(?:, NumelOut=(?P<result>\d+))?)?"
)
_STATE: Final = re.compile(
    r"\[(?:PG (?:ID )?(?P<group>[^\]]{1,99}?) )?Rank (?P<rank>\d{1,7})\] .*[Ll]ast enqueued (?:NCCL )?work: "
    r"(?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_ENDED: Final = re.compile(r"\[rank(\d{1,7})\]:.{0,200}Some [A-Z]CCL operations have failed or timed out")
_BEGUN: Final = re.compile(
    rf"{TIMEOUT}|Timeout at NCCL work|(?:detected by|failure) watchdog at work|failure detected|dump signal"
)
_AT: Final = re.compile(r"at (?:NCCL )?work(?: sequence id)?: (\d+)")
_UNKNOWN: Final = 1 << 62
"""Elements, for calls of which torch does not know them."""
WHY_LATE: Final = "late data, an exception, an earlier call that hangs"
_LEAST_TOGETHER: Final = 2
_MOST: Final = 8
"""Lines of torchfrtrace that are quoted."""
_ACTION: Final = (
    "find the rank with an earlier error in the logs of all ranks, since who times out mostly waits for another; or "
    "run again with NCCL_DEBUG=INFO and TORCH_NCCL_TRACE_BUFFER_SIZE=2000, and give busbw show the folder of all dumps"
)


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a rank waited for when its watchdog ended the job.

    group: process group, as torch names it; "": not printed
    work: number of the collective in its group
    call: operation and elements; "": not printed
    enqueued, completed: last work of each kind; None: not printed
    ranks: those of its group, as the elements of an all-gather or reduce-scatter say; 0: they do not
    """

    rank: int
    group: str
    work: int
    call: str
    enqueued: int | None = None
    completed: int | None = None
    ranks: int = 0


def read(draft: Draft, lines: Iterable[str]) -> None:
    """Raises LogError with code ``hang`` that says what the ranks waited for, and which are behind."""
    waits: dict[int, _Wait] = {}
    trace: list[str] = []
    ended: set[int] = set()
    unnamed = ""
    for number, text in enumerate(_unbroken(lines), 1):
        if draft.progress.in_summary or may_fail(text):
            draft.progress.fail(number, text)
        trace += _TRACE.findall(text)[: _MOST - len(trace)]
        in_world = _WORLD_RANK.search(text)
        ended.update(map(int, _ENDED.findall(text)))
        if (match := _WAIT.search(text)) is not None:
            count = int(match["elements"] or _UNKNOWN)
            elements = f" of {count:,} elements" if count < _UNKNOWN else ""
            ranks = _ranks(match["op"], int(match["elements"] or 0), int(match["result"] or 0))
            wait = _Wait(0, "", int(match["work"]), f"{match['op']}{elements}", ranks=ranks)
            if in_world is None and match["rank"] is None:
                unnamed = (
                    unnamed or f"a rank in work {wait.work}, {wait.call} (line {number}); the lines of all ranks say "
                )
                continue
            rank = int(match["rank"] if in_world is None else in_world[1])
            waits.setdefault(rank, replace(wait, rank=rank))
        elif (match := _STATE.search(text)) is not None:
            rank = int(match["rank"] if in_world is None else in_world[1])
            work = int(at[1]) if (at := _AT.search(text)) is not None else int(match["completed"]) + 1
            known = waits.get(rank, _Wait(rank, "", work, ""))
            if known.enqueued is None and known.work == work:
                enqueued, completed = int(match["enqueued"]), int(match["completed"])
                waits[rank] = replace(known, group=match["group"] or "", enqueued=enqueued, completed=completed)
    if trace and not waits:
        raise LogError(f"torchfrtrace says where the job hangs: {'; '.join(trace)}", code="hang", log=draft.source)
    if not waits and not unnamed:
        raise LogError(f"{draft.source}: no timeout of torch's watchdog names a collective", code="no-results")
    named = {wait.group for wait in waits.values() if wait.group}
    only = next(iter(named)) if len(named) == 1 else ""  # a rank without a second line is of the only group
    groups = by_key((wait.group or only, wait) for wait in waits.values())
    silent = sorted(set(range(max(waits, default=0))) - set(waits) - ended) if len(groups) == 1 else []
    texts = [
        f"group {group}: {text}" if len(groups) > 1 and group else text
        for group, members in groups.items()
        for text in _of_group(members, silent)
    ]
    if len(groups) > 1:
        texts.append("ranks wait in several groups: one is late, or does not make the calls of two groups in one order")
    texts = texts or [f"{unnamed}which one is missing"]
    failed = draft.progress.failure(alone=False)
    also = _first_call(waits.values()) or [("Do", _ACTION)]
    also = also if failed is None else [("Also", failed.answer), *failed.lines]
    message = f"torch's watchdog ended the job: {'; '.join(texts)}"
    error = LogError(message, also, code="hang", log=draft.source)
    error.follows = 1 if failed is None else failed.follows
    raise error


def _first_call(waits: Collection[_Wait]) -> list[tuple[str, str]]:
    """Why ranks that all made the first call of their group did not complete it, and what to do; [] for others."""
    made = {(wait.group, wait.work, wait.call) for wait in waits}
    behind = any(wait.enqueued is not None and wait.enqueued < wait.work for wait in waits)
    if len(waits) < _LEAST_TOGETHER or len(made) > 1 or behind or next(iter(waits)).work != 1:
        return []
    why = f"it is the first call of the group: usually {WORDS['why_calls_hang']}, or a rank that is still loading"
    return [("Why", why), ("Do", f"{WORDS['which_path']}; else {_ACTION}")]


def _ranks(op: str, elements: int, result: int) -> int:
    """The ranks of a group by the elements that one puts into a call and gets from it; 0: they do not say it."""
    few, many = sorted((elements, result))
    by_elements = "ALLGATHER" in op or "REDUCE_SCATTER" in op
    return many // few if by_elements and few and many % few == 0 else 0


def _unbroken(lines: Iterable[str]) -> Iterator[str]:
    """The ``lines``; one that a terminal broke is followed by both of its parts together."""
    before = ""
    for text in lines:
        together = f"{before}{text}"
        yield together if before else text
        begun = _BEGUN.search(text) is not None
        before = text.rstrip("\r\n") if begun and not (_WAIT.search(text) or _STATE.search(text)) else ""


def _of_group(waits: Sequence[_Wait], silent: Sequence[int]) -> Iterator[str]:
    """What the ranks of a process group waited for, and who is behind.

    silent: ranks below the highest that print no timeout
    """
    works = by_key((wait.work, wait) for wait in waits)
    branches = False
    for work, members in sorted(works.items()):
        calls = by_key((wait.call, wait.rank) for wait in members if wait.call)
        branches = branches or len(calls) > 1
        for call, ranks in (calls or {"": [wait.rank for wait in members]}).items():
            yield f"{ranks_in_words(ranks)} in work {work}{call and f', {call}'}"
    behind = [wait.rank for wait in waits if wait.enqueued is not None and wait.enqueued < max(works)]
    if branches:
        yield "the ranks make different calls as the same work: branches or data of the program differ between them"
    elif behind or len(works) > 1:
        late = behind or [wait.rank for wait in works[min(works)]]
        yield f"{ranks_in_words(late)} behind the others: look there for {WHY_LATE}"
    absent = waits[0].ranks - len(waits)
    if absent > len(silent) and not branches:
        yield f"{absent} of the {waits[0].ranks} ranks of the group print no timeout in this log: read the logs of all"
    elif 0 < len(silent) <= len(waits):  # with more, the lines of most ranks are missing
        yield (
            f"{ranks_in_words(silent)} without a timeout: crashed, busy elsewhere, or not in this log; look there first"
        )
    elif len(waits) > 1 and len(works) == 1 and not branches and not behind:
        yield (
            f"all {len(waits)} have made the same call and none completed it. If the group has no other ranks, the "
            "network or a GPU hangs; messages of NCCL_DEBUG=INFO, error counters of links and Xid errors of GPUs say "
            "which"
        )
