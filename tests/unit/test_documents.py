"""The documents say what the code does: held to it where a machine can tell."""

import json
import re
import typing
from pathlib import Path

import documents
import msgspec
import pytest
from click.testing import CliRunner
from golden import FOLDER, invocations
from testing.narrow import require_type
from testing.synthetic import case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.ops.training import Workload
from busbw.runs import facts
from busbw.runs.cases import expand
from busbw.runs.plan import SWEEP_KEYS, Plan, parse_plan, read_suite, suites
from busbw.runs.records import (
    Cache,
    Case,
    Check,
    EndStatus,
    GpuConditions,
    GroupSamples,
    HostConditions,
    Mode,
    OverlapSamples,
    RankClock,
    RankSamples,
    Record,
    Row,
    Sent,
    StepParts,
    StopReason,
    Sync,
    TimedBy,
)
from busbw.runs.run import Run
from busbw.system.catalog import DTYPES, Gpu, Kind, Rate, parse
from busbw_analysis.data.bands import band_of
from busbw_analysis.data.readers.training import PROGRAMS
from busbw_analysis.diagnosis.hypothesis_tests import fewest_launches
from busbw_analysis.gate.launch_tests import TWO_SIDED

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GATES = (ROOT / "docs/gates.md").read_text(encoding="utf-8")
USAGE = (ROOT / "docs/usage.md").read_text(encoding="utf-8")
ADDING = (ROOT / "docs/adding.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs/method.md").read_text(encoding="utf-8")
PAGE_ON_TRAINING = (ROOT / "docs/training.md").read_text(encoding="utf-8")
FORMATS = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
STORED: list[type[msgspec.Struct]] = [
    *(Run, Case, Check, GroupSamples, RankSamples, OverlapSamples, RankClock, HostConditions, GpuConditions),
    *(Workload, StepParts, Sent),
    *typing.get_args(Row),
]
NAMED = {
    *(
        "op",
        "backend",
        "device",
        "in_place",
        "root",
        "rank",
        "host",
        "index",
        "launch",
        "block",
        "state",
        "stop_reason",
    ),
    *("status", "reason", "cause", "error", "wrong_elements", "ended"),
}
"""Fields whose name says what they are."""
WORDS = [StopReason, EndStatus, Mode, Sync, Cache, TimedBy]


def test_the_readme_says_how_large_the_quick_suite_is() -> None:
    (shown,) = re.findall(r"--suite quick .* measure (\d+) cases", README)
    assert int(shown) == len(expand(read_suite("quick"), 2, 1, "cpu").cases)


def test_the_documents_agree_on_how_long_the_tests_take() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = [re.findall(r"^make test .*: (about .*)$", text, re.MULTILINE) for text in (README, contributing)]
    assert told[0] == told[1] != []


def bands_of(suite: str) -> int:
    """The bands of sizes that a comparison of two runs of a suite judges."""
    cases = [case for case in expand(read_suite(suite), 4, 1, "cpu").cases if case.mode != "overlap"]
    return len({(msgspec.structs.replace(case, size_bytes=0), band_of(case.size_bytes)) for case in cases})


def fewest_of(suite: str, *, paired: bool) -> int:
    """The launches a side (pairs) that a comparison of two runs of a suite takes at least."""
    return fewest_launches(bands_of(suite), paired=paired)


def test_the_launches_that_the_documents_ask_for_are_enough_for_a_verdict() -> None:
    (turns,) = re.findall(
        r"^for turn in ([\d ]+); do one A; one B; one B; one A; done +# (\d+) launches a side", USAGE, re.MULTILINE
    )
    quick, full = (fewest_of(suite, paired=False) for suite in ("quick", "full"))
    one, six, pairs, most = (fewest_launches(n, paired=True) for n in (1, 6, bands_of("quick"), bands_of("full")))
    of_launches = f"{quick} for the suite `quick`, {full} for `full`"
    assert f"{of_launches}; with `--paired` {one}, {six}, {pairs} and {most} pairs" in " ".join(USAGE.split())
    assert 2 * len(turns[0].split()) == int(turns[1]) >= pairs


def test_a_suite_that_is_for_comparing_has_launches_for_every_verdict() -> None:
    """By default: a difference of two runs of it can be seen in every band by compare, and by a gate."""
    of_launches = {
        name: read_suite(name).launches for name, text in suites().items() if " compare" in text.split("\n")[0]
    }
    assert set(of_launches) >= {"standard"}
    for name, launches in of_launches.items():
        assert (
            launches >= fewest_launches(bands_of(name), paired=False, level=TWO_SIDED) > fewest_of(name, paired=False)
        )


def test_the_launches_of_a_night_are_enough_for_its_gate() -> None:
    """A gate of fewer could not fail."""
    nightly = (ROOT / "slurm/nightly.sbatch").read_text(encoding="utf-8")
    (has, quick, full) = re.findall(r"LAUNCHES:-(\d+)} +# with fewer than (\d+) per side \((\d+) of full\)", nightly)[0]
    fewest = {suite: fewest_launches(bands_of(suite), paired=False, level=TWO_SIDED) for suite in suites()}
    assert (fewest["quick"], fewest["full"]) == (int(quick), int(full))
    assert int(has) >= max(fewest.values())
    assert f"{quick} for the suite `quick`, {full} for `full`" in GATES


def test_the_errors_of_plans_in_the_readme_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| [a-z0-9-]+ \| \d+ \|.*$", PAGE_ON_TRAINING, re.MULTILINE)
    medians = [float(row.split("|")[4].strip(" %")) for row in rows]
    assert len(medians) == 4
    assert f"off by {min(medians)} to {max(medians)} % (medians of four sets)" in README


def test_the_readme_counts_the_tools_whose_logs_are_read() -> None:
    """Those of the page on logs, and tables."""
    page = (ROOT / "docs/logs.md").read_text(encoding="utf-8").partition("S is as")[2].partition("A block needs")[0]
    tools = [tool for line in re.findall(r"^- (.*?):", page, re.MULTILINE) for tool in line.split(", ")]
    assert f"[Logs of {len(tools) + 1} formats of other tools]" in README


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_whose_log_is_read_is_in_the_documentation(program: str) -> None:
    assert program.removesuffix("-pipeline") in PAGE_ON_TRAINING.partition("## Logs")[2]


@pytest.mark.parametrize("record", [*STORED, facts.HostFacts])
def test_every_stored_field_is_explained(record: type[msgspec.Struct]) -> None:
    """In the docstring, which ``busbw schema`` prints, by its own name, or by the record of its type."""
    unexplained = {name for names, text in documents.explained(record) if not text for name in names}
    inner = {name for name in unexplained if list(documents.records_in(typing.get_type_hints(record)[name]))}
    assert unexplained - inner <= NAMED


@pytest.mark.parametrize("row", typing.get_args(Row))
def test_every_kind_of_row_is_explained(row: type[Record]) -> None:
    assert re.search(rf"^- `{row.__struct_config__.tag}`:", FORMATS, re.MULTILINE)


@pytest.mark.parametrize("word", [word for words in WORDS for word in typing.get_args(words)])
def test_every_word_of_a_row_is_explained(word: str) -> None:
    assert f"`{word}`" in FORMATS + METHOD


def test_the_plan_in_the_documentation_is_one() -> None:
    text, _ = re.findall(r"```toml\n(.*?)```", FORMATS, re.DOTALL)
    plan = require_type(Plan, parse_plan(text, "docs/formats.md", ROOT))
    assert msgspec.to_builtins(plan)["launches"] == 3
    undocumented = [key for key in (*Plan.__struct_fields__, *SWEEP_KEYS) if not re.search(rf"\b{key}\b", text)]
    assert undocumented == []


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results/README.md"]))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    broken = [target for target in targets if not (path.parent / (target.partition("#")[0] or path.name)).exists()]
    assert broken == []
    assert "@@" not in text, "a figure is still to be put in"


def anchors(text: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results/README.md"]))
def test_links_to_a_heading_find_it(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s:#]*)#([^)\s]+)\)", path.read_text(encoding="utf-8"))
    pages = {target: (path.parent / target if target else path).read_text(encoding="utf-8") for target, _ in links}
    assert [(target, anchor) for target, anchor in links if anchor not in anchors(pages[target])] == []


def test_the_peaks_in_the_documentation_are_some_and_name_every_key() -> None:
    _, text = re.findall(r"```toml\n(.*?)```", FORMATS, re.DOTALL)
    peaks = parse(text, "docs/formats.md")
    assert [row.name for row in peaks.values()] == ["NVLink 9", "2000G Ethernet", "EFA of P9", "Fast 9000"]
    words = {*Gpu.__struct_fields__, *Rate.__struct_fields__, *DTYPES, *typing.get_args(Kind)}
    assert [word for word in sorted(words) if not re.search(rf"\b{word}\b", text)] == []


def test_every_place_where_something_is_added_exists() -> None:
    places = set(re.findall(r"`([\w/]+/[\w/]*(?:\.py|\.md)?)`", ADDING))
    roots = (ROOT, ROOT / "bench/busbw", ROOT / "analysis/busbw_analysis")
    assert len(places) > 50
    assert sorted(place for place in places if not any((root / place).exists() for root in roots)) == []


def test_every_table_and_class_that_the_guide_to_adding_names_exists() -> None:
    """Defined somewhere, or a field there: a name that was changed is missed in the guide."""
    names = set(re.findall(r"`(?:[A-Z]\w+\.)?([A-Za-z_]+)`", re.sub(r"```.*?```", "", ADDING, flags=re.DOTALL)))
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("bench", "analysis", "tests/shared", "tests/fuzz")
        for path in (ROOT / package).rglob("*.py")
    )
    assert len(names) > 60
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", sources)) == []


def shown(text: str) -> dict[str, list[str]]:
    """Indented commands of a page, each with the lines of its output that the page shows."""
    found: dict[str, list[str]] = {}
    below: list[str] = []
    for line in text.splitlines():
        if line.startswith("    busbw "):
            below = found[line.strip()] = []
        elif line.startswith("    ") and line.strip() != "…":
            below.append(line.removeprefix("    "))
        elif line.strip() and not line.startswith("    "):
            below = []
    return {command: lines for command, lines in found.items() if lines}


TRAINING = shown(PAGE_ON_TRAINING)


def test_the_page_on_training_shows_output_of_every_command_of_formulas() -> None:
    assert len(TRAINING) > 6


@pytest.mark.parametrize("command", TRAINING)
def test_the_output_in_the_page_on_training_is_what_the_command_prints(command: str) -> None:
    (file,) = (file for file, asked in invocations().items() if asked == (command.removeprefix("busbw "),))
    printed = (FOLDER / f"{file}.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in TRAINING[command] if line not in printed] == []


@pytest.mark.parametrize(
    "path", [documents.README, *sorted(documents.FOLDER.glob("*.md"))], ids=lambda path: str(path.name)
)
def test_parts_that_rows_define_are_fresh(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert documents.refreshed(text) == text, "run `make documents`"


def test_every_part_that_rows_define_has_its_place() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (documents.README, *documents.FOLDER.glob("*.md")))
    assert sorted(documents.marks(text)) == sorted(documents.PARTS)


def test_the_formula_of_a_function_is_the_one_with_its_values() -> None:
    assert documents.written(lambda ranks: 2 * (ranks - 1) / ranks) == "2(n−1)/n"
    with pytest.raises(StopIteration):
        documents.written(lambda ranks: ranks**2)


def test_every_key_of_a_report_is_explained_and_every_explained_one_is_there(tmp_path: Path) -> None:
    run = write_synthetic(tmp_path / "runs", synthetic_run([case("all_reduce", 8)]))
    CliRunner().invoke(main, ["report", str(run), "--output", str(tmp_path)], catch_exceptions=False)
    keys = set(json.loads((tmp_path / "report.json").read_text(encoding="utf-8")))
    text = (ROOT / "docs/json.md").read_text(encoding="utf-8").partition("## report.json")[2]
    explained = {key for row in re.findall(r"^- (`.*?):", text, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert explained - keys == {"sides"}
    assert keys - explained == {"report"}
    classes = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "analysis").rglob("*.py"))
    names = set(re.findall(r": `([A-Z]\w+)`", text))
    assert len(names) > 10
    assert [name for name in sorted(names) if f"class {name}" not in classes] == []
