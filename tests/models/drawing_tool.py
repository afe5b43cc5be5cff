"""The rounds of algorithms as pictures, for the documentation (``make drawings``)."""

import sys
from collections.abc import Iterator
from pathlib import Path

from drawable import DRAWABLE
from schedule_svg import draw

_RANKS, _HOSTS = 4, 2
"""What the documentation shows; the hosts of those algorithms alone that take several."""

_MORE_RANKS = (
    ("all_reduce", "recursive-doubling", 5),
    ("all_reduce", "rabenseifner-in-halves", 5),
    ("broadcast", "binomial-tree-at-once", 8),
    ("broadcast", "4-nomial-tree-at-once", 8),
    ("reduce", "rabenseifner-in-halves", 5),
    ("reduce_scatter", "butterfly", 5),
)
"""What shows itself on more ranks alone: what is done with ranks beyond a power of two, or a second level of a tree."""


def documented() -> Iterator[tuple[str, str]]:
    """The drawings of the documentation: name of the file and what is in it."""
    for op, named in DRAWABLE.items():
        for name, row in named.items():
            yield f"{op}-{name}.svg", draw(op, name, _RANKS, _HOSTS if row.levels else 1)
    for op, name, ranks in _MORE_RANKS:
        yield f"{op}-{name}-{ranks}.svg", draw(op, name, ranks)


def main(folder: Path) -> None:
    """Write the drawings of the documentation into ``folder``, and remove those that nobody draws any more."""
    wanted = dict(documented())
    for drawing in folder.glob("*.svg"):
        if drawing.name not in wanted:
            drawing.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
