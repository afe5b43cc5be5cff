"""Labels of curves, intervals, checks and flags, shared by all sections of a report."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from busbw.units import counted
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.intervals import Interval, IntervalKind
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import DataCheck
from busbw_analysis.report.document import Cell, Paragraph

_WITHOUT: Final = {
    "algorithm": "the library's own",
    "threads": "own thread",
    "numa_node": "no NUMA node",
    "pairs": "no pairs",
    "traffic": "no traffic matrix",
}
"""Settings → label of a curve that lacks one, if other curves have it."""


def curve_label(key: SeriesKey, varying: frozenset[str]) -> str:
    """``curve_parts`` as one text."""
    return " · ".join(curve_parts(key, varying))


def curve_parts(key: SeriesKey, varying: frozenset[str]) -> tuple[str, ...]:
    """The fields ``varying``, in which a curve differs from its neighbours; its full name if there are none."""
    texts = {
        "backend": key.backend,
        "device": key.device,
        "dtype": key.dtype or "no data type",
        "redop": key.redop or "no reduction",
        "ranks": f"ranks {rank_list(key.ranks)}",
        "group": "all ranks" if key.group == "all" else f"groups {key.group}",
        "hosts": counted(key.hosts, "host"),
        "mode": key.mode,
        "sync": f"sync {key.sync}",
        "cache": key.cache,
        "pre_enqueue": "pre-enqueued" if key.pre_enqueue else "not pre-enqueued",
        "in_place": "in place" if key.in_place else "out of place",
        "root": "no root" if key.root is None else f"root {key.root}",
    }
    settings = key.setting_words
    texts |= {name: settings.get(name) or _WITHOUT.get(name, f"no {name}") for name in sorted(varying - texts.keys())}
    return tuple(text for name, text in texts.items() if name in varying) or key.parts


def varying_fields(keys: Iterable[SeriesKey]) -> frozenset[str]:
    """The fields in which ``keys`` differ."""
    series_keys = list(keys)
    texts = [key.setting_words for key in series_keys]
    settings = {name for words in texts for name in words if len({other.get(name) for other in texts}) > 1}
    others = set(SeriesKey.__struct_fields__) - {"op", "settings", "tool_op"}
    return frozenset(name for name in others if len({getattr(key, name) for key in series_keys}) > 1) | settings


def op_anchor(op: str) -> str:
    """The anchor of an operation's section."""
    return f"op-{op.replace('_', '-')}"


def checked(check: DataCheck) -> Cell:
    """Whether the data were verified."""
    return Cell(check.in_words, tone="plain" if check.state == "verified" else "quiet")


def flagged(flags: Iterable[str], common: Sequence[str] = ()) -> str | None:
    """The flags, except those in ``common``."""
    return ", ".join(flag for flag in flags if flag not in common) or None


def ends_in_words(kinds: Iterable[IntervalKind]) -> str:
    """A sentence that explains the columns low and high of a table."""
    none = "no interval, because one launch needs at least 6 independent samples"
    return "Low and high: " + ", ".join(none if kind == "none" else kind for kind in dict.fromkeys(kinds)) + "."


def ends_of(interval: Interval) -> tuple[float | None, float | None]:
    """Both ends of an interval or range, as columns need them."""
    return interval.low_ns, interval.high_ns


def refusals(what: str, reasons: Iterable[tuple[str, str]], *, several: bool) -> Iterator[Paragraph]:
    """Why there is no ``what``: each reason once, with the names that it applies to if there are ``several``."""
    for reason, names in by_key(reasons).items():
        which = f" for {', '.join(names)}" if several else ""
        yield Paragraph(f"No {what}{which}: {reason}", tone="quiet")
