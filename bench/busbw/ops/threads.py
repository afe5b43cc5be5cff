"""Number of threads of a rank that share a call, as written in a plan."""

import re

from busbw.errors import UsageError
from busbw.ops.limits import MOST_THREADS
from busbw.units import parse_sizes

CORES = "cores"

_PART = re.compile(rf"(?P<low>[0-9]{{1,9}}|{CORES})(?:\.\.(?P<high>[0-9]{{1,9}}|{CORES})[*+][0-9]{{1,9}})?")


def parse_threads(text: str, cores: int) -> tuple[int, ...]:
    """Thread counts from a list (``1,4,cores``), a range (``1..cores*2``, ``2..8+2``), or both; ``cores`` is the
    number of cores of a rank. Ascending, without duplicates. Raises UsageError.
    """
    kept = []
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(
                f"threads {part!r} is not a number; allowed: 1, {CORES}, 1..{CORES}*2, 2..8+2, or a list of these"
            )
        low, high = (cores if end == CORES else int(end) for end in (match["low"], match["high"] or match["low"]))
        if low <= high or CORES not in part:  # otherwise the range is empty because a rank has few cores
            kept.append(part.replace(CORES, str(cores)))
    if not kept:
        raise UsageError(f"threads {text!r} gives no number, because a rank has {cores} core(s); start at 1")
    numbers = parse_sizes(",".join(kept))
    if numbers[0] < 1 or numbers[-1] > MOST_THREADS:
        raise UsageError(f"threads {text[:80]!r}: not allowed; use 1 to {MOST_THREADS}")
    return numbers
