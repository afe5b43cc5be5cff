"""The bands of sizes: what verdicts and comparisons judge as one."""

from typing import Final, Literal

Band = Literal["small", "middle", "large", "no size"]

BANDS: Final[tuple[tuple[Band, int, int | None], ...]] = (
    ("small", 1, (4 << 10) + 1),
    ("middle", (4 << 10) + 1, 1 << 20),
    ("large", 1 << 20, None),
    ("no size", 0, 1),
)
"""Name of a band of sizes S in bytes, its first size, and the first size that is too large for it."""

SIZES_OF_BANDS: Final = "small: up to 4 KiB; middle: below 1 MiB; large: from 1 MiB on"


def band_of(size_bytes: int) -> Band:
    """The band of a size."""
    return next(name for name, low, high in BANDS if low <= size_bytes and (high is None or size_bytes < high))
