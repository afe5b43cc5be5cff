import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import AnalysisError
from busbw.runs.records import Case
from busbw.testing.synthetic import Machine, Piece, World, case, synthetic_run
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.judge import judge
from busbw_analysis.fitting.point_to_point import (
    Contest,
    contest,
    fit_eager_rendezvous,
    fit_hockney,
    fit_loggp,
    fit_max_rate,
    fit_plogp,
)
from busbw_analysis.models.point_to_point import EagerRendezvous, Hockney, LogGP, LogGPS, MaxRate, PLogP
from busbw_analysis.report.tables.layout import Row
from busbw_analysis.report.tables.point_to_point import message_rows, message_text

KIB, MIB = 1 << 10, 1 << 20
SIZES = [1 << power for power in range(3, 23)]
NET = LogGP(latency_seconds=5e-6, overhead_seconds=1e-6, gap_seconds=2e-6, gap_per_byte_seconds=1e-9)


# --- the models ------------------------------------------------------------------------------------------------


def test_loggp_counts_what_one_message_and_what_several_cost() -> None:
    assert NET.seconds(1) == pytest.approx(7e-6)
    assert NET.seconds(1001) == pytest.approx(8e-6)
    assert NET.seconds(1, messages=3) == pytest.approx(7e-6 + 2 * 2e-6)
    assert NET.seconds(1001, messages=2) == pytest.approx(7e-6 + 2e-6 + 2 * 1e-6)
    busy = LogGP(5e-6, 3e-6, 2e-6, 0.0)
    assert busy.seconds(1, messages=2) == pytest.approx(11e-6 + 3e-6)  # the processor is the slower one


@given(size=st.integers(1, 1 << 30), alpha=st.floats(1e-9, 1e-2), beta=st.floats(1e-13, 1e-6))
def test_one_message_costs_the_same_by_hockney_and_loggp(size: int, alpha: float, beta: float) -> None:
    as_loggp = LogGP(alpha + beta, 0.0, 0.0, beta)
    assert as_loggp.seconds(size) == pytest.approx(Hockney(alpha, beta).seconds(size))


def test_a_long_message_waits_for_a_handshake() -> None:
    long = LogGPS(NET, 8 * KIB)
    assert long.handshake_seconds == pytest.approx(2 * 7e-6)
    assert long.seconds(8 * KIB) == NET.seconds(8 * KIB)
    assert long.seconds(8 * KIB + 1) == pytest.approx(NET.seconds(8 * KIB + 1) + 14e-6)


def test_plogp_interpolates_its_table_and_goes_on_above_it() -> None:
    table = PLogP(1e-6, (100, 200, 400), (1e-6, 3e-6, 4e-6), send_overheads_seconds=(1e-7, 2e-7, 2e-7))
    assert [table.seconds(size) for size in (1, 100, 150, 200, 300, 400)] == pytest.approx(
        [2e-6, 2e-6, 3e-6, 4e-6, 4.5e-6, 5e-6]
    )
    assert table.seconds(600) == pytest.approx(1e-6 + 5e-6)
    assert table.seconds(150, messages=3) == pytest.approx(1e-6 + 3 * 2e-6)
    assert table.send_overhead(150) == pytest.approx(1.5e-7)
    with pytest.raises(AnalysisError, match="o_r\\(m\\) was not measured"):
        table.receive_overhead(100)
    falling = PLogP(0.0, (1, 2), (2.0, 1.0))
    assert falling.seconds(1000) == 1.0


def test_pairs_share_what_they_send_through() -> None:
    shared = MaxRate(1e-6, 1e9, 2.5e9)
    assert shared.full_at == 2.5
    assert shared.seconds(1000, pairs=1) == pytest.approx(2e-6)
    assert shared.seconds(1000, pairs=2) == pytest.approx(2e-6)
    assert shared.seconds(1000, pairs=5) == pytest.approx(1e-6 + 2e-6)


@given(pairs=st.integers(1, 64), size=st.integers(0, 1 << 30))
def test_another_pair_never_makes_the_others_faster(pairs: int, size: int) -> None:
    shared = MaxRate(1e-6, 1e9, 2.5e9)
    assert shared.seconds(size, pairs + 1) >= shared.seconds(size, pairs) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Hockney(-1e-6, 0.0), "alpha is -1e-06"),
        (lambda: Hockney(math.nan, 0.0), "not negative"),
        (lambda: LogGP(0, 0, 0, -1), "G is -1"),
        (lambda: Hockney(0, 0).seconds(-1), "-1 B"),
        (lambda: NET.seconds(8, messages=0), "0 messages"),
        (lambda: PLogP(0, (1,), (1.0,)), "at least 2"),
        (lambda: PLogP(0, (2, 2), (1.0, 1.0)), "ascending"),
        (lambda: PLogP(0, (1, 2), (1.0,)), "want one for each"),
        (lambda: PLogP(0, (1, 2), (1.0, -1.0)), "not negative"),
        (lambda: MaxRate(0, 0, 1), "above 0"),
        (lambda: EagerRendezvous(Hockney(0, 0), Hockney(0, 0), 8, 8), "no threshold"),
    ],
)
def test_what_cannot_be_is_refused(make: "object", words: str) -> None:
    assert callable(make)
    with pytest.raises(AnalysisError, match=words):
        make()


# --- fits ------------------------------------------------------------------------------------------------------


def noisy(times: list[float], share: float, seed: int) -> list[float]:
    scatter = np.random.default_rng(seed).normal(0, share, len(times))
    return [float(time * math.exp(one)) for time, one in zip(times, scatter, strict=True)]


def test_a_line_is_recovered() -> None:
    truth = Hockney(2e-6, 1e-10)
    found = fit_hockney(SIZES, [truth.seconds(size) for size in SIZES])
    assert found.alpha_seconds == pytest.approx(2e-6)
    assert found.beta_seconds_per_byte == pytest.approx(1e-10)


STEP = EagerRendezvous(Hockney(1e-6, 2e-10), Hockney(6e-6, 1e-10), 8 * KIB, 16 * KIB)


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_and_its_jump_are_found_in_noise(seed: int) -> None:
    found = fit_eager_rendezvous(SIZES, noisy([STEP.seconds(size) for size in SIZES], 0.03, seed))
    assert (found.last_eager_bytes, found.first_rendezvous_bytes) == (8 * KIB, 16 * KIB)
    assert found.jump_seconds == pytest.approx(STEP.jump_seconds, rel=0.3)
    assert found.eager.alpha_seconds == pytest.approx(1e-6, rel=0.1)
    assert found.rendezvous.beta_seconds_per_byte == pytest.approx(1e-10, rel=0.1)


def test_where_time_falls_there_is_no_handshake() -> None:
    backwards = EagerRendezvous(Hockney(6e-6, 1e-10), Hockney(1e-6, 1e-10), 8 * KIB, 16 * KIB)
    with pytest.raises(AnalysisError, match="no handshake begins there"):
        fit_eager_rendezvous(SIZES, [backwards.seconds(size) for size in SIZES])


def test_a_table_goes_through_its_points() -> None:
    times = [STEP.seconds(size) for size in SIZES]
    table = fit_plogp(SIZES, times)
    assert [table.seconds(size) for size in SIZES] == pytest.approx(times)


def test_rows_of_messages_tell_the_gap_and_single_ones_do_not() -> None:
    single = fit_loggp([(1, size, NET.seconds(size)) for size in SIZES])
    assert single.single_seconds == pytest.approx(7e-6)
    assert single.per_byte_seconds == pytest.approx(1e-9)
    assert single.between_seconds is None
    assert "L and o only as L + 2o" in single.untold
    assert "no g" in single.untold
    rows = fit_loggp([(k, size, NET.seconds(size, k)) for k in (1, 3, 7) for size in SIZES])
    assert rows.between_seconds == pytest.approx(2e-6)
    assert rows.single_seconds == pytest.approx(7e-6)
    assert rows.per_byte_seconds == pytest.approx(1e-9)
    assert "g only as max(g, o)" in rows.untold


def test_the_rate_of_a_pair_and_of_what_pairs_share_are_told_apart() -> None:
    truth = MaxRate(2e-6, 1e9, 3e9)
    points = [(k, size, truth.seconds(size, k)) for k in (1, 2, 4, 8) for size in SIZES]
    found = fit_max_rate(points)
    assert found.at_least is None
    assert found.model.pair_rate == pytest.approx(1e9, rel=0.01)
    assert found.model.shared_rate == pytest.approx(3e9, rel=0.01)
    assert found.model.alpha_seconds == pytest.approx(2e-6, rel=0.01)
    assert found.mean_error < 1e-3


def test_what_was_never_full_has_only_a_least_rate() -> None:
    truth = MaxRate(2e-6, 1e9, 64e9)
    found = fit_max_rate([(k, size, truth.seconds(size, k)) for k in (1, 4) for size in SIZES])
    assert math.isinf(found.model.shared_rate)
    assert found.at_least == pytest.approx(4e9, rel=0.02)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1, 8, 1e-6), (1, 16, 1e-6)], r"pairs at once: \[1\]"),
        ([(1, 8, 1e-6), (2, 8, 1e-6)], "1 sizes"),
        ([(1, 8, 1e-6), (1, 16, 2e-6), (2, 16, math.nan)], "positive and finite"),
        ([(1, 8, 1e-6), (1, 16, 1e-6), (2, 16, 1e-6)], "does not grow with size"),
    ],
)
def test_pairs_that_tell_no_rate_are_refused(points: list[tuple[int, int, float]], words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        fit_max_rate(points)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([(1, 8, 1e-6)], "too few for LogGP"),
        ([(1, 8, 1e-6), (3, 8, 1e-6), (3, 8, 2e-6)], "too few for LogGP"),
        ([(1, 8, 1e-6), (3, 16, 1e-6), (3, 32, -1.0)], "impossible"),
        ([(1, 8, 1e-6), (0, 16, 1e-6), (3, 32, 1.0)], "impossible"),
    ],
)
def test_rows_that_tell_no_loggp_are_refused(points: list[tuple[int, int, float]], words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        fit_loggp(points)


# --- the contest -----------------------------------------------------------------------------------------------


def entrant(found: Contest, name: str) -> float:
    return next(one.median_error for one in found.entrants if one.name == name and one.median_error is not None)


@pytest.mark.parametrize("seed", range(5))
def test_a_line_wins_where_there_is_a_line(seed: int) -> None:
    found = contest(SIZES, noisy([Hockney(2e-6, 1e-10).seconds(size) for size in SIZES], 0.03, seed))
    assert found.winner == "Hockney"
    assert found.held_out == 9
    assert entrant(found, "Hockney") < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_two_lines_win_where_there_is_a_threshold(seed: int) -> None:
    found = contest(SIZES, noisy([STEP.seconds(size) for size in SIZES], 0.02, seed))
    assert found.winner == "eager/rendezvous"
    assert entrant(found, "eager/rendezvous") < 0.5 * entrant(found, "Hockney")
    assert "times as large" in found.words or "not beyond the scatter" in found.words


def test_a_table_wins_where_no_line_holds() -> None:
    """Time by the square root of the size: three lines would not do."""
    sizes = [round(8 * 1.4**step) for step in range(40)]
    found = contest(sizes, [1e-6 * math.sqrt(size) for size in sizes])
    assert found.winner == "PLogP table"
    assert "above 10%" not in found.words


def test_of_a_winner_that_is_far_off_it_is_said() -> None:
    found = contest(SIZES, [1e-6 * (1 if index % 2 else 9) for index in range(len(SIZES))])
    assert "% off (above 10%)" in found.words


def test_a_model_that_cannot_be_had_says_why_and_the_others_go_on() -> None:
    backwards = EagerRendezvous(Hockney(6e-6, 1e-10), Hockney(1e-6, 1e-10), 8 * KIB, 16 * KIB)
    found = contest(SIZES, [backwards.seconds(size) for size in SIZES])
    refused = next(one for one in found.entrants if one.name == "eager/rendezvous")
    assert refused.model is None
    assert "no handshake" in refused.reason
    assert found.winner in {"Hockney", "PLogP table"}


QUICK = [64, 512, 4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 4 * MIB, 16 * MIB]
"""What the quick suite measures of ``ping_pong``."""


def after_a_jump(sizes: list[int]) -> list[float]:
    return [2e-6 + size / 8e9 + (20e-6 if size > 32 * KIB else 0) for size in sizes]


@pytest.mark.parametrize("sizes", [QUICK[:7], QUICK, sorted([*QUICK, 16 * KIB])], ids=len)
def test_few_sizes_do_not_tell_of_a_handshake_and_that_is_said(sizes: list[int]) -> None:
    found = contest(sizes, after_a_jump(sizes))
    said = f"a handshake cannot be told from fewer than 10 sizes, and here are {len(sizes)}"
    handshake = next(one for one in found.entrants if one.name == "eager/rendezvous")
    assert (handshake.model, handshake.reason) == (None, said)
    assert found.winner != "eager/rendezvous"
    assert found.words.endswith(f"; {said}")
    rows = rows_of([case("ping_pong", size, 2) for size in sizes])
    assert said in next(row for row in rows if row.get("wins"))["note"]
    assert f"none: {said}" in message_text(rows)


def test_ten_sizes_tell_of_a_handshake() -> None:
    sizes = sorted([*QUICK, 16 * KIB, 64 * KIB])
    found = contest(sizes, after_a_jump(sizes))
    handshake = next(one for one in found.entrants if one.name == "eager/rendezvous").model
    assert isinstance(handshake, EagerRendezvous)
    assert (handshake.last_eager_bytes, handshake.first_rendezvous_bytes) == (32 * KIB, 64 * KIB)
    assert found.winner == "eager/rendezvous"
    assert "cannot be told" not in found.words


@pytest.mark.parametrize(
    ("sizes", "times", "words"),
    [
        ([8, 16, 32], [1e-6] * 3, "at least 7"),
        ([8, 16, 32], [1e-6] * 2, "do not belong together"),
        ([8, 16, 32, 64, 128, 256, 256], [1e-6] * 7, "each is wanted once"),
        ([0, 16, 32, 64, 128, 256, 512], [1e-6] * 7, "positive"),
        ([8, 16, 32, 64, 128, 256, 512], [1e-6] * 6 + [math.nan], "nan s is impossible"),
        ([8, 16, 32, 64, 128, 256, 512], [1e-6] * 6 + [0.0], "impossible"),
    ],
)
def test_points_that_carry_no_contest_are_refused(sizes: list[int], times: list[float], words: str) -> None:
    with pytest.raises(AnalysisError, match=words):
        contest(sizes, times)


# --- of a run --------------------------------------------------------------------------------------------------


def rows_of(cases: list[Case], by_op: Mapping[str, tuple[Piece, ...]] | None = None, **more: object) -> list[Row]:
    world = World(jitter_seconds=0, launch_noise=0, by_op=by_op or {})
    run = synthetic_run(cases, world, samples=5, **more)  # type: ignore[arg-type] # keywords
    return message_rows(judge(pool((run,))))


def test_a_run_tells_which_model_predicts_its_messages_and_what_stays_unknown() -> None:
    rows = rows_of([case("ping_pong", size, 2) for size in SIZES])
    assert [row["model"] for row in rows] == ["Hockney", "eager/rendezvous", "PLogP table", "LogGP"]
    assert sum(bool(row.get("wins")) for row in rows) == 1
    assert rows[3]["gap_seconds"] is None
    assert "L and o only as L + 2o" in rows[3]["note"]
    text = message_text(rows)
    assert "Hockney *" in text or "PLogP table *" in text or "eager/rendezvous *" in text
    assert "held-out" in text


def test_an_all_to_all_by_spread_tells_the_gap_between_messages() -> None:
    sizes = [size for size in SIZES if size >= 1 << 6]
    messages = [case("ping_pong", size, 4) for size in sizes]
    library = [case("all_to_all", size, 4) for size in sizes]
    assert next(row for row in rows_of(messages + library) if row["model"] == "LogGP")["gap_seconds"] is None
    rows = rows_of([*messages, *(case("all_to_all", size, 4, algorithm="spread") for size in sizes)])
    loggp = next(row for row in rows if row["model"] == "LogGP")
    assert loggp["gap_seconds"] is not None
    assert "g only as max(g, o)" in loggp["note"]
    assert "received as many" in loggp["note"]
    assert "max(g, o)" in message_text(rows)


def test_too_few_sizes_are_refused_in_words() -> None:
    rows = rows_of([case("ping_pong", size, 2) for size in SIZES[:4]])
    assert "at least 7" in rows[0]["refused"]
    assert "none: " in message_text(rows)
    assert rows_of([case("all_reduce", size) for size in SIZES[:4]]) == []
    assert message_text([]) == ""


def test_pairs_that_ran_alone_and_together_tell_what_they_share() -> None:
    sizes = [8, MIB, 8 * MIB]
    both = [case("pair_matrix", size, 4, pairs=pairs) for size in sizes for pairs in ("alone", None)]
    rows = [row for row in rows_of(both) if row["model"] == "max-rate"]
    assert len(rows) == 1
    assert rows[0]["refused"] is None
    assert (rows[0]["shared_rate"] is None) != (rows[0]["shared_rate_at_least"] is None)
    both_messages = rows_of(both, {"pair_matrix": (Piece(40e-6, 1e-10),)})[0]
    assert both_messages["alpha_seconds"] == pytest.approx(20e-6, rel=0.05), "one of two: the answer takes as long"
    assert both_messages["beta_seconds_per_byte"] == pytest.approx(1e-10, rel=0.05)
    together = rows_of([case("pair_matrix", size, 4) for size in sizes])
    assert "needs 2 numbers of pairs" in together[0]["refused"]
    apart = rows_of([case("pair_matrix", size, 4, nodes=2) for size in sizes], machine=Machine(hosts=("a", "b")))
    assert "share a network card" in apart[0]["refused"]
