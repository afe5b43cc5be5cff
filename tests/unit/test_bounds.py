"""Lower bounds: no algorithm is below its own, none is higher than it must be, and the time of a curve adds up."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.keys import series_key
from testing.narrow import require, require_type

from busbw.ops import LOWER_BOUNDS, OPS
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import Interval
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.bounds import Explanation, explain, fastest, least_seconds
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.gloo import MODELS, UNMODELLED
from busbw_analysis.models.parameters import gamma_of
from busbw_analysis.models.select import alternatives, models_of
from busbw_analysis.models.textbook import LIMITS, SWITCHED, TEXTBOOK

ALPHA, BETA = 1e-4, 1e-9
LINK = Parameters(ALPHA, BETA, None, "the test")
KEY = series_key()
SIZES = (8, 4096, 1 << 20, 1 << 24)


def series(key: SeriesKey = KEY, times_ns: tuple[float, ...] = (1e6, 1e6, 4e6, 5e7)) -> Series:
    points = tuple(
        GroupSummary(
            case,
            size,
            key.ranks,
            time,
            Interval(None, None, "none"),
            None,
            None,
            None,
            0.0,
            (time,),
            (time,),
            ((0, 0),),
        )
        for case, (size, time) in enumerate(zip(SIZES, times_ns, strict=True))
    )
    return Series(key, 1.5, 1.0, points, {"node0": len(key.ranks)})


BOUND = [name for name, op in OPS.items() if op.lower_bound is not None]


def explained(key: SeriesKey = KEY, *others: Series, parameters: Parameters = LINK) -> Explanation:
    return require_type(
        Explanation, explain(series(key), models_of(key, SIZES, None), parameters, gamma_of(key, others))
    )


def hosts_of(row: CostModel, ranks: int) -> list[int]:
    return [hosts for hosts in (1, 2, 4, 8) if row.possible(ranks, hosts, 1)]


@pytest.mark.parametrize("row", [*TEXTBOOK, *LIMITS], ids=lambda row: f"{row.op}-{row.algorithm}")
def test_no_algorithm_is_below_its_bound_in_any_term(row: CostModel) -> None:
    bound = require(OPS[row.op].lower_bound)
    counted = 0
    for ranks in range(2, 65):
        for hosts in hosts_of(row, ranks):
            rounds = row.rounds(ranks, hosts, 1)
            # An algorithm that has several messages in a round is held against the bound for as many at once.
            messages = rounds if row.messages is None else row.messages(ranks, hosts, 1)
            ports = max(1, -int(-messages // rounds))
            assert rounds >= bound.rounds(ranks, ports)
            assert row.sent(ranks, hosts, 1) >= bound.sent(ranks) - 1e-12
            assert row.added(ranks, hosts, 1) >= bound.added(ranks) - 1e-12
            assert row.moved(ranks, hosts, 1) >= bound.moved(ranks) - 1e-12
            counted += 1
    assert counted > 4


@pytest.mark.parametrize("row", SWITCHED, ids=lambda row: f"{row.op}-{row.algorithm}")
def test_a_switch_that_works_for_the_ranks_is_what_goes_below(row: CostModel) -> None:
    """Nothing else may: so it is known of which rows and of which terms."""
    bound = require(OPS[row.op].lower_bound)
    below: set[str] = set()
    for ranks in range(2, 65):
        for hosts in hosts_of(row, ranks):
            terms = {
                "rounds": row.rounds(ranks, hosts, 1) - bound.rounds(ranks),
                "sent": row.sent(ranks, hosts, 1) - bound.sent(ranks),
                "added": row.added(ranks, hosts, 1) - bound.added(ranks),
                "moved": row.moved(ranks, hosts, 1) - bound.moved(ranks),
            }
            below |= {name for name, margin in terms.items() if margin < -1e-12}
    # Handing out: fewer rounds and fewer bytes sent. Adding up: fewer sums. Both: fewer bytes at every rank, too.
    expected = {
        "all_reduce": {"rounds", "sent", "added", "moved"},
        "all_gather": {"rounds", "moved"},
        "reduce_scatter": {"rounds", "added"},
    }
    assert below == expected[row.op]


@pytest.mark.parametrize("op", BOUND)
def test_every_term_of_a_bound_is_reached_by_some_algorithm(op: str) -> None:
    """A bound that nobody comes near says nothing: each is tight in every term, if not in all at once."""
    bound = require(OPS[op].lower_bound)
    for ranks in (4, 16, 64):
        rows = [row for row in TEXTBOOK if row.op == op and row.possible(ranks, 1, 1)]
        one_at_a_time = [row.rounds(ranks, 1, 1) for row in rows if row.messages is None]
        assert min(one_at_a_time) == bound.rounds(ranks)
        assert min(row.moved(ranks, 1, 1) for row in rows) == pytest.approx(bound.moved(ranks))
        assert min(row.added(ranks, 1, 1) for row in rows) == pytest.approx(bound.added(ranks))
        # A pipelined chain of 8 segments and a tree send more than S of a broadcast or a reduce.
        if op not in {"broadcast", "reduce"}:
            assert min(row.sent(ranks, 1, 1) for row in rows) == pytest.approx(bound.sent(ranks))


@pytest.mark.parametrize(
    ("ranks", "ports", "rounds"),
    [(1, 1, 0), (2, 1, 1), (3, 1, 2), (8, 1, 3), (9, 1, 4), (64, 1, 6), (9, 2, 2), (10, 2, 3), (64, 3, 3), (64, 63, 1)],
)
def test_rounds_are_counted_by_what_can_be_known(ranks: int, ports: int, rounds: int) -> None:
    assert LOWER_BOUNDS["all_reduce"].rounds(ranks, ports) == rounds


@given(
    st.integers(2, 64),
    st.integers(0, 1 << 30),
    st.floats(1e-7, 1e-2),
    st.floats(1e-12, 1e-6),
    st.none() | st.floats(1e6, 1e12),
)
def test_no_model_of_a_backend_predicts_less_than_its_bound(
    ranks: int, size: int, alpha: float, beta: float, rate: float | None
) -> None:
    parameters = Parameters(alpha, beta, rate, "the test")
    for model in MODELS:
        bound = OPS[model.op].lower_bound
        if bound is None or not model.possible(ranks, 1, size):
            continue
        few = model.rounds(ranks, 1, 0) < bound.rounds(ranks)
        least = least_seconds(bound, ranks, size, parameters, ports=ranks - 1 if few else 1)
        assert parameters.seconds(model, ranks, 1, size) >= least * (1 - 1e-12)


def test_every_modelled_collective_has_a_bound_and_no_other_op_has() -> None:
    messages = {"send_recv", "ping_pong", "pair_uni", "pair_bidir", "pair_matrix"}
    assert set(BOUND) == {model.op for model in MODELS} - messages
    assert not set(BOUND) & set(UNMODELLED)


def test_a_bound_in_numbers_and_in_words() -> None:
    bound = require(OPS["all_reduce"].lower_bound)
    mib = 1 << 20
    assert least_seconds(bound, 4, mib, LINK) == pytest.approx(2 * ALPHA + 1.5 * mib * BETA)
    assert least_seconds(bound, 4, mib, LINK, gamma=2e-9) == pytest.approx(
        2 * ALPHA + 1.5 * mib * BETA + 0.75 * mib * 2e-9
    )
    assert least_seconds(bound, 4, mib, replace(LINK, host_bytes_per_second=1e9)) == pytest.approx(
        2 * ALPHA + 6 * mib * 1e-9
    )
    assert bound.formula(ports=1, sharing=False, sums=False) == "⌈lg n⌉ α + 2(n−1)/n S β"
    assert bound.formula(ports=3, sharing=True, sums=True) == ("α + max(2(n−1)/n S β, 2(n−1) S / R) + (n−1)/n S γ")


def test_the_parts_are_those_of_the_model_and_add_up_to_what_was_measured() -> None:
    explanation = explained()
    # Gloo's ring on 4 ranks: 12 messages in a row, and 1.5 S through a link.
    assert [spent.latency_ns for spent in explanation.spent] == pytest.approx(
        [12 * ALPHA * 1e9] * 3 + [24 * ALPHA * 1e9]
    )
    assert [spent.bandwidth_ns for spent in explanation.spent] == pytest.approx(
        [1.5 * size * BETA * 1e9 for size in SIZES]
    )
    for spent, time_ns in zip(explanation.spent, (1e6, 1e6, 4e6, 5e7), strict=True):
        assert spent.latency_ns + spent.bandwidth_ns + spent.unexplained_ns == pytest.approx(time_ns)
        assert spent.reduction_ns is None
    # 1 ms was measured where the model says 1.2 ms: less than nothing is unexplained.
    assert explanation.spent[0].unexplained_ns == pytest.approx(-0.2e6, rel=1e-3)
    assert explanation.spent[0].bound_share == pytest.approx(0.2, rel=1e-3)
    assert "unknown" in explanation.gamma_origin


def test_gamma_comes_from_sums_of_arrays_in_the_same_run() -> None:
    add = msgspec.structs.replace(KEY, op="stream_add", redop=None)
    times = tuple(500.0 + 0.25 * size for size in SIZES)
    explanation = explained(
        KEY,
        series(msgspec.structs.replace(add, dtype="float64"), tuple(9 * time for time in times)),
        series(add, times),
    )
    assert "1/γ 4 GB/s up to 16 MiB, from stream_add of this run" in explanation.gamma_origin
    assert [spent.reduction_ns for spent in explanation.spent] == pytest.approx([0.75 * 0.25 * size for size in SIZES])
    assert explanation.bound.endswith("(n−1)/n S γ")
    elsewhere = explained(KEY, series(msgspec.structs.replace(add, ranks=(0, 1)), times))
    assert elsewhere.spent[0].reduction_ns is None
    shrinking = explained(KEY, series(add, (9.0, 8.0, 7.0, 6.0)))
    assert shrinking.spent[0].reduction_ns is None


def test_an_op_that_adds_nothing_up_has_nothing_to_say_of_sums() -> None:
    explanation = explained(msgspec.structs.replace(KEY, op="all_gather", redop=None))
    assert explanation.gamma_origin == ""
    assert "γ" not in explanation.bound


def test_an_algorithm_with_all_messages_at_once_is_held_against_a_bound_that_allows_it() -> None:
    explanation = explained(msgspec.structs.replace(KEY, op="all_to_all", redop=None, ranks=tuple(range(8))))
    assert explanation.bound == "α + (n−1)/n S β"
    assert all(spent.bound_ns is not None and spent.bound_ns <= spent.predicted_ns for spent in explanation.spent)


@pytest.mark.parametrize(
    ("key", "parameters", "reason"),
    [
        (msgspec.structs.replace(KEY, ranks=(0,)), LINK, "one rank sends nothing"),
        (KEY, Unavailable("no-messages", "add ping_pong"), "add ping_pong"),
        (msgspec.structs.replace(KEY, op="all_to_all_v"), LINK, "traffic matrix"),
        (msgspec.structs.replace(KEY, backend="nccl", cost_models="nccl"), LINK, "no cost model"),
    ],
)
def test_what_cannot_be_explained_says_why(key: SeriesKey, parameters: Parameters | Unavailable, reason: str) -> None:
    refusal = require_type(
        Unavailable, explain(series(key), models_of(key, SIZES, None), parameters, gamma_of(key, ()))
    )
    assert reason in refusal.reason


def line(name: str, messages: float, slope: float) -> CostModel:
    return CostModel("all_reduce", name, lambda *_: messages, "", "", sent=lambda *_: slope)


def test_the_fastest_changes_at_the_cross_overs() -> None:
    # 2 α + 8 S β and 6 α + 4 S β cross at α/β = 100 kB, the second and 12 α + 1 S β at 2 α/β.
    rows = [line("ring", 12, 1), line("tree", 2, 8), line("middle", 6, 4), line("twin", 6, 4), line("never", 12, 9)]
    spans = fastest(rows, 4, 1, 8, 1 << 30, LINK)
    assert [span.algorithms for span in spans] == [("tree",), ("middle", "twin"), ("ring",)]
    assert [span.from_bytes for span in spans] == pytest.approx([8, 1e5, 2e5])
    assert [span.algorithms[0] for span in fastest(rows, 4, 1, 8, 150_000, LINK)] == ["tree", "middle"]
    assert [span.algorithms for span in fastest(rows, 4, 1, 300_000, 1 << 30, LINK)] == [("ring",)]
    assert fastest([], 4, 1, 8, 1 << 30, LINK) == ()


@given(st.integers(2, 64), st.sampled_from(["all_reduce", "broadcast", "all_gather", "all_to_all"]))
def test_the_fastest_is_the_fastest_at_every_size(ranks: int, op: str) -> None:
    rows = alternatives(op, ranks, 1, "textbook")
    spans = fastest(rows, ranks, 1, 8, 1 << 30, LINK)
    by_name = {row.label: row for row in rows}
    for exponent in range(3, 31):
        size = 2**exponent
        winner = [span for span in spans if span.from_bytes <= size][-1]
        best = min(LINK.seconds(row, ranks, 1, size) for row in rows)
        for name in winner.algorithms:
            assert LINK.seconds(by_name[name], ranks, 1, size) == pytest.approx(best, rel=1e-6)
