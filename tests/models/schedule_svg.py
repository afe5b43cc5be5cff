"""Draws a schedule as SVG: ranks side by side, rounds below each other, an arrow for every message with its blocks.

The picture stands for itself on a light and on a dark page: it brings its own background, and its colours follow what
the reader's screen prefers. The same schedule gives the same text, byte for byte.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from drawable import DRAWABLE
from schedule_counts import cost, through_a_link

from busbw.ops.schedules import NOTHING, Schedule

_COLUMN, _LEFT, _RIGHT, _TOP, _LANE, _GAP = 96, 92, 48, 84, 20, 14
_TITLE_LETTER, _LETTER = 8.0, 6.6
"""About how wide a letter is."""
_LONGEST_LABEL = 13

_STYLE = """
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1b1b1b }
.title { font-size: 14px; font-weight: 600 }
.muted { fill: #606060 }
.rank, .label { text-anchor: middle }
.label { font-size: 11px; paint-order: stroke; stroke: #ffffff; stroke-width: 5px; stroke-linejoin: round }
.page { fill: #ffffff }
.life, .rule { stroke: #cfcfcf }
.adds { stroke: #b14a00; fill: #b14a00 }
.moves { stroke: #00609c; fill: #00609c }
@media (prefers-color-scheme: dark) {
text { fill: #ececec }
.muted { fill: #a6a6a6 }
.label { stroke: #16181c }
.page { fill: #16181c }
.life, .rule { stroke: #484c54 }
.adds { stroke: #ff9f57; fill: #ff9f57 }
.moves { stroke: #6cbcf5; fill: #6cbcf5 }
}
"""


@dataclass(frozen=True, slots=True)
class _Arrow:
    """A message from ``source`` to ``to`` and what is written on it."""

    source: int
    to: int
    label: str
    adds: bool

    @property
    def ends(self) -> tuple[int, int]:
        """The lower rank and the higher one."""
        return min(self.source, self.to), max(self.source, self.to)


def draw(op: str, algorithm: str, ranks: int, hosts: int = 1) -> str:
    """The drawing of an algorithm for ``ranks`` ranks on ``hosts`` hosts, as an SVG file."""
    row = DRAWABLE[op][algorithm]
    schedule = row.on(ranks, hosts)
    on = f"{ranks} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")
    return render(schedule, f"{op}, {algorithm}, {on}", row.summary, ranks, ranks // hosts)


def render(schedule: Schedule, title: str, summary: str, ranks: int, on_host: int) -> str:
    """A schedule of ``ranks`` ranks as an SVG file; ``on_host`` of them stand together under the name of their host.
    Who else is in it is a switch.
    """
    words = f"{summary}: {_counted(schedule, ranks)}"
    arrows: list[str] = []
    top = _TOP
    for number, messages in enumerate(_labelled(schedule, ranks), start=1):
        lanes = _lanes(messages)
        arrows.append(f'<text class="muted" x="16" y="{top + 19}">round {number}</text>')
        arrows += [_arrow(arrow, top + 15 + lane * _LANE) for lane, row in enumerate(lanes) for arrow in row]
        top += len(lanes) * _LANE + _GAP
        arrows.append(f'<line class="rule" x1="16" y1="{top}" x2="{_x(schedule.ranks - 1) + 30}" y2="{top}"/>')
    letters = max(_TITLE_LETTER * len(title), _LETTER * len(words), _LETTER * len(_LEGEND))
    width, height = max(_x(schedule.ranks - 1) + _RIGHT, round(letters) + 32), top + 32
    legend = f'<text class="muted" x="16" y="{top + 20}">{_LEGEND}</text>'
    size = f'xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg {size} viewBox="0 0 {width} {height}" role="img" aria-labelledby="title words">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="words">{escape(words)}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            f'<text class="title" x="16" y="24">{escape(title)}</text>',
            f'<text class="muted" x="16" y="43">{escape(words)}</text>',
            *(_life(member, _name(member, ranks, on_host), top) for member in range(schedule.ranks)),
            *arrows,
            legend,
            "</svg>",
            "",
        ]
    )


_LEGEND = "orange: is added to what is there; blue: replaces it. a, b …: whose blocks; ab: a sum; Σ: of all"


def _x(rank: int) -> int:
    return _LEFT + rank * _COLUMN


def _letter(rank: int) -> str:
    return chr(ord("a") + rank)


def _counted(schedule: Schedule, ranks: int) -> str:
    """Rounds and bytes in words. Where there is a switch, its ways are halves of a message, and rounds may overlap."""
    cut = f", S in {schedule.blocks} blocks" if schedule.blocks > 1 else ""
    if schedule.ranks == ranks:
        counted = cost(schedule)
        return f"{counted.rounds} rounds, {counted.sent} S through the busiest link{cut}"
    halves = sum(any(ranks in {message.source, message.to} for message in messages) for messages in schedule.rounds)
    through = through_a_link(schedule, ranks)
    return f"{len(schedule.rounds)} rounds, {halves} of half a message, {through} S through the link of a rank{cut}"


def _name(member: int, ranks: int, on_host: int) -> str:
    if member >= ranks:
        return "switch"
    return _letter(member) + (f" · host {member // on_host}" if ranks > on_host else "")


def _life(member: int, name: str, bottom: int) -> str:
    return (
        f'<text class="rank" x="{_x(member)}" y="{_TOP - 14}">{name}</text>'
        f'<line class="life" x1="{_x(member)}" y1="{_TOP - 8}" x2="{_x(member)}" y2="{bottom}"/>'
    )


def _arrow(arrow: _Arrow, height: int) -> str:
    towards = 1 if arrow.to > arrow.source else -1
    start, end = _x(arrow.source), _x(arrow.to)
    kind = "adds" if arrow.adds else "moves"
    neck = end - 8 * towards
    label = f'<text class="label" x="{(start + end) // 2}" y="{height + 4}">{arrow.label}</text>' if arrow.label else ""
    return (
        f'<line class="{kind}" stroke-width="1.6" x1="{start}" y1="{height}" x2="{neck}" y2="{height}"/>'
        f'<path class="{kind}" stroke="none" d="M{end} {height}L{neck} {height - 4}V{height + 4}Z"/>{label}'
    )


def _lanes(messages: Sequence[_Arrow]) -> list[list[_Arrow]]:
    """The arrows of a round in as few rows as they fit in without lying on each other."""
    rows: list[list[_Arrow]] = []
    for message in sorted(messages, key=lambda arrow: (arrow.ends, arrow.source)):
        row = next((row for row in rows if row[-1].ends[1] <= message.ends[0]), None)
        if row is None:
            rows.append([message])
        else:
            row.append(message)
    return rows


def _labelled(schedule: Schedule, ranks: int) -> Iterator[list[_Arrow]]:
    """The messages of every round with what is in them, by carrying the schedule out."""
    numbered = any(block > 0 for slots in schedule.begins for block in slots)
    state: list[list[frozenset[tuple[int, int]]]] = [
        [frozenset() if block == NOTHING else frozenset({(rank, block)}) for block in slots]
        for rank, slots in enumerate(schedule.begins)
    ]
    for messages in schedule.rounds:
        before = [list(slots) for slots in state]
        arrows: list[_Arrow] = []
        for transfer in messages:
            contents = [before[transfer.source][slot] for slot in transfer.sent]
            arrows.append(_Arrow(transfer.source, transfer.to, _label(contents, ranks, numbered), transfer.adds))
            for slot, content in zip(transfer.received, contents, strict=True):
                state[transfer.to][slot] = state[transfer.to][slot] | content if transfer.adds else content
        yield arrows


def _label(contents: Sequence[frozenset[tuple[int, int]]], ranks: int, numbered: bool) -> str:  # noqa: FBT001 - ours alone
    """What a message holds: ``a3`` is block 3 of rank a, ``ab0–1`` the sums of a's and b's blocks 0 and 1, ``Σ`` of all
    ranks', and ``a–c`` blocks of each of them. Too much for an arrow is counted.
    """
    blocks_of: dict[frozenset[int], list[int]] = defaultdict(list)
    for content in contents:
        blocks_of[frozenset(rank for rank, _ in content)].extend({block for _, block in content})
    if not numbered and all(len(whose) == 1 for whose in blocks_of):
        label = _runs([rank for whose in blocks_of for rank in whose], _letter)
    else:
        label = ",".join(
            ("Σ" if len(whose) == ranks else "".join(_letter(rank) for rank in sorted(whose)))
            + (_runs(blocks, str) if numbered else "")
            for whose, blocks in sorted(blocks_of.items(), key=lambda item: sorted(item[0]))
        )
    return label if len(label) <= _LONGEST_LABEL else f"{len(contents)} blocks"


def _runs(numbers: Sequence[int], name: Callable[[int], str]) -> str:
    """``0–2,5`` for 0, 1, 2 and 5."""
    parts: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    return ",".join(name(low) if low == high else f"{name(low)}–{name(high)}" for low, high in parts)
