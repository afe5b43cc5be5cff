"""Size bands: verdicts and comparisons judge all sizes of a band together."""

from typing import Final, Literal

Band = Literal["small", "middle", "large", "no size"]

BANDS: Final[tuple[tuple[Band, int, int | None], ...]] = (
    ("small", 1, (4 << 10) + 1),
    ("middle", (4 << 10) + 1, 1 << 20),
    ("large", 1 << 20, None),
    ("no size", 0, 1),
)
"""Name of the band, its smallest size S in bytes, and the first size above it (None: no upper limit)."""

SIZES_OF_BANDS: Final = "small: up to 4 KiB; middle: below 1 MiB; large: from 1 MiB on"


def band_of(size_bytes: int) -> Band:
    """The band that contains ``size_bytes``."""
    return next(name for name, low, high in BANDS if low <= size_bytes and (high is None or size_bytes < high))
