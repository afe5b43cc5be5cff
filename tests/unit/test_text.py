"""No structure is read out of text that the product made itself: text is read at the places of ``READERS`` only."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (ROOT / "analysis", ROOT / "bench")

METHODS: Final = frozenset(
    {
        *("partition", "rpartition", "split", "rsplit", "splitlines", "find", "rfind"),
        *("startswith", "endswith", "removeprefix", "removesuffix"),
    }
)
EXPRESSIONS: Final = frozenset(
    {"compile", "match", "fullmatch", "search", "split", "sub", "subn", "findall", "finditer"}
)

READERS: Final[dict[str, str]] = {
    # what users type
    "busbw/cli/options.py": "names and lists that users type",
    "busbw/cli/run.py:_Run": "arguments of users, and click's message about them",
    "busbw/cli/run.py:_option_for": "a word that a user typed instead of an option",
    "busbw/errors.py:_plain": "names of users, to suggest the nearest known one",
    "busbw/ops/groups.py": "groups of ranks as users write them",
    "busbw/key_values.py": "lists of keys and values as users write them",
    "busbw/ops/settings.py": "numbers of threads as users write them",
    "busbw/ops/training.py": "computation times and gradient exchanges as users write them",
    "busbw/runs/plan.py:_path": "a path of the user",
    "busbw/runs/plan.py:_KEY": "only renames: the key of a message becomes the option that the user typed",
    "busbw/runs/store.py:_answering": "how users select runs: the beginning or the end of a folder's name",
    "busbw/slurm/job_plan.py": "numbers of nodes as users write them, names of options and hosts",
    "busbw/slurm/script.py": "quotes settings of users for a batch script",
    "busbw/slurm/steps.py": "the command line that a batch script carries out",
    "busbw/system/named.py": "names of network cards as users write them",
    "busbw/units.py": "sizes, numbers, rates and times as users write them; digits of printed numbers",
    "busbw/workloads/model_rows.py:_plain": "names of models as users write them",
    "busbw_analysis/cli/history.py": "lists and parts that users type",
    "busbw_analysis/history/engine.py:engine_of": "engines that users type",
    "busbw_analysis/cli/main.py": "lists and percentages that users type",
    "busbw_analysis/cli/options.py": "completes names that users type",
    "busbw_analysis/cli/training_options.py": "names of files and models, networks and percentages as users write them",
    "busbw_analysis/cli/simulate.py": "algorithms and placements that users type",
    "busbw_analysis/models/networks.py": "networks as users write them",
    "busbw_analysis/fleet/controller.py:two_hosts": "names that users give to logs",
    "busbw_analysis/fleet/topology.py": "lists of hosts, and Slurm's topology.conf",
    "busbw_analysis/gate/baselines.py:_NAME": "names that users type",
    "busbw_analysis/gate/rules.py": "sizes as users write them",
    # files that people write, and those of runs
    "busbw/cli/listing.py:_suites": "the comment at the top of a suite",
    "busbw/ops/limits.py": "TOML files of users, msgspec's messages about them, and sources of catalogues",
    "busbw/runs/store.py:Appender": "lines of a file of samples",
    "busbw/runs/store.py:decoded_lines": "lines of a file of samples",
    "busbw/system/catalog.py:Gpu": "PCI identities in catalogues",
    "busbw_analysis/data/readers/": "logs and tables of other tools, and the CSV file that busbw itself exports",
    "busbw_analysis/models/choices.py:selected": "a line of a library's decision table",
    # what systems, tools and libraries say
    "busbw/backends/__init__.py": "lists of GPUs in variables, and the version file of torch",
    "busbw/backends/cuda.py": "messages of CUDA",
    "busbw/backends/local/compute.py": "names of torch's data types",
    "busbw/backends/local/storage.py": "messages of the system",
    "busbw/backends/local/storage.py:fio_check": "fio's arguments, version and messages",
    "busbw/backends/mpi/info.py": "what MPI libraries say of themselves",
    "busbw/backends/mpi/init.py:_flag_of": "the version of an MPI library",
    "busbw/backends/mpi/init.py:message_of": "messages of MPI libraries",
    "busbw/backends/mpi/init.py:refuse_another_manager": "the version of an MPI library",
    "busbw/backends/mpi/native.py": "messages of mpi4py",
    "busbw/backends/mpi/probe.py": "names of variables, and messages of a probe",
    "busbw/backends/mpi/segments.py": "memory maps of processes",
    "busbw/backends/pytorch/nccl_tuning.py": "messages of NCCL",
    "busbw/backends/pytorch/training/data_parallel.py": "torch's names of parameters",
    "busbw/backends/pytorch/training/network.py": "torch's names of parameters; the other split is that of tensors",
    "busbw/backends/pytorch/training/observer.py": "torch's names of functions",
    "busbw/backends/side_channel.py": "addresses, descriptors and messages of the system and of torch",
    "busbw/system/counters.py": "counters of the kernel",
    "busbw_analysis/gate/prolog.py": "names of folders of checks that were killed",
    "busbw_analysis/gate/prolog.py:own_variables": "names of variables of launchers",
    "busbw/launch/launchers.py": "variables of launchers",
    "busbw/launch/local.py:_Rank": "the state of a process",
    "busbw/launch/mpi_stub.py": "variables of launchers",
    "busbw/launch/mpiexec.py": "output of mpiexec",
    "busbw/launch/rendezvous.py": "addresses of the system",
    "busbw/runs/causes.py": "messages of the system and of libraries, which reach all ranks as text",
    "busbw/runs/described.py": "names of variables",
    "busbw/runs/resume.py": "names of variables",
    "busbw/slurm/follow.py": "numbers and logs of Slurm's tasks",
    "busbw/slurm/jobs.py": "output of Slurm",
    "busbw/system/detect.py:_NVME": "names of devices",
    "busbw/system/detect.py:dram_of": "kinds of memory as the firmware names them",
    "busbw/system/detect.py:drive_of": "names of devices",
    "busbw/system/dimms.py": "tables of the firmware",
    "busbw/system/detect.py:is_slingshot": "names of drivers",
    "busbw/system/environment.py": "files of the system, names of hosts, and variables",
    "busbw/system/installed.py": "files of the system",
    "busbw/system/nvml.py": "addresses of NVML",
    "busbw/system/pci.py": "files of the system",
    "busbw/system/storage.py": "names of devices",
    "busbw_analysis/cli/explain.py": "the beginning of a term as the user types it",
    "busbw_analysis/data/imported.py": "names and versions in logs of other tools",
    "busbw_analysis/data/likeness.py": "names of variables, and commands of other tools",
    "busbw_analysis/fitting/published.py": "names of GPUs as drivers give them",
    "busbw_analysis/models/choices.py:_LIBRARY": "what MPI libraries say of themselves",
    "busbw_analysis/models/choices.py:_OVERRIDE": "names of variables",
    "busbw_analysis/models/choices.py:_refusals": "the device of an MPI library",
    "busbw_analysis/models/choices.py:library_of": "the version of an MPI library",
    "busbw_analysis/peaks/transports.py": "variables of communication libraries",
    "busbw_analysis/report/svg.py": "SVG that matplotlib wrote",
    # text that is written: escaped, cut into lines, spelled
    "busbw/escape.py": "escapes text from outside",
    "busbw/measure/supplements.py:measure_step_parts": "a name of a file",
    "busbw/runs/records.py:Ended": "wording: a reason may begin with the status",
    "busbw/runs/store.py:create": "a name of a folder",
    "busbw/runs/store.py:utc_now": "the spelling of a time",
    "busbw_analysis/data/imported.py:_run_of": "the spelling of a time",
    "busbw_analysis/data/sources.py": "a file that was read: whether it is a report",
    "busbw_analysis/data/sentences.py": "wording: capital letters",
    "busbw_analysis/assembly/compose.py:folder_for": "a name of a folder, from those of runs",
    "busbw_analysis/gate/outputs.py": "elements of XML; escapes text for GitHub and Markdown",
    "busbw_analysis/report/document.py:three_digits": "digits of a number",
    "busbw_analysis/report/to_html.py": "typesetting: digits behind a point",
    "busbw_analysis/report/to_markdown.py": "escapes text for Markdown",
    "busbw_analysis/report/to_terminal.py": "typesetting: lines of a paragraph",
    # members of a set that are two words
    "busbw_analysis/diagnosis/answer.py:_headline": "a set of statuses",
    "busbw_analysis/diagnosis/findings.py:_clocks": "a tuple of flags",
}
"""A folder (``…/``), a module, or a function, class or constant of a module → what it reads that is not the product's
own text. A new reader is one row; everything else is a field of a record, and its text is made last.
"""


class Use(NamedTuple):
    """A place that reads text: its file, line, the statement of the module that contains it, and the method."""

    file: str
    line: int
    name: str
    method: str

    @property
    def rows(self) -> tuple[str, ...]:
        """The keys of ``READERS`` that allow it."""
        folder = Path(self.file).parent
        folders = (f"{parent.as_posix()}/" for parent in (folder, *folder.parents))
        return (f"{self.file}:{self.name}", self.file, *folders)


def uses_in(source: str, file: str) -> Iterator[Use]:
    """Everything in ``source`` that reads text."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for statement in tree.body:
        for node in ast.walk(statement):
            method = _called(node, imported) if isinstance(node, ast.Call) else _asked(node)
            if method is not None and isinstance(node, ast.expr):
                yield Use(file, node.lineno, _name_of(statement), method)


def _name_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return next((target.id for target in targets if isinstance(target, ast.Name)), "")


def _called(call: ast.Call, imported: set[str]) -> str | None:
    """The method of text that is called. Functions of modules (``store.find``) are none, and ``replace`` of a single
    character is a spelling, from which nothing follows.
    """
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=name):
            return f"re.{name}" if name in EXPRESSIONS else None
        case ast.Attribute(value=ast.Name(id=receiver)) if receiver in imported:
            return None
        case ast.Attribute(attr="replace") if len(call.args) > 1:
            old = call.args[0]
            spelled = isinstance(old, ast.Constant) and isinstance(old.value, str | bytes) and len(old.value) == 1
            return None if spelled else "replace"
        case ast.Attribute(attr=name) if name in METHODS:
            return name
    return None


def _asked(node: ast.AST) -> str | None:
    """``in`` behind a literal that is more than a word: a word is rather a member of a set."""
    match node:
        case ast.Compare(left=ast.JoinedStr(), ops=[ast.In() | ast.NotIn()]):
            return "in"
        case ast.Compare(left=ast.Constant(value=str(literal)), ops=[ast.In() | ast.NotIn()]):
            return None if re.fullmatch(r"[\w-]+", literal) else "in"
    return None


@cache
def uses() -> list[Use]:
    """Everything in the product that reads text."""
    return [
        use
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for use in uses_in(path.read_text(encoding="utf-8"), path.relative_to(package).as_posix())
    ]


def unlisted(found: list[Use]) -> list[str]:
    """A line for every use that no row allows."""
    return [
        f"{use.file}:{use.line}: {use.name or 'the module'} uses {use.method} on text. Make what it reads a field "
        "(a code, a record, a tuple of clauses) where the text is made; if the text is not the product's own, add a "
        "row to READERS in tests/unit/test_text.py"
        for use in found
        if not READERS.keys() & set(use.rows)
    ]


def test_text_is_read_at_listed_places_only() -> None:
    assert not unlisted(uses()), "\n" + "\n".join(unlisted(uses()))


def test_every_listed_place_still_reads_text() -> None:
    needed = {row for use in uses() for row in use.rows}
    assert not READERS.keys() - needed, "rows of places that read no text any more"


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ('cause.text.partition(". ")[0]', "partition"),
        ('summary.check.startswith("not checked")', "startswith"),
        ('peak.denominator.split(",")', "split"),
        ('"busbw compare" in action', "in"),
        ('f"link {number}" not in text', "in"),
        ('re.search("[0-9]+ ranks", text)', "re.search"),
        ('formula.replace("S β", "S γ")', "replace"),
    ],
)
def test_a_new_reader_of_text_is_reported_with_its_place(line: str, method: str) -> None:
    source = f"import re\n\n\ndef judge(cause, summary, peak):\n    return {line}\n"
    (use,) = uses_in(source, "busbw_analysis/diagnosis/new.py")
    assert use == ("busbw_analysis/diagnosis/new.py", 5, "judge", method)
    (message,) = unlisted([use])
    assert message.startswith("busbw_analysis/diagnosis/new.py:5: judge uses")


@pytest.mark.parametrize(
    "line",
    ['"failed" in states', 'name.replace("_", "-")', "store.find(folder)", "dataclasses.replace(peak, basis=text)"],
)
def test_members_of_sets_spellings_and_functions_of_modules_are_left_alone(line: str) -> None:
    assert not list(uses_in(f"import dataclasses\nimport store\n\nvalue = {line}\n", "busbw/new.py"))
