"""Where the ranks ran, as a report shows it, and what it warns of: doubled hosts and hosts that are one machine."""

import pytest
from testing.synthetic import Machine, case, synthetic_run

from busbw.runs.records import JSON
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.document import Table
from busbw_analysis.report.run import places

HOSTS = ("n1", "n2")
TREE = dict.fromkeys(HOSTS, ("spine", "leaf1"))


def judged(machine: Machine) -> Judgement:
    return judge(pool((synthetic_run([case("all_reduce", 8, 4, nodes=2)], machine=machine),)))


def tables(machine: Machine) -> dict[str, Table]:
    return {table.caption: table for table in places(judged(machine).runs)}


def cells(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def test_hosts_stand_with_their_nodes_switches_and_bindings() -> None:
    shown = tables(Machine(hosts=HOSTS, switches=TREE, usable_cores=2))["Where the ranks ran"]
    assert [column.name for column in shown.columns] == [
        *("Host", "Ranks", "Slurm node", "Switches", "Cores of its ranks")
    ]
    assert cells(shown) == [
        ("n1", "0,1", "n1", "spine / leaf1", "not bound: every rank may use the same 2 cores"),
        ("n2", "2,3", "n2", "spine / leaf1", "not bound: every rank may use the same 2 cores"),
    ]
    unknown = tables(Machine(hosts=HOSTS, facts={"ranks": [], "node": None}))
    assert cells(unknown["Where the ranks ran"]) == [("n1", "0,1"), ("n2", "2,3")]


def test_every_rank_stands_with_what_is_its_own() -> None:
    own: list[JSON] = [
        {
            "rank": rank,
            "local_rank": rank % 2,
            "cores": f"{2 * rank}-{2 * rank + 1}",
            "numa_nodes": [0],
            "gpu": rank % 2,
            "variables": {"NCCL_IB_HCA": f"mlx5_{rank % 2}"},
        }
        for rank in range(4)
    ]
    shown = tables(Machine(hosts=HOSTS, facts={"ranks": own}))["Every rank"]
    assert cells(shown)[3] == ("3", "n2", "1", "6-7", "0", "1", "NCCL_IB_HCA=mlx5_1")
    assert shown.folded


def gpu(index: int, nics: list[str], by: str | None) -> dict[str, JSON]:
    return {
        "address": f"0000:{index:02x}:00.0",
        "path": [],
        "numa_node": 0 if by else None,
        "index": index,
        "name": "Fast 9000",
        "closest_nics": nics,
        "closest_by": by,
    }


def test_gpus_stand_with_the_cards_next_to_them_once_for_hosts_that_are_alike() -> None:
    gpus = [gpu(0, ["mlx5_0", "ib0"], "PCI switch"), gpu(1, [], None)]
    shown = tables(Machine(hosts=HOSTS, facts={"pci": {"gpus": gpus, "nics": [], "unknown": []}}))
    assert cells(shown["GPUs and the network cards next to them"]) == [
        ("0", "Fast 9000", "0000:00:00.0", "0", "mlx5_0 and ib0", "PCI switch", "n1, n2"),
        ("1", "Fast 9000", "0000:01:00.0", "–", "–", "–", "n1, n2"),
    ]


def test_hostile_facts_are_shown_as_text() -> None:
    facts: dict[str, JSON] = {
        "pci": {"gpus": [{"address": "<script>", "closest_nics": ["<script>"]}]},
        "node": {"name": "<b>x</b>", "switches": ["<b>x</b>"]},
        "ranks": [{"rank": 0, "variables": {"A": "<i>"}}],
    }
    report = compose(judged(Machine(hosts=HOSTS, facts=facts)))
    assert report.html.count("<script>") == 1
    assert "<b>x</b>" not in report.html
    assert "<i>" not in report.html
    assert "&lt;script&gt;" in report.html


# --- warnings --------------------------------------------------------------------------------------------------


def findings(machine: Machine) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for finding in judged(machine).findings:
        texts.setdefault(finding.code, []).append(finding.text)
    return texts


TWICE: list[JSON] = [{"rank": rank, "local_rank": rank % 2} for rank in range(4)]


@pytest.mark.parametrize(
    ("code", "machine", "words"),
    [
        ("shared-resources", Machine(hosts=("n1",), facts={"ranks": TWICE}), "n1 appears twice: ranks 0,2 have local"),
        ("one-machine", Machine(hosts=HOSTS, facts={"boot_id": "a"}), "n1 and n2 are"),
    ],
)
def test_hosts_that_are_not_what_they_seem_are_a_caution(code: str, machine: Machine, words: str) -> None:
    (text,) = findings(machine)[code]
    assert words in text
    for alone in (Machine(hosts=HOSTS), Machine(hosts=("n1",), facts={"boot_id": "a"})):
        assert code not in findings(alone)
