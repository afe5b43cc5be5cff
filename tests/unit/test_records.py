"""The records: to JSON and back without loss, and nothing accepted that the other side could not read."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from busbw.backends import BACKENDS
from busbw.ops.settings import Access, HostSettings, TrafficSettings
from busbw.runs.decoding import decode
from busbw.runs.records import (
    BACKEND_NAMES,
    DTYPE_BYTES,
    QUANTILES,
    REDOPS,
    Case,
    GroupSamples,
    Imported,
    OverlapSamples,
    RankClock,
    RankSamples,
    Row,
    Settings,
    TimedBy,
)
from busbw.runs.run import RunDocument

words = st.text(st.characters(codec="utf-8"), max_size=12)
durations = st.integers(1, 10**15)
finite = st.floats(0, 1e18, allow_nan=False, allow_infinity=False)


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


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of a field, from its type as the reader checks it."""
    match kind:
        case inspect.IntType(ge=least, le=most, lt=below):
            most = below - 1 if below else most or 1 << 53
            made: st.SearchStrategy[Any] = st.integers(-(1 << 53) if least is None else least, most)
        case inspect.FloatType(ge=least, le=most):
            made = st.floats(1.0 if least is None else least, most or 1e18)
        case inspect.LiteralType(values=allowed):
            made = st.sampled_from(allowed)
        case inspect.UnionType(types=types):
            made = st.one_of(*map(values, types))
        case inspect.VarTupleType(item_type=item):
            made = st.lists(values(item), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            made = st.tuples(*map(values, items))
        case inspect.DictType(value_type=inner):
            made = st.dictionaries(words, values(inner), max_size=2)
        case inspect.StructType(cls=record):
            made = records(record)
        case inspect.BoolType():
            made = st.booleans()
        case _:
            made = {inspect.StrType: words, inspect.NoneType: st.none()}.get(type(kind), st.none() | words | finite)
    return made


CHECKED: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    Case: {
        "dtype": st.none() | st.sampled_from(list(DTYPE_BYTES)),
        "redop": st.none() | st.sampled_from(REDOPS),
        "size_bytes": st.integers(0, 1 << 50),
        "ranks": st.integers(1, 10_000),
        "nodes": st.integers(1, 100),
    },
    Imported: {"rank_samples_ns": st.just(())},
}
"""Fields that a record checks when it is made."""


@cache
def records(record: type[Any]) -> st.SearchStrategy[Any]:
    """Any record of a type."""
    if record is GroupSamples:
        return group_samples()
    kind = inspect.type_info(record)
    assert isinstance(kind, inspect.StructType)
    fields = {field.name: values(field.type) for field in kind.fields}
    return st.builds(record, **fields | CHECKED.get(record, {}))


rows = st.sampled_from(get_args(Row)).flatmap(records)
slowly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@slowly
@given(rows)
def test_every_row_survives_json(row: Row) -> None:
    line = msgspec.json.encode(row)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Row) == row


@slowly
@given(records(RunDocument))
def test_every_run_survives_json(run: RunDocument) -> None:
    assert msgspec.json.decode(msgspec.json.encode(run), type=RunDocument) == run


@slowly
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


def test_a_number_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="drift_ppm"):
        RankClock(rank=0, offset_ns=0, error_ns=0, rtt_ns=0, drift_ppm=float("inf"))


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


def test_one_thread_prepares_a_kind_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec prepares a kind at its first use, and two threads at once end in a segmentation fault."""
    preparing, most = 0, 0

    @cache
    def prepare(kind: type[int]) -> msgspec.json.Decoder[int]:
        nonlocal preparing, most
        preparing += 1
        most = max(most, preparing)
        time.sleep(0.02)
        preparing -= 1
        return msgspec.json.Decoder(kind)

    monkeypatch.setattr("busbw.runs.decoding._decoder", prepare)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: decode(text, int), ["1", b"2", "3", "4"])) == [1, 2, 3, 4]
    assert most == 1


def test_the_names_of_backends_are_those_of_their_table() -> None:
    assert tuple(BACKENDS) == BACKEND_NAMES
