"""Number of threads of a rank that share a call, as written in a plan."""

import re

from busbw.errors import UsageError
from busbw.ops.limits import MOST_THREADS, MOST_VALUES

CORES = "cores"

_PART = re.compile(
    rf"(?P<low>[0-9]{{1,9}}|{CORES})(?:\.\.(?P<high>[0-9]{{1,9}}|{CORES})(?P<how>[*+])(?P<step>[0-9]{{1,9}}))?"
)


def parse_threads(text: str, cores: int) -> tuple[int, ...]:
    """Thread counts from a list (``1,4,cores``), a range (``1..cores*2``, ``2..8+2``), or both; ``cores`` is the
    number of cores of a rank. Ascending, without duplicates. Raises UsageError.
    """
    found: set[int] = set()
    made = 0  # with duplicates, which take as long
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(
                f"threads {part!r} is not a number; allowed: 1, {CORES}, 1..{CORES}*2, 2..8+2, or a list of these"
            )
        low = cores if match["low"] == CORES else int(match["low"])
        high = low if match["high"] is None else cores if match["high"] == CORES else int(match["high"])
        step = int(match["step"] or 1)
        if not 1 <= low <= MOST_THREADS or high > MOST_THREADS:
            raise UsageError(f"threads {part!r}: not allowed; use 1 to {MOST_THREADS}")
        if (step < 2 and match["how"] == "*") or step < 1:
            raise UsageError(f"threads {part!r}: use a factor of at least 2, or a step of at least 1")
        if low > high and CORES not in part:
            raise UsageError(f"threads {part!r} runs backwards: {low} is more than {high}; swap the two")
        while low <= high:
            made += 1
            if made > MOST_VALUES:
                raise UsageError(f"threads {text[:80]!r}: more than {MOST_VALUES} numbers; use a shorter range")
            found.add(low)
            low = low * step if match["how"] == "*" else low + step
    if not found:
        raise UsageError(f"threads {text!r} gives no number, because a rank has {cores} core(s); start at 1")
    return tuple(sorted(found))
