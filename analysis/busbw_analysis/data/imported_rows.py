"""The rows of logs as records of a run: which are usable, and case, ranks, time and check of each."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Final

from busbw.ops import LOCAL, OPS, PAIRED, TO_THE_HOST, bus_factor
from busbw.ops.base import Op
from busbw.ops.groups import ASKED
from busbw.ops.settings import HostSettings, PairSettings
from busbw.runs.records import CASE_DTYPE_BYTES, REDOPS, Case, Check, Imported, Settings
from busbw.runs.run import LogNote
from busbw.units import counted, format_size, parse_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.log import Aggregate, Table
from busbw_analysis.data.readers.logs import OF_MPI, Tool

_COPY_BYTES: Final = 512 << 20
"""Size of a copy of a tool that states none and has no default: that of nvbandwidth."""
OF_FEW: Final = LOCAL | PAIRED
"""Operations that involve only some of the ranks."""
_ON_GPUS: Final = re.compile("-(?:CUDA|ROCM|ZE)")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A table or row of a log that is not used: the code of its note, the reason, its line, and what it is of."""

    code: str
    reason: str
    line: int
    name: str = ""


def first_group(table: Table) -> tuple[int, ...] | None:
    """The ranks of the first of several concurrent groups, which the table reports; None for a single group."""
    numbers = ((place.group, place.rank) for place in table.places)
    members = by_key((group, rank) for group, rank in numbers if group is not None and rank is not None)
    return tuple(sorted(members[min(members)])) if len(members) > 1 else None


def rows_of(
    tables: Sequence[Table],
    tool: Tool,
    hosts: Sequence[str],
    copy_size: str | None,
    notes: list[LogNote],
    left_out: list[LeftOut],
) -> Iterator[Imported]:
    """The usable rows of all tables as records; appends the others to ``left_out``, and ``notes``.

    hosts: the host of every rank of the log
    copy_size: the size of a copy as the user stated it; None: not stated
    """
    seen: Counter[Case] = Counter()
    assumed = False
    for table in tables:
        blocks: Counter[tuple[Case, tuple[int, ...]]] = Counter()
        checks = {row.check for row in table.rows}
        refused = bool(table.out_of_bounds) and "wrong" not in checks
        off = (
            "verification was off in the tool"
            if checks.isdisjoint({"verified", "wrong"})
            else "the tool checks only other rows of this table"
        )
        for row in table.rows:
            size, guessed = _size(row, table, tool, copy_size)
            time = _seconds(row, size)
            reason = _unusable(row, size, time)
            if reason is not None:
                left_out.append(LeftOut("left-out", reason, row.line, str(row.tool_op or row.op)))
                continue
            case, ranks = _case(row, size or 0, table, tool, hosts)
            assumed = assumed or guessed
            samples = tuple(seconds * 1e9 for seconds in row.samples_seconds)
            of_ranks = tuple(tuple(seconds * 1e9 for seconds in times) for times in row.process_seconds)
            # As many processes as ranks: each drives one GPU, and process i is rank i.
            whole = [len(times) for times in of_ranks] == [len(samples)] * len(ranks)
            yield Imported(
                case=case,
                launch=seen[case],
                block=blocks[case, ranks],
                ranks=ranks,
                time_ns=median(samples) if samples else (time or 0.0) * 1e9,
                statistic="median" if samples else row.statistic,
                calls=len(samples) or row.iterations,
                bus_factor=OPS[case.op].factor(len(ranks)),
                wire_bytes=OPS[case.op].wire_bytes(len(ranks), case.size_bytes),
                check=_check(row, table, off, refused=refused and row.check != "verified"),
                line=row.line,
                samples_ns=samples,
                rank_samples_ns=of_ranks if whole and samples else (),
            )
            blocks[case, ranks] += 1
        seen.update({case for case, _ in blocks})
    if assumed:
        default = f"the tool's default of {format_size(tool.copies)}" if tool.copies else format_size(_COPY_BYTES)
        text = (
            f"the log does not contain the copy size; {default} is assumed. Rates are as printed, times follow from "
            "the size; give it with --size"
        )
        notes.append(LogNote(code="assumed-size", text=text))


def _size(row: Aggregate, table: Table, tool: Tool, copy_size: str | None) -> tuple[int | None, bool]:
    """S in bytes, and whether it is only the tool's default."""
    if row.size_bytes is not None or row.op is None:
        return row.size_bytes, False
    if row.tool_size_bytes is not None and row.ranks is not None:
        return row.tool_size_bytes * (row.ranks if row.tool_size_is == "block" else 1), False
    if copy_size is not None:
        return parse_size(copy_size), False
    if table.copy_bytes is not None:
        return table.copy_bytes, False
    return (tool.copies or _COPY_BYTES, True) if tool.copies or row.op in TO_THE_HOST else (None, False)


def _seconds(row: Aggregate, size: int | None) -> float | None:
    """The time of a call, or what follows from the rate, else from busbw, which tables print with more digits than
    algbw. From algbw beside a busbw it follows only if the reader says how many S it counts.
    """
    if row.time_seconds is not None or not size:
        return row.time_seconds
    if row.rate and row.messages is not None:
        return size * row.messages / row.rate
    if row.rate is not None or (row.algbw is not None and row.messages is None):
        return None
    factor = None if row.op is None or row.ranks is None else bus_factor(row.op, row.ranks)
    if factor and row.busbw:
        return size * factor / row.busbw
    return size / row.algbw if row.algbw else None


def _unusable(row: Aggregate, size: int | None, time: float | None) -> str | None:
    """Why a row cannot become a case; None if it can."""
    if row.op is None:
        return "busbw has no such operation"
    op = OPS[row.op]
    reasons = {
        "a sum over other rows": row.statistic == "sum",
        f"busbw has no type {row.dtype}": row.dtype is not None and row.dtype not in CASE_DTYPE_BYTES,
        f"busbw has no reduction {row.redop}": op.reduces and row.redop is not None and row.redop not in REDOPS,
        "no bytes": op.sized and size == 0,
        "size unknown; one for all of them can be given with --size": op.sized and size is None,
        "no time and no rate": not time,
        "ranks unknown": group_of(row) is None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def group_of(row: Aggregate) -> tuple[int, ...] | None:
    """The ranks of a row: one GPU, a pair, or all ranks; None if unknown."""
    labels = [re.search(r"\d+", label) for label in (row.source, row.target) if label is not None]
    numbers = tuple(int(label[0]) for label in labels if label is not None)
    if row.op in PAIRED or is_of_hosts(row):
        return numbers if len(set(numbers)) == 2 else None
    if row.op in LOCAL and (row.mode is None or row.ranks == 1):
        ends = [label for label in (row.source, row.target, str(row.others.get("rank", ""))) if label]
        gpu = next((match for end in ends if (match := re.fullmatch(r"(?:GPU ?|Device ?)?(\d{1,5})", end))), None)
        if gpu is not None:
            return (int(gpu[1]),)
        return (0,) if row.ranks == 1 and not ends else None
    return None if row.ranks is None else _first_ranks(row.ranks)


def is_of_hosts(row: Aggregate) -> bool:
    """Whether it is a message between two of several hosts, as in a round of ``busbw fleet``."""
    return row.op in OPS and OPS[row.op].members == "ends" and None not in {row.source, row.target}


@cache
def _first_ranks(count: int) -> tuple[int, ...]:
    """The ranks below ``count``; cached because all rows of a log share them."""
    return tuple(range(count))


def _case(row: Aggregate, size: int, table: Table, tool: Tool, hosts: Sequence[str]) -> tuple[Case, tuple[int, ...]]:
    op = OPS[row.op or ""]
    ranks = group_of(row) or (0,)
    first = None if op.name in OF_FEW else first_group(table)
    split = first is not None and len(first) == len(ranks)
    ranks = first if first is not None and split else ranks
    gpus = tool == OF_MPI and _ON_GPUS.search(row.tool_op or "") is not None
    named = tool.names is not None and tool.names.search(row.tool_op or "") is not None
    words = [row.tool_op, *([row.part] if row.part else []), *([f"{table.groups} groups"] if table.groups else [])]
    of_hosts = is_of_hosts(row)
    world_of_case = len(hosts) if op.name in OF_FEW or split or of_hosts else len(ranks)
    group = ASKED if of_hosts else f"{table.groups} at once" if split else "all"
    case = Case(
        op=op.name,
        backend="mpi-cuda" if gpus else row.backend or tool.backend,
        device="cuda" if gpus else row.device or tool.device,
        dtype=row.dtype,
        redop=row.redop if op.reduces else None,
        size_bytes=size if op.sized else 0,
        ranks=world_of_case,
        nodes=max(1, len(set(hosts[:world_of_case]))),
        group=str(ranks[0]) if op.local and len(ranks) == 1 else group,
        mode=row.mode or tool.mode,
        sync=row.sync or "none",
        in_place=bool(row.in_place),
        root=row.root if op.rooted and row.root is not None and row.root < world_of_case else None,
        settings=_settings(row, op),
        tool_op=" ".join(map(str, words)) if named or ((table.groups or 1) > 1 and not split) else row.settings,
    )
    return case, ranks


def _settings(row: Aggregate, op: Op) -> Settings | None:
    """What the log, or the tool's way to measure, says of the settings that only some ops have."""
    if row.mode is not None:
        return None if row.pairs is None else PairSettings(row.pairs)
    if op.name in PAIRED:
        return PairSettings("alone")
    return HostSettings(pinning="pinned") if op.host_memory else None


def _check(row: Aggregate, table: Table, off: str, *, refused: bool) -> Check:
    if row.check == "wrong" or refused:
        count = row.wrong_elements or (table.out_of_bounds if refused else 0) or 0
        which = " in this table, without naming the rows" if refused else ""
        wrong = f"counted {counted(count, 'wrong value')}" if count else "reports wrong values"
        reason = f"the tool {wrong}{which} (line {row.line})"
        return Check(state="wrong", wrong_elements=count, reason=reason)
    if row.check == "verified" or (row.check is None and table.out_of_bounds == 0 and "error" in row.others):
        return Check(state="verified")
    return Check(
        state="not checked", reason=off if row.check == "not checked" else "the log has no verification result"
    )
