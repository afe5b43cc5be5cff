"""The most that a plan or an option may ask for, and files of theirs that are read within such limits.

They are far beyond what is measured, and small enough that every plan is read or refused, and its cases are made, in
2 s and 500 MB. docs/operations.md has the same numbers.
"""

import math
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from busbw.errors import UsageError
from busbw.units import LARGEST_SIZE

MOST_RANKS: Final = 1 << 17
MOST_MATRIX_RANKS: Final = 1 << 11
"""Ranks of a group of which every pair counts: matrices of pairs, uneven traffic. A matrix of so many has 4 million
cells."""
MOST_LAUNCHES: Final = 10_000
MOST_BLOCKS: Final = 10_000
MOST_LAUNCH_BLOCKS: Final = 2_000_000
"""Blocks × cases: at 50 ms each that is a day."""
MOST_CASES: Final = 20_000
"""Of a plan; of an array of jobs together."""
MOST_SWEEPS: Final = 256
MOST_SWEEP_RANKS: Final = 1 << 22
"""Sweeps × ranks: each splits the ranks into groups."""
MOST_VALUES: Final = 1024
"""Of a list in a sweep."""
MOST_SAMPLES: Final = 1_000_000
"""Of a block; also calls of a warm-up."""
LONGEST_SECONDS: Final = 86_400
"""Budget of a case, and its warm-up: a day."""
LONGEST_TIMEOUT_SECONDS: Final = 1_000_000
LARGEST_SEED: Final = 10**18
"""A seed and the number of the launch have to fit a signed 64-bit integer together."""
MOST_THREADS: Final = 1 << 16
MOST_DEPTH: Final = 1024
MOST_TOML_BYTES: Final = 1 << 18
"""Of a plan, or of a file of peaks."""
MOST_TRAFFIC_BYTES: Final = 1 << 25

_MOST_KEY_PARTS: Final = 64
_DEEP_KEY: Final = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}"""
)


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a file. Raises UsageError when it cannot be read, is no UTF-8 or is larger."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        text = content[:most_bytes].decode()
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        message = f"{path}: cannot read it: {error}"
        raise UsageError(message) from error
    if len(content) > most_bytes:
        message = f"{path}: cannot read it: it has more than {most_bytes} bytes, the most that is allowed"
        raise UsageError(message)
    return text


def read_toml(text: str, origin: str) -> dict[str, Any]:
    """The document in ``text``. Raises UsageError for what is no TOML, and for what is nested without end."""
    if _DEEP_KEY.search(text):  # tomllib takes the square of its parts as long
        message = f"{origin}: not TOML that is read here: a key has more than {_MOST_KEY_PARTS} parts"
        raise UsageError(message)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError beside TOMLDecodeError: a number of 5000 digits
        message = f"{origin}: not TOML: {'nested too deeply' if isinstance(error, RecursionError) else error}"
        raise UsageError(message) from error


def refuse_beyond(key: str, value: float, least: float, most: float) -> None:
    """Raise UsageError unless ``least`` ≤ ``value`` ≤ ``most``; NaN is refused, too."""
    if least <= value <= most and abs(value) < math.inf:
        return
    if not -math.inf < value < math.inf:
        message = f"key {key!r}: {value} is not allowed; allowed is a finite number"
        raise UsageError(message)
    # Python prints no whole number of more than 4300 digits.
    shown = str(value) if abs(value) <= LARGEST_SIZE else "a number far beyond that"
    message = f"key {key!r}: want at least {least} and at most {most}; given {shown}"
    raise UsageError(message)
