"""Turn matplotlib's SVG into part of a page: small, coloured by the page's style sheet, with alternative text.

Colours are drawn as the sentinels ``INK`` and ``SERIES`` and become CSS variables here, so that one drawing serves the
light page, the dark page and paper. Text stays text, in the page's own font.
"""

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure


INK: Final = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--hairline)",
    "#040404": "var(--page)",
}
SERIES: Final = ("#0072b2", "#d55e00", "#009e73", "#aa3f8b", "#b8860b", "#505050")
"""Okabe and Ito's palette (pink and yellow darkened for white paper) for the light page; the CSS has the dark one."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P")
"""Markers complement colours for colour-blind readers and black-and-white prints."""

_NAMESPACE = re.compile(r' xmlns="[^"]*"|xlink:')
_NUMBER = re.compile(r"-?\d+\.\d+")
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"font:\s*(?P<weight>bold |[1-9]00 )?(?P<size>[\d.]+)px [^;]*")
_FAMILY = re.compile(r"font-family:[^;]*;?\s*")
_REFERENCE = re.compile(r"#([\w-]+)")
_NAME = re.compile(r'( id="|href="#|url\(#)')
VARIABLES: Final = {**INK, **{colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)}}
"""Colours of a drawing → variables of the page's style sheet."""
_GEOMETRY = ("d", "x", "y", "width", "height", "points", "transform", "viewBox")


def inline(
    figure: "Figure", identity: str, title: str, description: str, tips: Mapping[str, Sequence[str]] | None = None
) -> str:
    """The figure as an ``<svg>`` element for an HTML page; the same figure gives the same bytes.

    identity: unique on the page, prefix of every id.
    title, description: alternative text.
    tips: gid of an artist → tooltips of its markers.
    All texts are escaped here.
    """
    import matplotlib as mpl  # noqa: PLC0415 - heavy

    stream = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": identity}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ET.fromstring(_NAMESPACE.sub("", stream.getvalue()))  # noqa: S314 (our own drawing, written two lines above)
    _add_tips(root, tips or {})
    referenced = set(_REFERENCE.findall(stream.getvalue()))
    for element in root.iter():
        if element.attrib.get("id") not in referenced:
            element.attrib.pop("id", None)
        _restyle(element)
    _strip(root)
    drawn = _NAME.sub(rf"\1{identity}-", "".join(ET.tostring(child, encoding="unicode") for child in root))
    return (
        f'<svg class="plot" viewBox="{root.attrib["viewBox"]}" role="img" '
        f'aria-labelledby="{identity}-title {identity}-text">'
        f'<title id="{identity}-title">{escape(title)}</title><desc id="{identity}-text">{escape(description)}</desc>'
        f"{drawn}</svg>"
    )


def _strip(parent: ET.Element) -> None:
    """Remove metadata, matplotlib's style sheet, empty groups, white space between elements, and groups without
    attributes around their children.
    """
    parent.tail = None
    if parent.tag != "text":
        parent.text = None
    for child in list(parent):
        _strip(child)
        if child.tag in {"metadata", "style"} or (child.tag in {"g", "defs"} and len(child) == 0):
            parent.remove(child)
        elif child.tag == "g" and not child.attrib:
            position = list(parent).index(child)
            parent[position : position + 1] = list(child)


def _add_tips(root: ET.Element, tips: Mapping[str, Sequence[str]]) -> None:
    """Give the markers of each artist their tooltips, and move their common style to their group. Bars get the class of
    their series, with which they fade.
    """
    for bars in [element for element in root.iter("g") if element.attrib.get("id", "").startswith("bars ")]:
        bars.attrib["class"] = bars.attrib["id"]
    for group in [element for element in root.iter("g") if element.attrib.get("id") in tips]:
        markers = list(group.iter("use"))
        for marker, tip in zip(markers, tips[group.attrib["id"]], strict=True):
            marker.attrib |= {"data-tip": tip} if tip else {}
            group.attrib["style"] = marker.attrib.pop("style", "")
        group.attrib["class"] = f"series {group.attrib['id']}"


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
