"""What the kernel tells in small files."""

from pathlib import Path

SYSFS = Path("/sys")


def text_of(path: Path | str) -> str | None:
    """The text of a file without what is blank at its ends; None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
