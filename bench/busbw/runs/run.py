"""The record of ``run.json``: plan, cases, hosts and environment of a run."""

import msgspec

from busbw.runs.facts import HostFacts
from busbw.runs.plan import LogPlan, Plan, plan_of_json
from busbw.runs.records import JSON, BackendTraits, Case, Record


class LogNote(Record, frozen=True, kw_only=True):
    """A caveat about a log: a stable ``code``, one sentence, and the line it refers to."""

    code: str
    text: str
    line: int | None = None


class ImportedLog(Record, frozen=True, kw_only=True):
    """The log that a run was imported from.

    tool, tool_version: the tool that printed it
    file: its name
    command: the command line, if the log has it
    given: properties missing in the log that the user supplied, by option name
    unknown: properties that neither the log nor the user gives, by option name
    notes: peculiarities that the reader found
    """

    tool: str
    tool_version: str | None
    file: str
    command: str | None
    given: dict[str, str]
    unknown: tuple[str, ...]
    notes: tuple[LogNote, ...]


class Run(Record, frozen=True, kw_only=True):
    """``run.json``: plan, hosts and environment of a run; written once, when all ranks are connected.

    schema, busbw: versions of the format, which may be older than ``SCHEMA``, and of busbw
    id: name of the run's folder
    machine: name of the cluster in a Slurm job, else of the host
    started: start of the first launch
    plan: the plan as executed; of an imported log, its name
    cases: all cases in plan order, so that cases without a row can be listed
    adjusted: sentences about sizes that were rounded
    hosts: host of rank r
    environments: facts of each host, from allow-lists only
    launcher: how the ranks were started
    backend: traits of the plan's backend
    imported: log of another tool that the run comes from; None: measured by busbw
    """

    schema: int
    id: str
    busbw: str
    machine: str
    started: str
    launcher: str
    plan: Plan | LogPlan
    cases: tuple[Case, ...]
    adjusted: tuple[str, ...]
    hosts: tuple[str, ...]
    environments: dict[str, HostFacts]
    backend: BackendTraits
    imported: ImportedLog | None = None


class RunDocument(Run, frozen=True, kw_only=True):
    """A run as it is stored: the plan has the keys of a plan file."""

    plan: dict[str, JSON]  # type: ignore[assignment]  # a plan only in ``Run``


def document_of(run: Run) -> RunDocument:
    """``run`` as it is stored."""
    fields = {name: getattr(run, name) for name in Run.__struct_fields__}
    return RunDocument(**{**fields, "plan": run.plan.as_json()})


def read_document(document: JSON) -> Run:
    """The run of a decoded ``run.json``. Raises msgspec.ValidationError, also for a plan that is none."""
    stored = msgspec.convert(document, RunDocument)
    fields = {name: getattr(stored, name) for name in Run.__struct_fields__}
    return Run(**{**fields, "plan": plan_of_json(stored.plan)})
