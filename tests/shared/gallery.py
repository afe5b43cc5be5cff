"""The gallery of docs/gallery.md: public measurements of named machines, judged by the current code.

``docs/gallery/logs`` has the sizes and times of each log as a table. The text of the logs stays where it was published.
"""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import busbw_analysis as ba
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.verdicts import Verdict
from busbw_analysis.report.document import percent
from busbw_analysis.report.show import ShownRow, show_rows

LOGS: Final = Path(__file__).parents[2] / "docs/gallery/logs"
_MIT: Final = "mit-orcd/orcd-benchmarks/blob/bca7147f4f8d1335d373a29bd20c439af7316ced"
_OKE: Final = (
    "oracle-quickstart/oci-hpc-oke/blob/61d210acc37f1990f27012aa4f108c5db4e52ab2/docs/"
    "running-nccl-rccl-tests-from-slurm-operator.md"
)
_REPEATED: Final = frozenset({"Why", "Do", "Trust", "Measured"})
"""Lines of the answer that are the same for all logs, or are the row."""


class Log(NamedTuple):
    """A public log.

    source: repository, commit and file on GitHub.
    hosts, gpu, nics: facts about the machine, as options of ``busbw show``; what the log does not say is from the
        vendor's description of the machine.
    """

    machine: str
    tool: str
    source: str
    hosts: int
    gpu: str
    nics: str | None = None


GALLERY: Final[dict[str, Log]] = {
    "dgx-h100": Log(
        "2 × DGX H100, MIT",
        "nccl-tests",
        f"{_MIT}/chris-nccl-notes/mghpcc_dgx_song/two-node-eight-gpu-eight-gpu_latency.md",
        2,
        "H100 SXM5",
        "8x400Gb/s",
    ),
    "lambda-h100": Log(
        "2 × 8 H100, Lambda, as MIT rented them",
        "nccl-tests",
        f"{_MIT}/chris-nccl-notes/lambda_8x2_h100/results.md",
        2,
        "H100 SXM5",
        "8x400Gb/s",
    ),
    "oci-h100": Log(
        "2 × BM.GPU.H100.8, Oracle Cloud",
        "nccl-tests",
        "oracle-quickstart/oci-hpc/blob/b5285a68fa0a3b39ebf9e7ffdcb4987018bbf3cf/documentation/Troubleshooting.md",
        2,
        "H100 SXM5",
        "16x200Gb/s",
    ),
    "gke-a3-mega": Log(
        "2 × A3 Mega, Google Cloud",
        "nccl-tests",
        "lessizzmore/create-a3mega-ztan-fork/blob/346b825ad3b527ffbd6ba511a09d39df08f04be0/ztan-NCCL-test-result.markdown",
        2,
        "H100 SXM5",
        "8x200Gb/s",
    ),
    "gke-a3-high": Log(
        "2 × A3 High, Google Kubernetes Engine",
        "nccl-tests",
        "GoogleCloudPlatform/cluster-toolkit/blob/1047080375afbb44da4b596be314634e7486af4a/examples/gke-a3-highgpu/"
        "multi-node-test-plan.md",
        2,
        "H100 SXM5",
        "4x200Gb/s",
    ),
    "b200": Log(
        "2 × 8 B200, MIT",
        "nccl-tests",
        f"{_MIT}/b200-nodes/out-nccl-2node/nccl-2node-5500-5501-19791438.out",
        2,
        "B200 SXM",
        "8x400Gb/s",
    ),
    "oci-a100": Log(
        "2 × BM.GPU.B4.8, Oracle Cloud",
        "nccl-tests",
        _OKE,
        2,
        "A100 SXM4 40 GB",
        "16x100Gb/s",
    ),
    "aws-p4d": Log(
        "2 × p4d.24xlarge, Amazon EKS",
        "nccl-tests",
        "aws-samples/aws-efa-eks/blob/9d6557e1689b2dbb59c485d73fcf425833773077/README.md",
        2,
        "A100 SXM4 40 GB",
        "4x100Gb/s",
    ),
    "mi300x": Log(
        "8 × MI300X",
        "rccl-tests",
        "hisohara/ai-scripts/blob/7b8b1ec290a6af05b685dfb6ce8caae999ea884d/training/01_rccl-smoketest/README.md",
        1,
        "MI300X",
    ),
    "oci-mi300x": Log(
        "2 × BM.GPU.MI300X.8, Oracle Cloud",
        "rccl-tests",
        _OKE,
        2,
        "MI300X",
        "8x400Gb/s",
    ),
    "a100-pcie": Log(
        "8 × A100 SXM4 of one host",
        "nvbandwidth",
        "NaomiEisen/Graph-Generator/blob/6eb71bd8d25fc219061590785664f2c2f0dcd560/tests/nvbandwidth/nv_v2.out",
        1,
        "A100 SXM4 40 GB",
    ),
    "t4-kaggle": Log(
        "2 × T4, Kaggle",
        "nccl-tests",
        "edcadet10/gpu-systems-lab/blob/f49a2bb6c4830c794853b134a1bb6a7ebf45318f/results/published/t4-a48afa5/raw/logs/"
        "allreduce-nccl-tests.log",
        1,
        "T4",
    ),
}
"""Name of the table in ``LOGS`` → the log."""


def gallery() -> Iterator[str]:
    """The answer to each log, and the row that carries it."""
    for name, log in GALLERY.items():
        judgement = ba.load(LOGS / f"{name}.csv", hosts=log.hosts, gpu=log.gpu, nics=log.nics).judgement
        nics = [] if log.nics is None else ["--nics", log.nics]
        options = shlex.join(["--hosts", str(log.hosts), "--gpu", log.gpu, *nics])
        yield from ("", f"## {log.machine}", "")
        yield f"[{log.tool}](https://github.com/{log.source}) · `busbw show docs/gallery/logs/{name}.csv {options}`"
        yield ""
        answer = answer_of(judgement)
        yield from (f"- {label}: {text}" for label, text in answer.lines if label not in _REPEATED)
        yield _row(_decisive(show_rows(judgement), answer.verdicts), judged=bool(answer.bands))


def _decisive(rows: list[ShownRow], verdicts: Iterable[Verdict]) -> ShownRow:
    """The row of the worst verdict: slower before others, then the largest size, then the smallest share of its peak.

    Without verdicts, that of the largest size with the smallest share.
    """
    slower = {(verdict.op, verdict.size_bytes): verdict.status == "slower" for verdict in verdicts}
    measured = [row for row in rows if row.ranks is not None and row.time_ns is not None]
    judged = [row for row in measured if (row.case.op, row.case.size_bytes) in slower] or measured
    return min(
        judged,
        key=lambda row: (
            not slower.get((row.case.op, row.case.size_bytes), False),
            -row.case.size_bytes,
            row.peak_share or 1,
        ),
    )


def _row(row: ShownRow, *, judged: bool) -> str:
    """The row, without its share of the peak if that is ``judged`` above it."""
    ranks = row.ranks or ()
    rate = row.algbw if row.busbw is None else row.busbw
    numbers = (
        format_time(row.time_ns) if row.time_ns else "",
        format_rate(rate) if rate else "",
        f"{percent(row.peak_share)} % of its peak" if row.peak_share and not judged else "",
    )
    where = f" of rank {ranks[0]}" if len(ranks) == 1 else ""
    return f"- {row.case.op}{where}, {format_size(row.case.size_bytes)}: {', '.join(filter(None, numbers))}"
