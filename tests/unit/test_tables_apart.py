"""What sets the tables of one log apart, of which there may be thousands."""

import time

import pytest

from busbw_analysis.data.apart import Identity, labels_of
from busbw_analysis.data.readers.log import Aggregate, Table


def of(command: str) -> Identity:
    return Identity.of_table(Table(line=1, rows=(Aggregate(line=2, op="all_reduce", ranks=16),), command=command))


@pytest.mark.parametrize(
    ("option", "same"),
    [("--map-by ppr:8:node", True), ("--npernode 8", True), ("--map-by ppr:4:node", False), ("--map-by core", False)],
)
def test_the_same_placement_in_other_words_is_no_other_setting(option: str, same: bool) -> None:  # noqa: FBT001
    first, second = labels_of([of(f"mpirun -np 16 {words} all_reduce_perf") for words in ("-N 8", option)])
    assert (first.settings == second.settings) is same


def test_the_time_for_thousands_of_tables_is_in_proportion_to_them() -> None:
    """Every one with settings and a caption of its own; compared in pairs, 4000 took a minute."""
    many = [
        Identity(
            ranks=8,
            hosts=frozenset(),
            settings=(frozenset(), frozenset([f"-x A={number}"])),
            cases=frozenset([8]),
            caption=frozenset([f"run {number}"]),
        )
        for number in range(4000)
    ]
    started = time.process_time()
    labels = labels_of(many)
    assert time.process_time() - started < 2
    assert len({label.settings for label in labels}) == len(many)
