"""The causes behind the verdicts: a table of possible causes, in the order in which they are named."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from busbw.ops import PAIRED, REDUCING, SYNCHRONISING
from busbw.ops.groups import ASKED
from busbw.runs.asked import LEAST_NODES
from busbw.runs.progress import progress_of
from busbw.runs.store import StoredRun
from busbw_analysis.data.apart import TABLES_APART
from busbw_analysis.data.readers.nccl_info import ACTIONS
from busbw_analysis.data.resumed import resuming
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.diagnosis.doubts import DOUBTS
from busbw_analysis.diagnosis.findings import Finding, case_name
from busbw_analysis.diagnosis.judge import Cause, Judgement, Verdict
from busbw_analysis.diagnosis.pairs import DIRECT
from busbw_analysis.diagnosis.verdicts import share_of_peak, times_of_model, why_above
from busbw_analysis.models.costs import GLOO, MPI, Parameters
from busbw_analysis.peaks.peaks import Peak, noun_of

FOUND_WITH: Final = {
    "wrong-data": ("wrong-results",),
    "slow-link": ("slow-host", "slow-rank", "slow-pair"),
    "no-end": ("interrupted",),
    "doubted-reference": ("disturbed",),
}
"""Findings whose code differs from that of the cause that they are evidence for."""
_OF_DOUBTS: Final = frozenset({"doubted-reference", "above-peak"})
"""The only causes that explain a verdict whose reference is doubted."""
_MOST_CAUSES: Final = 2
"""Number of causes that are named; further ones stay findings."""
_FEWEST_PAIRED: Final = 3
"""Ranks from which a pair matrix has pairs to compare."""
_MOST_BY_COPIES: Final = 3.0
_MOST_BY_SUMS: Final = 8.0
"""Largest slowdown by copies, and of ops that reduce (times the model's time, or the inverse share of the peak): up to
2.3 and 5.7 were seen with MPICH on healthy machines.
"""


def causes_of(judgement: Judgement) -> tuple[tuple[Cause, ...], Mapping[Verdict, str | None]]:
    """The causes that are named, and every verdict with the code of the first one that explains it."""
    slower = any(verdict.status == "slower" for verdict in judgement.verdicts)
    judged = any(verdict.status != "not judged" for verdict in judgement.verdicts)
    causes: list[Cause] = []
    explained: dict[Verdict, str | None] = dict.fromkeys(judgement.verdicts)
    for rule in _RULES:
        cause = rule.cause(judgement)
        if cause is None or len(causes) == _MOST_CAUSES:
            continue
        verdicts = [
            verdict
            for verdict, code in explained.items()
            if verdict.status in {"slower", "undecided"}
            and code is None
            and (verdict.doubt is None or rule.code in _OF_DOUBTS)
            and rule.explains(judgement, verdict)
        ]
        # A cause of undecided verdicts alone does not explain why others are slower.
        answers = not slower or any(verdict.status == "slower" for verdict in verdicts)
        if (verdicts and answers) or rule.always or (rule.unjudged and not judged):
            causes.append(cause)
            explained.update(dict.fromkeys(verdicts, rule.code))
    return tuple(causes), explained


def cause_named(judgement: Judgement, code: str) -> Cause | None:
    """The cause with this code, whatever it explains; None if it does not apply to ``judgement``."""
    return next(rule for rule in _RULES if rule.code == code).cause(judgement)


# --- the table -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rule:
    """One possible cause.

    action: what to do about it.
    explains: whether it explains a verdict.
    text: what was found, "" if it does not apply. None: the claim of the finding with this code.
    always: whether it is named even if it explains no verdict.
    unjudged: whether it is named where nothing is judged.
    compares: whether the action is a comparison with another run.
    fault: as of ``Cause``.
    """

    code: str
    action: str | Callable[[Judgement], str]
    explains: Callable[[Judgement, Verdict], bool] = lambda *_: False
    text: Callable[[Judgement], str] | None = None
    always: bool = True
    unjudged: bool = False
    compares: Callable[[Judgement], bool] = lambda _: False
    fault: Callable[[Judgement], str] = lambda _: ""

    def cause(self, judgement: Judgement) -> Cause | None:
        """The cause with its action for ``judgement``; None if it does not apply."""
        text = self.text(judgement) if self.text else self._claim(judgement)
        if not text:
            return None
        action = self.action if isinstance(self.action, str) else self.action(judgement)
        return Cause(self.code, text, action, self.compares(judgement), self.fault(judgement))

    def _claim(self, judgement: Judgement) -> str:
        codes = (self.code, *FOUND_WITH.get(self.code, ()))
        claims = (finding.claim for code in codes for finding in judgement.findings if finding.code == code)
        return next(claims, "")


def _measure_rest(judgement: Judgement) -> str:
    """How to measure what is missing: runs of other tools cannot be resumed."""
    runs = [stored for stored in judgement.runs if stored.run.imported is None]
    lacking = [stored for stored in runs if _lacks(stored)]
    lacking = lacking or [stored for stored in runs if stored.end is None or stored.end.status != "complete"]
    commands = " and ".join(map(resuming, lacking))
    return f"run {commands} to measure the rest" if lacking else "run the tool again"


def _after_failures(judgement: Judgement) -> str:
    """A case that failed through its own fault is not tried again when its run is resumed."""
    native = [stored for stored in judgement.runs if stored.run.imported is None]
    if not native:
        return "read the end of the log, then run the tool again"
    rest = _measure_rest(judgement) if any(map(_lacks, native)) else "measure them in a new run"
    return f"read the error of each case (busbw show), then {rest}"


def _after_wrong_data(judgement: Judgement) -> str:
    """Resuming a run does not repeat them, either."""
    native = any(stored.run.imported is None for stored in judgement.runs)
    again = "measure these cases again in a new run (--resume does not repeat them)" if native else "run the tool again"
    return f"{again}; if data stay wrong, do not use this backend here, and report it to its authors"


def _lacks(stored: StoredRun) -> bool:
    """Whether a resumption would measure something."""
    progress = progress_of(stored)
    return progress.complete < progress.planned


def _fewer_ranks(judgement: Judgement) -> str:
    crowded = judgement.facts.oversubscribed_hosts
    ranks, cores = max(crowded.values(), key=lambda shared: shared[0] / shared[1])
    where = "" if len(crowded) == 1 else " per host"
    cases = [row.case for row in judgement.cases]
    asked = any(case.group == ASKED for case in cases)
    paired = {case.op in PAIRED for case in cases}
    fewest = LEAST_NODES if asked else _FEWEST_PAIRED if paired == {True} else 2
    too_few = " (too few to compare pairs)" if True in paired and cores < _FEWEST_PAIRED else ""
    fewer = f"rerun with --ranks {cores}{where}{too_few}, or " if cores >= fewest else ""
    return f"{fewer}use a host with {ranks} cores"


def _check_link(judgement: Judgement) -> str:
    copies = any(matrix.op in DIRECT for matrix in judgement.matrices if matrix.outliers)
    of_gpus = "; NVLink and peer access (nvidia-smi nvlink -s, nvidia-smi topo -p2p r)" if copies else ""
    return f"check the links of what is slow: cable, NIC, switch port; within a host, binding and NUMA{of_gpus}"


def _straggler(judgement: Judgement) -> str:
    late = (member.rank for group in judgement.results.lateness for member in group.flagged)
    return next((f"rank {rank} is a straggler" for rank in late), "")


def _slowest_of_pairs(judgement: Judgement) -> str:
    outliers = sorted((part for matrix in judgement.matrices for part in matrix.outliers), key=lambda part: part.ratio)
    return next((f"pairs of {part.name} reach {100 * part.ratio:.0f} % of the usual" for part in outliers), "")


def _disturbed(judgement: Judgement, verdict: Verdict) -> bool:
    """Whether other load disturbed the point that ``verdict`` is about."""
    return any(
        judgement.cases[point.case].disturbance.high
        for curve in judgement.curves
        if curve.series.key == verdict.key
        for point in curve.series.points
        if point.size_bytes == verdict.size_bytes
    )


def _no_spare_core(judgement: Judgement) -> str:
    hosts = judgement.facts.full_hosts
    if not hosts or judgement.facts.backend.cost_models != GLOO:
        return ""
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"every core of {where} runs a rank, so Gloo's own threads compete with the ranks for cores"


def _library_copies(judgement: Judgement) -> str:
    facts, on_cpu = judgement.facts, all(row.case.device == "cpu" for row in judgement.cases)
    if facts.backend.cost_models != MPI or not on_cpu or facts.host_count(range(len(facts.hosts))) != 1:
        return ""
    return "on one host the MPI library copies messages and reduces them itself, which neither models nor peaks contain"


def _by_copies(_judgement: Judgement, verdict: Verdict) -> bool:
    """Whether ``verdict`` is slower by no more than such copies cause on healthy machines."""
    ratio = verdict.model_ratio or (1 / verdict.peak_share if verdict.peak_share else 1.0)
    return verdict.status == "slower" and ratio <= (_MOST_BY_SUMS if verdict.op in REDUCING else _MOST_BY_COPIES)


def _moved(judgement: Judgement) -> str:
    factors = {curve.series.key.op: factor for curve in judgement.curves if (factor := curve.series.traffic_factor) > 1}
    return ", ".join(f"{op} moves {factor:g}× the necessary bytes" for op, factor in factors.items())


def _doubted(judgement: Judgement) -> str:
    """Why verdicts are open whose model or peak cannot be trusted."""
    doubts = {verdict.doubt for verdict in judgement.verdicts} - {None, "exceeded"}
    doubt = next((doubt for doubt in DOUBTS if doubt in doubts), None)
    if doubt is None:
        return ""
    measured = {case for curve in judgement.curves for case in _measured_with(curve)}
    disturbed = [judgement.cases[case] for case in sorted(measured) if judgement.cases[case].disturbance.high]
    if doubt == "disturbed" and disturbed:
        worst = max(disturbed, key=lambda summary: summary.disturbance.foreign or 0.0)
        return f"{DOUBTS[doubt]}: {worst.disturbance.in_words()} ({case_name(worst.case)})"
    ratios = [verdict.model_ratio for verdict in judgement.verdicts if verdict.doubt == doubt and verdict.model_ratio]
    between = f": {times_of_model(min(ratios), max(ratios))}" if doubt == "contradicted" and ratios else ""
    return f"{DOUBTS[doubt]}{between}"


def _measured_with(curve: Curve) -> tuple[int, ...]:
    """The cases that the model and the peak of a curve were measured with."""
    of_model = curve.parameters.cases if isinstance(curve.parameters, Parameters) else ()
    return (*of_model, *(curve.peak.cases if isinstance(curve.peak, Peak) else ()))


def _above_peak(judgement: Judgement) -> str:
    highest = _highest_above(judgement)
    if highest is None:
        return ""
    verdict, peak = highest
    others = [op for op in dict.fromkeys(doubted.op for doubted, _ in _above(judgement)) if op != verdict.op]
    points = next(curve.series.points for curve in judgement.curves if curve.series.key == verdict.key)
    rates = [point.busbw for point in points if point.busbw is not None]
    share = share_of_peak(f"the {peak.allowance}", max(rates) / peak.busbw if rates and peak.busbw else 0.0)
    text = f"the {noun_of(peak.level)} of {verdict.op} is too low: it reached up to {share}, because"
    return f"{text} {why_above(verdict.op, peak)}" + (f"; too high as well: {', '.join(others)}" if others else "")


def _highest_above(judgement: Judgement) -> tuple[Verdict, Peak] | None:
    """The verdict with the highest share of a peak that it exceeds, and this peak."""
    return max(_above(judgement), key=lambda entry: entry[0].peak_share or 0.0, default=None)


def _above(judgement: Judgement) -> list[tuple[Verdict, Peak]]:
    """The verdicts on what exceeds its peak, with the peak: of operations that were asked for, else of references."""
    peaks = {curve.series.key: curve.peak for curve in judgement.curves}
    above = [
        (verdict, peak)
        for verdict in judgement.verdicts
        if verdict.peak_doubted and isinstance(peak := peaks.get(verdict.key), Peak)
    ]
    return [entry for entry in above if entry[0].op in judgement.asked] or above


def _other_peak(judgement: Judgement) -> str:
    """What gives a peak that is not exceeded."""
    if _copies_exceeded(judgement):
        return "compare with earlier runs, not with this reference (busbw compare)"
    given = [log.given for stored in judgement.runs if (log := stored.run.imported) is not None and log.given]
    if given:
        facts = " ".join(f"--{name} {value!r}" for name, value in given[0].items())
        return f"check {facts} against the hosts, or give the right peak with --peaks (busbw peaks lists known ones)"
    highest = _highest_above(judgement)
    by_sockets = highest is not None and highest[1].level == "plain TCP of a host"
    return _ALONE if by_sockets else "give the right peak with --peaks (busbw peaks lists the known ones)"


def _of_gpus(judgement: Judgement) -> str:
    """A problem of GPUs, where some ran: a peak of what is left does not show it, however near they come to it."""
    used = any(row.case.device != "cpu" for row in judgement.cases)
    return next((finding.claim for finding in judgement.findings if used and finding.code == "gpu-hardware"), "")


def _copies_exceeded(judgement: Judgement) -> bool:
    highest = _highest_above(judgement)
    return highest is not None and highest[1].level == "memory copy of a host"


def _evidence(code: str) -> _Rule:
    """The cause that the evidence of a log is."""
    actions = ACTIONS[code]

    def seen(judgement: Judgement) -> list[Finding]:
        path = "network-path" if len(set(judgement.facts.hosts)) > 1 else "host-path"
        paths = {path, "settings"} if judgement.facts.hosts_known else {code}
        by_code = {finding.code: finding for finding in judgement.findings if code in paths}
        return [by_code[kind] for kind in actions if kind in by_code]

    return _Rule(
        code,
        lambda judgement: actions[seen(judgement)[0].code],
        lambda _, verdict: verdict.status == "slower",
        lambda judgement: "; ".join(finding.claim for finding in seen(judgement)[:_MOST_CAUSES]),
        always=False,
        unjudged=True,
        fault=lambda _: _PATHS.get(code, ""),
    )


_PATHS: Final = {
    "network-path": "the path over the network may be slow (see Why)",
    "host-path": "the path between GPUs may be slow (see Why)",
}
_ALL_GPUS: Final = "start it with all GPUs (-g N), or build it with MPI=1 and start it with mpirun"
CONTRASTS: Final = {
    "slow-gpu": "check the slot and the link of that GPU (nvidia-smi -q, lspci -vv), then its clocks and NUMA node",
    "slow-nic": "check that port: cable, rate (ibstat), PCIe link (lspci -vv)",
    "collapse": "run these sizes again with another algorithm or protocol (NCCL: NCCL_DEBUG=INFO says which); look for "
    "lost packets",
    "groups-apart": "keep jobs within a group where they fit; nvidia-smi topo -m names what is between them",
    "slow-size": "run these sizes again with another algorithm or protocol (NCCL: NCCL_DEBUG=INFO says which)",
    "asymmetric": "if most GPUs show this, compare other ways to copy (nvbandwidth: ce, sm); else check that link "
    "in its slow direction: cable, PCIe link (lspci -vv), NUMA node",
    "slow-peers": "turn off ACS and the IOMMU (iommu=pt); until then NCCL_P2P_DISABLE=1 may be faster",
}
"""Causes that are findings of ``siblings``, and what to do about them."""
_OF_PART: Final = frozenset({"slow-size", "groups-apart"})
"""Contrasts that do not explain why anything else is slow."""
_CONTRASTED: Final = {
    "slow-gpu": "a GPU is slower than the others",
    "slow-nic": "a NIC is slower than the others",
    "collapse": "the rate falls at large sizes",
    "groups-apart": "GPUs of other groups are reached more slowly",
    "slow-size": "a size takes longer than larger ones",
    "asymmetric": "a link is slower in one direction",
    "slow-peers": "GPUs copy faster without peer access",
}
"""The same in a few words."""


def _contrast(code: str) -> Callable[[Judgement], str]:
    return lambda _: _CONTRASTED[code]


def _explains(code: str) -> Callable[[Judgement, Verdict], bool]:
    return lambda *_: code not in _OF_PART


_ALONE: Final = "rerun while nothing else runs on the machine (Slurm: --exclusive)"
_RULES: Final = (
    _Rule(
        "wrong-data",
        _after_wrong_data,
    ),
    _Rule("failed", _after_failures),
    _Rule("no-end", _measure_rest),
    _Rule(
        "doubted-reference",
        _ALONE,
        lambda _, verdict: verdict.doubt is not None and verdict.doubt != "exceeded",
        _doubted,
    ),
    _Rule("oversubscribed", _fewer_ranks, lambda *_: True),
    _Rule(
        "counters-slow-host",
        "check that device of the slow host: cable, port, slot or module, then run again",
        lambda *_: True,
    ),
    _Rule(
        "straggler",
        "check the host of that rank: load, clock frequency, core binding",
        lambda _, verdict: verdict.op in SYNCHRONISING,
        fault=_straggler,
    ),
    _Rule("slow-link", _check_link, lambda *_: True, fault=_slowest_of_pairs),
    *(_Rule(code, action, _explains(code), fault=_contrast(code)) for code, action in CONTRASTS.items()),
    _Rule("disturbed", _ALONE, _disturbed, always=False),
    _Rule(
        "no-spare-core",
        "leave one core free, or compare with a run on a healthy host of this kind (busbw compare)",
        lambda _, verdict: verdict.status == "slower",
        _no_spare_core,
        always=False,
        compares=lambda _: True,
    ),
    _Rule(
        "library-copies",
        "compare with a run on a healthy host of this kind (busbw compare)",
        _by_copies,
        _library_copies,
        always=False,
        compares=lambda _: True,
    ),
    _Rule(
        "excess-traffic",
        "compare its busbw with earlier runs, not with the peak",
        lambda judgement, verdict: (
            verdict.model_ratio is None
            and any(curve.series.key.op == verdict.op and curve.series.traffic_factor > 1 for curve in judgement.curves)
        ),
        _moved,
        always=False,
    ),
    *(_evidence(path) for path in ACTIONS if path != "beside"),
    _Rule(
        TABLES_APART,
        "find what was changed between them; busbw compare judges one file a side",
        lambda _, verdict: verdict.status == "slower",
        always=False,
        unjudged=True,
    ),
    _Rule("one-rank", _ALL_GPUS, always=False, unjudged=True),
    _Rule(
        "paced",
        "run iperf with TCP and without -b",
        # Of several cases, the note does not say which.
        lambda judgement, verdict: verdict.status == "slower" and len(judgement.cases) == 1,
        always=False,
    ),
    _Rule("throttled", "check power limits and cooling of the GPUs", lambda *_: True),
    _Rule("gpu-hardware", "check that GPU, its slot and its links (busbw peaks --here)", lambda *_: True, _of_gpus),
    _Rule(
        "hardware",
        "check the slot and the link of that card (busbw peaks --here)",
        lambda judgement, _: all(row.case.device != "cpu" for row in judgement.cases),
        always=False,
    ),
    _Rule(
        "above-peak",
        _other_peak,
        lambda _, verdict: verdict.doubt == "exceeded",
        _above_peak,
        compares=_copies_exceeded,
    ),
)
"""The possible causes, in the order in which they are named.

Shared cores come before stragglers, because a rank that waits for a core is late, too.
"""
CAUSES: Final = tuple(rule.code for rule in _RULES)
"""Codes of the causes."""
