"""The commands about the machine: ``busbw doctor`` and ``busbw peaks``."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from busbw.cli import examine, listing
from busbw.escape import echo, plain_text
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, peaks_option
from busbw.system import environment
from busbw.system.catalog import Catalogue, Gpu, Rate, catalogue
from busbw.system.detect import picture
from busbw.units import format_rate


@click.command()
@peaks_option
@as_json_option
def doctor(*, peaks_file: Path | None, as_json: bool) -> None:
    """Describe this machine: which backends can run here, and why others cannot."""
    examined = examine.examine(catalogue(peaks_file))
    echo(json.dumps(msgspec.to_builtins(examined), indent=2) if as_json else examine.in_words(examined))


@click.command()
@click.option("--here", is_flag=True, help="Only the peaks of this machine, and how they were detected.")
@peaks_option
@as_json_option
def peaks(*, here: bool, peaks_file: Path | None, as_json: bool) -> None:
    """List the peak rates of hardware, each with its source. Rates are for one direction unless stated otherwise."""
    rows = catalogue(peaks_file)
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
            "in practice": examine.in_practice(gpu.practical_memory_bytes_per_second),
            "bfloat16": f"{gpu.flops['bfloat16'] / 1e12:g} TFLOP/s" if "bfloat16" in gpu.flops else None,
            "links": None if gpu.link is None else f"{gpu.links} × {gpu.link}",
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
            "in practice": examine.in_practice(rate.practical_bytes_per_second, rate.peak.practical_of),
            "direction": rate.direction,
            "source": source(rate),
        }
        for rate in rows.rates
    ]
    pages = "\n".join(plain_text(f"[{number}] {page}") for page, number in sources.items())
    notes = "\n".join(plain_text(f"{row.name}: {row.note}") for row in (*rows.gpus, *rows.rates) if row.note)
    echo("\n\n".join(part for part in (listing.as_table(gpus), listing.as_table(rates), notes, pages) if part))


def _print_here(rows: Catalogue, *, as_json: bool) -> None:
    seen = picture(environment.host_facts(), rows)
    levels = examine.level_rows(seen)
    if as_json:
        document = {"levels": levels, "findings": [*seen.findings, *seen.resting], "unknown": list(seen.unknown)}
        echo(json.dumps(document, indent=2))
        return
    table: list[dict[str, JSON]] = [
        {
            "level": row["level"],
            "of": row["of"],
            "nominal": examine.in_practice(row["nominal_bytes_per_second"]),
            "in practice": examine.in_practice(row["practical_bytes_per_second"], row["practical_of"]),
            "direction": row["direction"],
            "because": row["why"],
            "source": row["source"],
            "source of practice": row["practical_source"],
        }
        for row in levels
    ]
    echo(listing.as_table(table))
    for finding in (*seen.findings, *seen.resting):
        echo(plain_text(f"finding: {finding}"), err=True)
    for unknown in seen.unknown:
        echo(plain_text(f"unknown: {unknown}"), err=True)


def _documents(rows: Catalogue, of: Sequence[Rate | Gpu]) -> list[JSON]:
    return [{**msgspec.to_builtins(row), "origin": rows.origin(row)} for row in of]
