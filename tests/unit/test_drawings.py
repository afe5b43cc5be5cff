"""Drawings of schedules: what is on them, and that those of the documentation are what is drawn now."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from drawable import DRAWABLE, gloo_all_gather, gloo_all_reduce, gloo_reduce
from drawing_tool import documented
from schedule_counts import cost, execute
from schedule_svg import draw
from testing.narrow import require_type

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
    messages = [transfer for transfers in schedule.rounds for transfer in transfers]
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
        assert all(left[1] <= right[0] for left, right in pairwise(row))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        assert all(0 <= float(element.attrib.get(key, 0)) <= width for key in ("x", "x1", "x2"))
        assert all(0 <= float(element.attrib.get(key, 0)) <= height for key in ("y", "y1", "y2"))


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


def test_the_drawings_of_the_documentation_are_what_is_drawn_now() -> None:
    wanted = dict(documented())
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    different = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    assert different == [], "run `make drawings`"


def test_every_drawing_has_its_derivation_in_the_documentation() -> None:
    derived = set(re.findall(r"\]\(drawings/([^)]+)\)", (FOLDER.parent / "models.md").read_text(encoding="utf-8")))
    assert sorted(derived ^ {name for name, _ in documented()}) == []
