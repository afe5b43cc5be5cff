"""Host lists in Slurm's notation: ``gpu[01-03,7],login``."""

import re

from busbw.errors import LaunchError

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_RANGES = re.compile(r"\[([^\]]*)\]")
_MOST_HOSTS = 1_000_000


def expand(text: str) -> tuple[str, ...]:
    """The host names in ``text``, in order; the last of several brackets varies fastest, as in ``scontrol``.

    Raises LaunchError if it is not a host list. Format: man srun, SLURM_JOB_NODELIST; ``scontrol show hostnames``.
    """
    stripped = text.strip()
    parts = _PART.findall(stripped)
    if not parts or ",".join(parts) != stripped:
        raise LaunchError(_message(text))
    return tuple(name for part in parts for name in _names(part, text))


def _names(part: str, text: str) -> list[str]:
    texts = _RANGES.split(part)  # text, ranges, text, ranges, …, text
    found = [texts[0]]
    for ranges, after in zip(texts[1::2], texts[2::2], strict=True):
        numbers = [number for one in ranges.split(",") for number in _numbers(one, text)]
        if len(found) * len(numbers) > _MOST_HOSTS:
            raise LaunchError(_message(text))
        found = [f"{name}{number}{after}" for name in found for number in numbers]
    return found


def _numbers(range_: str, text: str) -> list[str]:
    first, dash, last = range_.partition("-")
    last = last if dash else first
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last) < int(first) + _MOST_HOSTS):
        raise LaunchError(_message(text))
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _message(text: str) -> str:
    return f"{text!r} is not a host list; expected names such as n1 or gpu[01-03,7], separated by commas"
