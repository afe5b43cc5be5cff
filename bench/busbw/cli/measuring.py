"""The work behind ``busbw run``: build a plan from options, print a dry run, and print the result of a run."""

import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from busbw import launch, units
from busbw.backends import BACKENDS, backend_named
from busbw.backends.base import BackendRow
from busbw.errors import BusbwError, Interrupted, UsageError
from busbw.escape import as_argument, echo, plain_text
from busbw.launch import run_session
from busbw.launch.launchers import launcher_here
from busbw.launch.run_session import Result, Settings
from busbw.measure.unsupported import anywhere, unsuited
from busbw.ops import BETWEEN_RANKS, OPS
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.base import Op
from busbw.ops.traffic import read_weights
from busbw.runs import cases, plan, resume, store
from busbw.runs.cases import in_words, timing_in_words
from busbw.runs.plan import Plan, Sweep
from busbw.runs.progress import outline
from busbw.runs.records import settings_in_words
from busbw.runs.resume import Lack
from busbw.system import environment
from busbw.units import counted
from busbw.workloads.shapes import model_name, step_seconds

_KEPT_WITH_RESUME = {"resume", "launches", "timeout_seconds", "port", "quiet", "as_json", "results_dir", "dry_run"}
"""Options of ``busbw run`` that are allowed with ``--resume``; ``--launches`` may add launches to the stored plan."""


def resume_run(
    selector: str, changes: Mapping[str, Any], settings: Settings, *, dry_run: bool, as_json: bool
) -> Result | None:
    """Measure what the run ``selector`` lacks, with ``changes`` to its plan. With ``dry_run``, only print it."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in _KEPT_WITH_RESUME
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be used with --resume, because a resumed run keeps its plan; allowed are "
            "--launches (more of them), --timeout (for what is measured now), --port, --quiet, --json, "
            "--results-dir and --dry-run"
        )
    folder = store.find(settings.results_dir, selector)
    if dry_run:
        stored = store.read(folder)
        _print_lack(resume.lack_of(stored, resume.plan_of(stored.run, **changes)), as_json=as_json)
        return None
    return launch.resume(folder, changes["launches"], settings, changes["timeout_seconds"])


def _print_lack(lack: Lack, *, as_json: bool) -> None:
    if as_json:
        missing = [
            {"launch": lack.first + part.number, "resumes": part.resumes, "case": case, "blocks": blocks}
            for part in lack.launches
            for case, blocks in lack.by_case(part).items()
        ]
        document = {"run": lack.stored.run.id, "missing": missing, "not_tried_again": lack.void}
        echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
        return
    for part in lack.launches:
        why = "" if part.resumes is None else f" for launch {part.resumes + 1}"
        for case, blocks in lack.by_case(part).items():
            numbers = ", ".join(str(block + 1) for block in blocks)
            echo(plain_text(f"launch {lack.first + part.number + 1}{why}  {in_words(case)}  block {numbers}"))
    for case in lack.void:
        echo(f"not repeated because it failed before: {plain_text(in_words(case))}", err=True)
    echo(f"{plain_text(lack.in_words())}{'; nothing was measured' if lack.launches else ''}", err=True)


@contextmanager
def report_interruption(status: int = 1) -> Iterator[None]:
    """If a run is interrupted or fails, print its folder and the command that resumes it, and exit with ``status``."""
    try:
        yield
    except (BusbwError, Interrupted) as broken:
        if broken.folder is None:
            raise
        folder = as_argument(broken.folder)
        command = f"busbw run --resume {folder}"
        with suppress(BusbwError):  # the message about the run comes first
            command = resume.command_resuming(store.read_run(broken.folder), folder)
        echo(f"busbw: {plain_text(str(broken))}\nresults: {folder}\nnext:    {command}", err=True)
        click.get_current_context().exit(status)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    numbers = units.numbers_in(text.replace(" ", ""))
    if not numbers:
        raise UsageError(f"--{option} {text!r}: expected whole numbers, such as 0,1 or 0-3")
    return numbers


_READ: dict[str, Callable[[Any], object]] = {
    "numa_nodes": partial(_numbers, "numa-node"),
    "micro_batches": partial(_numbers, "micro-batches"),
    "replicas": partial(_numbers, "replicas"),
    "path": plan.given_path,
    "traffic": read_weights,
}
"""Field of a plan → function that converts the text of its option, where a conversion is needed."""


_ALL: Final = ("all",)
"""The names of ``--op all``: of a suite or plan its own operations, else all between ranks."""


def asked_plan(
    suite: str | None, plan_file: Path | None, ops: tuple[str, ...] | None, asked: Mapping[str, Any], *, alone: bool
) -> tuple[Plan, list[str]]:
    """The plan that the options define, and the operations that were added to it as reference measurements.

    ``asked`` are values for the plan's fields of these names. Nothing is added if ``alone``.
    """
    read = {name: reads(asked[name]) for name, reads in _READ.items() if asked[name] is not None}
    requested = _plan(suite, plan_file, ops, {**asked, **read})
    if alone or ops is None:
        return requested, []
    ranks = launch.ranks_of(requested, os.environ)
    judged = [op for sweep in requested.sweep for op in sweep.ops]
    added = baseline(judged, backend_named(requested.backend), ranks, one_host=launch.on_one_host(ranks))
    completed = msgspec.structs.replace(requested, sweep=(*requested.sweep, *added))
    return completed, [name for sweep in added for name in sweep.ops]


# --- reference measurements that --op adds, so that its results can be compared with models and peaks --------------

_LATENCY: Final = ("ping_pong", "8,4MiB")
"""Latency α and cost per byte β. Between hosts nothing else is measured: the network's nominal rate is its peak."""
_RATE: Final = ("send_recv", "4MiB")
"""The rate that the ranks of one host reach together."""
_SOCKETS: Final = (("tcp_stream", "4MiB,64MiB"), ("tcp_ping_pong", "4MiB"))
"""Peaks for a backend that sends over sockets, on one host."""
_MEMORY: Final = ("memory_copy", "64MiB")
"""Peak for ranks that share the memory of one host."""
_PRODUCTS: Final = ("matmul", "4MiB")
"""Rate of matrix products, which training steps are compared with."""


def baseline(ops: Sequence[str], backend: BackendRow, ranks: int, *, one_host: bool) -> tuple[Sweep, ...]:
    """Sweeps that cost models and peaks for ``ops`` on ``ranks`` ranks are derived from, without those in ``ops``.

    Empty when ``ops`` send nothing.
    """
    sending = [OPS[name] for name in ops if ranks > 1 and _is_judged(OPS[name])]
    rows = [_PRODUCTS] if any(OPS[name].splits for name in ops) else []
    rows += [_LATENCY] if sending else []
    if one_host and any(op.sized for op in sending):
        rows.append(_RATE)
        rows += _SOCKETS if backend.traits.transport == "gloo-tcp" else ()
        rows += [_MEMORY] if backend.device == "cpu" else []
    return tuple(Sweep(ops=(name,), sizes=sizes, baseline=True) for name, sizes in rows if name not in ops)


def _is_judged(op: Op) -> bool:
    """Whether ``op`` is compared with a model or peak of messages (pairs are only compared with each other)."""
    return not (op.local or op.stores or op.plain_sockets or op.splits or op.members == "pairs")


# --- the plan -------------------------------------------------------------------------------------------------------


def _plan(suite: str | None, plan_file: Path | None, ops: tuple[str, ...] | None, settings: Mapping[str, Any]) -> Plan:
    if suite is not None and plan_file is not None:
        raise UsageError("--suite and --plan were both given; give one of them")
    _refuse_other_kinds({"suite": (suite,), "op": ops or (), "backend": (settings["backend"],)})
    if suite is None and plan_file is None and ops is None:
        raise UsageError(f"nothing to measure: give --op, --suite ({', '.join(plan.suites())}) or --plan FILE")
    base = plan.read_suite(suite) if suite is not None else None if plan_file is None else _read_plan(plan_file)
    selected = () if ops in {None, _ALL} else ops or ()
    with plan.naming_options():
        given = base or Plan(sweep=(Sweep(ops=selected or BETWEEN_RANKS),))
        requested = plan.override(given, ops=selected, **settings)
        # The full names of models, on which their default scales depend.
        sweeps = tuple(
            sweep.with_keys({"models": sweep.training.models and tuple(map(model_name, sweep.training.models))})
            for sweep in requested.sweep
        )
        return msgspec.structs.replace(requested, sweep=sweeps)


def _refuse_other_kinds(given: Mapping[str, Iterable[str | None]]) -> None:
    """Raise UsageError for a name that is none of its option's, but of another one: ``--suite all_reduce``."""
    algorithms = {name for of_op in ALGORITHMS.values() for name in of_op}
    kinds: dict[str, Collection[str]] = {
        "op": OPS,
        "suite": plan.suites(),
        "backend": BACKENDS,
        "algorithm": algorithms,
    }
    for option, names in given.items():
        for name in names:
            if name is None or name in kinds[option]:
                continue
            for kind, names_of_kind in kinds.items():
                if name in names_of_kind:
                    article = "an" if kind[0] in "ao" else "a"
                    raise UsageError(f"--{option} {name}: {name} is {article} {kind}: did you mean --{kind} {name}?")


def _read_plan(path: Path) -> Plan:
    """A plan file. Raises UsageError; if there is no such file, with the shipped suites."""
    if not path.exists():
        suites = plan.suites()
        what = f"did you mean --suite {path.stem}?" if path.stem in suites else f"shipped suites: {', '.join(suites)}"
        raise UsageError(
            f"--plan {path}: there is no such file; give a TOML file (docs/formats.md, Plans), or --suite NAME; {what}"
        )
    return plan.read_plan(path)


def print_dry_run(requested: Plan, references: Collection[str], *, as_json: bool) -> None:
    """Print the cases of ``requested`` and the estimated time, with the part of ``references``, the reference
    measurements.

    Raises UsageError for a plan that cannot run here.
    """
    ranks = launch.ranks_of(requested, os.environ)
    cores = max(1, environment.cores_of_launcher() // ranks)
    # With several hosts, it is unknown before the launch which ranks write files on this host.
    is_local = launcher_here(os.environ).local
    way = run_session.way_here(requested, ranks) if is_local else "direct"
    with plan.naming_options():
        if is_local:
            run_session.refuse_crowd(ranks)
        run_session.refuse_impossible(requested, ranks, on_one_host=launch.on_one_host(ranks))
    planned = cases.expand(requested, ranks, 1, backend_named(requested.backend).device, way, cores)
    place = run_session.place_here(ranks) if is_local else anywhere()
    skipped = {case: reason for case in planned.cases if (reason := unsuited(case, place)) is not None}
    to_come = [case for case in planned.cases if case not in skipped]
    of_step = partial(step_seconds, cores=environment.cores_of_launcher())
    seconds = cases.estimated_seconds(requested, to_come, of_step)
    asked = [case for case in to_come if case.op not in references]
    baseline_share = 1 - cases.estimated_seconds(requested, asked, of_step) / seconds if references else 0.0
    whole_seconds = max(seconds, requested.duration_ns / 1e9)
    of_baseline = baseline_share * whole_seconds
    missing = backend_named(requested.backend).missing()
    if missing is not None:  # first, and no error: the plan may be for another host
        echo(f"caution: backend {requested.backend} cannot run on this host: {missing}", err=True)
    if as_json:
        document = {
            "plan": requested.as_json(),
            "cases": msgspec.to_builtins(planned.cases),
            "adjusted": list(planned.adjusted),
            "skipped": [{"case": msgspec.to_builtins(case), "reason": reason} for case, reason in skipped.items()],
            "estimated_seconds": whole_seconds,
            "baseline": {"ops": list(references), "estimated_seconds": of_baseline},
        }
        echo(json.dumps(document, indent=2))
        return
    for case in to_come:
        details = " ".join(part for part in (case.dtype, case.redop, *settings_in_words(case)) if part)
        way_of_call = "in place" if case.in_place else "out of place"
        timing = ", ".join([counted(case.ranks, "rank"), f"groups {case.group}", way_of_call, *timing_in_words(case)])
        # A step of training or a barrier has no buffers.
        size = units.format_size(case.size_bytes) if OPS[case.op].sized else ""
        echo(f"{case.op:15} {size:>10}  {details:24} {timing}")
    for reason, count in Counter(skipped.values()).items():
        of = {case.op: None for case, why in skipped.items() if why == reason}
        echo(f"skipped: {counted(count, 'case')} of {units.listed(of)}: {reason}")
    for note in planned.adjusted:
        echo(f"size rounded: {note}", err=True)
    if references and to_come and missing is None:
        echo(
            f"reference cases for models and peaks: {', '.join(references)}, "
            f"{units.format_span(of_baseline)} of the time ({baseline_share:.0%}); --no-baseline omits them",
            err=True,
        )
    if not to_come:
        echo("nothing can be measured: every case is skipped", err=True)
        return
    verb = "is" if len(skipped) == 1 else "are"
    left_out = f"{len(skipped)} of {counted(len(planned.cases), 'case')} {verb} skipped; " if skipped else ""
    about = (
        f"about {units.format_span(whole_seconds)}, longer if single calls take seconds; " if missing is None else ""
    )
    echo(
        f"{counted(len(to_come), 'case')} × {counted(requested.launches, 'launch', 'launches')}: {about}{left_out}"
        "the backend may refuse more cases when it starts; nothing was measured",
        err=True,
    )


_MOST_ANALYSED_BYTES = 100 << 20
"""Larger runs, such as pairs of 256 ranks, take longer than some seconds to analyse, so only on request."""


def _analysed(folder: Path, function: str) -> Any:  # noqa: ANN401 - busbw imports nothing of the analysis
    """The result of ``function`` of the analysis for the run in ``folder``.

    None if the analysis is not installed, would take long, or cannot judge the run (the reason is printed).
    """
    try:
        if sum(file.stat().st_size for file in folder.glob("samples.jsonl*")) > _MOST_ANALYSED_BYTES:
            return None
        return getattr(importlib.import_module("busbw_analysis.cli.main"), function)(folder)
    except ImportError:
        return None
    except BusbwError as error:
        echo(f"no analysis: {plain_text(str(error))}", err=True)
        return None


def lacks_what_was_asked(result: Result, references: Collection[str]) -> bool:
    """Whether nothing was measured except the reference measurements ``references``."""
    if not result.measured or not references:
        return not result.measured
    try:
        return all(case.op in references for _, case, _ in outline(result.folder).blocks)
    except (BusbwError, OSError):  # the analysis reports what is wrong with the folder
        return False


def conclude(result: Result, *, empty: bool, quiet: bool, as_json: bool) -> None:
    """Print the result of a run, its folder and the next command; ``empty``: nothing was measured that was asked."""
    folder = as_argument(result.folder)
    try:
        if as_json:
            counts = {"run": str(result.folder), "measured": result.measured, "failed": result.failed}
            shown = _analysed(result.folder, "shown") or {}
            echo(json.dumps({**counts, **shown}, indent=2, ensure_ascii=False))
            return
        if not quiet:
            _analysed(result.folder, "print_run")
    except OSError:
        echo(f"results: {folder}", err=True)
        raise
    echo(f"results: {folder}\nnext:    busbw {_next_command(result.folder)} {folder}", err=True)
    if result.failed and not result.whole:
        echo(f"busbw: {counted(result.failed, 'case')} failed; busbw show {folder} gives the reason", err=True)
    elif empty:
        what = "only the baseline was measured, all other" if result.measured else "nothing was measured, all"
        reasons = _reasons(result.folder)
        first = f": {reasons[0]}" if reasons else ""
        more = f"; busbw show {folder} lists the reasons" if len(reasons) != 1 else ""
        echo(f"busbw: {what} cases were skipped{first}{more}", err=True)


def _next_command(folder: Path) -> str:
    """The command that judges the run: that of its controller, if it has one."""
    with suppress(BusbwError, OSError):
        return store.read_run(folder).plan.controller or "report"
    return "report"


def _reasons(folder: Path) -> list[str]:
    """Why cases were skipped, each reason once; empty if the run cannot be read."""
    with suppress(BusbwError):
        return list(dict.fromkeys(plain_text(row.reason) for row in store.read(folder).skipped))
    return []
