from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.keys import series_key
from testing.narrow import require_type

from busbw.ops import OPS
from busbw.ops.settings import AlgorithmSettings
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.gloo import MODELS, UNMODELLED, gloo_segments
from busbw_analysis.models.parameters import parameters_from
from busbw_analysis.models.select import alternatives, model_for, models_of, predict
from busbw_analysis.models.textbook import LIMITS

MIB = 1 << 20
ALPHA, BETA = 1e-4, 1e-9
LINK = Parameters(ALPHA, BETA, None, "the test")


def gloo(op: str) -> CostModel:
    return require_type(CostModel, model_for(op, "gloo"))


def test_every_op_has_a_model_or_a_reason_and_not_both() -> None:
    modelled = {model.op for model in MODELS if model.family == "gloo"}
    assert modelled | set(UNMODELLED) == set(OPS)
    assert not modelled & set(UNMODELLED)
    assert all(UNMODELLED.values())


@pytest.mark.parametrize(
    ("op", "ranks", "size", "messages", "rank_bytes", "total_bytes"),
    [
        # 64 MiB on 2 ranks: 32 segments a chunk, 16 waits for two at a time, two phases, two delays each.
        ("all_reduce", 2, 64 * MIB, 64, 64 * MIB, 128 * MIB),
        ("pair_uni", 2, MIB, 2, MIB, MIB),
        ("reduce", 4, MIB, 8, 1.5 * MIB, 3.75 * MIB),
    ],
)
def test_gloo_rows_by_hand(
    op: str, ranks: int, size: int, messages: float, rank_bytes: float, total_bytes: float
) -> None:
    model = gloo(op)
    assert model.rounds(ranks, 1, size) == messages
    assert model.sent(ranks, 1, size) * size == pytest.approx(rank_bytes)
    assert model.moved(ranks, 1, size) * size == pytest.approx(total_bytes)
    assert LINK.seconds(model, ranks, 1, size) == pytest.approx(messages * ALPHA + rank_bytes * BETA)


def test_gloos_reduce_moves_what_was_counted_on_the_wire() -> None:
    # Measured on the counters of the loopback device at 12 MiB: 2.18, 3.17 and 4.09 times S for 2, 3 and 4 ranks.
    sent = [gloo("reduce").moved(ranks, 1, 12 * MIB) for ranks in (2, 3, 4)]
    assert sent == pytest.approx([2.18, 3.17, 4.09], rel=0.03)


@pytest.mark.parametrize(
    ("ranks", "size", "segments"), [(2, 8, 4), (4, 8 * MIB, 8), (4, 9 * MIB, 12), (3, 100 * MIB, 102)]
)
def test_gloos_segments(ranks: int, size: int, segments: int) -> None:
    assert gloo_segments(ranks, size) == segments


def test_a_shared_host_is_the_limit_where_it_is_slower_than_a_rank() -> None:
    model = gloo("all_gather")
    crowded = Parameters(ALPHA, BETA, 2e9, "the test")
    assert crowded.seconds(model, 4, 1, 8 * MIB) == pytest.approx(6 * ALPHA + 24 * MIB / 2e9)
    roomy = Parameters(ALPHA, BETA, 1e12, "the test")
    assert roomy.seconds(model, 4, 1, 8 * MIB) == LINK.seconds(model, 4, 1, 8 * MIB)


@pytest.mark.parametrize(
    ("op", "blocks"), [("all_gather", 4), ("reduce_scatter", 5), ("gather", 1), ("scatter", 0), ("all_reduce", 0)]
)
def test_what_a_library_copies_besides_comes_on_top(op: str, blocks: int) -> None:
    """Each of 4 ranks copies all blocks behind an all_gather, one of them behind a gather; before a reduce_scatter each
    copies all, and its own behind.
    """
    copying = replace(LINK, copy_bytes_per_second=1e10)
    more = copying.seconds(gloo(op), 4, 1, 8 * MIB) - LINK.seconds(gloo(op), 4, 1, 8 * MIB)
    assert more == pytest.approx(blocks * 8 * MIB / 1e10, abs=1e-12)
    assert copying.seconds(gloo(op), 1, 1, 8 * MIB) == 0


@given(ranks=st.integers(2, 64), size=st.integers(0, 1 << 30), more=st.integers(0, 1 << 30))
def test_time_never_falls_with_size_and_is_positive(ranks: int, size: int, more: int) -> None:
    for model in (*MODELS, *LIMITS):
        if model.possible(ranks, 1, size):
            assert 0 < LINK.seconds(model, ranks, 1, size) <= LINK.seconds(model, ranks, 1, size + more) * (1 + 1e-6)


@given(ranks=st.integers(2, 64), size=st.integers(1, 1 << 30))
def test_no_algorithm_sends_less_than_the_least_that_the_instrument_counts(ranks: int, size: int) -> None:
    for model in (*MODELS, *LIMITS):
        op = OPS[model.op]
        # A double binary tree and Gloo's reduce send more; none may send less.
        if model.possible(ranks, 1, size) and op.members == "all" and op.sized:
            assert model.moved(ranks, 1, size) * size >= op.wire_bytes(ranks, size) * (1 - 1e-9)


def test_what_a_switch_adds_up_is_an_alternative_over_nccl_alone() -> None:
    def more(op: str, hosts: int, backend: str) -> set[str]:
        names = [{row.label for row in alternatives(op, 8, hosts, over)} for over in (backend, "gloo")]
        return names[0] - names[1]

    assert more("all_reduce", 1, "nccl") == {"NVLS"}
    assert more("all_reduce", 2, "nccl") == {"SHARP"}
    assert more("reduce_scatter", 1, "nccl") == {"NVLS"}
    assert more("broadcast", 1, "nccl") == set()
    assert more("all_reduce", 1, "mpi") == set()
    (nvls,) = (row for row in alternatives("all_reduce", 8, 1, "nccl") if row.label == "NVLS")
    assert LINK.seconds(nvls, 8, 1, MIB) == pytest.approx(2 * ALPHA + 9 / 8 * MIB * BETA)


@pytest.mark.parametrize("algorithm", ["ring", "rabenseifner"])
def test_what_was_run_by_hand_is_held_against_its_own_formula(algorithm: str) -> None:
    key = series_key("nccl", device="cuda", ranks=tuple(range(8)), settings=AlgorithmSettings(algorithm))
    predictions = predict(key, 14 / 8, [MIB], models_of(key, [MIB], None), LINK)
    assert not isinstance(predictions, Unavailable)
    messages = {"ring": 14, "rabenseifner": 6}[algorithm]
    assert predictions[0].time_ns == pytest.approx(1e9 * (messages * ALPHA + 14 / 8 * MIB * BETA))
    unknown = msgspec.structs.replace(key, settings=AlgorithmSettings("magic"))
    assert isinstance(models_of(unknown, [MIB], None), Unavailable)
    assert isinstance(models_of(key.of_library, [MIB], None), Unavailable)


def test_an_unknown_backend_has_no_model() -> None:
    assert isinstance(model_for("all_reduce", "nccl"), Unavailable)


def test_alpha_and_beta_from_messages() -> None:
    parameters = require_type(Parameters, parameters_from([(8, 30e3), (MIB, 30e3 + (MIB - 8) * 2.0)], 2, "pair_uni"))
    assert parameters.alpha_seconds == pytest.approx(15e-6)
    assert parameters.beta_seconds_per_byte == pytest.approx(2e-9)
    assert "pair_uni" in parameters.origin


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1 << 14, 1e5), (MIB, 2e6)], "need"),
        ([(8, 1e5), (1 << 16, 2e6)], "least"),
        ([(8, 1e5), (MIB, 1e5)], "β is unknown"),
    ],
)
def test_messages_that_give_no_parameters(points: list[tuple[int, float]], words: str) -> None:
    unavailable = require_type(Unavailable, parameters_from(points, 1, "ping_pong"))
    assert words in unavailable.reason
