"""Makes matplotlib's SVG fit to be part of a page: small, coloured by the page's style sheet, with alt text.

Colours are drawn as the sentinels of ``INK`` and ``SERIES`` and become CSS variables here, so that one drawing serves
the light page, the dark page and paper. Text stays text, in the page's own font.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

INK: Final = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--hairline)",
    "#040404": "var(--page)",
}
SERIES: Final = ("#0072b2", "#d55e00", "#009e73", "#aa3f8b", "#b8860b", "#505050")
"""Okabe & Ito's palette (pink and yellow darker, to be seen on white) for the light page; the dark one is in CSS."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
"""Beside the colour, because one reader in twelve does not see it and no printer can be trusted."""

_NAMESPACE = re.compile(r"^\{[^}]*\}")
_NUMBER = re.compile(r"-?\d+\.\d+")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"font:\s*(?P<weight>bold |[1-9]00 )?(?P<size>[\d.]+)px [^;]*")
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
VARIABLES: Final = {**INK, **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)}}
"""Colours of a drawing → those of the page's style sheet."""
_GEOMETRY = ("d", "x", "y", "width", "height", "points", "transform", "viewBox")


def inline(
    figure: Figure, identity: str, title: str, description: str, tips: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The figure as an ``<svg>`` element for an HTML page.

    ``identity`` is unique on the page and prefixes every id. ``title`` names the picture and ``description`` says
    what it shows; ``tips`` are the words of every marker of an artist, by its gid, for who points at it. All of them
    are escaped here. The same figure gives the same text, byte for byte.
    """
    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": identity}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ET.fromstring(stream.getvalue())  # noqa: S314 (our own drawing, written two lines above)
    _strip(root)
    _tell(root, tips or {})
    _shorten_ids(root, identity)
    for element in root.iter():
        _restyle(element)
    _unwrap(root)
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {"class": "plot", "viewBox": view, "role": "img", "aria-labelledby": f"{identity}-title {identity}-text"}
    )
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(tag, {"id": f"{identity}-{'title' if tag == 'title' else 'text'}"})
        element.text = text
        root.insert(position, element)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _strip(parent: ET.Element) -> None:
    """Drop namespaces, metadata, matplotlib's own style sheet, empty groups and the white space between elements."""
    parent.tag = _NAMESPACE.sub("", parent.tag)
    parent.attrib = {_NAMESPACE.sub("", key): value for key, value in parent.attrib.items()}
    parent.tail = None
    if parent.tag != "text":
        parent.text = None
    for child in list(parent):
        _strip(child)
        if child.tag in {"metadata", "style"} or (child.tag in {"g", "defs"} and len(child) == 0):
            parent.remove(child)


def _tell(root: ET.Element, tips: Mapping[str, Sequence[str]]) -> None:
    """Give the markers of each artist their words, and what they have in common to their group."""
    for group in [element for element in root.iter("g") if element.attrib.get("id") in tips]:
        markers = list(group.iter("use"))
        for marker, tip in zip(markers, tips[group.attrib["id"]], strict=True):
            marker.attrib |= {"data-tip": tip} if tip else {}
            group.attrib["style"] = marker.attrib.pop("style", "")
        group.attrib["class"] = f"series {group.attrib['id']}"


def _unwrap(parent: ET.Element) -> None:
    """Replace the groups that say nothing by what is in them."""
    for child in list(parent):
        _unwrap(child)
        if child.tag == "g" and not child.attrib:
            position = list(parent).index(child)
            parent[position : position + 1] = list(child)


def _shorten_ids(root: ET.Element, identity: str) -> None:
    """Keep only the ids that something points at, and make them unique on the page."""
    used: dict[str, str] = {}
    for element in root.iter():
        for value in element.attrib.values():
            for name in _REFERENCE.findall(value):
                used.setdefault(name, f"{identity}-{len(used)}")
        if element.attrib.get("href", "").startswith("#"):
            used.setdefault(element.attrib["href"][1:], f"{identity}-{len(used)}")
    for element in root.iter():
        if (name := element.attrib.pop("id", None)) in used:
            element.attrib["id"] = used[name]
        for key, value in list(element.attrib.items()):
            if key == "href":
                element.attrib[key] = f"#{used[value[1:]]}"
            else:
                element.attrib[key] = _REFERENCE.sub(lambda match: f"url(#{used[match[1]]})", value)


def _restyle(element: ET.Element) -> None:
    for key in _GEOMETRY:
        if key in element.attrib:
            compact = _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), element.attrib[key])
            element.attrib[key] = " ".join(compact.split())
    if "style" in element.attrib:
        style = _FONT.sub(
            lambda match: f"font-size: {match['size']}px; font-weight: {match['weight'] or 400}",
            element.attrib["style"],
        )
        style = _FAMILY.sub("", style)
        element.attrib["style"] = _COLOUR.sub(lambda match: VARIABLES.get(match[0], match[0]), style)
    if element.tag == "text":
        # A rotation by nothing only makes the page longer.
        element.attrib["transform"] = element.attrib.get("transform", "").removeprefix("rotate(-0 ")
        if "(" not in element.attrib["transform"]:
            del element.attrib["transform"]
