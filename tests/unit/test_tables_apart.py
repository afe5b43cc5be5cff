"""What sets the tables of one log apart, of which there may be thousands."""

import time

import pytest
from testing.logs import log_of

from busbw_analysis.data.apart import Identity, Label, labels_of
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


def test_another_binding_is_another_setting() -> None:
    commands = [f"numactl -N {node} -m {node} ./all_reduce_perf -g 8" for node in (0, 1, 1)]
    first, second, third = labels_of([of(command) for command in commands])
    assert first.settings != second.settings == third.settings


def copies(rate: float, device: int = 5) -> list[str]:
    title = (
        " Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n   Transfer Size (Bytes)   Bandwidth(GB/s)\n"
    )
    return [
        f" Device {device}: NVIDIA H100 80GB HBM3\n Quick Mode\n\n",
        title,
        f"   33554432                {rate}\n\n",
    ]


def test_runs_of_bandwidth_test_are_tables_of_their_own() -> None:
    """Two in one paste, over the near and the far socket, were pooled to a rate that neither had."""
    log = log_of("cuda-samples", [*copies(54.2), *copies(27.1)])
    assert [[row.rate for row in table.rows] for table in log.tables] == [[54.2e9], [27.1e9]]
    assert [[place.name for place in table.places] for table in log.tables] == [["NVIDIA H100 80GB HBM3"]] * 2
    assert len(log_of("cuda-samples", [*copies(54.2, 0), *copies(27.1, 1)]).tables) == 1  # GPUs beside each other


@pytest.mark.parametrize(("second", "apart"), [("after", True), ("before", False)])
def test_captions_count_also_where_other_tables_are_of_other_hosts(second: str, apart: bool) -> None:  # noqa: FBT001
    def at(host: str, caption: str) -> Identity:
        return Identity(ranks=2, hosts=frozenset([host]), cases=frozenset([8]), caption=frozenset([caption]))

    labels = labels_of([at("node1", "before"), at("node1", second), at("node2", "other")])
    assert (labels[0] != labels[1]) is apart
    assert labels[2] == Label(group="node2", settings="")
