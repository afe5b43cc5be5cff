"""The rounds of an algorithm as a picture, one or all those of the documentation (``make drawings``)."""

from collections.abc import Iterator
from pathlib import Path

import click
from drawable import DRAWABLE
from schedule_svg import MOST_RANKS
from schedule_svg import draw as drawing

from busbw.errors import AnalysisError
from busbw.escape import echo
from busbw_analysis.models.library_algorithms import LIBRARY_ROWS

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


@click.command()
@click.argument("algorithm", metavar="[OP/ALGORITHM]", required=False)
@click.option("--ranks", type=int, default=_RANKS, show_default=True, help=f"How many, up to {MOST_RANKS}.")
@click.option("--hosts", type=int, help="On how many hosts.  [default: 1; 2 for algorithms of several]")
@click.option("--into", type=click.Path(path_type=Path), help="Write all drawings of the documentation into a folder.")
def draw(*, algorithm: str | None, ranks: int, hosts: int | None, into: Path | None) -> None:
    """Draw the rounds of OP/ALGORITHM, such as all_reduce/ring, as SVG on standard output.

    busbw list algorithms names those that can be measured by hand. Those of a switch (all_reduce/nvls) and of
    libraries (all_reduce/gloo) can be drawn, too; an unknown name is answered with all of its operation.
    """
    if into is not None:
        main(into)
        return
    op, _, name = (algorithm or "").partition("/")
    if op not in DRAWABLE or name not in DRAWABLE[op]:
        allowed = ", ".join(f"{op}/{known}" for known in DRAWABLE[op]) if op in DRAWABLE else "all_reduce/ring …"
        message = f"{algorithm!r} is no OP/ALGORITHM that can be drawn; allowed are {allowed} (busbw list algorithms)"
        raise click.UsageError(message)
    on = hosts if hosts is not None else _HOSTS if DRAWABLE[op][name].levels else 1
    try:
        text = drawing(op, name, ranks, on)
    except AnalysisError as error:  # no data was read: what cannot be drawn is what was asked for
        raise click.UsageError(str(error)) from error
    formula = LIBRARY_ROWS.get((op, name))
    if formula is not None and not formula.possible(ranks, on, 1):
        message = (
            f"there is no {op} by {name} of {ranks} ranks on {on} hosts; it is one of a single host: leave out --hosts"
        )
        raise click.UsageError(message)
    echo(text, nl=False)


def documented() -> Iterator[tuple[str, str]]:
    """The drawings of the documentation: name of the file and what is in it."""
    for op, named in DRAWABLE.items():
        for name, row in named.items():
            yield f"{op}-{name}.svg", drawing(op, name, _RANKS, _HOSTS if row.levels else 1)
    for op, name, ranks in _MORE_RANKS:
        yield f"{op}-{name}-{ranks}.svg", drawing(op, name, ranks)


def main(folder: Path) -> None:
    """Write the drawings of the documentation into ``folder``, and remove those that nobody draws any more."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = dict(documented())
    for stale in folder.glob("*.svg"):
        if stale.name not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    draw()
