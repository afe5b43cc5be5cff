"""Export to the tables of nccl-tests, with its columns and widths, so that existing parsers can read them.

Source: ``writeBenchmarkLinePreamble``, ``writeBenchmarkLineBody``, ``getFloatStr`` and ``writeResultHeader`` of
``src/util.cu`` (NVIDIA/nccl-tests 2.19.6). A size measured only in place or only out of place has ``nan`` in the other
columns. An unknown type is ``none``, with ``N/A`` elements. Cases of mode ``overlap`` are left out, because their times
contain computation, which nccl-tests cannot say; a comment counts them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from busbw import __version__
from busbw.errors import AnalysisError
from busbw.runs.records import CASE_DTYPE_BYTES, Case, case_in_words
from busbw.runs.store import StoredRun
from busbw.units import counted, listed
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.readers.lines import NCCL_BLOCKS
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.judge import Judgement

OPS: Final = {
    **{name: name for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")},
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "alltoall",
    "send_recv": "sendrecv",
}
"""Operation → name of the nccl-tests program, without ``_perf``."""

_TYPES: Final = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
_REDOPS: Final = {None: "none", "product": "prod"}
_RATES: Final = "(us)  (GB/s)  (GB/s)         "
_HEAD: Final = (
    f"#{'out-of-place':>74}{'in-place':>31}          ",
    f"#       size         count      type   redop    root{'     time   algbw   busbw  #wrong' * 2} ",
    f"#        (B)    (elements){' ' * 31}{_RATES}    {_RATES}",
)
_UNCHECKED: Final = "    N/A"
_NOTHING: Final = f"  {'nan':>7}  {'nan':>6}  {'nan':>6}{_UNCHECKED}"

_Both = dict[bool, tuple[CaseSummary, GroupSummary]]
"""Whether in place → the result."""


def text(judgement: Judgement) -> bytes:
    """One table for each operation of nccl-tests and each set of settings. Raises AnalysisError if there is none."""
    tables: dict[tuple[Case, tuple[int, ...]], dict[Case, _Both]] = {}
    wrong = _wrong_elements(judgement.runs)
    every = [summary for summary in judgement.cases if summary.case.op in OPS and (summary.groups or summary.wrong)]
    for summary in every:
        if summary.case.mode != "overlap":
            for group in summary.groups or summary.wrong:
                row = msgspec.structs.replace(summary.case, in_place=False)
                table = msgspec.structs.replace(row, size_bytes=0, dtype=None, redop=None, root=None)
                both = tables.setdefault((table, group.ranks), {}).setdefault(row, {})
                both[summary.case.in_place] = summary, group
    parts = [_table(judgement, table, ranks, rows, wrong) for (table, ranks), rows in tables.items()]
    return joined(every, parts, "nccl-tests", OPS)


def joined(
    summaries: Sequence[CaseSummary], tables: Sequence[Iterable[str]], program: str, ops: Iterable[str]
) -> bytes:
    """The lines of ``tables`` after a comment on the cases that an export of plain calls leaves out.

    Raises AnalysisError if there is no table.
    """
    if not tables:
        message = f"the run has no result of an operation of {program} ({', '.join(ops)}) in a mode other than overlap"
        raise AnalysisError(message, code="nothing-to-export")
    overlapped = [summary.case.op for summary in summaries if summary.case.mode == "overlap"]
    left_out = f"{counted(len(overlapped), 'case')} of mode overlap left out ({listed(dict.fromkeys(overlapped))})"
    comment = [f"# busbw: {left_out}: their times contain computation"] if overlapped else []
    return "".join(f"{line}\n" for part in (comment, *tables) for line in part).encode()


def _wrong_elements(runs: Iterable[StoredRun]) -> dict[Case, int]:
    """The cases with wrong data, and their number of wrong elements, at least 1."""
    counts = Counter[Case]()
    for run in runs:
        for case, check in run.checks:
            if check.state == "wrong":
                counts[case] += max(1, check.wrong_elements)
    return counts


def _table(
    judgement: Judgement, table: Case, ranks: tuple[int, ...], rows: Mapping[Case, _Both], wrong: Mapping[Case, int]
) -> Iterator[str]:
    program = f"{OPS[table.op]}_perf"
    sizes = [row.size_bytes for row in rows]
    results = [result for both in rows.values() for result in both.values()]
    statistics = " and ".join(dict.fromkeys(group.statistic or "median" for _, group in results))
    calls = min(group.samples for _, group in results)
    refused = sum(summary.case in wrong for summary, _ in results)
    checked = all(summary.case in wrong or summary.check.state == "verified" for summary, _ in results)
    yield f"# busbw {__version__}: {' · '.join(case_in_words(table))}; times: {statistics}"
    yield f"# Collective test starting: {program}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {min(sizes)} maxBytes {max(sizes)} {_step(sizes)}warmup iters: 0 "
        f"iters: {calls} agg iters: 1 validation: {int(checked)} graph: {int(table.mode == 'graph')} unalign: 0"
    )
    yield from ("#", "# Using devices", *_devices(judgement, ranks), "#", *_HEAD)
    for row, both in rows.items():
        yield _preamble(row, len(ranks)) + "".join(_body(both.get(in_place), wrong) for in_place in (False, True))
    rates = [0.0 if group.busbw is None else group.busbw / 1e9 for _, group in results]
    yield f"# Out of bounds values : {refused} {'FAILED' if refused else 'OK'}"
    yield f"# Avg bus bandwidth    : {sum(rates) / len(rates):g} "
    yield from ("#", f"# Collective test concluded: {program}", "#")


def _step(sizes: Iterable[int]) -> str:
    """The factor between ``sizes`` as nccl-tests writes it; "" if it is not the same everywhere, or no whole number."""
    factors = {after / before if before else 0.0 for before, after in pairwise(sorted(set(sizes)))}
    return f"step: {factors.pop():.0f}(factor) " if len(factors) == 1 and min(factors).is_integer() else ""


def _devices(judgement: Judgement, ranks: Iterable[int]) -> Iterator[str]:
    run = judgement.runs[0]
    pids = run.launches[0].pids if run.launches else ()
    for number, rank in enumerate(ranks):
        host, placement = judgement.facts.hosts[rank], judgement.facts.placements[rank]
        gpus = {gpu.index: gpu for gpu in judgement.facts.environment(host).pci.gpus}
        gpu = None if placement.gpu is None else gpus.get(placement.gpu)
        name, address = ("CPU", "0x00") if gpu is None else (gpu.name, gpu.address)
        pid = pids[rank] if rank < len(pids) else 0
        yield f"#  Rank {number:2} Group  0 Pid {pid:6} on {host:>10} device {placement.gpu or 0:2} [{address}] {name}"


def _preamble(row: Case, ranks: int) -> str:
    blocks = ranks if row.op in NCCL_BLOCKS else 1
    count = "N/A" if row.dtype is None else row.size_bytes // CASE_DTYPE_BYTES.get(row.dtype, 1) // blocks
    dtype, redop = _TYPES.get(row.dtype or "", row.dtype or "none"), _REDOPS.get(row.redop, row.redop)
    root = -1 if row.root is None else row.root
    return f"{row.size_bytes:12}  {count:12}  {dtype:>8}  {redop:>6}  {root:6}"


def _body(result: tuple[CaseSummary, GroupSummary] | None, wrong: Mapping[Case, int]) -> str:
    if result is None:
        return _NOTHING
    summary, group = result
    rates = (_number((rate or 0.0) / 1e9, 6) for rate in (group.algbw, group.busbw))
    count = wrong.get(summary.case, 0 if summary.check.state == "verified" else None)
    wrong_count = _UNCHECKED if count is None else f"  {count:6g}"
    return f"  {_number(group.time_ns / 1e3, 7)}  {'  '.join(rates)}{wrong_count}"


def _number(value: float, width: int) -> str:
    """``value`` with as many digits as fit into ``width``, as ``getFloatStr`` does."""
    written = [f"{value:{width}.{digits}f}" for digits in (2, 1, 0)]
    return next((number for number in written if len(number) <= width), f"{value:{width}.{1 if width >= 7 else 0}e}")
