"""Steps of training programs that print when a step was done, but not how long it took: tqdm's bars, and numbers of
steps beside a time stamp.

Sources: ``format_meter`` in ``tqdm/std.py`` of tqdm/tqdm; ``'elapsed_time'`` in ``callback.py`` of modelscope/ms-swift.
A bar's own rate is a moving average, or one since the start (``smoothing=0``), so that its clock is read.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from busbw_analysis.data.readers.lines import number

BAR, STAMPS = "tqdm's bar", "the program"
"""Names of programs, for an answer."""
_BAR: Final = re.compile(
    r"(?P<of>[^|%]{0,80}?)\d{1,3}%\|[^|]{0,400}\|\s*(?P<step>\d{1,9})/(?P<total>\d{1,9}) "
    r"\[(?:(?P<hours>\d{1,4}):)?(?P<minutes>\d\d?):(?P<seconds>\d\d)<[\d:?]{1,12}, +"
    r"(?:\?|(?P<rate>[\d.]{1,12}))(?P<unit>it/s|s/it)(?P<rest>[^\]]{0,400})"
)
_TRAINING: Final = re.compile(
    r"(?i)loss|grad_norm|samplespersec|\bppl\b|\bstep\W{1,3}\d+/\d+\b.{0,20}\bepoch|\bepoch\b.{1,20}\bstep\W{1,3}\d+/\d+\b"
)
_TRAINS: Final = re.compile(rf"{_TRAINING.pattern}|(?<![a-z])(?:train|epoch|steps?\b|iter)")
_EVALUATES: Final = re.compile(r"(?i)(?<![a-z])(?:valid|val|eval|test)(?:ing|ation|uat\w{2,4})?(?![a-z])")
_PREPARES: Final = re.compile(
    rf"{_EVALUATES.pattern}|(?<![a-z])(?:predict|load|map|token|download|sanity|prepar|generat|infer|sampl|sav)"
)
_STAMP: Final = re.compile(
    r"(?:(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _]|\b(?P<month_>\d\d)/(?P<day_>\d\d) "
    r"|\b[IWE](?P<month__>\d\d)(?P<day__>\d\d) |^\W{0,3})"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<part>\d{1,9}))?(?: (?P<half>[AP]M)\b)?"
)
_SINCE: Final = re.compile(r"tensorflow:loss = \S{1,20}, step = (\d{1,9}) \((\d{1,9}\.\d{1,9}) sec\)\s*$")
"""The seconds since the line before, of ``LoggingTensorHook`` in TensorFlow's ``basic_session_run_hooks.py``."""
_ELAPSED: Final = re.compile(r"'elapsed_time': '(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+)s'")
IN_EPOCH: Final = r"(?i:\bepoch):? *\[?(\d{1,6})\]?[/\d, ]{0,9}\[ *(\d{1,9})/(\d{1,9})(?! ?\(\d|\d)"
"""The number of an epoch, of a step in it, and how many an epoch has; with a percentage behind them, of samples."""
_NUMBERED: Final = tuple(
    map(
        re.compile,
        (
            r"\bnum_updates['\"]?[=:] ?['\"]?(\d{1,9})\b",
            r"\bglobal_step/max_steps'?: '(\d{1,9})/",
            r"(?i)\b(?:total|global)[_ ]step['\"]?[:= ]{1,3}(\d{1,9})\b",
            IN_EPOCH,
            r"\b\d+/(\d{1,9}), \w{0,10}SamplesPerSec",
            r"(?i)\b(?:step|iter|iteration|update)s?\b['\"]?[:= #\[]{1,3}(\d{1,9})\b",
            r"(?i)\bbatch(?: idx)?[:= #\[]{1,3}(\d{1,9})\b",
        ),
    )
)
"""The number of a step; of its epoch, in the epoch, and how many an epoch has."""
_EPOCH: Final = re.compile(r"(?i)epoch\D{1,3}(\d{1,6})")
_WORDS: Final = (b"it/s", b"s/it", b"oss", b"SamplesPerSec", b"grad_norm", b"poch")
_LEAST: Final = 3
"""Steps that are enough."""
_RESOLVED: Final = 10
"""Resolutions of the clock in the shortest time that is measured by it: an error of 4 % (standard deviation)."""
_CLOSE: Final = 0.2
_MOST_BACKWARD: Final = 0.1
"""Share of lines whose clock or number is before that of the line above, beyond which several ranks print them."""


class Tick(NamedTuple):
    """When a step was done.

    line: line number in the log, from 1
    step: its number
    at: seconds on a clock
    taken: seconds of a step by the program's own average; None: not printed
    epoch: its number as text; "": not printed
    evaluations: lines about evaluation above it
    """

    line: int
    step: int
    at: float
    taken: float | None = None
    epoch: str = ""
    evaluations: int = 0


class Interval(NamedTuple):
    """Mean time in seconds of the steps up to ``step``."""

    line: int
    step: int
    seconds: float


class StepClock:
    """Collects the bars and stamps of a log."""

    def __init__(self) -> None:
        self._bars, self._stamps = dict[tuple[str, str], list[Tick]](), dict[int, list[Tick]]()
        self._unnamed, self._resolution, self._has_loss = set[tuple[str, str]](), 1e-3, False
        self._since: list[Interval] = []
        self._evaluations = 0

    def take(self, line: int, text: str, raw: str) -> None:
        """Note what a line says: its ``text`` is without prefixes, which ``raw`` has."""
        text, raw = text.replace("\t", " "), raw.replace("\t", " ")
        bars = [*_BAR.finditer(text)] if "%|" in text else []
        for bar in bars:
            self._bar(line, bar)
        if _TRAINING.search(text) is not None and _EVALUATES.search(text) is None:
            self._has_loss = True
            if not bars:
                self._stamp(line, text, raw)
        elif _EVALUATES.search(text) is not None:
            self._evaluations += 1

    def _bar(self, line: int, bar: re.Match[str]) -> None:
        key = (re.sub(r"\d+", "#", bar["of"].strip()), bar["total"])
        is_named = re.search(r"[^\W\d_]{2}", bar["of"]) is not None
        if _PREPARES.search(bar["of"]) is not None:
            return
        if _TRAINS.search(bar["of"] + bar["rest"]) is None:
            if is_named:
                return
            self._unnamed.add(key)
        rate = number(bar["rate"] or "")
        taken = rate if not rate or bar["unit"] == "s/it" else 1 / rate
        at = 3600 * int(bar["hours"] or 0) + 60 * int(bar["minutes"]) + int(bar["seconds"])
        self._bars.setdefault(key, []).append(
            Tick(line, int(bar["step"]), at, taken, _epoch(bar["of"]), self._evaluations)
        )

    def _stamp(self, line: int, text: str, raw: str) -> None:
        at, resolution = _seconds(raw)
        since = _SINCE.search(raw) if at is None else None
        if since is not None and float(since[2]):
            self._since.append(Interval(line, int(since[1]), float(since[2])))
        for place, pattern in enumerate(_NUMBERED):
            if at is not None and (match := pattern.search(text)) is not None:
                self._stamps.setdefault(place, []).append(
                    Tick(line, step_of(match), at, None, _epoch(text), self._evaluations)
                )
                self._resolution = max(self._resolution, resolution)
                break

    @property
    def seen(self) -> bool:
        """Whether there is a step."""
        return bool(self.steps()[1])

    def steps(self) -> tuple[str, list[Interval]]:
        """Name of the program and its steps; none where several ranks print them."""
        ticks = max(self._of_training(), key=lambda each: max(tick.at for tick in each), default=[])
        intervals = _intervals(ticks, 1.0)
        if len(intervals) < _LEAST and (averages := _averages(ticks)):
            intervals = averages
        gaps = Counter(after.step - before.step for before, after in pairwise(self._since))
        if gaps and (gap := gaps.most_common(1)[0][0]) > 0:
            return STAMPS, [each._replace(seconds=each.seconds / gap) for each in self._since]
        stamped = max((_intervals(each, self._resolution) for each in self._stamps.values()), key=len, default=[])
        return (BAR, intervals) if len(intervals) >= min(_LEAST, len(stamped)) else (STAMPS, stamped)

    def _of_training(self) -> Iterator[list[Tick]]:
        return (ticks for key, ticks in self._bars.items() if self._has_loss or key not in self._unnamed)


def step_of(numbered: re.Match[str]) -> int:
    """The number of a step, from the only group of a match, or from those of its epoch, the step and the last step."""
    first, *others = (int(group) for group in numbered.groups() if group is not None)
    return first * others[1] + others[0] if others else first


def seen(text: bytes) -> bool:
    """Whether a part of a log has steps by their clock."""
    clock = StepClock()
    for line in text.replace(b"\r", b"\n").split(b"\n"):
        if any(word in line for word in _WORDS):
            decoded = line[:4096].decode(errors="replace")
            clock.take(0, decoded, decoded)
    return clock.seen


def _epoch(text: str) -> str:
    return "" if (match := _EPOCH.search(text)) is None else match[1]


def _seconds(text: str) -> tuple[float | None, float]:
    """Seconds on the clock of a line, and its resolution."""
    stamp, elapsed = _STAMP.search(text), _ELAPSED.search(text)
    if stamp is None and elapsed is not None:
        days, hours, minutes, seconds = (int(group or 0) for group in elapsed.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds, 1.0
    if stamp is None:
        return None, 0.0
    month, day = (stamp[name] or stamp[f"{name}_"] or stamp[f"{name}__"] for name in ("month", "day"))
    try:
        days = 0 if month is None else date(int(stamp["year"] or 2000), int(month), int(day)).toordinal()
    except ValueError:
        return None, 0.0
    hour = int(stamp["hour"]) % 12 + 12 * (stamp["half"] == "PM") if stamp["half"] else int(stamp["hour"])
    part = stamp["part"] or ""
    whole = ((days * 24 + hour) * 60 + int(stamp["minute"])) * 60 + int(stamp["second"])
    return whole + float(f"0.{part or 0}"), max(1e-3, 10.0 ** -len(part))


def _intervals(ticks: Sequence[Tick], resolution: float) -> list[Interval]:
    """The times between ticks that the clock resolves; none where several ranks print them."""
    back = [(before, after) for before, after in pairwise(ticks) if after.step < before.step or after.at < before.at]
    if len(back) > max(1, _MOST_BACKWARD * len(ticks)) and any(after.step > 1 for _, after in back):
        return []
    found: list[Interval] = []
    first, start = 0, ticks[0] if ticks else None
    for before, tick in pairwise(ticks):
        if start is None or tick.step < start.step or tick.at < start.at:
            first = first + before.step if tick.epoch != before.epoch else 0  # or the program was restarted
            start = tick
        elif tick.evaluations > before.evaluations:
            start = tick
        elif tick.step > start.step and tick.at - start.at >= _RESOLVED * resolution:
            found.append(Interval(tick.line, first + tick.step, (tick.at - start.at) / (tick.step - start.step)))
            start = tick
    return found


def _averages(ticks: Sequence[Tick]) -> list[Interval]:
    """The program's own averages, if the clock from the first to the last agrees with them."""
    found = [Interval(tick.line, tick.step, tick.taken) for tick in ticks if tick.taken]
    if len(found) < _LEAST or any(after.step <= before.step for before, after in pairwise(found)):
        return []
    mean = median(each.seconds for each in found)
    steps = max(1, ticks[-1].step - ticks[0].step)
    by_clock = (ticks[-1].at - ticks[0].at) / steps
    return found if abs(mean - by_clock) <= 1 / steps + _CLOSE * by_clock else []
