"""Timelines of steps: kept short, divided into computation and waiting, drawn and exported."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.fakes import QUICK, FakeWorld
from testing.narrow import require

from busbw.backends.parts import Parts
from busbw.errors import AnalysisError, StoreError
from busbw.measure.bench import Bench
from busbw.measure.clock import CommonClock
from busbw.measure.supplements import shortened, write_profiles
from busbw.runs.records import RankTimeline, Sent
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.training.slice import Training, trace
from busbw_analysis.training.step_verdicts import StepVerdict
from busbw_analysis.training.timeline_report import timelines
from busbw_analysis.training.timelines import CallTime, RankTime, call_times, rank_times

GOLDEN = Path(__file__).parents[1] / "data" / "runs" / "training"
EARLY = RankTimeline(rank=0, spans=(("compute", 0, 10), ("all_reduce", 10, 40), ("compute", 20, 25)))
LATE = RankTimeline(rank=1, spans=(("compute", 0, 30), ("all_reduce", 30, 40)))
SENT = (Sent(op="all_reduce", group=2, size_bytes=8, calls=1, ranks=(0, 1)),)
SPANS = st.lists(
    st.tuples(st.sampled_from(["compute", "all_reduce", "receive"]), st.integers(0, 10**6), st.integers(0, 10**5)),
    min_size=1,
    max_size=40,
).map(lambda given: sorted(((name, at, at + long) for name, at, long in given), key=lambda span: span[1]))


def test_waiting_is_where_a_call_is_under_way_and_nothing_is_computed() -> None:
    early, late = rank_times((EARLY, LATE), SENT)
    assert early == RankTime(0, EARLY.spans, 40, 15, ((10, 20), (25, 40)), 15)
    assert late == RankTime(1, LATE.spans, 40, 30, ((30, 40),), 0)
    assert early.waiting_ns == 25


def test_what_is_hidden_of_a_call_is_what_the_rank_computes_beside_it() -> None:
    assert call_times((EARLY, LATE)) == (CallTime("all_reduce", 40, 5 / 40),)
    sent = RankTimeline(rank=0, spans=(("compute", 0, 10), ("send_recv", 4, 4), ("receive", 2, 6), ("receive", 4, 12)))
    assert call_times((sent,)) == (CallTime("receive", 10, 0.8),)
    assert call_times(()) == ()


def test_nobody_is_last_where_ranks_call_in_several_groups() -> None:
    apart = (msgspec.structs.replace(SENT[0], group=1),)
    assert [times.waiting_for_last_ns for times in rank_times((EARLY, LATE), apart)] == [None, None]


@given(SPANS, st.integers(1, 20))
def test_a_shortened_timeline_is_short_and_loses_no_moment(spans: list[tuple[str, int, int]], most: int) -> None:
    kept = shortened(spans, most)
    for name in {span[0] for span in spans}:
        same = [span for span in kept if span[0] == name]
        assert len(same) <= max(most, 1)
        assert all(any(b <= begin and end <= e for _, b, e in same) for n, begin, end in spans if n == name)
    assert [span[1] for span in kept] == sorted(span[1] for span in kept)


@given(SPANS)
def test_computation_and_waiting_are_apart(spans: list[tuple[str, int, int]]) -> None:
    (times,) = rank_times((RankTimeline(rank=0, spans=tuple(spans)),), ())
    assert 0 <= times.compute_ns + times.waiting_ns <= times.span_ns


def test_a_timeline_is_drawn_and_exported() -> None:
    judgement = judge(load([GOLDEN]))
    recorded, calls = rank_times((EARLY, LATE), SENT), call_times((EARLY, LATE))
    step = replace(judgement.of(Training).steps[1], timeline=recorded, calls=calls)
    judgement = replace(judgement, slices=(replace(judgement.of(Training), verdicts=(StepVerdict(step),)),))
    section = require(timelines([step]))
    assert section.anchor == "timelines"
    events = json.loads(trace(judgement))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "b", "e"}
    assert sum(event["dur"] for event in events if event["name"] == "waiting") == pytest.approx(0.035)
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "e"}
    assert all(ends[event["id"]] >= event["ts"] for event in events if event["ph"] == "b")


def test_a_run_without_timelines_has_none() -> None:
    judgement = judge(load([GOLDEN]))
    assert timelines(judgement.of(Training).steps) is None
    with pytest.raises(AnalysisError):
        trace(judgement)


def test_the_trace_of_the_profiler_is_in_the_folder(tmp_path: Path) -> None:
    (backend,) = FakeWorld(1).backends
    bench = Bench(backend, backend.clock, QUICK, CommonClock(backend, backend.clock, ("here",)), 1)

    def nothing() -> None:
        pass

    parts = Parts(nothing, nothing, nothing, nothing, lambda _now: [], lambda: "{}", {}, (0, 0, 0), 1, 1, 1, 0)
    write_profiles(bench, parts, tmp_path, "profile")
    assert (tmp_path / "profile-rank-0.json").read_text(encoding="utf-8") == "{}"
    with pytest.raises(StoreError):
        write_profiles(bench, parts, tmp_path / "missing", "profile")
