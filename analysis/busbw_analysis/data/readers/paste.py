"""What a paste adds to a log: other spaces, code fences, JSON around it, a prefix before every line, decimal commas.

Readers get the log as the tool printed it. A line keeps its number: what is no part of the log becomes an empty line.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from busbw_analysis.data.readers.json_text import decoded
from busbw_analysis.data.readers.lines import GLUED, clean, has_prefix, without_prefix

_SPACES: Final = str.maketrans(
    dict.fromkeys(
        "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "
    )
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
    | {"\u2014": "--", "\u2022": "*", "\u2026": "..."}
    | dict.fromkeys("\u201c\u201d\u201e", '"')
    | dict.fromkeys("\u2018\u2019", "'")
)
"""Besides spaces, the signs that word processors write for those of a keyboard."""
_COLOUR: Final = re.compile(
    r"(?:\^\[|\\(?:u001b|x1[bB]|033|e)|\u241b)\[[0-9;]{0,12}[mK]|(?<!\x1b)\[(?:[01]|[01]?;?[349][0-7])m"
)
"""A colour of a terminal, behind an escape character that was written in letters or lost."""
_BETWEEN: Final = re.compile(r"(\s*)`([^`\n]+)`\s*")
"""A line between the marks of code."""
_UNSEEN: Final = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_OTHER_DIGIT: Final = re.compile(r"(?![0-9])\d")
"""What ``\\d`` matches besides digits that a tool prints."""
_ENTITIES: Final = {"&nbsp;": " ", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&amp;": "&"}
_MARKUP: Final = re.compile(r"</?(?:pre|code|p|div|span|samp)\b[^<>]{0,99}>")
_FRAMED: Final = re.compile("\\s*\u2502([^\u2502]*)\u2502\\s*")
"""A line in the frame of a program that shows logs in a terminal."""
_BLOCK: Final = re.compile(r"\s*</?pre\b[^<>]{0,99}>\s*")
"""A tag alone in its line, which is a code fence."""
_BREAK: Final = re.compile(r"<br\s*/?>\n?")
_HEADINGS: Final = re.compile(r"(?m)^[ >]{0,9}\|[^\n]{1,999}\|[ \t]*\n(?=[ >]{0,9}\|[ :|-]{3,999}$)")
"""The headings of a table of Markdown, above a rule; a break in them is one of a cell."""
_CELL: Final = re.compile(
    r"\s{0,99}</t[hd]\s{0,9}>\s{0,99}<t[hd][^<>]{0,99}>\s{0,99}|</?t(?:able|head|body|foot|r|h|d)\b[^<>]{0,99}>"
)
"""Tags of a table of HTML: between two cells, and all others."""
_OF_LATEX: Final = re.compile(
    r"\$|\\(?:text\w{1,4}|math\w{1,4}|num|SI|bf|multicolumn\{\d\}\{\w\})(?=\{)|[{}]|\\[,;! ](?=\d)|\\(?=[#_%&])"
)
"""What LaTeX adds to the words of a cell."""
_ROW_OF_LATEX: Final = re.compile(
    r"\s*([^&\n]+(?:(?<!\\)&[^&\n]*)+?)\\\\(?:\[[\w.-]*\])?\s*(?:\\[a-z]\w*(?:\{[\d-]*\})?\s*)*"
)
_BOLD: Final = re.compile(r"(?<![^\s|])\*\*([^\s*|][^*|\n]{0,80})\*\*(?![^\s|])")
"""Words or a cell in bold type, in Markdown."""
_FENCE: Final = re.compile(r"\s{0,12}(?:[>*-]\s)?\s*(?:```|~~~)")
_QUOTED: Final = re.compile(r"\s{0,3}(?:> ?){1,3}")
_PROGRAM: Final = re.compile(
    r"_perf\b|\b(?:mpirun|mpiexec|srun|torchrun|osu_\w+|ib_\w+|iperf3?|qperf|netperf|sockperf|fi_\w+)\s"
)
"""Words of a command line, which may stand outside of a fence."""
_PIECE: Final = re.compile(r"(?:[\w.-]*\w[\w.-]*)|\s+|.")
_WORD: Final = re.compile(r"\w")
_LEVELS: Final = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR"})
_LEVEL: Final = re.compile(rf"(?:{'|'.join(sorted(_LEVELS))})\(")
_ENDS: Final = frozenset(":])|>-*")
_NAME: Final = re.compile(r"(?<!\w)[A-Za-z][\w.=-]*")
"""A word of a prefix that is no time, such as a host or ``pid=12``."""
_TIME: Final = re.compile(r".*:\d[\d.]*Z|(?:.*\D)?\d\d:\d\d:\d\d(?:\.\d+)?", re.DOTALL)
"""What ends in a time."""
_CLOCK: Final = re.compile(r"\d\d:\d\d:\d\d|\d{10}\.\d")
_LONGEST_TIME: Final = 24
_LINE_NUMBER: Final = re.compile(r"\s*(\d{1,7})(?:\s\||[\t:.)|]|\s)\s?")
_CELLS: Final = 2
"""Bars of a row of a Markdown table, at least."""
_LONGEST_PREFIX: Final = 160
_MOST_LINES: Final = 4000
_SHARE: Final = 0.6
_MOST: Final = 0.8
_NEARLY_ALL: Final = 0.95
_FEWEST_ALIKE: Final = 3
"""Share of lines, and their number, that begin with the same characters only if these are no part of the log."""
_BEGINNING: Final = re.compile(r"[^\n]{0,120}?(?:[\])>*+:]|-(?=\s))\s*")
_NUMBERS: Final = 2
"""Numbers behind their names that a line has at least if it is no row."""
_NUMBER: Final = r"(?<![^\s;|])[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?%?(?![^\s;|])"
_ROW: Final = re.compile(f"{_NUMBER}.*?{_NUMBER}", re.DOTALL)
"""What is taken for a row: a line with two numbers."""
_WITH_UNIT: Final = re.compile(r"\d ?(?:[mnu]s|[KMG]i?B)\b")
"""A number with its unit, which is no part of a prefix."""
_STATED: Final = re.compile(r"\b[A-Za-z]\w* ?[:=] ?\d+(?![\d\]])")
"""A number behind its name, which is no prefix; ``[host:0]`` is."""
_COMMA: Final = re.compile(r"(?<![^\s;|])(-?\d+),(\d+)(?![^\s;|])")
_DECIMALS: Final = re.compile(r"(?<![^\s;|])-?\d+,(?:\d{1,2}|\d{4,})(?![^\s;|])")
"""Behind a comma; three digits may be thousands."""
_POINT: Final = re.compile(r"(?<![^\s;|])-?\d+\.\d+(?![^\s;|])")
_THOUSANDS: Final = re.compile(r"(?<!\S)\d{1,3}(?:,\d{3}){2,}(?!\S)")
"""A whole number with commas, which two groups of digits show."""
_GOES_ON: Final = re.compile(r"\s*(?:#wrong|(?!\[ *(?:\d+|SUM)\])[^#\s=*_{-]|[=*_-]{1,9}\w)")
_APART: Final = re.compile(r"NCCL (?:INFO|WARN)|\[thread ")
"""Messages of NCCL, and rows of ucx_perftest before the final ones, whose label is no prefix."""
_OF_IPERF: Final = re.compile(r"\[ *(?:\d+|SUM|ID)\](?:\[[\w-]+\])?(?= +(?:[\d.]+- *[\d.]+ +sec|Interval) )")
"""The stream of a row, which is no prefix."""
_TORN: Final = re.compile(r"[^\S\n]\n|\n[^\S\n]|\w\n[.,/_:]\w|\d[.,]\n\d")
"""The end of a line and the start of the next one, between which a terminal broke and no mail."""
_LEAST_BROKEN: Final = 3
_LEAST_PREFIX: Final = 4
"""Characters of a word that two lines begin with only if it is no part of the log."""
_LEAST_BREAKS: Final = 2
_MOST_STRINGS: Final = 1000
_MARKS: Final = "#*_`>=:-. \t\r\n"
"""Signs around a heading in Markdown."""
LONGEST_CAPTION: Final = 60
"""Characters of a text above a table that are kept."""
_TAG: Final = re.compile(r"</?[a-z]\w{0,9}[^<>]{0,99}>")
_SENTENCE: Final = re.compile(r"(?<=\w[.!?])\s+(?=[A-Z])")
_SETTING: Final = re.compile(
    r"\s*(?:[$#>]\s?)?(?:export )?"
    r"([A-Z][A-Z\d_]{3,63}=[^\s=]{1,64}(?:[ ,;]+[A-Z][A-Z\d_]{3,63}=[^\s=]{1,64}){0,8})\s*"
)
"""Variables alone in a line."""
_EXPORT: Final = re.compile(r"\s*(?:[$#>]\s?)?export ")
_VARIABLE: Final = re.compile(r"[A-Z][A-Z\d_]{3,63}=\S+")
_LOADED: Final = re.compile(
    r"\s*(?:\S{0,40}[$#>%]\s)?"
    r"((?:(?:module|ml) (?:load|swap|switch)|spack load|conda activate|(?:sudo )?(?:ethtool -[A-Z]|sysctl -w|ip link"
    r" set|tc qdisc|cpupower|mlxconfig|setpci|nvidia-smi -(?:ac|lgc|pl|mig))) \S[^;&|]{0,60}?)\s*"
)
"""A command that changes what the next ones use, such as a module or a setting of the system."""
_TITLE: Final = re.compile(r"(?:#{2,6}|={2,}|-{2,}|\*{1,3}|[>*-])\s?.*|.*:")
"""A heading by its marks, and what announces a table."""
_VERSION: Final = re.compile(r"(?:[A-Za-z][\w.-]* )?v?\d+(?:\.\d+){2,3}[\w.+-]{0,40}")
"""A version alone in its line."""
_WORDS: Final = re.compile(r"(?:[A-Za-z][\w'./+-]*,?\s+)+[A-Za-z][\w'./+-]*")
_FEWEST_WORDS: Final = 4
_COMMENT: Final = re.compile(r"\s*#(?!#)")
_OF_PROGRAM: Final = re.compile(
    r"\d:\d\d|[/\\]\w+/|::|\w\(\)|\b(?:INFO|DEBUG|TRACE|WARN(?:ING)?|ERROR|srun|slurm\w*|(?:mpi|torch)run|tool|log\w*)\b:?"
    r"|(?i:\b(?:warnings?|errors?|version|loading|loaded|waiting|usage|real|user|sys)\b)"
)
"""In lines of programs rather than of people."""
_COUNTED: Final = re.compile(
    r"(?i)\b(?:\w+ )?(?:runs?|launch|trial|attempt|iteration|round|time|try|pass|job|test|repeat(?:ed)?|rep|again)"
    r"(?![a-z]) ?#?\d*(?:/\d+)?:?"
)
"""What counts launches of the same measurement: ``Run 2``, ``Second run``."""


def as_text(text: str) -> str:
    """A text with the usual line ends, in place of carriage returns alone and of ``<br>``."""
    if "\r" in text and "\n" not in text:
        text = text.replace("\r", "\n")
    if "<br" in text:
        text = _HEADINGS.sub(lambda line: _BREAK.sub(" ", line[0].rstrip()) + "\n", text)
        text = _BREAK.sub("\n", text)
    if is_escaped(text):
        text = re.sub(r"^\s*b?['\"]|\\[rnt]", lambda sign: {"\\n": "\n", "\\t": "\t"}.get(sign[0], ""), text)
    if "</td" in text:
        text = _CELL.sub(lambda tag: "|" if tag[0].count("<") > 1 else "\n" if "/tr" in tag[0] else "", text)
    return text


def _printed_last(text: str) -> str:
    """What a terminal shows of a line of which parts were printed over others."""
    return text.rstrip("\r\n").rpartition("\r")[2] if "\r" in text[:-2] else text


def is_escaped(text: str) -> bool:
    """Whether a text has its line ends in letters, as programs print a string."""
    return text.lstrip()[:1] not in {"{", "["} and text.count("\\n") > max(
        _LEAST_BREAKS, _FEWEST_ALIKE * text.strip().count("\n")
    )


def as_line(text: str) -> str:
    """A line of a log with usual spaces, without invisible characters, bold type, tags and entities of web pages."""
    if not text.isascii():
        text = _OTHER_DIGIT.sub("\ufffd", _UNSEEN.sub("", text.translate(_SPACES)))
    text = _COLOUR.sub("", text) if "[" in text else text
    if "`" in text and (between := _BETWEEN.fullmatch(text)) is not None:
        text = f"{between[1]}{between[2]}\n"
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
    if "<" in text:
        text = "```\n" if _BLOCK.fullmatch(text) is not None else text
        text = _MARKUP.sub("", text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    if text.count(",") > 1 and len(text.split()) > 1:  # else perhaps a row of a CSV
        text = _THOUSANDS.sub(lambda amount: amount[0].replace(",", ""), text)
    framed = _FRAMED.fullmatch(text) if "\u2502" in text else None
    text = text if framed is None else f"{framed[1]}\n"
    if "&" in text and (row := _ROW_OF_LATEX.fullmatch(text)) is not None:
        cells = re.split(r"(?<!\\)&", row[1].replace(r"\mu", "u"))
        return f"| {' | '.join(_OF_LATEX.sub('', cell).strip() for cell in cells)} |\n"
    return text


def of_json(text: str, is_log: Callable[[str], int]) -> str | None:
    """The log that is a string somewhere in a JSON document, or in parts in the objects of JSON lines; None if there is
    none.

    is_log: whether a text is a log that a reader recognises
    """
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        return next(filter(is_log, _strings(decoded(text, len(text) - len(text.lstrip())))), None)
    except (ValueError, RecursionError):
        return None


def of_json_lines(lines: Sequence[str], is_log: Callable[[str], int]) -> str | None:
    """The log whose lines are the values of one key of objects, one object a line; None if there is none."""
    objects = [value for line in lines if (value := _object(line)) is not None]
    if len(objects) < max(2, _SHARE * len(lines)):
        return None
    return next(filter(is_log, _of_key(objects)), None)


def _of_key(objects: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The texts under each usual key of objects, a line each."""
    keys = Counter(key for item in objects for key, value in item.items() if isinstance(value, str))
    return ("\n".join(str(item.get(key, "")).rstrip("\n") for item in objects) for key, _ in keys.most_common(20))


def _object(line: str) -> dict[str, Any] | None:
    text = line.lstrip()
    try:
        value = decoded(text, 0) if text[:1] == "{" else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _strings(value: object) -> Iterator[str]:
    """Texts of several lines in a JSON value; a list of texts is one, a line each."""
    stack, seen = [value], 0
    while stack and seen < _MOST_STRINGS:
        item, seen = stack.pop(), seen + 1
        if isinstance(item, str):
            if item.count("\n") >= _LEAST_BREAKS:
                yield item
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list) and item and all(isinstance(line, str) for line in item):
            yield "\n".join(item)
        elif isinstance(item, list) and len(item) > _LEAST_BREAKS and all(isinstance(line, dict) for line in item):
            if not any(isinstance(part, list) for line in item for part in line.values()):  # a logger's are flat
                yield from _of_key(item)
            stack.extend(item)
        elif isinstance(item, list):
            stack.extend(item)


@dataclass(frozen=True, slots=True)
class Paste:
    """What was found in the first lines of a paste.

    quoted: whether all lines are quoted as in a mail, by which they may have been broken
    prefix: what stands before every line of the log, behind the prefixes of launchers; None: nothing
    bare: whether a reader recognises the log only without the prefixes of launchers, which say nothing of it then
    fenced: whether only what is in code fences is the log
    commas: whether numbers have a decimal comma
    width: characters after which a terminal broke the lines; None: it did not
    tabs: whether tabs are the log's own, and no spaces that somebody replaced
    last: whether only what was printed last in a line counts
    """

    quoted: bool
    prefix: re.Pattern[str] | None
    bare: bool
    fenced: bool
    commas: bool
    width: int | None
    tabs: bool = True
    last: bool = True

    def lines(self, lines: Iterable[str], around: dict[int, str] | None = None) -> Iterator[str]:
        """The lines of the log; an empty one for every line that is no part of it.

        around: gets the lines of the text around the fences, by number from 1
        """
        lines = map(_printed_last, lines) if self.last else lines
        if around is None and self.is_plain:
            yield from map(as_line, lines)
            return
        inside, exported = False, dict[str, str]()
        texts = (_unquoted(as_line(line)) if self.quoted else as_line(line) for line in lines)
        for number, text in enumerate(_joined(texts, self.width), 1):
            fence = self.fenced and _FENCE.match(text) is not None
            inside ^= fence
            outside = self.fenced and not inside and _PROGRAM.search(text) is None
            if (
                around is not None
                and not fence
                and (caption := _caption(text) if outside else _title(text, of_people=not self.fenced))
            ):
                around[number] = _with_exported(exported, text, caption)
            yield "" if fence or outside else self._plain(text)

    @property
    def is_plain(self) -> bool:
        """Whether the lines are those of a log as they are."""
        changed = self.quoted or self.bare or self.fenced or self.commas or not self.tabs
        return not changed and self.prefix is None and self.width is None

    def _plain(self, text: str) -> str:
        """A line without what stands before it, and with decimal points."""
        text = _behind(self.prefix, text if self.tabs else text.replace("\t", " "))
        text = without_prefix(text) if self.bare else text
        return _COMMA.sub(r"\1.\2", text) if self.commas and _is_row(text) else text


def _caption(text: str) -> str:
    """The last sentence of a line around a fence, without tags, marks and what counts launches."""
    last = _SENTENCE.split(_TAG.sub("", text).strip(_MARKS))[-1]
    return _COUNTED.sub("", last).strip(_MARKS)[:LONGEST_CAPTION]


def _with_exported(exported: dict[str, str], text: str, caption: str) -> str:
    """A caption, or for a line that exports variables all that are ``exported`` so far, the last ones first."""
    if _EXPORT.match(text) is None:
        return caption
    for setting in _VARIABLE.findall(caption):
        exported.pop(name := setting.partition("=")[0], None)
        exported[name] = setting
    return " ".join(reversed(exported.values()))[:LONGEST_CAPTION]


def _title(text: str, *, of_people: bool) -> str:
    """What a line of a log itself says of the table below: a setting or, if it may be ``of_people``, a heading or a
    sentence; "" for any other.
    """
    match = (_SETTING.fullmatch(text) if "=" in text else None) or _LOADED.fullmatch(text)
    if match is not None:
        return match[1][:LONGEST_CAPTION]
    plain = text.strip(_MARKS)
    if of_people and _VERSION.fullmatch(plain) is not None:
        return plain[:LONGEST_CAPTION]
    if (
        not of_people
        or not plain[:1].isalpha()
        or _COMMENT.match(text)
        or has_prefix(text)
        or _OF_PROGRAM.search(text)
        or _PROGRAM.search(text)
    ):
        return ""
    is_sentence = text.rstrip()[-1:] in ".!?" and len(plain.split()) >= _FEWEST_WORDS
    return _caption(text) if is_sentence or _TITLE.fullmatch(text.strip()) or _WORDS.fullmatch(plain) else ""


def _unquoted(text: str) -> str:
    match = _QUOTED.match(text)
    return text if match is None else text[match.end() :]


def _behind(prefix: re.Pattern[str] | None, text: str) -> str:
    """A line without ``prefix``."""
    if prefix is None:
        return text
    # The prefixes of launchers include numbers, which are ranks.
    match = (None if prefix is _LINE_NUMBER else prefix.match(without_prefix(text))) or prefix.match(text)
    return text if match is None else match.string[match.end() :]


def recognised(lines: Sequence[str], is_log: Callable[[str], int]) -> Paste:
    """What the first ``lines`` show of a paste.

    is_log: whether a text is a log that a reader recognises; more than 1 if prose cannot be taken for one
    """
    texts = [as_line(_printed_last(line)) for line in lines[:_MOST_LINES]]
    quoted = all(_QUOTED.match(text) is not None for text in texts if text.strip())
    texts = [_unquoted(text) for text in texts] if quoted else texts
    width = _width(texts)
    texts = list(_joined(texts, width))
    fences = [at for at, text in enumerate(texts) if _FENCE.match(text) is not None]
    fences += [len(texts)] * (len(fences) % 2)  # the end was cut off
    starts, ends = [*fences[::2], None], [*fences[1::2], None]
    inside = [text for start, end in zip(fences[::2], ends, strict=False) for text in texts[start + 1 : end]]
    outside = [text for end, start in zip([0, *ends], starts, strict=False) for text in texts[end:start]]
    prefix = _prefix(inside or texts)
    plain = (_behind(prefix, text) for text in inside)
    says = is_log("\n".join(plain)) if fences else 0
    fenced = says > 0 and says > is_log("\n".join(outside))
    texts = inside if fenced else texts
    rows = [text for text in texts if _is_row(text) and "#" not in text]
    commas = any(map(_DECIMALS.search, rows)) and not any(map(_POINT.search, rows))
    prefix = prefix if fenced or not inside else _prefix(texts)
    return Paste(
        quoted=quoted,
        prefix=prefix,
        bare=_is_bare([_behind(prefix, text) for text in texts], is_log),
        fenced=fenced,
        commas=commas,
        width=width,
    )


def _is_bare(texts: Sequence[str], is_log: Callable[[str], int]) -> bool:
    """Whether the prefixes of launchers say nothing of a log: they all name the same rank and host, and have the
    time of every row or keep the log from being recognised.
    """
    rows = [line for line in clean(texts) if _is_row(line.text)]
    before = [(line.label, texts[line.number - 1].rstrip().removesuffix(line.text)) for line in rows]
    named = {(label, *_NAME.findall(prefix)) for label, prefix in before}
    if len(named) != 1:
        return False
    if len(before) > _LEAST_BREAKS and all(label is None and _CLOCK.search(prefix) for label, prefix in before):
        return True
    return is_log("\n".join(texts)) == 0 < is_log("\n".join(map(without_prefix, texts)))


def _width(texts: Sequence[str]) -> int | None:
    """The length of the longest lines if a terminal broke them there: most go on in the next line, some beside a space
    or inside a word (a mail breaks between words and leaves no space), and there are more whose rest is shorter than
    lines that are followed by another row with as many words.
    """
    lengths = [len(text.rstrip("\r\n")) for text in texts]
    width = max(lengths, default=0)
    broken = [at for at, length in enumerate(lengths[:-1]) if length == width and _WORD.search(texts[at][-20:])]
    words = [len(text.split()) for text in texts]
    # A heading that ends in its unit is whole: three of nvbandwidth's are the longest lines of some logs.
    rests = [at for at in broken if _goes_on(texts[at], texts[at + 1]) and not texts[at].rstrip().endswith(")")]
    alike = sum(words[at + 1] == words[at] and _is_row(texts[at]) and _is_row(texts[at + 1]) for at in rests)
    sure = sum(lengths[at + 1] < width and words[at + 1] != words[at] for at in rests)
    breaks = ("\n".join((texts[at].rstrip("\r\n")[-2:], texts[at + 1][:2])) for at in rests)
    is_wrapped = any(map(_TORN.search, breaks))
    return width if is_wrapped and sure >= _LEAST_BROKEN and sure > alike and len(rests) > len(broken) / 2 else None


def _goes_on(before: str, text: str) -> bool:
    """Whether ``text`` may be the rest of the line ``before``: no comment or rule, and without a prefix."""
    if _GOES_ON.match(text) is None or has_prefix(text):
        return False
    first = text.split(maxsplit=1)[0]
    return len(first) < _LEAST_PREFIX or not before.lstrip().startswith(first)


def _joined(texts: Iterable[str], width: int | None) -> Iterator[str]:
    """The lines before they were broken; an empty line for each that is joined to a line before it."""
    if width is None:
        yield from texts
        return
    line, parts, is_broken = "", 0, False
    for text in texts:
        if parts and not (is_broken and _goes_on(line, text)):
            yield from (line, *[""] * (parts - 1))
            line, parts = "", 0
        line, parts = line.rstrip("\r\n") + text, parts + 1
        is_broken = len(text.rstrip("\r\n")) == width
    if parts:
        yield from (line, *[""] * (parts - 1))


def _is_row(text: str) -> bool:
    return _ROW.search(text) is not None


def _prefix(texts: Sequence[str]) -> re.Pattern[str] | None:
    """The pattern of what stands before most lines of a table, behind launchers' prefixes; None if nothing does."""
    lines = [text for text in texts if text.strip() and _APART.search(text) is None and _FENCE.match(text) is None]
    lines = [GLUED.sub(" ", _OF_IPERF.sub("#", text)) for text in lines]
    numbers = [int(match[1]) if (match := _LINE_NUMBER.match(text)) is not None else -1 for text in lines]
    following = sum(after == before + 1 for before, after in pairwise(numbers))
    if numbers and numbers[0] >= 0 and following > _MOST * (len(lines) - 1) > 1:
        return _LINE_NUMBER
    table = [without_prefix(text) for text in lines if "#" in text or _is_row(text) or text.count("|") >= _CELLS]
    table = [
        text
        for text in table
        if "#" in text or (len(_STATED.findall(text)) < _NUMBERS and ("|" in text or _WITH_UNIT.search(text) is None))
    ]
    shapes = Counter(shape for text in table for shape in _shapes(text))
    least = max(3, _MOST * len(table))
    common = sorted((shape for shape, count in shapes.items() if count >= least), key=len, reverse=True)
    patterns = map(re.compile, common)
    prefix = next((pattern for pattern in patterns if sum(_is_whole(pattern, text) for text in table) >= least), None)
    return prefix or _logger(lines) or _beginning(lines)


def _beginning(lines: Sequence[str]) -> re.Pattern[str] | None:
    """The same characters before nearly all lines, up to a sign; None if there are none. The key of an object, the
    name of a number, a rank and what lspci prints before the state of a link are part of the log.
    """
    first = lines[len(lines) // 2] if len(lines) >= _FEWEST_ALIKE else ""
    if first.lstrip()[:1] == "{" or "LnkSta:" in first or len(_STATED.findall(first)) >= _NUMBERS:
        return None
    known = len(first.rstrip()) - len(without_prefix(first))
    ends = [match.end() for match in _BEGINNING.finditer(first[:_LONGEST_PREFIX]) if match.end() > known]
    for end in reversed(ends):
        beginning = first[:end].rstrip()
        alike = sum(text.startswith(beginning) for text in lines)
        if '"' not in beginning and "[rank" not in beginning and alike >= _NEARLY_ALL * len(lines):
            return re.compile(re.escape(beginning) + r"\s?")
    return None


def _logger(lines: Sequence[str]) -> re.Pattern[str] | None:
    """The pattern of what a logger prints before every line, up to its level; None if there is none."""
    levelled = [text for text in lines if any(map(text.__contains__, _LEVELS))]
    if len(levelled) <= _MOST * len(lines):
        return None
    shapes = Counter(shape for text in map(without_prefix, levelled) for shape in _shapes(text) if _LEVEL.search(shape))
    shape, count = max(shapes.items(), key=lambda item: (item[1], len(item[0])), default=("", 0))
    return re.compile(rf"{shape}(?:[-:|]\s)?") if count > _MOST * len(lines) and count >= _LEAST_BROKEN else None


def _is_whole(prefix: re.Pattern[str], text: str) -> bool:
    """Whether a line of a table has ``prefix``, and behind it a comment, a row or cells."""
    match = prefix.match(text)
    rest = "" if match is None else text[match.end() :].lstrip()
    return rest[:1] in {"#", "|"} or (rest[:1].isdigit() and _is_row(rest))


def _shapes(text: str) -> set[str]:
    """Patterns of all beginnings of a line that end in a sign or the level of a logger, with any words and numbers."""
    shape, shapes = "", set[str]()
    ends = {"#", '"'} if text.count("|") < _CELLS else {"#", '"', "|"}
    for match in _PIECE.finditer(text[:_LONGEST_PREFIX]):
        piece = match[0]
        if piece[0].isspace():
            shape += r"\s+"
        elif any(character.isalnum() for character in piece):
            shape += piece if piece in _LEVELS else r"[\w.-]+"
        elif piece in ends:
            break
        else:
            shape += re.escape(piece)
        if piece in _LEVELS or piece in _ENDS or _TIME.fullmatch(text[: match.end()][-_LONGEST_TIME:]) is not None:
            shapes.add(rf"{shape}(?:\s|$|(?=#))")
        elif shape == r"\+":  # of a diff
            shapes.add(shape)
    return shapes
