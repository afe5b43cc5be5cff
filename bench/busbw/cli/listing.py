"""The command ``busbw list``. The list of runs imports nothing that is only needed for measuring."""

import importlib
import json
import os
import textwrap
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Final

import click

from busbw.errors import BusbwError
from busbw.escape import echo, output_columns, plain_text
from busbw.runs import collection, store
from busbw.runs.progress import RunLine, line_of, outline
from busbw.runs.records import JSON
from busbw.shared_options import as_json_option, results_dir_option
from busbw.units import clock_time, listed

_SUMMARIES = "busbw_analysis.history.index"
_COLUMNS = (
    *("run", "label", "op", "differs", "backend", "ranks", "host", "hosts", "started", "launches", "state", "cases"),
    *("plan", "machine"),
)
"""Of the list of runs, in this order."""
_MOST_OPS = 2
"""Operations of a run that a table names."""
_NOTHING = "–"
_INDENT = "    | "
"""Indentation of text below a row: without it, text from outside could look like another row."""


@click.command("list")
@click.argument("what", type=click.Choice(["ops", "algorithms", "backends", "suites", "launchers", "runs"]))
@results_dir_option
@as_json_option
@collection.paused(until_exit=True)
def list_(*, what: str, results_dir: Path, as_json: bool) -> None:
    """List ops, algorithms, backends, suites, launchers or runs."""
    table = rows(what, results_dir)
    if as_json:
        echo(json.dumps(table, indent=2))
    elif not table:
        echo(f"no {what} in {plain_text(str(results_dir))}", err=True)
    else:
        differ = any(row.get("differs") for row in table)
        echo(as_table(_in_brief(table), _BRIEF) if what == "runs" else as_table(table))
        if differ:
            echo(_DIFFERS, err=True)


def rows(what: str, results_dir: Path) -> list[dict[str, JSON]]:
    """The rows of the list ``what``."""
    if what == "runs":
        places = store.places(results_dir)
        # Reading thousands of runs takes minutes; most have a summary with their line of this list.
        summarised = any(os.path.exists(f"{place}/{store.SUMMARY_FILE}") for place in places)  # noqa: PTH110
        lines: dict[str, RunLine] = importlib.import_module(_SUMMARIES).lines_of(places) if summarised else {}
        there = (place for place in places if place in lines or store.is_run(place))
        return _runs([(place, lines.get(place) or _line(Path(place))) for place in there])
    lists = {"ops": _ops, "algorithms": _algorithms, "backends": backends, "suites": _suites, "launchers": launchers}
    return lists[what]()


def as_table(table: list[dict[str, JSON]], brief: Mapping[str, Callable[[JSON], str]] = MappingProxyType({})) -> str:
    """Aligned columns with headings, as wide as the output. Cells that do not fit are listed below their row; a
    value that all rows share is printed once, above the table, and one that no row has is left out. ``brief``: columns
    → the text of a value.
    """
    columns = {name: _cells([row[name] for row in table], brief.get(name)) for name in table[0]}
    shared = {name: cells[0] for name, cells in columns.items() if len(set(cells)) == 1}
    same = {name: cell for name, cell in shared.items() if cell == _NOTHING or len(table) > 1}
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items() if name not in same}
    shown: list[str] = []
    room = (most := output_columns()) + 2
    for name, width in widths.items():
        if not shown or width + 2 <= room:
            shown.append(name)
            room -= width + 2
    lines = textwrap.wrap(" · ".join(f"{name}: {cell}" for name, cell in same.items() if cell != _NOTHING), most)
    lines.append("  ".join(name.ljust(widths[name]) for name in shown).rstrip())
    # Paths and addresses are not broken, so that they can be copied.
    below = textwrap.TextWrapper(
        most, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False
    )
    hidden = sorted((name for name in widths if name not in shown), key=lambda name: name != "what")
    aligned = ([cell.ljust(widths[name]) for cell in columns[name]] for name in shown)
    for number, cells in enumerate(zip(*aligned, strict=True)):
        lines.append("  ".join(cells).rstrip())
        named = ((name, columns[name][number]) for name in hidden)
        rest = [value if name == "what" else f"{name}: {value}" for name, value in named if value != _NOTHING]
        lines += below.wrap("; ".join(rest)) if rest else []
    return "\n".join(lines)


def _cells(values: Sequence[JSON], brief: Callable[[JSON], str] | None) -> list[str]:
    cells: list[str] = []
    for value, alike in groupby(values):  # most runs are like the one before
        cells += [_cell(brief(value) if brief and value else value)] * len(list(alike))
    return cells


def _cell(value: JSON) -> str:
    if value is None:
        return _NOTHING
    return plain_text(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _ops() -> list[dict[str, JSON]]:
    from busbw.ops import FAMILIES  # noqa: PLC0415 - a list of runs needs no table of operations

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
    from busbw.ops.algorithms import ALGORITHMS  # noqa: PLC0415

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
    from busbw.runs import cases, plan  # noqa: PLC0415
    from busbw.system import environment  # noqa: PLC0415
    from busbw.workloads.shapes import step_seconds  # noqa: PLC0415

    rows: list[dict[str, JSON]] = []
    for name, text in plan.suites().items():
        suite = plan.read_suite(name)
        ranks = suite.ranks or 4
        cores = max(1, environment.cores_of_launcher() // ranks)
        expanded = cases.expand(suite, ranks, 1, backend_named(suite.backend).device, cores=cores).cases
        seconds = cases.estimated_seconds(suite, expanded, partial(step_seconds, cores=cores * ranks))
        rows.append(
            {
                "suite": name,
                "launches": suite.launches,
                "cases at 4 ranks": len(expanded),
                "minutes": round(seconds / 60, 1),
                "what": text.partition("\n")[0].lstrip("# "),
            }
        )
    return rows


def launchers() -> list[dict[str, JSON]]:
    """A row for each launcher."""
    from busbw.launch.launchers import LAUNCHERS, launcher_here  # noqa: PLC0415

    launcher = launcher_here(os.environ)
    return [
        {"launcher": row.name, "here": "yes" if row is launcher else "no", "what": row.summary}
        for row in LAUNCHERS.values()
    ]


def _line(folder: Path) -> RunLine | BusbwError:
    try:
        return line_of(outline(folder))
    except BusbwError as error:
        return error


_DIFFER: Mapping[str, Callable[[RunLine], Hashable]] = {
    "settings": attrgetter("ops"),
    "variables": attrgetter("backends"),
    "facts": attrgetter("machine", "backends"),
}
"""What runs may differ in → those among which it is compared: ops, backend and machine tell the others apart."""


_DIFFERS: Final = (
    "differs: settings, variables or facts that are not alike in all listed runs of these ops, backends or machine"
)


def _runs(lines: Sequence[tuple[str, RunLine | BusbwError]]) -> list[dict[str, JSON]]:
    """A row for each run, given by its path. ``differs`` has the settings, variables and facts that tell it from others
    of the list.
    """
    rows = [_row(place, line) for place, line in lines]
    readable = [(line, row) for (_, line), row in zip(lines, rows, strict=True) if isinstance(line, RunLine)]
    for kind, of_like in _DIFFER.items():
        among: dict[Hashable, list[tuple[dict[str, str], dict[str, JSON]]]] = {}
        for line, row in readable:
            among.setdefault(of_like(line), []).append((getattr(line, kind), row))
        for alike in among.values():
            for name in _unlike([named for named, _ in alike]):
                for named, row in alike:
                    if name in named:
                        row["differs"] = {**(row["differs"] or {}), name: named[name]}
    return rows


def _unlike(named: Sequence[Mapping[str, str]]) -> list[str]:
    """The names whose values are not the same in all of ``named``, in order of appearance."""
    distinct = [of_run for of_run, _ in groupby(named)]  # most runs are like the one before
    names = dict.fromkeys(name for of_run in distinct for name in of_run)
    return [name for name in names if len({of_run.get(name) for of_run in distinct}) > 1]


def _row(place: str, line: RunLine | BusbwError) -> dict[str, JSON]:
    """The row of a run, ``differs`` not yet filled in."""
    # A Path for each of 10,000 runs would take 50 ms.
    name, machine = os.path.basename(place), os.path.basename(os.path.dirname(place))  # noqa: PTH119, PTH120
    if not isinstance(line, RunLine):
        return dict.fromkeys(_COLUMNS) | {"run": name, "machine": machine, "state": f"unreadable: {line}"}
    return {
        "run": name,
        "label": line.label,
        "op": list(line.ops),
        "differs": None,
        "backend": list(line.backends),
        "ranks": line.ranks,
        "host": line.host,
        "hosts": line.hosts,
        "started": line.started,
        "launches": f"{line.complete} of {line.planned}",
        "state": line.state,
        "cases": f"{line.measured} of {line.cases}",
        "plan": line.plan,
        "machine": line.machine,
    }


_BRIEF: Mapping[str, Callable[[JSON], str]] = {
    "op": lambda ops: listed(ops, _MOST_OPS),
    "started": clock_time,
}
"""Columns of a table of runs → their text."""


def _in_brief(rows: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """The rows of runs for a table: the number of hosts is beside the first of them, what differs is a text."""
    for row in rows:
        if (hosts := row.pop("hosts")) and hosts > 1:
            row["host"] += f" and {hosts - 1} more"
        if row["differs"]:
            row["differs"] = ", ".join(f"{name} {value}" for name, value in row["differs"].items())
    return rows
