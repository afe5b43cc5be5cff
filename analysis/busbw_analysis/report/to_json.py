"""The judgement as JSON with stable keys, for scripts and for comparing reports.

``report`` is the version of this layout. Times are in ns, rates in B/s, sizes in B, shares are fractions; a number that
does not exist is null (there is no NaN and no Infinity). Keys:

- ``report``, ``answer``, ``tone`` (good, caution, bad) and ``warnings`` (severity, code, subject, text), worst first
- ``{"none": reason, "code": code}`` stands where something is not available: reason in words, code a stable word
- ``runs``: id, machine, started, busbw, launcher, ranks, hosts, launches, status (complete, failed, interrupted or
  null for a run that was killed) and reason
- ``counts``: cases per state (measured, failed, skipped, not reached)
- ``best``: the highest busbw of any case and group of ranks, as ``judge.Best``; null where nothing has a busbw
- ``verdicts``: as ``judge.Verdict``
- ``curves``: key and label of the curve, its points, ``fit`` and ``model`` and ``peak`` or ``{"none": reason}``,
  ``alternatives``: what textbook algorithms would take at the largest size, ``explanation`` or ``{"none": reason}``:
  where the time goes at every size (``spent``), the formula of the lower ``bound``, where γ is from (``sums``), what
  ``others`` would take, the ``fastest`` by size of those with one message ``at_once``, and ``in_words`` whether the
  times are normal
- ``joint``:
  for every regime one set of parameters for all curves, ``not_separated``: what these data cannot tell, ``algorithms``
  with their ``rivals``, and ``validations``; in base units, as ``busbw fit --json`` has it
- ``crossings``: for every two algorithms of one op, by hand or the library's, which was faster for sure at each size,
  where they cross, ``expected_bytes`` (S*) and the ratio of the two, what one gains at the smallest and largest size
- ``pair_matrices``: op, ranks, their hosts, size_bytes, dtype, pairs, rate, time_ns, low_ns and high_ns as rows of
  senders, odd, and in steps how far apart two ranks are: 0 within a host, 1 below one leaf switch, one more for every
  level above it, null between hosts whose switches are not known
- ``pair_shares``: for each of them, where GPUs copied, what every pair reached of its peak, with the ``denominator``,
  or ``{"none": reason}``; null where messages were sent
- ``pair_splits``: for every case of a pair op on several hosts its pairs within a host, between hosts and by switches:
  name, pairs (how many), time_ns, interval, rate, times_within (how many times as long as within a host), slowest
- ``lateness``: for every group of ranks that ran synchronising ops how late each came, as ``lateness.GroupLateness``
- ``rooflines``: for every host or GPU that computed, as ``roofline.Roofline``: ``memory`` (bytes_per_second) and
  ``compute`` (flop_per_second) peaks, measured or not, ``balances`` in FLOP/byte, ``kernels`` with intensity,
  flop_per_second, what is attainable under the measured peaks and which of them it is, ``unknown``: what is not known
- ``network_rooflines``: FLOP for each byte on the wire and what it is made of, as ``network_roofline.NetworkRoofline``
- ``memory``: for every kernel in memory and all that it was measured with: traffic (B/s) over the working set (B),
  ``plateaus`` and ``peak`` or ``{"none": reason}``, ``threads``, as ``memory.MemoryCurve``
- ``storage``: every case on storage, as ``storage.Stored``
- ``hierarchy``: levels from the core outwards, measured beside nominal, as ``hierarchy.Rung``
- ``cases``: every case of the plan with state, reasons, check, stop_reasons, flags and the numbers of its groups; of a
  pair matrix with more than 240 pairs the slowest 240, ``groups_left_out`` says how many more there are, and
  ``pair_matrices`` has the times of all
"""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Final

import msgspec
import numpy as np

from busbw.ops import PAIRED
from busbw.runs.records import JSON
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.summary import CaseSummary, GroupSummary, times_of
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.memory import MemoryCurve
from busbw_analysis.fitting.joint import OneRegime
from busbw_analysis.report.document import Page
from busbw_analysis.report.sections.models import in_words
from busbw_analysis.report.tables.crossovers import crossing_rows
from busbw_analysis.report.tables.joint_fits import joint_rows

LAYOUT: Final = 4
"""Raised when a key changes its meaning or goes; new keys do not raise it. In layout 1 ``spread`` was (p95 − p5) /
time, of quantiles that were medians over launches each, and large matrices listed every pair, not their slowest.
Up to 2 the settings were one text, ``variant``, and the access to a file was three of its parts. Up to 3 a
peak was called ``roof``.
"""

_MOST_PAIRS: Final = 240
"""Pairs of one case with all their numbers."""

_STATES: Final = ("measured", "failed", "skipped", "not reached")


def document(judgement: Judgement, regimes: Sequence[OneRegime], page: Page) -> dict[str, JSON]:
    """The judgement as plain dictionaries, lists, strings and finite numbers."""
    states = [row.state for row in judgement.dataset.cases]
    return {
        "report": LAYOUT,
        "answer": page.answer,
        "tone": page.tone,
        "warnings": [plain(remark.as_json()) for remark in judgement.remarks],
        "runs": _runs(judgement.dataset),
        "counts": {state: states.count(state) for state in _STATES},
        "best": plain(judgement.best),
        "verdicts": plain(judgement.verdicts),
        "curves": [_curve(curve, judgement) for curve in judgement.curves],
        "joint": plain(joint_rows(regimes)),
        "crossings": plain(crossing_rows(judgement.races)),
        "pair_matrices": plain(judgement.matrices),
        "pair_shares": plain(judgement.pair_shares),
        "pair_splits": plain(judgement.splits),
        "lateness": plain(judgement.lateness),
        "rooflines": plain(judgement.rooflines),
        "network_rooflines": plain(judgement.networks),
        "memory": [_memory(curve) for curve in judgement.memory],
        "storage": [{**plain(one), "peak": plain(one.peak)} for one in judgement.files],
        "hierarchy": [{**plain(rung), "share": rung.share} for rung in judgement.rungs],
        "cases": [_case(summary) for summary in judgement.cases],
    }


def render(judgement: Judgement, regimes: Sequence[OneRegime], page: Page) -> str:
    """``document`` as text, strictly JSON."""
    # Not the json of Python, whose indenting takes seconds and GB where a matrix has a million pairs.
    return msgspec.json.format(msgspec.json.encode(document(judgement, regimes, page)), indent=1).decode() + "\n"


def plain(value: object) -> JSON:
    """Dataclasses, records, arrays and tuples as JSON has them; numbers that are not finite as null; what is not
    available as its reason and its code.
    """
    if isinstance(value, Unavailable):
        return {"none": value.reason, "code": value.code}
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.where(np.isfinite(value), value.astype(np.object_), np.asarray(None)).tolist()
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _case(summary: CaseSummary) -> JSON:
    listed: Sequence[GroupSummary] = summary.groups
    if summary.case.op in PAIRED and len(listed) > _MOST_PAIRS:
        slowest = np.argsort(-times_of(summary.groups), kind="stable")[:_MOST_PAIRS].tolist()
        listed = [summary.groups[place] for place in slowest]
    return {
        **plain(replace(summary, groups=())),
        "groups": [plain(group) for group in listed],
        "groups_left_out": len(summary.groups) - len(listed),
    }


def _curve(curve: Curve, judgement: Judgement) -> dict[str, JSON]:
    return {
        "label": curve.series.key.label,
        **plain(curve.series),
        "fit": plain(curve.fit),
        "model": plain(curve.model),
        "alternatives": plain(curve.alternatives),
        "explanation": _explanation(curve, judgement),
        "peak": plain(curve.peak),
    }


def _explanation(curve: Curve, judgement: Judgement) -> JSON:
    found = curve.explanation
    if isinstance(found, Unavailable):
        return plain(found)
    spent: list[JSON] = [
        {
            **plain(one),
            "predicted_ns": one.predicted_ns,
            "unexplained_ns": one.unexplained_ns,
            "bound_share": one.bound_share,
        }
        for one in found.spent
    ]
    words = in_words(curve, judgement.dataset, {case.index: case for case in judgement.cases})
    return {**plain(found), "spent": spent, "in_words": words}


def _memory(curve: MemoryCurve) -> dict[str, JSON]:
    found = curve.plateaus
    told = plain(found) if isinstance(found, Unavailable) else {**plain(found), "outermost": found.outermost}
    return {**plain(curve), "plateaus": told, "peak": plain(curve.peak), "nominal": curve.nominal}


def _runs(dataset: Dataset) -> list[JSON]:
    return [
        {
            "id": stored.run.id,
            "machine": stored.run.machine,
            "started": stored.run.started,
            "busbw": stored.run.busbw,
            "launcher": stored.run.launcher,
            "ranks": len(stored.run.hosts),
            "hosts": list(dict.fromkeys(stored.run.hosts)),
            "launches": len(stored.launches),
            "status": stored.end.status if stored.end else None,
            "reason": stored.end.reason if stored.end else None,
        }
        for stored in dataset.runs
    ]
