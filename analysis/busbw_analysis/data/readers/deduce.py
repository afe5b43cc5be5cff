"""What the columns of a table imply: rates to compare with the printed ones; for nccl-tests also collective and ranks.

Source: ``getCollByteCount`` and ``getBw`` of each ``*.cu`` of NVIDIA/nccl-tests. The column ``count`` is S for some
operations and one block of S for others. busbw over algbw depends on the ranks. Only some have a redop or a root.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from busbw.ops import OPS, bus_factor
from busbw.runs.records import CASE_DTYPE_BYTES
from busbw.runs.run import LogNote
from busbw_analysis.data.readers.lines import NCCL_BLOCKS, op_named
from busbw_analysis.data.readers.log import Aggregate, Said
from busbw_analysis.data.readers.paste import LONGEST_CAPTION

_WHOLE: Final = ("all_reduce", "broadcast", "reduce", "send_recv")
_NEVER_IN_PLACE: Final = frozenset({"all_to_all", "send_recv"})
"""``alltoall.cu`` and ``sendrecv.cu`` print ``N/A`` errors in place, even if errors are counted out of place."""
_SAME_RANKS: Final = 0.005
"""Relative error of busbw over algbw in the other rows of a table: those over more ranks differ by more."""
_WORDS_APART: Final = r"[^a-z_]+|_perf"
_MOST_RANKS: Final = 1024
_HALF_A_DIGIT: Final = 0.0051e9
"""B/s: rates are printed in GB/s with two decimals."""


class Fit(NamedTuple):
    """A possible operation and number of ranks of a table; ``ranks`` is None if several numbers are possible."""

    op: str
    ranks: int | None


def fits(rows: Sequence[Aggregate], op: str | None = None, ranks: int | None = None) -> tuple[Fit, ...]:
    """All operations and ranks that ``rows`` may be of, given the known ``op`` and ``ranks`` (None: unknown)."""
    rated = [row for row in rows if row.algbw and row.busbw]
    if not rated:
        return ()
    best = max(rated, key=lambda row: row.busbw or 0.0)
    algbw, busbw = best.algbw or 1.0, best.busbw or 1.0
    ratio = busbw / algbw
    half_a_digit = _half_a_digit(rated)
    half_a_digit = min(half_a_digit, _HALF_A_DIGIT) if _is_of_nccl_tests(best) else half_a_digit
    error = ratio * (half_a_digit / busbw + half_a_digit / algbw)
    others = [(row.busbw or 1.0, row.algbw or 1.0) for row in rated]
    blocks = _blocks(best)
    in_place, out_of_place = (
        {row.check in {"verified", "wrong"} or "error" in row.others for row in rows if row.in_place is place}
        for place in (True, False)
    )
    names = _WHOLE if blocks == 1 else NCCL_BLOCKS if blocks else (*_WHOLE, *NCCL_BLOCKS)
    candidates: list[Fit] = []
    for name in names if op is None else (op,):
        given = ranks or (blocks if blocks is not None and blocks > 1 else None)
        possible = [
            number
            for number, factor in (((given, bus_factor(name, given) or 0.0),) if given is not None else _factors(name))
            if abs(factor - ratio) <= error
            and all(
                abs(factor * low / high - 1) <= _SAME_RANKS + half_a_digit * (1 / high + 1 / low)
                for high, low in others
            )
        ]
        if op is None and True in out_of_place and in_place and (name in _NEVER_IN_PLACE) == (True in in_place):
            continue
        if possible and (op is not None or _has_columns(name, best)):
            candidates.append(Fit(name, possible[0] if len(possible) == 1 else None))
    return tuple(candidates)


@lru_cache(maxsize=64)
def _factors(op: str) -> tuple[tuple[int, float], ...]:
    """Every number of ranks, with busbw over algbw."""
    return tuple((ranks, bus_factor(op, ranks) or 0.0) for ranks in range(2, _MOST_RANKS + 1))


def _blocks(row: Aggregate) -> int | None:
    """How many blocks of ``count`` elements S contains; None unless it is a whole number."""
    block = (row.count or 0) * CASE_DTYPE_BYTES.get(row.dtype or "", 0)
    if not block or not row.size_bytes or row.size_bytes % block:
        return None
    return row.size_bytes // block


def _is_of_nccl_tests(row: Aggregate) -> bool:
    return row.count is not None and row.dtype is not None


def _half_a_digit(rows: Sequence[Aggregate]) -> float:
    """Half a unit of the last digit of rates, B/s: all have as many decimals in GB/s as any of them, at most
    three.
    """
    rates = [round(rate / 1e9, 3) for row in rows for rate in (row.algbw or 0.0, row.busbw or 0.0)]
    decimals = next((count for count in (0, 1, 2) if all(rate == round(rate, count) for rate in rates)), 3)
    return _HALF_A_DIGIT * 10.0 ** (2 - decimals)


def _has_columns(op: str, row: Aggregate) -> bool:
    """Whether ``row`` has a redop and a root exactly if ``op`` has. Some versions print a redop for send_recv. Tables
    without the other columns of nccl-tests may have left them out.
    """
    if not _is_of_nccl_tests(row):
        return True
    reduces = op == "send_recv" or OPS[op].reduces == (row.redop is not None)
    return reduces and OPS[op].rooted == (row.root is not None)


def hinted(name: str, among: Sequence[Fit]) -> Fit | None:
    """The fit in ``among`` whose operation is a word of the file ``name``; None unless there is exactly one."""
    plain = name.lower()
    words = {op_named(word) for parted in (_WORDS_APART, "[^a-z]+") for word in re.split(parted, plain)}
    named = [fit for fit in among if fit.op in words]
    return named[0] if len(named) == 1 else None


_APART: Final = re.compile(r"\b(all|reduce|to|send)[ -](?=reduce|gather|scatter|to\b|all\b|rec)")
"""Inside of the name of an operation that is written in words, such as ``all reduce``."""


def op_in(text: str) -> str | None:
    """The operation that a text names; None unless there is exactly one."""
    ops = {op_named(word) for word in re.split(_WORDS_APART, _APART.sub(r"\1_", text.lower()))} - {None}
    return next(iter(ops)) if len(ops) == 1 else None


_COUNT: Final = r"([1-9]\d{0,4})[ -]?"
_MODEL: Final = r"[A-Z]{1,2}\d{2,4}X?"
_GPUS: Final = rf"{_COUNT}(?:[x×] ?)?(?:(?:{_MODEL}|NVIDIA|MPI) )?(?:GPUs|ranks)\b"
_NODE: Final = r"(?:node|host|server|machine)"
_NODES: Final = rf"{_COUNT}{_NODE}s?\b"
_EACH: Final = rf"(?: each\b| ?(?:on each|in each|per|/) ?{_NODE}\b)"
_BEFORE: Final = (
    r"(?:^|(?<!\d)[,;:(] ?|\b(?:on|across|using|for) |(?:reduce|gather|scatter|to_?all|cast|perf)(?: over| with)? )"
)
_STATEMENT: Final = re.compile(
    rf"(?i){_BEFORE}(?:{_GPUS}(?:(?: on| across| over| ?\() ?{_NODES}\)?)?"
    rf"|{_NODES}(?: of {_COUNT}[x×] ?{_MODEL}\b| [x×] {_GPUS}(?:{_EACH})?|(?: with| of|,) {_GPUS}{_EACH}))"
)
"""``16 GPUs on 2 nodes``, ``2 nodes with 8 GPUs each``; without the last word it may be 8 or 16."""
_COUNTED: Final = re.compile(
    r"(?i)(?<![a-z_])(?:[GN]PUs?|ranks?|process(?:es)?|devices?|nodes?|hosts?|servers?|machines?"
    r"|box(?:es)?|instances?|VMs?|pods?|systems?|clusters|racks?|trays?|[DH]GX\w*)\b"
)
"""What may be counted: beside the statement, none may be named."""
_DOUBTS: Final = (
    r"(?<![\w.])\d+(?![\w.])|\d ?[x×]|\b[x×] ?\d|\?|n't\b|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve"
    r"|sixteen|single|dual|both|pairs?|groups?|half|twice|double|several|many|subset|split|each|every|per|than"
    r"|compar\w+|versus|vs|fewer|more|less|least|most|max(?:imum)?|min(?:imum)?|up to|instead|others?|another|same|like"
    r"|unlike|as|expect\w*|theoretical|ideal|should|would|could|if|when|while|but|not|no|never|except|previous\w*|earlier"
    r"|before|after|until|slower|faster|better|worse|works?|fine|fail\w*|hangs?|averag\w*)\b"
)
"""Another number, or a word with which the table may be of other ranks."""
_DOUBTED: Final = re.compile(rf"(?i){_DOUBTS}")
_NUMBERED: Final = re.compile(rf"(?i)\d|{_DOUBTS}")
_VERBS: Final = frozenset({"reduce", "gather", "scatter"})
"""Operations that are also words of other sentences."""


def said(texts: Iterable[str]) -> Said | None:
    """What the ``texts`` above a table say of its measurement; no ranks unless there is a single plain statement."""
    lines = list(texts)
    ops = {op for text in lines if (op := op_in(text)) is not None} - _VERBS
    counts = {_ranks(text) for text in lines if _COUNTED.search(text) and _NUMBERED.search(text)}
    ranks, hosts = counts.pop() if len(counts) == 1 else (None, None)
    op = ops.pop() if len(ops) == 1 else None
    return None if op is None and ranks is None else Said(op=op, ranks=ranks, hosts=hosts)


def _ranks(text: str) -> tuple[int | None, int | None]:
    """The numbers of ranks and hosts that a text states; without ranks if there is a doubt or its end was cut off."""
    rest, statements = _STATEMENT.subn(" ; ", text)
    match = _STATEMENT.search(text)
    if (
        match is None
        or statements > 1
        or len(text) >= LONGEST_CAPTION
        or _COUNTED.search(rest)
        or _DOUBTED.search(rest)
    ):
        return None, None
    ranks, hosts, of_hosts, *each = (int(group) if group else None for group in match.groups())
    if of_hosts is not None:
        return of_hosts * next(filter(None, each)), of_hosts
    return (None, None) if ranks is None or ranks % (hosts or 1) else (ranks, hosts)


# --- disagreements of size, time and rates ---------------------------------------------------------------------------

_TOLERANCE: Final = 0.02
"""Relative error allowed: tools print times with at least three digits."""
_DIGIT: Final = 0.0101e9
"""Absolute error allowed, B/s: one unit in the last of two decimals of a rate in GB/s."""
_GIB: Final = 1e9 / 2**30


def busbw(row: Aggregate) -> float | None:
    """Bus bandwidth in B/s by busbw's definition; None if size, time, ranks or the bus factor is unknown."""
    if row.op is None or row.ranks is None or row.size_bytes is None or not row.time_seconds:
        return None
    factor = bus_factor(row.op, row.ranks)
    return None if factor is None else factor * row.size_bytes / row.time_seconds


def disagreements(rows: Iterable[Aggregate]) -> Iterator[LogNote]:
    """One note for every kind of disagreement, about the first row that shows it."""
    seen: dict[str, LogNote] = {}
    for row in rows:
        if row.ranks == 1 and row.busbw is not None:
            text = f"{row.op or row.tool_op} over a single rank has no bus bandwidth; the printed one is ignored"
            seen.setdefault("one-rank", LogNote(code="one-rank", line=row.line, text=text))
        elif (code := _difference(row)) is not None:
            printed, computed = ((rate or 0.0) / 1e9 for rate in _rates(row))
            text = (
                f"{row.tool_op or row.op} prints {printed:.4g} GB/s where size, time and ranks give {computed:.4g} GB/s"
            )
            seen.setdefault(code, LogNote(code=code, line=row.line, text=f"{text}: {_WORDS[code]}"))
    yield from seen.values()


_WORDS: Final = {
    "gib-as-gb": "the tool's GB is 2^30 bytes",
    "size-per-rank": "the tool's size is one rank's share",
    "no-bus-factor": "the tool omits the bus factor",
    "rate-differs": "the reason is unknown",
}


def _rates(row: Aggregate) -> tuple[float | None, float]:
    """A printed rate (None: there is none), and the same recomputed from size, time and ranks (0: unknown)."""
    if row.busbw is not None and (computed := busbw(row)) is not None:
        return row.busbw, computed
    return row.algbw, (row.size_bytes or 0) / row.time_seconds if row.time_seconds else 0.0


def _difference(row: Aggregate) -> str | None:
    printed, computed = _rates(row)
    if (
        printed is None
        or not computed
        or row.op is None
        or row.size_bytes is None
        or abs(printed - computed) <= _DIGIT + _TOLERANCE * computed
    ):
        return None
    ratios = {"gib-as-gb": _GIB}
    if row.ranks is not None and row.ranks > 1:
        ratios |= {"size-per-rank": row.ranks, "no-bus-factor": 1 / (bus_factor(row.op or "", row.ranks) or 1)}
    ratio = printed / computed
    near = {code: abs(ratio / expected - 1) for code, expected in ratios.items() if expected != 1}
    best = min(near, key=lambda code: near[code], default=None)
    return best if best is not None and near[best] <= _TOLERANCE else "rate-differs"
