"""The command ``busbw list``. The list of runs imports nothing that is only needed for measuring."""

import importlib
import json
import os
import textwrap
from functools import partial
from pathlib import Path

import click

from busbw.errors import BusbwError
from busbw.escape import echo, output_columns, plain_text
from busbw.ops import FAMILIES
from busbw.ops.algorithms import ALGORITHMS
from busbw.runs import cases, plan, store
from busbw.runs.progress import RunLine, line_of, outline
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, results_dir_option

_SUMMARIES = "busbw_analysis.history.index"
_NOTHING = "–"
_INDENT = "    | "
"""Indentation of text below a row: without it, text from outside could look like another row."""


@click.command("list")
@click.argument("what", type=click.Choice(["ops", "algorithms", "backends", "suites", "launchers", "runs"]))
@results_dir_option
@as_json_option
def list_(*, what: str, results_dir: Path, as_json: bool) -> None:
    """List ops, algorithms, backends, suites, launchers or runs."""
    listed = rows(what, results_dir)
    if as_json:
        echo(json.dumps(listed, indent=2))
    elif not listed:
        echo(f"no {what} in {plain_text(str(results_dir))}", err=True)
    else:
        echo(as_table(listed))


def rows(what: str, results_dir: Path) -> list[dict[str, JSON]]:
    """The rows of the list ``what``."""
    if what == "runs":
        folders = list(store.folders(results_dir))
        # Reading thousands of runs takes minutes; most have a summary with their line of this list.
        kept = [folder for folder in folders if (folder / store.SUMMARY_FILE).is_file()]
        lines: dict[Path, RunLine] = importlib.import_module(_SUMMARIES).lines_of(kept) if kept else {}
        return [_run_row(folder, lines.get(folder)) for folder in folders]
    lists = {"ops": _ops, "algorithms": _algorithms, "backends": backends, "suites": _suites, "launchers": launchers}
    return lists[what]()


def as_table(table: list[dict[str, JSON]]) -> str:
    """Aligned columns with headings, as wide as the output. Cells that do not fit are listed below their row; a
    value that all rows share is printed once, above the table.
    """
    cells = [{name: _cell(value) for name, value in row.items()} for row in table]
    same = [name for name in cells[0] if len(table) > 1 and len({row[name] for row in cells}) == 1]
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in cells[0] if name not in same}
    shown: list[str] = []
    room = (most := output_columns()) + 2
    for name, width in widths.items():
        if not shown or width + 2 <= room:
            shown.append(name)
            room -= width + 2
    lines = [f"{name}: {cells[0][name]}" for name in same if cells[0][name] != _NOTHING]
    for row in [dict(zip(widths, widths, strict=True)), *cells]:
        lines.append("  ".join(row[name].ljust(widths[name]) for name in shown).rstrip())
        below = {name: row[name] for name in widths if name not in shown and row[name] not in {_NOTHING, name}}
        rest = [*below.pop("what", "").splitlines(), *(f"{name}: {value}" for name, value in below.items())]
        # Paths and addresses are not broken, so that they can be copied.
        lines += textwrap.wrap(
            "; ".join(rest),
            most,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _cell(value: JSON) -> str:
    if value is None:
        return _NOTHING
    return plain_text(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _ops() -> list[dict[str, JSON]]:
    return [
        {
            "group": family,
            "op": op.name,
            "size S is": op.size_meaning,
            "busbw / algbw at 4 ranks": op.factor(4),
            "buffers": ["in place" if way else "out of place" for way in op.in_place] if op.sized else None,
            "what": op.summary,
        }
        for family, ops in FAMILIES.items()
        for op in ops
    ]


def _algorithms() -> list[dict[str, JSON]]:
    return [
        {"op": op, "algorithm": name, "needs": row.needs, "what": row.summary}
        for op, named in ALGORITHMS.items()
        for name, row in named.items()
    ]


def backends() -> list[dict[str, JSON]]:
    """A row for each backend."""
    from busbw.backends import BACKENDS  # noqa: PLC0415
    from busbw.system import environment  # noqa: PLC0415

    return [
        {
            "backend": row.name,
            "device": row.device,
            "here": row.missing() or "yes",
            "versions": [f"{name} {version}" for name, version in environment.versions(row.packages).items()]
            if row.missing() is None
            else None,
            "what": row.summary,
        }
        for row in BACKENDS.values()
    ]


def _suites() -> list[dict[str, JSON]]:
    from busbw.backends import backend_named  # noqa: PLC0415
    from busbw.system import environment  # noqa: PLC0415
    from busbw.workloads.shapes import step_seconds  # noqa: PLC0415

    listed: list[dict[str, JSON]] = []
    for name, text in plan.suites().items():
        suite = plan.read_suite(name)
        ranks = suite.ranks or 4
        cores = max(1, environment.cores_of_launcher() // ranks)
        expanded = cases.expand(suite, ranks, 1, backend_named(suite.backend).device, cores=cores).cases
        seconds = cases.estimated_seconds(suite, expanded, partial(step_seconds, cores=cores * ranks))
        listed.append(
            {
                "suite": name,
                "launches": suite.launches,
                "cases at 4 ranks": len(expanded),
                "minutes": round(seconds / 60, 1),
                "what": text.partition("\n")[0].lstrip("# "),
            }
        )
    return listed


def launchers() -> list[dict[str, JSON]]:
    """A row for each launcher."""
    from busbw.launch.launchers import LAUNCHERS, launcher_here  # noqa: PLC0415

    launcher = launcher_here(os.environ)
    return [
        {"launcher": row.name, "here": "yes" if row is launcher else "no", "what": row.summary}
        for row in LAUNCHERS.values()
    ]


def _run_row(folder: Path, kept: RunLine | None) -> dict[str, JSON]:
    try:
        line = kept or line_of(outline(folder))
    except BusbwError as error:
        unknown = dict.fromkeys(("plan", "ranks", "cases", "launches"))
        return {"run": folder.name, "machine": folder.parent.name, **unknown, "state": f"unreadable: {error}"}
    return {
        "run": folder.name,
        "machine": line.machine,
        "plan": line.plan,
        "ranks": line.ranks,
        "cases": f"{line.measured} of {line.cases}",
        "launches": f"{line.complete} of {line.planned}",
        "state": line.state,
    }
