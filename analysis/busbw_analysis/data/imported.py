"""Converts the log of another tool to a run: its rows become cases; facts that nobody states stay unknown."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from busbw import __version__
from busbw.errors import LogError, UsageError
from busbw.ops import OPS, limits, op_named
from busbw.runs.facts import GpuFacts, HostFacts, NcclFacts, Nic, PciFacts, RankFacts, RdmaPort
from busbw.runs.plan import LogPlan
from busbw.runs.records import SCHEMA, BackendTraits, Ended
from busbw.runs.run import ImportedLog, LogNote, Run
from busbw.runs.store import StoredRun
from busbw.system.catalog import Catalogue, Gpu, catalogue
from busbw.system.named import Cards, cards_named, gpu_named, gpus_meant
from busbw.units import counted, listed
from busbw_analysis.data.apart import SEVERAL_GPUS, Identity, Label, apart, differences, labels_of, merged
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.imported_rows import OF_FEW, LeftOut, first_group, group_of, is_of_hosts, rows_of
from busbw_analysis.data.readers import deduce
from busbw_analysis.data.readers.failures import explained
from busbw_analysis.data.readers.log import Aggregate, ForeignLog, Place, Said, Table
from busbw_analysis.data.readers.logs import NCCL, OF_BACKEND, OF_MPI, UNKNOWN, Tool, tool_named
from busbw_analysis.data.readers.nccl_info import EVIDENCE

_MOST_NAMED: Final = 4
TABLE_LEFT_OUT: Final = "table-left-out"
"""The note of a log of which a whole table cannot be used."""


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


_HIDDEN: Final = re.compile(r"(?i)[<>*]|x{3}|^(?:host(?:name)?|node|server|machine|redacted|anon\w*)$")
"""A name that stands for names of hosts that were taken out of a log."""
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
    left_out, refused = list[LeftOut](), list[LogError]()
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


def _rest(tables: Sequence[Table], error: LogError, left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Those of the refused ``tables`` that are not in ``left_out`` yet, with all or with each of their rows."""
    known = {part.line for part in left_out}
    rest = [table for table in tables if known.isdisjoint({table.line, *(row.line for row in table.rows)})]
    return [LeftOut(TABLE_LEFT_OUT, error.said, table.line) for table in rest]


def _left_out_notes(left_out: Iterable[LeftOut]) -> Iterator[LogNote]:
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
    log: ForeignLog, digest: str, modified: float, facts: LogFacts, path: Path, left_out: list[LeftOut]
) -> StoredRun:
    """The run of a log, or of a part of it; what it does not use is appended to ``left_out``."""
    notes, unused = list(log.notes), list[LeftOut]()
    tool = _tool_of(log)
    try:
        tables = _known_tables(log, facts, notes, unused)
        world = _World.of(log, tables, tool, facts, notes)
        rows = tuple(rows_of(tables, tool, world.hosts, facts.size, notes, unused))
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
        reason=_failed(log) or ("the tool's final message is missing" if cut else None),
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


def _known_tables(log: ForeignLog, facts: LogFacts, notes: list[LogNote], left_out: list[LeftOut]) -> list[Table]:
    """The tables whose operation and ranks are known. Raises the first LogError if there are none."""
    tables: list[Table] = []
    refused: list[LogError] = []
    for table in log.tables:
        try:
            tables.append(_known(table, log, facts, notes))
        except LogError as error:
            refused.append(error)
            left_out.append(LeftOut(TABLE_LEFT_OUT, error.said, table.line))
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
    return row.op is not None and row.ranks is None and row.op not in OF_FEW


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
        if any(first_group(table) is not None for table in tables):
            ranks = max([ranks, *((place.rank or 0) + 1 for table in tables for place in table.places)])
        if ranks > limits.MOST_RANKS:
            message = f"{ranks} ranks are too many; at most {limits.MOST_RANKS} are allowed"
            raise LogError(message, code="too-large", log=log.source)
        known = _hosts(log, best, ranks, tool, facts, notes)
        hosts, has_hosts = known or (UNKNOWN,) * ranks, known is not None
        environments = dict.fromkeys(hosts, _facts(best, log.ports, facts, tool)) if has_hosts or best.nic else {}
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
    return max([(row.ranks or 1) - 1, *((group_of(row) or ()) if row.op in OF_FEW or is_of_hosts(row) else ())])


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


def _failed(log: ForeignLog) -> str | None:
    """The last error, with what it means if that is known."""
    meaning = None if log.last_error is None else explained(log.last_error)
    return log.last_error if meaning is None else f"{log.last_error} ({meaning})"


def _facts(table: Table, ports: tuple[RdmaPort, ...], facts: LogFacts, tool: Tool) -> HostFacts:
    """The facts that all hosts share. NICs that the user states take the place of ``ports``, those in the log; sockets
    use their interfaces.
    """
    version = table.library_version
    if facts.nics is not None and tool.traits is not None and tool.traits.transport == "gloo-tcp":
        return HostFacts(
            nics=tuple(
                Nic(name=f"nic{number}", up=True, speed_bytes_per_second=facts.nics.card.nominal)
                for number in range(facts.nics.count)
            )
        )
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
