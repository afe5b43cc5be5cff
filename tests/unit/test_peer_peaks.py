"""Pairs of GPUs that copy to each other: their matrix, and the peak over each, against known machines."""

import pytest
from testing.narrow import require
from testing.synthetic import Machine, Piece, World, case, synthetic_run

from busbw.launch.live_table import line
from busbw.runs.records import JSON
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.pairs import PairShares
from busbw_analysis.node.slice import Node
from busbw_analysis.report.show import show_rows

ROWS = catalogue()
MIB = 1 << 20
NVLINK = 450e9
PCIE_5 = 16 * ROWS.rate("pcie", "PCIe 5").bytes_per_second  # type: ignore[union-attr] # it is shipped


def gpu(index: int, *, nvlink: bool = True, name: str = "NVIDIA H200") -> dict[str, JSON]:
    """As run.json has it: 18 NVLinks to a switch, or none, and PCIe 5 x16."""
    trained = {"gigatransfers": 32.0, "lanes": 16}
    links = {"generation": 4, "up": 18, "down": 0, "switch": 18, "peers": {}, "unknown": 0} if nvlink else None
    return {
        "index": index,
        "name": name,
        "id": None,
        "address": f"0000:{index}0:00.0",
        "nvlink": links,
        "link": {"trained": trained, "card": trained, "port": trained, "narrowest": None},
    }


def judged(op: str, rate: float, gpus: list[dict[str, JSON]], *, known: bool = True) -> Judgement:
    """Every pair of two GPUs copies 64 MiB at ``rate``."""
    seats = [{"rank": rank, "local_rank": rank, "gpu": rank if known else None} for rank in range(2)]
    machine = Machine(facts={"pci": {"gpus": gpus, "nics": [], "drives": []}, "ranks": seats})
    copies = case(op, 64 * MIB, 2, backend="nccl", device="cuda", pairs="alone", mode="pipelined")
    world = World(by_op={op: (Piece(0.0, 1 / rate),)}, sample_noise=0.0, jitter_seconds=0.0)
    return judge(pool((synthetic_run([copies], world, machine=machine, samples=5),)), rows=ROWS)


@pytest.mark.parametrize(
    ("op", "nvlink", "peak", "said"),
    [
        ("peer_copy", True, NVLINK, "NVLink"),
        ("peer_copy_both", True, NVLINK, "directions"),
        ("peer_copy_staged", True, PCIE_5 / 2, "PCIe"),
        ("peer_copy_staged", False, PCIE_5 / 2, "PCIe"),
        ("peer_copy_driver", False, PCIE_5, "PCIe"),
    ],
)
def test_a_pair_is_under_the_way_between_its_gpus(op: str, nvlink: bool, peak: float, said: str) -> None:  # noqa: FBT001
    judgement = judged(op, 0.8 * peak, [gpu(index, nvlink=nvlink) for index in range(2)])
    (matrix,) = judgement.matrices
    shares = matrix.shares
    assert (matrix.op, matrix.pairs) == (op, "alone")
    assert matrix.rate[0, 1] == pytest.approx(0.8 * peak, rel=1e-3)
    assert isinstance(shares, PairShares)
    assert shares.share[0, 1] == pytest.approx(0.8, rel=1e-3)
    assert shares.share[1, 0] == pytest.approx(0.8, rel=1e-3)
    row = (
        ROWS.rate("pcie", "PCIe 5")
        if op in {"peer_copy_staged", "peer_copy_driver"}
        else ROWS.rate("nvlink", "NVLink 4")
    )
    assert row is not None
    practical = require(row.practical_bytes_per_second) / row.bytes_per_second
    assert shares.practical_share[0, 1] == pytest.approx(0.8 / practical, rel=1e-3)
    assert said in shares.denominator
    assert judgement.curves == (), "pairs that take turns are no curve"


def test_the_hierarchy_has_the_fastest_pair_and_does_not_say_that_its_links_were_not_measured() -> None:
    levels = judged("peer_copy", 0.8 * NVLINK, [gpu(0), gpu(1)]).of(Node).levels
    (pair,) = [level for level in levels if level.kind == "pairs of GPUs"]
    assert pair.measured == pytest.approx(0.8 * NVLINK, rel=1e-3)
    assert pair.share == pytest.approx(0.8, rel=1e-3)
    link = require(ROWS.rate("nvlink", "NVLink 4"))
    assert pair.practical == pytest.approx(18 * require(link.practical_bytes_per_second), rel=1e-3)
    assert "NVLink" not in {level.kind for level in levels}
    assert [level.kind for level in judged("peer_copy_staged", 1e9, [gpu(0), gpu(1)]).of(Node).levels] == []


def test_gpus_without_nvlink_that_reach_each_other_are_under_pcie() -> None:
    cards = [gpu(index, nvlink=False, name="NVIDIA H100 PCIe") for index in range(2)]
    shares = judged("peer_copy", 40e9, cards).matrices[0].shares
    assert isinstance(shares, PairShares)
    assert shares.share[0, 1] == pytest.approx(40e9 / PCIE_5, rel=1e-3)


def test_where_nothing_is_known_of_a_gpu_there_is_no_percentage() -> None:
    shares = judged("peer_copy", 1e9, [gpu(0), gpu(1)], known=False).matrices[0].shares
    assert isinstance(shares, Unavailable)
    assert shares.reason.startswith("0 → 1: the run did not record which GPU rank 0 drove")


def test_messages_have_no_peak_of_a_pair() -> None:
    assert judged("pair_matrix", 1e9, [gpu(0), gpu(1)]).matrices[0].shares is None


@pytest.mark.parametrize(("known", "said"), [(True, "80%"), (False, "percentages")])
def test_the_report_has_matrix_and_share(known: bool, said: str) -> None:  # noqa: FBT001
    report = compose(judged("peer_copy", 0.8 * NVLINK, [gpu(0), gpu(1)], known=known))
    html = report.html
    assert said in html


def test_tables_show_the_median_and_the_slowest_pair() -> None:
    rows = show_rows(judged("peer_copy", 1e9, [gpu(0), gpu(1)]))
    assert [row.row for row in rows] == ["median pair", "slowest pair"]
    run = synthetic_run([case("peer_copy", MIB, 2, backend="nccl", device="cuda", pairs="alone")], samples=5)
    assert "slowest of 2 pairs" in line(list(run.measurements[:1]), 1)
