"""Small text files in which the kernel reports facts."""

from pathlib import Path

SYSFS = Path("/sys")


def text_of(path: Path | str) -> str | None:
    """The stripped text of a file; None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
