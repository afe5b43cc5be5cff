"""Drawings of schedules: what is on them, and that those of the documentation are what is drawn now."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from drawable import DRAWABLE, gloo_all_gather, gloo_all_reduce, gloo_reduce
from drawing_tool import documented, main
from drawing_tool import draw as command
from schedule_counts import cost, execute
from schedule_svg import MOST_ARROWS, draw
from testing.narrow import require_type

from busbw.errors import AnalysisError
from busbw.ops.schedules import Schedule
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import model_for

FOLDER = Path(__file__).parents[2] / "docs/drawings"
SVG = "{http://www.w3.org/2000/svg}"
EVERY = [(op, name) for op, named in DRAWABLE.items() for name in named]


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 (our own drawing)


def hosts_of(op: str, name: str) -> int:
    return 2 if DRAWABLE[op][name].levels else 1


def classes(root: ET.Element, tag: str) -> list[str]:
    return [element.attrib.get("class", "") for element in root.iter(SVG + tag)]


def words(root: ET.Element, kind: str) -> list[str]:
    return [element.text or "" for element in root.iter(SVG + "text") if element.attrib.get("class") == kind]


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_every_message_is_an_arrow_and_every_round_a_row(op: str, name: str) -> None:
    hosts = hosts_of(op, name)
    schedule = DRAWABLE[op][name].on(4, hosts)
    root = parsed(draw(op, name, 4, hosts))
    messages = [transfer for one in schedule.rounds for transfer in one]
    assert classes(root, "path").count("adds") == sum(transfer.adds for transfer in messages)
    assert classes(root, "path").count("moves") == sum(not transfer.adds for transfer in messages)
    rounds = [text for text in words(root, "muted") if text.startswith("round ")]
    assert rounds == [f"round {number}" for number in range(1, len(schedule.rounds) + 1)]


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_no_two_arrows_lie_on_each_other_and_nothing_leaves_the_picture(op: str, name: str) -> None:
    root = parsed(draw(op, name, 4, hosts_of(op, name)))
    spans: dict[float, list[tuple[float, float]]] = {}
    for line in root.iter(SVG + "line"):
        if line.attrib["class"] in {"adds", "moves"}:
            ends = sorted((float(line.attrib["x1"]), float(line.attrib["x2"])))
            spans.setdefault(float(line.attrib["y1"]), []).append((ends[0], ends[1]))
    for row in spans.values():
        row.sort()
        assert all(one[1] <= two[0] for one, two in pairwise(row))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        assert all(0 <= float(element.attrib.get(key, 0)) <= width for key in ("x", "x1", "x2"))
        assert all(0 <= float(element.attrib.get(key, 0)) <= height for key in ("y", "y1", "y2"))


def test_a_ring_says_which_sums_go_round() -> None:
    root = parsed(draw("all_reduce", "ring", 4))
    assert words(root, "label")[:8] == ["a0", "b1", "c2", "d3", "ad3", "ab0", "bc1", "cd2"]
    assert sorted(words(root, "label")[-4:]) == ["Σ0", "Σ1", "Σ2", "Σ3"]
    assert words(root, "rank") == ["a", "b", "c", "d"]


def test_blocks_that_are_not_added_up_are_told_from_sums() -> None:
    gathered = parsed(draw("all_gather", "bruck", 4))
    assert words(gathered, "label") == ["b", "c", "d", "a", "a–b", "c–d", "b–c", "a,d"]


def test_ranks_of_several_hosts_say_on_which_they_are() -> None:
    root = parsed(draw("all_reduce", "hierarchical", 4, 2))
    assert words(root, "rank") == ["a · host 0", "b · host 0", "c · host 1", "d · host 1"]


def test_a_switch_is_named_and_its_ways_are_halves_of_a_message() -> None:
    root = parsed(draw("all_reduce", "sharp", 4, 2))
    assert words(root, "rank") == ["a · host 0", "b · host 0", "c · host 1", "d · host 1", "switch"]
    assert words(root, "muted")[0].endswith(
        "4 rounds, 2 of half a message, 3/2 S through the link of a rank, S in 2 blocks"
    )
    labels = words(parsed(draw("all_reduce", "nvls", 3)), "label")
    assert labels[:6] == ["a0–2", "b0–2", "c0–2", "Σ0", "Σ1", "Σ2"]
    assert labels[-3:] == ["Σ0–2"] * 3


@pytest.mark.parametrize(
    ("op", "make"), [("all_reduce", gloo_all_reduce), ("reduce", gloo_reduce), ("all_gather", gloo_all_gather)]
)
def test_what_is_drawn_for_gloo_is_what_its_model_counts(op: str, make: Callable[[int], Schedule]) -> None:
    """Each round of Gloo's takes two delays."""
    model = require_type(CostModel, model_for(op, "gloo"))
    for ranks in range(2, 17):
        schedule, size = make(ranks), float(ranks)
        sums = tuple(frozenset((rank, block) for rank in range(ranks)) for block in range(schedule.blocks))
        gathered = tuple(frozenset({(rank, half)}) for rank in range(ranks) for half in range(2))
        ends = {"all_reduce": (sums,) * ranks, "reduce": (sums, *[()] * (ranks - 1)), "all_gather": (gathered,) * ranks}
        assert execute(schedule) == ends[op]
        counted = cost(schedule)
        assert model.rounds(ranks, 1, size) == 2 * counted.rounds
        assert model.sent(ranks, 1, size) * size == pytest.approx(size * counted.sent)
        assert model.moved(ranks, 1, size) * size == pytest.approx(size * counted.moved)
        assert model.added(ranks, 1, size) * size == pytest.approx(size * counted.added)


def test_what_a_library_does_with_ranks_beyond_a_power_of_two_is_drawn() -> None:
    labels = words(parsed(draw("all_reduce", "rabenseifner-in-halves", 5)), "label")
    assert labels[:3] == ["a2–3", "b0–1", "ab2–3"]
    assert labels[-1] == "Σ0–3"
    tree = parsed(draw("broadcast", "4-nomial-tree-at-once", 8))
    assert words(tree, "muted")[0].endswith("2 rounds, 7 S through the busiest link")


def test_it_can_be_read_on_a_dark_page_too() -> None:
    text = draw("all_reduce", "ring", 4)
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    for name in ("text", ".muted", ".label", ".page", ".adds", ".moves"):
        pattern = re.compile(rf"^{re.escape(name)} {{.*#[0-9a-f]{{6}}", re.MULTILINE)
        assert pattern.search(light), name
        assert pattern.search(dark), name


@pytest.mark.parametrize(
    ("op", "name", "ranks", "hosts", "says"),
    [
        ("all_reduce", "ring", 1, 1, "drawing"),
        ("all_reduce", "ring", 17, 1, "drawn"),
        ("all_reduce", "ring", 16, 1, f"has 480 messages for 16 ranks; a drawing has {MOST_ARROWS} at most"),
        ("all_reduce", "ring", 4, 3, "hosts"),
        ("all_reduce", "hierarchical", 4, 1, "several"),
        ("all_gather", "recursive-doubling", 6, 1, "power-of-two"),
        ("all_reduce", "rings", 4, 1, "'rings'"),
        ("ping_pong", "ring", 4, 1, "all_reduce"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(op: str, name: str, ranks: int, hosts: int, says: str) -> None:
    with pytest.raises(AnalysisError, match=says):
        draw(op, name, ranks, hosts)


def test_the_command_draws_to_standard_output() -> None:
    shown = CliRunner().invoke(command, ["all_reduce/ring", "--ranks", "5"])
    assert shown.exit_code == 0
    assert shown.output == draw("all_reduce", "ring", 5)
    refused = CliRunner().invoke(command, ["all_reduce/star"])
    assert (refused.exit_code, "all_reduce/rabenseifner" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ranks", "1"), "drawing"),
        (("--ranks", "17"), "drawn"),
        (("--hosts", "0"), "hosts"),
        (("--ranks", "6", "--hosts", "4"), "ranks"),
    ],
)
def test_a_wrong_option_of_the_command_ends_with_status_2(options: tuple[str, ...], says: str) -> None:
    refused = CliRunner().invoke(command, ["all_reduce/ring", *options])
    assert (refused.exit_code, says in refused.stderr) == (2, True)


def test_the_drawings_of_the_documentation_are_what_is_drawn_now() -> None:
    wanted = dict(documented())
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    different = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    assert different == [], "run `make drawings`"


def test_stale_drawings_are_removed(tmp_path: Path) -> None:
    (tmp_path / "all_reduce-star.svg").write_text("<svg/>")
    main(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name for name, _ in documented())


def test_every_drawing_has_its_derivation_in_the_documentation() -> None:
    derived = set(re.findall(r"\]\(drawings/([^)]+)\)", (FOLDER.parent / "models.md").read_text(encoding="utf-8")))
    assert sorted(derived ^ {name for name, _ in documented()}) == []


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_what_no_prediction_knows_is_not_drawn(op: str) -> None:
    """NVLS is one of a host: hosts beyond it have no switch in common."""
    done = CliRunner().invoke(command, [f"{op}/nvls", "--ranks", "7", "--hosts", "7"])
    assert done.exit_code == 2
    assert CliRunner().invoke(command, [f"{op}/nvls", "--ranks", "7"]).exit_code == 0
