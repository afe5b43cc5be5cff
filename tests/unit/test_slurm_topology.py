"""What is known of ranks and nodes: masks, NUMA nodes, and what Slurm calls a host, by variables as it sets them."""

import os
from pathlib import Path

import pytest

from busbw.runs.facts import HostFacts, NodeFacts, RankFacts
from busbw.system import environment
from busbw.system.environment import by_host, numa_nodes, rank_facts, switches_of


def variables(host: str, node: int, rank: int, **more: str) -> dict[str, str]:
    """As srun of Slurm 22.05 sets them for a task, with TopologyPlugin=topology/tree and two nodes a leaf."""
    return {
        "SLURMD_NODENAME": host,
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(rank),
        "SLURM_JOB_ID": "1",
        "SLURM_TOPOLOGY_ADDR": f"spine.leaf{node // 2 + 1}.{host}",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
        **more,
    }


def task(host: str, node: int, rank: int, boot: str = "a", **more: str) -> HostFacts:
    place = RankFacts(rank=rank, local_rank=rank % 2, cores=str(rank % 2), numa_nodes=(0,))
    return HostFacts(boot_id=boot, ranks=(place,), variables=variables(host, node, rank, **more))


HOSTS = ("n1", "n1", "n2", "n2", "n3", "n3")
TASKS = [task(host, rank // 2, rank) for rank, host in enumerate(HOSTS)]


def test_every_host_has_its_node_its_switches_and_its_ranks() -> None:
    hosts = by_host(HOSTS, TASKS)
    assert hosts["n2"].node == NodeFacts(name="n2", number=1, switches=("spine", "leaf1"))
    assert hosts["n3"].node == NodeFacts(name="n3", number=2, switches=("spine", "leaf2"))
    assert [rank.rank for rank in hosts["n3"].ranks] == [4, 5]
    assert hosts["n3"].ranks[1] == RankFacts(
        rank=5, local_rank=1, cores="1", numa_nodes=(0,), variables={"SLURM_PROCID": "5"}
    )
    assert "SLURM_PROCID" not in hosts["n1"].variables
    assert hosts["n1"].variables["SLURM_JOB_ID"] == "1"
    assert hosts["n1"].machines == 1


def test_what_differs_between_the_ranks_of_a_host_is_each_rank_s_own() -> None:
    tasks = [task("n1", 0, rank, NCCL_IB_HCA=f"mlx5_{rank}", UCX_TLS="rc") for rank in range(2)]
    host = by_host(("n1", "n1"), tasks)["n1"]
    assert host.variables["UCX_TLS"] == "rc"
    assert "NCCL_IB_HCA" not in host.variables
    assert [facts.variables["NCCL_IB_HCA"] for facts in host.ranks] == ["mlx5_0", "mlx5_1"]


def test_variables_that_mpiexec_carried_to_another_host_name_no_node_there() -> None:
    """Over ssh every rank has the environment of the mpiexec that was called, in the batch step on the first node."""
    carried = variables("n1", 0, 0)
    tasks = [HostFacts(boot_id="a", ranks=(RankFacts(rank=rank),), variables=carried) for rank in range(2)]
    hosts = by_host(("n1.cluster", "n2.cluster"), tasks)
    assert hosts["n1.cluster"].node == NodeFacts(name="n1", number=0, switches=("spine", "leaf1"))
    assert hosts["n2.cluster"].node is None


def test_without_slurm_there_is_no_node() -> None:
    alone = HostFacts(ranks=(RankFacts(rank=0),))
    assert by_host(("a",), [alone])["a"].node is None


def test_two_machines_of_one_name_are_counted() -> None:
    tasks = [task("n1", 0, 0, boot="a"), task("n1", 0, 1, boot="b")]
    assert by_host(("n1", "n1"), tasks)["n1"].machines == 2


@pytest.mark.parametrize(
    ("address", "pattern", "node", "switches"),
    [
        ("spine.leaf1.n7", "switch.switch.node", "n7", ("spine", "leaf1")),
        ("s[0-1].leaf1.n7", "switch.switch.node", "n7", ("s[0-1]", "leaf1")),
        ("leaf.n7.cluster.example", "switch.node", "n7.cluster.example", ("leaf",)),
        ("n7", "node", "n7", ()),
        ("spine.leaf1.n7", "switch.switch.node", "n8", None),
        ("n7", "switch.node", "n7", None),
        (None, "node", "n7", None),
        ("n7", None, "n7", None),
    ],
)
def test_the_address_of_a_node_names_its_switches(
    address: str | None, pattern: str | None, node: str, switches: tuple[str, ...] | None
) -> None:
    assert switches_of(address, pattern, node) == switches


def test_numa_nodes_are_read_in_their_order(tmp_path: Path) -> None:
    for node, cores in ((10, "8-11\n"), (2, "0-3,64-67\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores, encoding="utf-8")
    assert list(numa_nodes(tmp_path).items()) == [("2", "0-3,64-67"), ("10", "8-11")]
    assert numa_nodes(tmp_path / "absent") == {}


def test_a_rank_knows_its_cores_and_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {9, 2, 0, 1}, raising=False)
    monkeypatch.setattr(environment, "numa_nodes", lambda: {"0": "0-3", "1": "4-7", "2": "8-11"})
    monkeypatch.setattr(environment, "binds_threads", lambda: True)
    facts = RankFacts(rank=7, local_rank=3, node=1, cores="0-2,9", binds_threads=True, numa_nodes=(0, 2), gpu=1)
    assert rank_facts(7, 3, 1, gpu=1) == facts
    monkeypatch.setattr(environment, "numa_nodes", dict)
    assert rank_facts(7, 3).numa_nodes is None
