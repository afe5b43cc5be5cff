"""The records: to JSON and back without loss, and nothing accepted that the other side could not read."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from busbw.ops.algorithms.settings import AlgorithmSettings
from busbw.ops.host import HostSettings, Pinning
from busbw.ops.pairs import Pairs, PairSettings
from busbw.ops.settings import Way
from busbw.ops.storage import Access
from busbw.ops.traffic import TrafficSettings
from busbw.ops.training import Workload
from busbw.runs.facts import CpuFacts, HostFacts, MemoryModules, NodeFacts, ResumedJob
from busbw.runs.records import (
    DTYPE_BYTES,
    QUANTILES,
    REDOPS,
    BackendTraits,
    Cache,
    Case,
    Check,
    Ended,
    Failed,
    FailureCause,
    GpuConditions,
    GroupSamples,
    HostConditions,
    LaunchStarted,
    Measurement,
    Mode,
    OverlapSamples,
    RankClock,
    RankSamples,
    Row,
    Run,
    Settings,
    Skipped,
    Sync,
    TimedBy,
    TransportRules,
)

words = st.text(st.characters(codec="utf-8"), max_size=12)
durations = st.integers(1, 10**15)
finite = st.floats(0, 1e18, allow_nan=False, allow_infinity=False)

cases = st.builds(
    Case,
    op=words,
    backend=words,
    device=words,
    dtype=st.none() | st.sampled_from(list(DTYPE_BYTES)),
    redop=st.none() | st.sampled_from(REDOPS),
    size_bytes=st.integers(0, 1 << 50),
    ranks=st.integers(1, 10_000),
    nodes=st.integers(1, 100),
    group=words,
    mode=st.sampled_from(get_args(Mode)),
    sync=st.sampled_from(get_args(Sync)),
    cache=st.sampled_from(get_args(Cache)),
    pre_enqueue=st.booleans(),
    in_place=st.booleans(),
    root=st.none() | st.integers(0, 100),
    settings=st.none()
    | st.builds(AlgorithmSettings, words)
    | st.builds(
        HostSettings,
        threads=st.none() | st.integers(1, 100),
        numa_node=st.none() | st.integers(0, 100),
        pinning=st.none() | st.sampled_from(get_args(Pinning)),
    )
    | st.builds(Access, st.integers(1, 1 << 40), st.integers(1, 100), st.sampled_from(get_args(Way)))
    | st.builds(PairSettings, st.sampled_from(get_args(Pairs)))
    | st.builds(TrafficSettings, imbalance=st.none() | finite, traffic=st.none() | words)
    | st.builds(
        Workload,
        model=words,
        scale=st.floats(1e-6, 1.0),
        **dict.fromkeys(("dp", "tp", "pp", "micro_batches", "interleave"), st.integers(1, 100)),
        wait_ns=st.none() | st.integers(1, 10**9),
    ),
    tool_op=st.none() | words,
)


@st.composite
def group_samples(draw: st.DrawFn) -> GroupSamples:
    count = draw(st.integers(0, 5))
    ranks = draw(st.lists(st.integers(0, 100), min_size=1, max_size=3, unique=True))

    def vector(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    def maybe(values: st.SearchStrategy[int]) -> tuple[int, ...] | None:
        return vector(values) if draw(st.booleans()) else None

    fastest = vector(durations)
    overlap = OverlapSamples(
        pure_ns=vector(durations),
        post_ns=vector(durations),
        compute_ns=vector(durations),
        wait_ns=vector(durations),
        exposed_ns=vector(durations),
        compute_alone_ns=draw(durations),
        host_post_ns=maybe(durations),
    )
    return GroupSamples(
        ranks=tuple(ranks),
        bus_factor=draw(st.none() | finite),
        wire_bytes=draw(finite),
        slowest_ns=tuple(duration + 1 for duration in fastest),
        fastest_ns=fastest,
        fastest_rank=vector(st.sampled_from(ranks)),
        last_rank=maybe(st.sampled_from(ranks)),
        arrival_skew_ns=maybe(durations),
        exit_span_ns=None,
        exit_skew_ns=maybe(durations),
        disturbed=tuple(range(draw(st.integers(0, count)))),
        missed=tuple(range(draw(st.integers(0, count)))),
        timed_by=draw(st.sampled_from(get_args(TimedBy))),
        other_clock_ns=maybe(durations),
        overlap=draw(st.none() | st.just(overlap)),
        per_rank=tuple(
            RankSamples(
                rank=rank,
                quantiles_ns=(1,) * len(QUANTILES),
                samples_ns=fastest if count else None,
                entries_ns=maybe(st.integers(0, 10**15)),
            )
            for rank in ranks
        ),
    )


clocks = st.lists(
    st.builds(
        RankClock,
        rank=st.integers(0, 99),
        offset_ns=st.integers(-(10**18), 10**18),
        error_ns=durations,
        rtt_ns=durations,
        drift_ppm=st.none() | st.floats(-1e3, 1e3),
    ),
    max_size=3,
).map(tuple)

shares = st.none() | st.floats(0, 1)
conditions = st.lists(
    st.builds(
        HostConditions,
        host=words,
        load_before=finite,
        load_after=finite,
        busy_share=shares,
        foreign_share=shares,
        steal_share=shares,
        switches=st.lists(st.integers(0, 10**6), max_size=3).map(tuple),
        mhz_before=st.none() | finite,
        mhz_after=st.none() | finite,
        gpus=st.lists(
            st.builds(
                GpuConditions,
                index=st.integers(0, 15),
                mhz_before=st.none() | finite,
                mhz_after=st.none() | finite,
                throttled=st.lists(words, max_size=2).map(tuple),
            ),
            max_size=2,
        ).map(tuple),
    ),
    max_size=2,
).map(tuple)

rows: st.SearchStrategy[Row] = st.one_of(
    st.builds(
        Measurement,
        case=cases,
        launch=st.integers(0, 99),
        block=st.integers(0, 99),
        calls=st.integers(1, 1 << 20),
        first_call_ns=durations,
        warmup_calls=st.integers(0, 50),
        stop_reason=st.sampled_from(["converged", "time_limit", "sample_limit"]),
        check=st.builds(
            Check,
            state=st.sampled_from(["verified", "wrong", "not checked"]),
            wrong_elements=st.integers(0, 100),
            reason=st.none() | words,
        ),
        started=words,
        elapsed_ns=durations,
        buffer_sets=st.integers(1, 64),
        loop=st.sampled_from(["python", "compiled"]),
        clock_error_ns=st.none() | durations,
        clocks=st.none() | clocks,
        conditions=conditions,
        groups=st.lists(group_samples(), max_size=2).map(tuple),
    ),
    st.builds(Skipped, case=cases, reason=words),
    st.builds(
        Failed,
        case=cases,
        launch=st.integers(0, 9),
        block=st.integers(0, 9),
        error=words,
        cause=st.sampled_from(get_args(FailureCause)),
    ),
    st.builds(
        LaunchStarted,
        launch=st.integers(0, 9),
        started=words,
        order_seed=st.integers(0, 1 << 62),
        hosts=st.lists(words, max_size=3).map(tuple),
        pids=st.lists(st.integers(1, 1 << 22), max_size=3).map(tuple),
        timer_ns=st.lists(durations, max_size=3).map(tuple),
        shared_clock=st.booleans(),
        load_average=finite,
        empty_call_ns=st.lists(durations, max_size=3).map(tuple),
        empty_loop_ns=st.lists(durations, max_size=3).map(tuple),
        compiled_call_ns=st.lists(durations, max_size=3).map(tuple),
        compiled_loop_ns=st.lists(durations, max_size=3).map(tuple),
        clocks=clocks,
        resumes=st.none() | st.integers(0, 9),
    ),
    st.builds(
        Ended, status=st.sampled_from(["complete", "failed", "interrupted"]), reason=st.none() | words, ended=words
    ),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)

facts = st.builds(
    HostFacts,
    kernel=st.none() | words,
    variables=st.dictionaries(words, words, max_size=3),
    cpu=st.builds(CpuFacts, model=st.none() | words, allowed_cores=st.lists(st.integers(0, 99), max_size=3).map(tuple)),
    memory_modules=st.none() | st.builds(MemoryModules, unknown=st.lists(words, max_size=2).map(tuple)),
    node=st.none() | st.builds(NodeFacts, name=words, switches=st.none() | st.lists(words, max_size=2).map(tuple)),
    resumed=st.lists(
        st.builds(ResumedJob, launch=st.integers(0, 9), boot_id=st.sampled_from((UNSET, None, "x"))), max_size=2
    ).map(tuple),
)

runs = st.builds(
    Run,
    schema=st.integers(1, 9),
    id=words,
    busbw=words,
    machine=words,
    started=words,
    launcher=words,
    plan=st.dictionaries(words, json_values, max_size=3),
    cases=st.lists(cases, max_size=3).map(tuple),
    adjusted=st.lists(words, max_size=2).map(tuple),
    hosts=st.lists(words, max_size=3).map(tuple),
    environments=st.dictionaries(words, facts, max_size=2),
    backend=st.builds(BackendTraits, cost_models=words, transport=st.sampled_from(get_args(TransportRules))),
)


@given(rows)
def test_every_row_survives_json(row: Row) -> None:
    line = msgspec.json.encode(row)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Row) == row


@given(runs)
def test_every_run_survives_json(run: Run) -> None:
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


@given(rows)
def test_an_unknown_field_is_refused_by_name(row: Row) -> None:
    document = msgspec.to_builtins(row) | {"colour": "blue"}
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.convert(document, Row)


def test_an_unknown_kind_of_row_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="gossip"):
        msgspec.json.decode(b'{"kind":"gossip"}', type=Row)


def case(**changes: Any) -> Case:  # noqa: ANN401 - any field of a case
    fields: dict[str, Any] = {
        "op": "all_reduce",
        "backend": "gloo",
        "device": "cpu",
        "dtype": "float32",
        "redop": "sum",
        "size_bytes": 1024,
        "ranks": 4,
        "nodes": 1,
    }
    return Case(**fields | changes)


def test_a_case_is_a_key() -> None:
    assert len({case(), case(), case(size_bytes=2048)}) == 2
    with pytest.raises(AttributeError):
        case().ranks = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "words_of_error"),
    [
        ({"dtype": "float13"}, "known: float32"),
        ({"redop": "xor"}, "known: sum"),
        ({"size_bytes": -1}, "size_bytes -1"),
        ({"ranks": 0}, "ranks 0"),
        ({"nodes": 0}, "nodes 0"),
    ],
)
def test_a_case_that_cannot_be_is_refused(changes: dict[str, Any], words_of_error: str) -> None:
    with pytest.raises(ValueError, match=words_of_error):
        case(**changes)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_count_is_the_elements_in_the_size(dtype: str) -> None:
    assert case(dtype=dtype).count == 1024 // DTYPE_BYTES[dtype]
    assert case(dtype=None, redop=None).count == 0


def group(**changes: Any) -> GroupSamples:  # noqa: ANN401 - any field of a group
    fields: dict[str, Any] = {
        "ranks": (0, 1),
        "bus_factor": 1.0,
        "wire_bytes": 1024.0,
        "slowest_ns": (20, 21),
        "fastest_ns": (10, 11),
        "fastest_rank": (0, 1),
        "arrival_skew_ns": None,
        "exit_span_ns": None,
        "per_rank": (),
    }
    return GroupSamples(**fields | changes)


def parts(**changes: Any) -> OverlapSamples:  # noqa: ANN401 - any field of an overlap
    fields: dict[str, Any] = dict.fromkeys(("pure_ns", "post_ns", "compute_ns", "wait_ns", "exposed_ns"), (1,))
    return OverlapSamples(**fields | {"compute_alone_ns": 1} | changes)


@pytest.mark.parametrize(
    ("changes", "words_of_error"),
    [
        ({"slowest_ns": (20,)}, "differ"),
        ({"arrival_skew_ns": (1,)}, "differ"),
        ({"last_rank": (1,)}, "differ"),
        ({"exit_skew_ns": (1, 2, 3)}, "differ"),
        ({"other_clock_ns": ()}, "differ"),
        ({"overlap": parts()}, "differ"),
        ({"overlap": parts(wait_ns=(1, 2))}, "differ"),
        ({"fastest_ns": (10, 0)}, "fastest_ns"),
        ({"slowest_ns": (-7, 20)}, "slowest_ns"),
        ({"bus_factor": float("nan")}, "bus_factor"),
        ({"wire_bytes": float("inf")}, "wire_bytes"),
        ({"traffic_factor": float("nan")}, "traffic_factor"),
    ],
)
def test_samples_that_cannot_be_are_refused(changes: dict[str, Any], words_of_error: str) -> None:
    with pytest.raises(ValueError, match=words_of_error):
        group(**changes)


def test_a_drift_or_a_frequency_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="drift_ppm"):
        RankClock(rank=0, offset_ns=0, error_ns=0, rtt_ns=0, drift_ppm=float("inf"))
    with pytest.raises(ValueError, match="mhz_after"):
        HostConditions(
            host="a",
            load_before=0.0,
            load_after=0.0,
            busy_share=None,
            foreign_share=None,
            steal_share=None,
            switches=(),
            mhz_after=float("nan"),
        )


def test_a_load_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="load_average"):
        LaunchStarted(
            launch=0,
            started="",
            order_seed=0,
            hosts=(),
            pids=(),
            timer_ns=(),
            shared_clock=True,
            load_average=float("nan"),
        )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("threads", HostSettings(threads=0)),
        ("threads", HostSettings(threads=(1 << 16) + 1)),
        ("numa_node", HostSettings(numa_node=-1)),
        ("numa_node", HostSettings(numa_node=1024)),
        ("depth", Access(4096, 0, "direct")),
        ("block_bytes", Access(0, 1, "direct")),
        ("imbalance", TrafficSettings(imbalance=-0.5)),
    ],
)
def test_settings_have_ranges(name: str, settings: Settings) -> None:
    case = Case(op="x", backend="x", device="cpu", dtype=None, redop=None, size_bytes=0, ranks=1, nodes=1)
    odd = msgspec.json.encode(msgspec.structs.replace(case, settings=settings))
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.json.decode(odd, type=Case)
