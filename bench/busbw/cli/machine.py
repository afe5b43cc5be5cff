"""The commands about the machine: ``busbw doctor`` and ``busbw peaks``."""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
import msgspec

from busbw.backends import BACKENDS
from busbw.cli import listing
from busbw.errors import ClockError, LaunchError, UsageError
from busbw.escape import echo, plain_text
from busbw.launch import mpiexec
from busbw.measure.clock import HostClock, read_cost_ns
from busbw.runs.facts import HostFacts, Nic
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, peaks_option
from busbw.system import environment
from busbw.system.catalog import Catalogue, Gpu, Rate, catalogue
from busbw.system.detect import Level, Name, Picture, picture
from busbw.system.named import rows_named
from busbw.units import format_rate, number_list


@click.command()
@peaks_option
@as_json_option
def doctor(*, peaks_file: Path | None, as_json: bool) -> None:
    """Describe this machine: which backends can run here, and why others cannot."""
    examined = examine(catalogue(peaks_file))
    echo(json.dumps(msgspec.to_builtins(examined), indent=2) if as_json else in_words(examined))


@click.command()
@click.argument("name", required=False)
@click.option("--here", is_flag=True, help="Only the peaks of this machine, and how they were detected.")
@peaks_option
@as_json_option
def peaks(*, name: str | None, here: bool, peaks_file: Path | None, as_json: bool) -> None:
    """List the peak rates of hardware, each with its source; with NAME, such as H100 or NDR, those that it names.

    Rates are for one direction unless stated otherwise.
    """
    rows = catalogue(peaks_file)
    if name is not None:
        if here:
            raise UsageError("--here lists the peaks of this machine; leave out NAME")
        rows = rows_named(rows, name)
    if here:
        _print_here(rows, as_json=as_json)
    elif as_json:
        echo(json.dumps({"gpus": _documents(rows, rows.gpus), "rates": _documents(rows, rows.rates)}, indent=2))
    else:
        _print_catalogue(rows)


def _print_catalogue(rows: Catalogue) -> None:
    sources: dict[str, int] = {}

    def source(row: Rate | Gpu) -> str:
        """References to the pages below, the month of the look-up, and the file of a row that the user has added."""
        pages = [page for page in (row.source, row.practical_source) if page is not None]
        numbers = sorted({sources.setdefault(page, len(sources) + 1) for page in pages})
        return f"{''.join(f'[{number}]' for number in numbers)} {row.looked_up} {rows.origin(row) or ''}".rstrip()

    gpus: list[dict[str, JSON]] = [
        {
            "GPU": gpu.name,
            "memory": format_rate(gpu.memory_bytes_per_second),
            "in practice": in_practice(gpu.practical_memory_bytes_per_second),
            "bfloat16": f"{gpu.flops['bfloat16'] / 1e12:.4g} TFLOP/s" if "bfloat16" in gpu.flops else None,
            "links": None if gpu.links is None else f"{gpu.links} × {gpu.link}",
            "host": gpu.host_link or (gpu.pcie and f"{gpu.pcie} x{gpu.lanes}"),
            "source": source(gpu),
        }
        for gpu in rows.gpus
    ]
    rates: list[dict[str, JSON]] = [
        {
            "kind": rate.kind,
            "name": rate.name,
            "nominal": f"{format_rate(rate.bytes_per_second)} per {rate.per}",
            "in practice": in_practice(rate.practical_bytes_per_second, rate.peak.practical_of),
            "direction": rate.direction,
            "source": source(rate),
        }
        for rate in rows.rates
    ]
    pages = "\n".join(plain_text(f"[{number}] {page}") for page, number in sources.items())
    notes = "\n".join(plain_text(f"{row.name}: {row.note}") for row in (*rows.gpus, *rows.rates) if row.note)
    echo("\n\n".join(part for part in (*map(listing.as_table, filter(None, (gpus, rates))), notes, pages) if part))


def _print_here(rows: Catalogue, *, as_json: bool) -> None:
    seen = picture(environment.host_facts(), rows)
    levels = level_rows(seen)
    if as_json:
        document = {
            "levels": msgspec.to_builtins(levels),
            "findings": [*seen.findings, *seen.resting],
            "unknown": list(seen.unknown),
        }
        echo(json.dumps(document, indent=2))
        return
    table: list[dict[str, JSON]] = [
        {
            "level": row.level,
            "of": row.of,
            "nominal": in_practice(row.nominal_bytes_per_second),
            "in practice": in_practice(row.practical_bytes_per_second, row.practical_of),
            "direction": row.direction,
            "because": row.why,
            "source": row.source,
            "source of practice": row.practical_source,
        }
        for row in levels
    ]
    echo(listing.as_table(table))
    for finding in (*seen.findings, *seen.resting):
        echo(plain_text(f"finding: {finding}"), err=True)
    for unknown in seen.unknown:
        echo(plain_text(f"unknown: {unknown}"), err=True)
    for step in _next_steps(levels):
        echo(step, err=True)


def _documents(rows: Catalogue, of: Sequence[Rate | Gpu]) -> list[JSON]:
    return [{**msgspec.to_builtins(row), "origin": rows.origin(row)} for row in of]


# --- busbw doctor ----------------------------------------------------------------------------------------------------


class LevelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A memory or link level as it is printed.

    level, of: its name, and the holders that have the same values
    nominal_bytes_per_second, practical_bytes_per_second: its peak; None: unknown
    practical_of, practical_source: what the practical rate is of, and where it is from
    why: how the peak was found, or why it is unknown
    measured_by: the command that measures a level of unknown peak
    """

    level: Name
    of: str
    nominal_bytes_per_second: float | None
    practical_bytes_per_second: float | None
    practical_of: str | None
    practical_source: str | None
    direction: str | None
    why: str
    measured_by: str | None
    source: str | None


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about this machine, the cost of a clock read (None: unusable), the backends and launchers that work here,
    its memory and link levels with their peaks, what is unknown, and findings, the most important first.
    """

    facts: HostFacts
    timer_ns: int | None
    backends: list[dict[str, JSON]]
    launchers: list[dict[str, JSON]]
    levels: list[LevelRow]
    unknown: tuple[str, ...]
    findings: list[str]


def examine(rows_of_peaks: Catalogue | None = None) -> Examined:
    """Examine this machine."""
    facts = environment.host_facts()
    seen = picture(facts, catalogue() if rows_of_peaks is None else rows_of_peaks)
    try:
        timer_ns: int | None = read_cost_ns(HostClock())
        clock_problem = None
    except ClockError as error:
        timer_ns, clock_problem = None, str(error)
    return Examined(
        facts=facts,
        timer_ns=timer_ns,
        backends=_backends(),
        launchers=listing.launchers(),
        levels=level_rows(seen),
        unknown=seen.unknown,
        findings=[*([clock_problem] if clock_problem else []), *seen.findings, *seen.resting, *_findings(facts)],
    )


def _backends() -> list[dict[str, JSON]]:
    """The rows of the backends; whether MPI works is asked of the library, which is loaded in another process."""
    rows = listing.backends()
    of_mpi = [row for row in rows if row["here"] == "yes" and BACKENDS[str(row["backend"])].started_by]
    if of_mpi:
        try:
            mpiexec.chosen()
        except LaunchError as error:
            return [{**row, "here": str(error)} if row in of_mpi else row for row in rows]
    return rows


_MEASURED_BY: Final[dict[Name, str]] = {
    "HBM": "busbw run --suite memory-gpu",
    "NVLink": "busbw run --suite memory-gpu",
    "PCIe": "busbw run --suite memory-gpu",
    "C2C": "busbw run --suite memory-gpu",
    "DRAM": "busbw run --suite memory",
    "NIC": "{launcher} busbw run --suite quick",
    "NVMe": "busbw run --suite storage --path DIR",
}
"""What measures the rate of a level whose peak is unknown."""
_BY_SRUN: Final = "srun --nodes 2 --ntasks-per-node 1"
_BY_TORCHRUN: Final = (
    "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29400 --no-python"
)


def _next_steps(levels: Iterable[LevelRow]) -> list[str]:
    """The levels without a nominal rate, and the command that measures each."""
    unknown = dict.fromkeys((level.level, level.measured_by) for level in levels if level.measured_by)
    return [f"measure {name}: {command}" for name, command in unknown]


def level_rows(seen: Picture) -> list[LevelRow]:
    """The levels of a machine as rows; holders with equal values share a row."""
    launcher = _BY_SRUN if shutil.which("srun") else _BY_TORCHRUN
    alike: dict[Level, list[Level]] = {}
    for level in seen.levels:
        alike.setdefault(replace(level, holder="", gpu=None), []).append(level)
    return [
        LevelRow(
            level=level.name,
            of=_holders(members),
            nominal_bytes_per_second=None if level.peak is None else level.peak.nominal,
            practical_bytes_per_second=None if level.peak is None else level.peak.practical,
            practical_of=None if level.peak is None else level.peak.practical_of,
            practical_source=None if level.peak is None else level.peak.practical_source,
            direction=None if level.peak is None else level.peak.direction,
            why=level.why,
            measured_by=_MEASURED_BY[level.name].format(launcher=launcher) if level.peak is None else None,
            source=None if level.peak is None else level.peak.source,
        )
        for level, members in alike.items()
    ]


def in_practice(rate: float | None, of: str | None = None) -> str | None:
    """The rate reached in practice, such as ``6.5 GB/s of reads``; None if unknown."""
    return None if rate is None else f"{format_rate(rate)} of {of}" if of else format_rate(rate)


def _holders(levels: Sequence[Level]) -> str:
    """``GPU 0``, ``GPU 1`` … → ``GPU 0-7``."""
    gpus = [level.gpu for level in levels if level.gpu is not None]
    return f"GPU {number_list(gpus)}" if len(gpus) == len(levels) else ", ".join(level.holder for level in levels)


def _findings(facts: HostFacts) -> list[str]:
    cores, logical_cores = environment.usable_cores(), facts.cpu.logical_cores
    findings = [f"{cores} usable cores: runs with more ranks are oversubscribed, and their tables say so"]
    if logical_cores and cores < logical_cores:
        findings.append(f"only {cores} of {logical_cores} cores are usable (CPU affinity or cgroup quota)")
    if facts.virtualization:
        findings.append(
            f"this is a virtual machine ({facts.virtualization}): other guests may disturb measurements; "
            "compare within one run, or use several launches"
        )
    if environment.load_average() > cores / 2:
        findings.append(f"this machine is busy: load average {environment.load_average():.1f} on {cores} cores")
    if not any(nic.kind == "physical" and nic.up for nic in facts.nics):
        findings.append(
            "no physical network interface is up: only runs on this host are possible, with memory copy as their peak"
        )
    return findings


def in_words(examined: Examined) -> str:
    """The result of ``examine`` as text."""
    facts, cpu, clock = examined.facts, examined.facts.cpu, examined.facts.clock
    cores = f"{cpu.usable_cores} usable of {cpu.logical_cores} logical, {cpu.physical_cores or '?'} physical"
    pages = facts.thp or "unknown"
    source = clock.source or "unknown"
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    variables = ", ".join(f"{name}={value}" for name, value in facts.variables.items())
    lines = [
        f"host          {facts.host}  ({facts.system})",
        f"cpu           {cpu.model or 'model unknown'}: {cores} cores",
        f"memory        {(facts.memory.total_bytes or 0) / 2**30:.1f} GiB, transparent huge pages: {pages}",
        f"virtual       {facts.virtualization or 'no hypervisor detected'}",
        f"clock         {clock.implementation}, source {source}, one read takes {examined.timer_ns or '?'} ns",
        f"python        {facts.python}; {versions}",
        "network",
        *map(_nic_in_words, facts.nics),
        f"variables     {variables or 'none that affect performance'}",
        "levels",
        *map(_level_in_words, examined.levels),
        *(f"  unknown: {reason}" for reason in examined.unknown),
        *(f"  {step}" for step in _next_steps(examined.levels)),
        "backends and launchers",
        *(f"  backend {row['backend']}: {row['here']}" for row in examined.backends),
        *(
            f"  launcher {row['launcher']}: {'in use' if row['here'] == 'yes' else 'not detected'}"
            for row in examined.launchers
        ),
        "findings",
        *(f"  - {finding}" for finding in examined.findings),
    ]
    return "\n".join(map(plain_text, lines))


def _level_in_words(level: LevelRow) -> str:
    head = f"  {level.level:8}{level.of}: "
    if level.nominal_bytes_per_second is None:
        return f"{head}unknown: {level.why}"
    practical = in_practice(level.practical_bytes_per_second, level.practical_of)
    reached = "" if practical is None else f", {practical} in practice"
    return f"{head}{format_rate(level.nominal_bytes_per_second)} nominal{reached}, {level.direction}; {level.why}"


def _nic_in_words(nic: Nic) -> str:
    shown = format_rate(nic.speed_bytes_per_second) if nic.speed_bytes_per_second else "unknown"
    return f"  {nic.name:12}{nic.kind}, {'up' if nic.up else 'down'}, speed {shown}"
