"""Converts the log of another tool to a run: its rows become cases; facts that nobody states stay unknown."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from busbw import __version__
from busbw.errors import LogError, UsageError
from busbw.ops import LOCAL, OPS, PAIRED, TO_THE_HOST, bus_factor, limits, op_named
from busbw.ops.base import Op
from busbw.ops.groups import ASKED
from busbw.ops.settings import HostSettings, PairSettings
from busbw.runs.facts import GpuFacts, HostFacts, NcclFacts, PciFacts, RankFacts, RdmaPort
from busbw.runs.plan import LogPlan
from busbw.runs.records import CASE_DTYPE_BYTES, REDOPS, SCHEMA, BackendTraits, Case, Check, Ended, Imported, Settings
from busbw.runs.run import ImportedLog, LogNote, Run
from busbw.runs.store import StoredRun
from busbw.system.catalog import Catalogue, Gpu, catalogue
from busbw.system.named import Cards, cards_named, gpu_named, gpus_meant
from busbw.units import counted, format_size, listed, parse_size
from busbw_analysis.data.apart import SEVERAL_GPUS, Identity, Label, apart, differences, labels_of, merged
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers import deduce
from busbw_analysis.data.readers.log import Aggregate, ForeignLog, Place, Said, Table
from busbw_analysis.data.readers.logs import NCCL, OF_BACKEND, OF_MPI, UNKNOWN, Tool, tool_named
from busbw_analysis.data.readers.nccl_info import EVIDENCE

_COPY_BYTES: Final = 512 << 20
"""Size of a copy of a tool that states none and has no default: that of nvbandwidth."""
_MOST_NAMED: Final = 4
TABLE_LEFT_OUT: Final = "table-left-out"
"""The note of a log of which a whole table cannot be used."""
_OF_FEW: Final = LOCAL | PAIRED
"""Operations that involve only some of the ranks."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts that the user states about a log because the log does not contain them; None: not stated.

    reader: the format, instead of the recognised one (``--format``)
    op, ranks, hosts: apply to all results of the log
    gpu: the model of every GPU
    nics: the NICs of each host
    size: bytes of a copy
    machine: the folder in which the imported log is stored
    """

    reader: str | None = None
    op: str | None = None
    ranks: int | None = None
    hosts: int | None = None
    gpu: Gpu | None = None
    nics: Cards | None = None
    size: str | None = None
    machine: str | None = None

    @classmethod
    def stated(cls, given: Mapping[str, Any], rows: Catalogue) -> "LogFacts":
        """Facts as the user wrote them, with hardware by its name. Raises UsageError for a name that is unknown."""
        gpu, nics = given.get("gpu"), given.get("nics")
        hardware = {
            "gpu": None if gpu is None else gpu_named(rows, gpu),
            "nics": None if nics is None else cards_named(rows, nics),
        }
        return cls(**{**given, **hardware})

    @property
    def given(self) -> dict[str, str]:
        """What the user stated about the results, as text."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "reader"}
        named = {name: value.name if isinstance(value, Gpu) else value for name, value in values.items()}
        return {name: str(value) for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """A table or row of a log that is not used: the code of its note, the reason, its line, and what it is of."""

    code: str
    reason: str
    line: int
    name: str = ""


_HIDDEN: Final = re.compile(r"(?i)[<>*]|x{3}|^(?:host(?:name)?|node|server|machine|redacted|anon\w*)$")
"""A name that stands for names of hosts that were taken out of a log."""
_ON_GPUS: Final = re.compile("-(?:CUDA|ROCM|ZE)")
_OVER_NCCL: Final = re.compile("[NRX]CCL")
"""Prefix of OSU's tests of NCCL and RCCL."""


def run_of(log: ForeignLog, digest: str, modified: float, facts: LogFacts, path: Path) -> StoredRun:
    """Convert ``log`` to a run.

    digest, modified, path: hash of the file, its modification time (s since 1970), and its location
    facts: the user's facts about the log

    Raises LogError if the log lacks necessary facts, UsageError if ``facts`` contradict it.
    """
    try:
        return _whole(_with_op_of_others(log), digest, modified, facts, path)
    except LogError as error:
        seen = [("Also", f"{note.text} (line {note.line})") for note in log.notes if note.code in EVIDENCE]
        raise LogError(error.said, [*error.lines, *seen], code=error.code, log=error.log) from None


def _whole(log: ForeignLog, digest: str, modified: float, facts: LogFacts, path: Path) -> StoredRun:
    labels = labels_of([_identity(table, facts) for table in log.tables])
    parts = by_key(zip(labels, log.tables, strict=True))
    runs: dict[Label, StoredRun] = {}
    left_out, refused = list[_LeftOut](), list[LogError]()
    for label, tables in parts.items():
        part = msgspec.structs.replace(log, tables=tuple(tables))  # notes of the reader are those of the whole log
        try:
            runs[label] = _run_of(part, digest, modified, facts, path, left_out)
        except LogError as error:
            refused.append(error)
            left_out += _rest(tables, error, left_out)
    if not runs:
        raise refused[0]
    if len(parts) == 1:
        return merged([*runs.values()], [*_left_out_notes(left_out)])
    notes = [*_left_out_notes(left_out), *differences(labels, log.tables), *_of_several_gpus(log, facts)]
    return merged(apart([*runs.values()], [*runs]), notes)


def _rest(tables: Sequence[Table], error: LogError, left_out: Sequence[_LeftOut]) -> list[_LeftOut]:
    """Those of the refused ``tables`` that are not in ``left_out`` yet, with all or with each of their rows."""
    known = {part.line for part in left_out}
    rest = [table for table in tables if known.isdisjoint({table.line, *(row.line for row in table.rows)})]
    return [_LeftOut(TABLE_LEFT_OUT, error.said, table.line) for table in rest]


def _left_out_notes(left_out: Iterable[_LeftOut]) -> Iterator[LogNote]:
    """A note for each reason, with all tables or rows that it applies to."""
    for (code, reason), parts in by_key(((part.code, part.reason), part) for part in left_out).items():
        of_tables = code == TABLE_LEFT_OUT
        names = dict.fromkeys(str(part.line) if of_tables else part.name for part in parts)
        which = (
            "" if of_tables and len(parts) == 1 else f" ({'lines ' * of_tables}{', '.join(list(names)[:_MOST_NAMED])})"
        )
        what = f"{counted(len(parts), 'table' if of_tables else 'row')} {'is' if len(parts) == 1 else 'are'}"
        yield LogNote(code=code, text=f"{what} left out{which}: {reason}", line=parts[0].line)


def _identity(table: Table, facts: LogFacts) -> Identity:
    """What the results of ``table`` are of; unless it lists ranks, over those given, else those its columns imply."""
    own, first = Identity.of_table(table), table.rows[0]
    if table.places or first.ranks is not None:
        return own
    if facts.ranks is not None:
        return replace(own, ranks=facts.ranks)
    ranks = {fit.ranks for fit in deduce.fits(table.rows, first.op)}
    return replace(own, ranks=ranks.pop() or own.ranks) if len(ranks) == 1 else own


def _with_op_of_others(log: ForeignLog) -> ForeignLog:
    """``log`` with the only operation of its tables in those that lack it and could be of several: people paste one
    test over several numbers of ranks.
    """
    fits = [
        deduce.fits(table.rows, None, table.rows[0].ranks) if _lacks_op(table.rows[0]) else () for table in log.tables
    ]
    sure = {row.op for table in log.tables for row in table.rows} - {None}
    sure |= {of_table[0].op for of_table in fits if len(of_table) == 1}
    if len(sure) != 1:
        return log
    (op,) = sure
    tables, notes = list(log.tables), list(log.notes)
    for number, (table, of_table) in enumerate(zip(log.tables, fits, strict=True)):
        if len(of_table) > 1 and op in {fit.op for fit in of_table}:
            rows = tuple(msgspec.structs.replace(row, op=op) for row in table.rows)
            tables[number] = msgspec.structs.replace(table, rows=rows)
            text = f"the log names no operation of this table; it is taken to be {op}, as the other tables are"
            notes.append(LogNote(code="deduced", text=text, line=table.line))
    return msgspec.structs.replace(log, tables=tuple(tables), notes=tuple(notes))


def _of_several_gpus(log: ForeignLog, facts: LogFacts) -> Iterator[LogNote]:
    """That the text above tables names several GPUs, which the facts of one world cannot hold. Raises UsageError for a
    GPU that the user states.
    """
    captions = dict.fromkeys(table.caption for table in log.tables if table.caption)
    rows = catalogue() if len(captions) > 1 else None
    meant = {} if rows is None else {caption: {gpu.name for gpu in gpus_meant(rows, caption)} for caption in captions}
    meant = {caption: gpus for caption, gpus in meant.items() if gpus}
    if not meant or set.intersection(*meant.values()):
        return
    text = f"its tables are of {listed(list(meant))}, and shares of peaks need a log for each of them"
    if facts.gpu is not None:
        raise UsageError(f"--gpu {facts.gpu.name} contradicts {log.source}: {text}", code="contradiction")
    yield LogNote(code=SEVERAL_GPUS, text=text)


def _run_of(
    log: ForeignLog, digest: str, modified: float, facts: LogFacts, path: Path, left_out: list[_LeftOut]
) -> StoredRun:
    """The run of a log, or of a part of it; what it does not use is appended to ``left_out``."""
    notes, unused = list(log.notes), list[_LeftOut]()
    tool = _tool_of(log)
    try:
        tables = _known_tables(log, facts, notes, unused)
        world = _World.of(log, tables, tool, facts, notes)
        rows = tuple(_rows(tables, tool, world, facts, notes, unused))
    finally:
        left_out += unused
    if not rows:
        why = "; ".join(note.text for note in _left_out_notes(unused))
        raise LogError(f"no row can be used: {why}", code="no-case", log=log.source)
    began = datetime.fromtimestamp(modified, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    run = Run(
        schema=SCHEMA,
        id=f"{log.source}-{digest[:6]}",
        busbw=__version__,
        machine=facts.machine or "imported",
        started=began,
        launcher=f"imported from {log.tool}",
        plan=LogPlan(name=log.source),
        cases=tuple(dict.fromkeys(row.case for row in rows)),
        adjusted=(),
        hosts=world.hosts,
        environments=world.environments,
        backend=tool.traits or BackendTraits(cost_models=tool.backend, transport="mpi-net"),
        imported=ImportedLog(
            tool=log.tool,
            tool_version=tables[0].tool_version,
            file=log.source,
            command=tables[0].command,
            given=facts.given,
            unknown=world.unknown,
            notes=tuple(notes),
        ),
    )
    cut = any(table.complete is False for table in tables)  # by itself no sign that the job failed
    end = Ended(
        status="failed" if log.last_error is not None else "interrupted" if cut else "complete",
        reason=log.last_error or ("the tool's final message is missing" if cut else None),
        ended=began,
    )
    return StoredRun(path=path, run=run, rows=(*rows, end), warnings=())


def _tool_of(log: ForeignLog) -> Tool:
    tool, first = tool_named(log.tool), log.rows[0]
    if first.backend is not None and first.device is not None:
        traits = OF_BACKEND.get(first.backend, tool).traits
        return replace(tool, backend=first.backend, device=first.device, traits=traits)
    return NCCL if tool == OF_MPI and _OVER_NCCL.match(first.tool_op or "") else tool


# --- which operation, over how many ranks --------------------------------------------------------------------------


def _known_tables(log: ForeignLog, facts: LogFacts, notes: list[LogNote], left_out: list[_LeftOut]) -> list[Table]:
    """The tables whose operation and ranks are known. Raises the first LogError if there are none."""
    tables: list[Table] = []
    refused: list[LogError] = []
    for table in log.tables:
        try:
            tables.append(_known(table, log, facts, notes))
        except LogError as error:
            refused.append(error)
            left_out.append(_LeftOut(TABLE_LEFT_OUT, error.said, table.line))
    if not tables:
        raise refused[0]
    return tables


def _known(table: Table, log: ForeignLog, facts: LogFacts, notes: list[LogNote]) -> Table:
    """``table`` with operation and ranks in every row: from the log, from the user, or deduced from its columns."""
    rows = [_with_given(row, log, facts) for row in _of_ratio(table, notes)]
    for lacks in (_lacks_op, _lacks_ranks):
        if some := [row for row in rows if lacks(row)]:
            fit_of = {
                row.line: fit
                for part in _of_one_run(some)
                for fit in [_fit(part, table, log, facts, notes)]
                for row in part
            }
            rows = [
                msgspec.structs.replace(row, op=fit_of[row.line].op, ranks=fit_of[row.line].ranks)
                if lacks(row)
                else row
                for row in rows
            ]
    return msgspec.structs.replace(table, rows=tuple(rows))


def _of_one_run(rows: Sequence[Aggregate]) -> Iterable[Sequence[Aggregate]]:
    """All ``rows``; those of each line apart where sizes come again with another busbw over algbw: over more ranks."""
    lines = by_key((row.line, row) for row in rows)
    if deduce.fits(rows, rows[0].op, rows[0].ranks) or len({row.size_bytes for row in rows}) == len(lines):
        return [rows]
    return lines.values()


def _of_ratio(table: Table, notes: list[LogNote]) -> tuple[Aggregate, ...]:
    """The rows of ``table``, with the ranks that busbw over algbw has if the log lists or starts others: its list was
    cut, or the command line is another.
    """
    rows = table.rows
    op, ranks = rows[0].op, rows[0].ranks
    if ranks is None or not (table.places or table.command) or deduce.fits(rows, op, ranks):
        return rows
    fits = deduce.fits(rows, op)
    fit = fits[0] if len(fits) == 1 else None
    if fit is None or fit.ranks is None:
        return rows
    text = f"{ranks} ranks are {'listed' if table.places else 'started'}, but busbw over algbw is that of {fit.ranks}"
    notes.append(LogNote(code="deduced", text=text, line=table.line))
    return tuple(msgspec.structs.replace(row, op=fit.op, ranks=fit.ranks) for row in rows)


def _lacks_op(row: Aggregate) -> bool:
    return row.op is None and row.tool_op is None


def _lacks_ranks(row: Aggregate) -> bool:
    return row.op is not None and row.ranks is None and row.op not in _OF_FEW


def _with_given(row: Aggregate, log: ForeignLog, facts: LogFacts) -> Aggregate:
    given = {"ranks": facts.ranks, "op": None if facts.op is None else op_named(facts.op).name}
    changed: dict[str, Any] = {}
    for name, value in given.items():
        in_log = getattr(row, name)
        if value is not None and in_log is None:
            changed[name] = value
        elif value not in {None, in_log}:
            message = f"{log.source}:{row.line}: --{name} {value} contradicts the log, which has {name} {in_log}"
            raise UsageError(message, code="contradiction")
    return msgspec.structs.replace(row, **changed) if changed else row


def _fit(rows: Sequence[Aggregate], table: Table, log: ForeignLog, facts: LogFacts, notes: list[LogNote]) -> deduce.Fit:
    """The operation and ranks deduced from the columns. Raises LogError unless there is exactly one possibility."""
    said = table.said or Said()
    op, where = rows[0].op or deduce.op_in(table.caption or "") or said.op, f"{log.source}:{table.line}"
    candidates = deduce.fits(rows, op, rows[0].ranks)
    if said.ranks is not None and rows[0].ranks is None and op is not None:
        # Only busbw beside algbw can contradict the text.
        can = not any(row.busbw and row.algbw for row in rows) or deduce.fits(rows, op, said.ranks)
        if can and not any(fit.ranks for fit in candidates):
            text = f"the text above this table says {op} over {said.ranks} ranks"
            notes.append(LogNote(code="deduced", text=text, line=table.line))
            return deduce.Fit(op, said.ranks)
    fit = candidates[0] if len(candidates) == 1 else deduce.hinted(log.source, candidates)
    has_size = facts.size is not None or table.copy_bytes is not None or rows[0].tool_size_bytes is not None
    lacking = {
        "operation": fit is None and op is None,
        "number of ranks": not (rows[0].ranks or said.ranks or any(candidate.ranks for candidate in candidates)),
        "size": not has_size and (op is None or OPS[op].sized),
    }
    if fit is None or fit.ranks is None:
        names = [candidate.op for candidate in candidates] if lacking["operation"] else []
        fitting = f"; its columns fit {' and '.join(names)}" if names else ""
        options = {"operation": " or ".join(f"--op {name}" for name in names or ["OP"]), "size": "--size SIZE"}
        lacking["number of ranks"] |= not lacking["operation"]
        asked = {noun: options.get(noun, "--ranks N") for noun, lacks in lacking.items() if lacks}
        message = (
            f"the log does not name {listed(f'the {noun}' for noun in asked)}{fitting}; add {' '.join(asked.values())}"
        )
        raise LogError(message, code="no-op" if lacking["operation"] else "no-ranks", log=where)
    by_name = "" if len(candidates) == 1 else " and its file name"
    values = (("the operation", "--op", op), ("the number of ranks", "--ranks", rows[0].ranks))
    nouns = [noun for noun, _, value in values if value is None]
    given = [option for _, option, value in values if value is None]
    missing = f"the log does not state {' and '.join(nouns)}"
    implied = f"its columns{by_name} imply {fit.op} over {fit.ranks} ranks"
    text = f"{missing}; {implied} (else give {' and '.join(given)})"
    notes.append(LogNote(code="deduced", text=text, line=table.line))
    return fit


# --- where the ranks were ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _World:
    """Where the ranks of a log ran.

    hosts: the host of every rank
    environments: the facts of each host
    unknown: facts that are still unknown, by the names of their options
    """

    hosts: tuple[str, ...]
    environments: dict[str, HostFacts]
    unknown: tuple[str, ...]

    @classmethod
    def of(
        cls, log: ForeignLog, tables: Sequence[Table], tool: Tool, facts: LogFacts, notes: list[LogNote]
    ) -> "_World":
        best = max(tables, key=lambda table: len(table.places))
        ranks = max([1, *(_last_rank(row) + 1 for table in tables for row in table.rows)])
        ranks = max(ranks, len(best.places)) if tool.one_host else ranks
        if any(_first_group(table) is not None for table in tables):
            ranks = max([ranks, *((place.rank or 0) + 1 for table in tables for place in table.places)])
        if ranks > limits.MOST_RANKS:
            message = f"{ranks} ranks are too many; at most {limits.MOST_RANKS} are allowed"
            raise LogError(message, code="too-large", log=log.source)
        known = _hosts(log, best, ranks, tool, facts, notes)
        hosts, has_hosts = known or (UNKNOWN,) * ranks, known is not None
        environments = dict.fromkeys(hosts, _facts(best, log.ports, facts)) if has_hosts or best.nic else {}
        environments |= _with_gpus(environments, best.places, hosts, facts, log.tool)
        with_gpu = sum(len(host.pci.gpus) for host in environments.values())
        several = has_hosts and len(set(hosts)) > 1
        missing = {
            "machine": facts.machine is None,
            "hosts": not has_hosts,
            "gpu": tool.device != "cpu" and with_gpu < ranks,
            "nics": several and facts.nics is None and not log.ports,
        }
        return cls(hosts, environments, tuple(name for name, is_missing in missing.items() if is_missing))


def _last_rank(row: Aggregate) -> int:
    return max([(row.ranks or 1) - 1, *((_group(row) or ()) if row.op in _OF_FEW or _is_of_hosts(row) else ())])


def _first_group(table: Table) -> tuple[int, ...] | None:
    """The ranks of the first of several concurrent groups, which the table reports; None for a single group."""
    numbers = ((place.group, place.rank) for place in table.places)
    members = by_key((group, rank) for group, rank in numbers if group is not None and rank is not None)
    return tuple(sorted(members[min(members)])) if len(members) > 1 else None


def _hosts(
    log: ForeignLog, table: Table, ranks: int, tool: Tool, facts: LogFacts, notes: list[LogNote]
) -> tuple[str, ...] | None:
    """The host of every rank; None if they are not known. Appends ``notes`` about what the log does not print."""
    by_rank = _apart(table, notes)
    if all(rank in by_rank for rank in range(ranks)):
        in_log = tuple(by_rank[rank] for rank in range(ranks))
        names = set(in_log)
        if facts.hosts in {None, len(names)}:
            return in_log
        if _HIDDEN.search(in_log[0]) is None or len(names) > 1 or ranks % (facts.hosts or 1):
            message = f"{log.source}: --hosts {facts.hosts} contradicts the log, which has {len(names)} host(s)"
            raise UsageError(message, code="contradiction")
        text = f"all ranks have the host name {in_log[0]}; they are on {facts.hosts} hosts as given"
        notes.append(LogNote(code="deduced", text=text, line=table.line))
    alone = tool.one_host or ranks == 1 or all(row.one_host for row in log.rows)
    count = facts.hosts if facts.hosts is not None else 1 if alone else table.hosts or _hosts_said(table, ranks)
    if count is None:
        return None
    if ranks % count:
        message = f"{log.source}: {ranks} ranks cannot be divided evenly among {count} hosts; change --hosts"
        raise UsageError(message, code="contradiction")
    listed = tuple(dict.fromkeys(by_rank.values()))
    hosts = listed if len(listed) == count else tuple(f"host{number}" for number in range(count))
    return tuple(hosts[rank * count // ranks] for rank in range(ranks))


def _hosts_said(table: Table, ranks: int) -> int | None:
    said = table.said or Said()
    return said.hosts if said.ranks == ranks else None


def _apart(table: Table, notes: list[LogNote]) -> dict[int | None, str]:
    """The host of every listed rank. Where the same GPUs, at least two, come again below the same name, names of hosts
    are hidden. Ranks that share their only GPU are on one host, and device numbers alone are those that a rank sees.
    """
    by_rank = {place.rank: place.host for place in table.places if place.host is not None}
    listed = by_key((place.host, (place.rank, place.bus_id)) for place in table.places if place.host is not None)
    for host, ranks in listed.items():
        gpus = list(dict.fromkeys(bus_id for _, bus_id in ranks))
        if None in gpus or len(gpus) < 2 or [bus_id for _, bus_id in ranks] != gpus * (len(ranks) // len(gpus)):
            continue
        if len(ranks) > len(gpus):
            by_rank |= {rank: f"{host} ({number // len(gpus) + 1})" for number, (rank, _) in enumerate(ranks)}
            text = f"the GPUs of {host} come {len(ranks) // len(gpus)} times: so many hosts have this name"
            notes.append(LogNote(code="deduced", text=text, line=table.line))
    return by_rank


def _facts(table: Table, ports: tuple[RdmaPort, ...], facts: LogFacts) -> HostFacts:
    """The facts that all hosts share. NICs that the user states take the place of ``ports``, those in the log."""
    version = table.library_version
    if facts.nics is not None:
        card = facts.nics.card
        given = RdmaPort(
            device="", port=1, bytes_per_second=card.nominal, up=True, given=True, kind=card.kind, name=card.what
        )
        names = [table.nic] if table.nic else [f"nic{number}" for number in range(facts.nics.count)]
        ports = tuple(msgspec.structs.replace(given, device=name) for name in names)
    elif table.nic and not ports:
        ports = (RdmaPort(device=table.nic),)
    return HostFacts(nccl=None if version is None else NcclFacts(version=_version(version)), rdma=ports)


def _version(text: str) -> str:
    """``2.27.7`` for ``22707``, NCCL's version as one number."""
    parts = re.fullmatch(r"(\d)(\d\d)(\d\d)", text)
    return text if parts is None else ".".join(str(int(part)) for part in parts.groups())


def _with_gpus(
    environments: Mapping[str, HostFacts], places: Sequence[Place], hosts: Sequence[str], facts: LogFacts, tool: str
) -> Iterator[tuple[str, HostFacts]]:
    """The hosts with all GPUs whose names are known, and the ranks that drive them."""
    by_rank = {place.device if place.rank is None else place.rank: place for place in places if place.name}
    if facts.gpu is not None:
        names = {name.casefold() for name in (facts.gpu.name, *facts.gpu.names)}
        if other := [place.name for place in by_rank.values() if place.name and place.name.casefold() not in names]:
            raise UsageError(f"--gpu {facts.gpu.name} contradicts the log, which has {other[0]}", code="contradiction")
    listed = {place.name for place in by_rank.values()}
    of_others = facts.gpu.name if facts.gpu is not None else listed.pop() if len(listed) == 1 else None
    for host, of_host in environments.items():
        gpus: list[GpuFacts] = []
        ranks: list[RankFacts] = []
        for number, rank in enumerate(rank for rank, name in enumerate(hosts) if name == host):
            gpu = by_rank.get(rank) or Place(name=of_others)
            if gpu.name is None:
                continue
            placed = gpu.bus_id is not None and re.search("[1-9a-fA-F]", gpu.bus_id.removeprefix("0x"))
            address = gpu.bus_id if gpu.bus_id and placed else f"rank {rank}"  # virtual machines may report only zeros
            gpus.append(GpuFacts(index=number, name=gpu.name, address=address, source=tool))
            ranks.append(RankFacts(rank=rank, local_rank=number, gpu=number))
        yield host, msgspec.structs.replace(of_host, pci=PciFacts(gpus=tuple(gpus)), ranks=tuple(ranks))


# --- rows ----------------------------------------------------------------------------------------------------------


def _rows(
    tables: Sequence[Table],
    tool: Tool,
    world: _World,
    facts: LogFacts,
    notes: list[LogNote],
    left_out: list[_LeftOut],
) -> Iterator[Imported]:
    """The usable rows of all tables as records; appends the others to ``left_out``, and ``notes``."""
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
            size, guessed = _size(row, table, tool, facts)
            time = _seconds(row, size)
            reason = _unusable(row, size, time)
            if reason is not None:
                left_out.append(_LeftOut("left-out", reason, row.line, str(row.tool_op or row.op)))
                continue
            case, ranks = _case(row, size or 0, table, tool, world)
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
        text = (
            f"the log does not contain the copy size; the tool's default of {format_size(tool.copies or _COPY_BYTES)} "
            "is assumed. "
            "Rates are as printed, times follow from the size; give it with --size"
        )
        notes.append(LogNote(code="assumed-size", text=text))


def _size(row: Aggregate, table: Table, tool: Tool, facts: LogFacts) -> tuple[int | None, bool]:
    """S in bytes, and whether it is only the tool's default."""
    if row.size_bytes is not None or row.op is None:
        return row.size_bytes, False
    if row.tool_size_bytes is not None and row.ranks is not None:
        return row.tool_size_bytes * (row.ranks if row.tool_size_is == "block" else 1), False
    if facts.size is not None:
        return parse_size(facts.size), False
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
        "ranks unknown": _group(row) is None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _group(row: Aggregate) -> tuple[int, ...] | None:
    """The ranks of a row: one GPU, a pair, or all ranks; None if unknown."""
    labels = [re.search(r"\d+", label) for label in (row.source, row.target) if label is not None]
    numbers = tuple(int(label[0]) for label in labels if label is not None)
    if row.op in PAIRED or _is_of_hosts(row):
        return numbers if len(set(numbers)) == 2 else None
    if row.op in LOCAL and (row.mode is None or row.ranks == 1):
        ends = [label for label in (row.source, row.target, str(row.others.get("rank", ""))) if label]
        gpu = next((match for end in ends if (match := re.fullmatch(r"(?:GPU ?|Device ?)?(\d{1,5})", end))), None)
        if gpu is not None:
            return (int(gpu[1]),)
        return (0,) if row.ranks == 1 and not ends else None
    return None if row.ranks is None else _first_ranks(row.ranks)


def _is_of_hosts(row: Aggregate) -> bool:
    """Whether it is a message between two of several hosts, as in a round of ``busbw fleet``."""
    return row.op in OPS and OPS[row.op].members == "ends" and None not in {row.source, row.target}


@cache
def _first_ranks(count: int) -> tuple[int, ...]:
    """The ranks below ``count``; cached because all rows of a log share them."""
    return tuple(range(count))


def _case(row: Aggregate, size: int, table: Table, tool: Tool, world: _World) -> tuple[Case, tuple[int, ...]]:
    op = OPS[row.op or ""]
    ranks = _group(row) or (0,)
    first = None if op.name in _OF_FEW else _first_group(table)
    split = first is not None and len(first) == len(ranks)
    ranks = first if first is not None and split else ranks
    gpus = tool == OF_MPI and _ON_GPUS.search(row.tool_op or "") is not None
    named = tool.names is not None and tool.names.search(row.tool_op or "") is not None
    words = [row.tool_op, *([row.part] if row.part else []), *([f"{table.groups} groups"] if table.groups else [])]
    of_hosts = _is_of_hosts(row)
    world_of_case = len(world.hosts) if op.name in _OF_FEW or split or of_hosts else len(ranks)
    group = ASKED if of_hosts else f"{table.groups} at once" if split else "all"
    case = Case(
        op=op.name,
        backend="mpi-cuda" if gpus else row.backend or tool.backend,
        device="cuda" if gpus else row.device or tool.device,
        dtype=row.dtype,
        redop=row.redop if op.reduces else None,
        size_bytes=size if op.sized else 0,
        ranks=world_of_case,
        nodes=max(1, len(set(world.hosts[:world_of_case]))),
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
