"""Ways to exchange gradients: how they are written, what they come to in one process, what is gained and lost."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.narrow import require

from busbw.backends.pytorch.training import step
from busbw.backends.pytorch.training.descent import LEARNING_RATE, Expected, LeastSquares, expected_result
from busbw.backends.pytorch.training.descent import METHODS as CLASSES
from busbw.errors import UsageError
from busbw.launch.run_session import refuse_impossible
from busbw.ops.training import EVERY_EXCHANGE, EXCHANGE, METHODS, STEPS, Workload, exchange_in_words, parse_exchange
from busbw.runs import cases
from busbw.runs.plan import Plan, Sweep, TrainingKeys, measured_plan
from busbw.runs.records import Case, Sent
from busbw_analysis.data.summary import DataCheck
from busbw_analysis.report.document import Figure, Paragraph
from busbw_analysis.training.gradient_exchanges import exchanged, exchanges
from busbw_analysis.training.steps import Trained

WIDTH, RANKS = 16, 3
PROBLEM = LeastSquares(WIDTH, RANKS, RANKS)


def expectation(name: str, number: int = 0, steps: int = STEPS, problem: LeastSquares = PROBLEM) -> Expected:
    return require(expected_result(problem, name, number, RANKS, steps, ()))


def expanded(**sweep: Any) -> tuple[Case, ...]:  # noqa: ANN401 - keys of a sweep
    plan = measured_plan({"sweep": [{"ops": [EXCHANGE], **sweep}]})
    return cases.expand(plan, sweep.pop("ranks", 4), 1).cases


# --- how they are written --------------------------------------------------------------------------------------------


def test_every_method_has_a_class_and_is_a_case_of_its_own() -> None:
    assert list(CLASSES) == list(METHODS)
    assert [setting.settings.exchange for setting in expanded() if isinstance(setting.settings, Workload)] == list(
        EVERY_EXCHANGE
    )


@pytest.mark.parametrize("name", METHODS)
def test_what_is_written_is_read(name: str) -> None:
    method = METHODS[name]
    assert parse_exchange(name) == (name, method.number or 0)
    for number in method.allowed:
        assert parse_exchange(exchange_in_words(name, number)) == (name, number)


@pytest.mark.parametrize(
    "given_text", ["", "exakt", "exact:1", "local_sgd:5", "local_sgd:1", "server:49", "int8:", "int8:1", "server:-1"]
)
def test_what_is_no_exchange_is_refused(given_text: str) -> None:
    with pytest.raises(UsageError):
        parse_exchange(given_text)
    with pytest.raises((UsageError, msgspec.ValidationError)):
        expanded(exchanges=["exact", given_text])


def test_a_list_of_no_exchange_is_refused() -> None:
    with pytest.raises((UsageError, msgspec.ValidationError)):
        expanded(exchanges=[])


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({}, None),
        ({"models": ["MLP 1024"]}, "least squares"),
        ({"ops": ["train_ddp"], "models": ["least squares"]}, EXCHANGE),
        ({"micro_batches": [2]}, "micro-batches"),
        ({"exchanges": ["int8"], "scale": 1 / 32}, None),
        ({"modes": ["pipelined"]}, "isolated"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(sweep: dict[str, Any], words: str | None) -> None:
    reason = step.refuse(expanded(**sweep)[0])
    assert (reason is None) if words is None else (reason is not None and words in reason)


def test_one_rank_has_nobody_to_exchange_with() -> None:
    plan = Plan(sweep=(Sweep(ops=(EXCHANGE,)),))
    assert step.refuse(cases.expand(plan, 1, 1).cases[0]) is not None


def test_nobody_is_received_from_who_has_no_name_over_nccl() -> None:
    (case,) = expanded(exchanges=["server"])
    assert step.refuse(case) is None
    assert "NCCL" in (step.refuse(msgspec.structs.replace(case, backend="nccl")) or "")


# --- the problem -----------------------------------------------------------------------------------------------------


def loss(weights: torch.Tensor) -> float:
    rest = torch.cat(PROBLEM.given).double() @ weights.double() - torch.cat(PROBLEM.wanted).double()
    return float(rest.square().sum() / (2 * PROBLEM.samples))


@given(st.integers(0, 1 << 30))
@settings(max_examples=10, deadline=None)
def test_the_gap_is_the_loss_above_the_least_one(seed: int) -> None:
    weights = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))
    assert PROBLEM.gap(weights) == pytest.approx(loss(weights) - loss(PROBLEM._optimum), rel=1e-5)
    assert PROBLEM.gap(weights) > PROBLEM.gap(PROBLEM._optimum) == 0.0


@pytest.mark.parametrize("shares", [2, 3])
def test_the_mean_of_all_shares_is_the_gradient_of_the_loss(shares: int) -> None:
    problem = LeastSquares(WIDTH, RANKS, shares)
    weights = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    a, b = problem.grams(torch.float64)
    mean = (a @ weights - b).mean(0)
    whole = problem._eigenvalues[:, None] * (weights - problem._optimum)
    assert torch.allclose(mean, whole, atol=1e-4 * float(whole.abs().max()))


# --- what rules come to ----------------------------------------------------------------------------------------------


def powers(exponent: int) -> torch.Tensor:
    return (1 - LEARNING_RATE * PROBLEM._eigenvalues)[:, None] ** exponent


def near(weights: torch.Tensor, wanted: torch.Tensor, share: float = 1e-4) -> bool:
    return float((weights - wanted).abs().max()) <= share * float(PROBLEM._optimum.abs().max())


def test_gradient_descent_is_that_of_the_formula() -> None:
    descent = expectation("exact", steps=20)
    wanted = PROBLEM._optimum * (1 - powers(20))
    assert all(near(weights, wanted) for weights in descent.weights)
    start = PROBLEM._eigenvalues[:, None] * PROBLEM._optimum.square() / 2
    formula = [float((start * powers(2 * number)).sum()) for number in range(21)]
    assert descent.gaps == pytest.approx(formula, rel=1e-3)
    assert descent.off < 1e-4 * float(PROBLEM._optimum.abs().max())


def test_ranks_on_their_own_are_apart_until_they_average() -> None:
    alone, together = expectation("local_sgd", 4, steps=3), expectation("local_sgd", 4, steps=4)
    for rank, (own, (a, b)) in enumerate(
        zip(alone.weights, zip(*PROBLEM.grams(torch.float64), strict=True), strict=True)
    ):
        weights = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        for _ in range(3):
            weights = weights - LEARNING_RATE * (a @ weights - b)
        assert near(own, weights), rank
    assert not near(alone.weights[0], alone.weights[1])
    assert all(bool((averaged == together.weights[0]).all()) for averaged in together.weights)


def test_what_is_compressed_comes_near_to_what_is_exact() -> None:
    exact, compressed = expectation("exact"), expectation("int8")
    assert near(compressed.weights[0], exact.weights[0], 2e-2)
    assert not near(compressed.weights[0], exact.weights[0], 1e-6)
    assert compressed.off > exact.off


WORKERS = LeastSquares(WIDTH, RANKS, RANKS - 1)


def served(bound: int, order: Sequence[int], steps: int) -> Expected | None:
    return expected_result(WORKERS, "server", bound, RANKS, steps, order)


def test_a_server_that_waits_for_all_is_exact() -> None:
    exact = expected_result(WORKERS, "exact", 0, RANKS - 1, 8, ())
    server = require(served(0, [1, 2, 2, 1] * 4, 8))
    assert exact is not None
    assert len(server.weights) == RANKS
    assert server.gaps == pytest.approx(exact.gaps, rel=1e-4)


@pytest.mark.parametrize(
    ("bound", "order", "allowed"),
    [
        (0, [1, 2, 1, 2], True),
        (0, [1, 1, 2, 2], False),
        (1, [1, 1, 2, 2], True),
        (1, [1, 1, 1, 2, 2, 2], False),
        (2, [1, 1, 1, 2, 2, 2], True),
        (9, [1, 1, 2, 2, 2], False),
        (9, [1, 1, 3, 3], False),
        (9, [1, 2, 1], False),
    ],
)
def test_an_order_that_the_bound_forbids_is_none(bound: int, order: list[int], allowed: bool) -> None:  # noqa: FBT001
    assert (served(bound, order, len(order) // 2) is not None) == allowed


def test_what_the_first_worker_brings_makes_the_second_stale() -> None:
    """Both have seen weights of 0; with a bound of 1 the first goes on from its own step."""
    (first, second), rate = zip(*WORKERS.grams(torch.float32), strict=True), LEARNING_RATE / 2
    once = rate * first[1]
    wanted = once - rate * (first[0] @ once - first[1])
    wanted = wanted + rate * second[1]
    seen = once - rate * (first[0] @ once - first[1]) + rate * second[1]
    wanted = wanted - rate * (second[0] @ seen - second[1])
    server = require(served(1, [1, 1, 2, 2], 2))
    assert near(server.weights[0], wanted)


# --- what is gained and lost -----------------------------------------------------------------------------------------


def trained(exchange: str, time_ns: float, gaps: Sequence[float], spread: float = 0.0) -> Trained:
    return Trained(
        op=EXCHANGE,
        case=0,
        workload=Workload(
            model="least squares", scale=0.25, dp=4, tp=1, pp=1, micro_batches=1, interleave=1, exchange=exchange
        ),
        ranks=4,
        time_ns=time_ns,
        low_ns=time_ns * (1 - spread),
        high_ns=time_ns * (1 + spread),
        step_ns=time_ns,
        compute_ns=time_ns / 2,
        communication_ns=time_ns / 2,
        sent=(Sent(op="all_reduce", group=4, size_bytes=1000, calls=4, ranks=(0, 1, 2, 3)),),
        parameters=10,
        flop=6000,
        tokens=20,
        dropped=0,
        product_rate=None,
        check=DataCheck("verified"),
        steps=4,
        gaps=tuple(gaps),
    )


EXACT = trained("exact", 100.0, [10, 1, 0.1, 0.01, 0.001])
LOCAL = trained("local_sgd:4", 50.0, [10, 5, 1, 0.2, 0.1])
NEVER = trained("int8", 110.0, [10, 9, 8, 7, 7], spread=0.2)


def test_gain_and_loss_are_those_of_steps_and_seconds() -> None:
    ((exact, local, never),) = exchanged([LOCAL, EXACT, NEVER])
    assert (exact.needed, exact.needed_ns, exact.gained, exact.lost, exact.slower) == (2, 200.0, 1.0, 1.0, 1.0)
    assert (local.needed, local.needed_ns, local.gained, local.lost, local.slower) == (4, 200.0, 2.0, 2.0, 1.0)
    assert (never.needed, never.needed_ns, never.lost, never.slower) == (None, None, None, None)
    assert exact.budget_ns == 200.0, "the fastest took all its steps"
    assert [method.gap for method in (exact, local, never)] == [1e-4, 0.01, 0.7]
    assert [method.gap_in_budget for method in (exact, local, never)] == [0.01, 0.01, 0.9]
    assert (local.certain, never.certain) == (True, False)
    assert LOCAL.sent_bytes == 1500.0, "of a step"


def test_the_report_has_a_row_and_a_line_for_each() -> None:
    section = exchanges(exchanged((EXACT, LOCAL, NEVER)))
    assert section is not None
    _, sentence, figure = section.blocks
    assert isinstance(sentence, Paragraph)
    assert isinstance(figure, Figure)
    assert [row[0].text for row in figure.table.rows] == ["exact", "local_sgd:4", "int8"]
    assert len(figure.pictures) == 2
    assert len(figure.legend) == 3
    assert exchanges(exchanged((EXACT,))) is None


def test_what_has_no_exact_one_beside_it_is_not_compared() -> None:
    waits = replace(EXACT, workload=msgspec.structs.replace(EXACT.workload, wait_ns=1))
    assert exchanged([LOCAL, NEVER]) == ()
    assert exchanged([EXACT]) == ()
    assert exchanged([LOCAL, waits, NEVER]) == ()


def test_what_no_host_can_hold_is_refused_before_anything_starts() -> None:
    plan = Plan(sweep=(Sweep(ops=(EXCHANGE,), training=TrainingKeys(exchanges=("exact",), scale=1.0)),))
    refuse_impossible(plan, 2, on_one_host=True)
    with pytest.raises(UsageError, match="scale"):
        refuse_impossible(plan, 512, on_one_host=True)
