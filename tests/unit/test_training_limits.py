"""Limits of training: what others print with these constants, and the reconstruction within a factor that is stated."""

from dataclasses import fields, replace

import numpy as np
import pytest
from testing.narrow import require

from busbw.errors import UsageError
from busbw_analysis.training.limits import (
    _LEAST,
    _MOST,
    HEADLINES,
    Constants,
    curve,
    limits,
    step_seconds,
    utilisation,
    variants,
    wall,
)

PAPER = Constants()


def test_the_wall_of_the_authors_comes_out() -> None:
    """2e31 FLOP in three months with 13.7 µs a product."""
    assert PAPER.layer_seconds == pytest.approx(4 * 13.7e-6)
    assert wall(PAPER) == pytest.approx(2.03e31, rel=0.005)


def test_latency_of_a_training_at_the_wall_takes_all_the_time() -> None:
    flop = wall(PAPER)
    _, tokens, batch, layers = PAPER.shape(flop)
    assert PAPER.layer_seconds * layers * tokens / batch == pytest.approx(90 * 86400)


def test_the_closed_form_of_the_predecessor() -> None:
    """L and B both as C^(1/6): 120 (T B0/(20 L0 t_L))² (davidsj/ml_par_sim)."""
    both = replace(PAPER, layers=120 * (120 / 1e25) ** (1 / 6), layers_power=1 / 3)
    assert both.shape(1e25)[3] == pytest.approx(120)
    expected = 120 * (90 * 86400 * 4e6 / (20 * 120 * both.layer_seconds)) ** 2
    assert wall(both) == pytest.approx(expected)
    assert wall(replace(both, kernel_seconds=0.0)) == pytest.approx(1.5e31, rel=0.02)


def test_the_example_that_the_predecessor_prints() -> None:
    """README of davidsj/ml_par_sim: 23040 A100, of which 1440 hold an expert and 2/16 of the tokens; a bubble of
    0.0273 s, products of 9.5150 s, gradients of 0.0050 s, 9.5473 s in all, and 0.9966 of the products' rate.
    """
    a100 = Constants(
        flop_per_second=624e12, memory=1555e9, inner=300e9, outer=300e9, passes=1, kernel_seconds=0, reduce_seconds=0
    )
    parameters, batch = 120 * 2 * 5 * 12288**2, 30720 * 2048 * 2 // 16
    layout = [np.array([value], np.float64) for value in (1440, 15, 1, 8, 12, 640)]
    (seconds,) = step_seconds((parameters, 120, batch), layout, replace(a100, widening=5))
    assert seconds == pytest.approx(9.5150 * (1 + 14 / (640 * 8)), rel=1e-4), "products, and the bubble without calls"
    assert seconds == pytest.approx(9.5473, rel=1e-3)
    assert 9.5150 / seconds == pytest.approx(0.9966, abs=0.001)


def test_the_case_of_sevilla_and_others() -> None:
    """Note 96: 700e12 parameters and 6e31 FLOP in nine months with 6e7 tokens a step and 110 µs a layer."""
    case = replace(PAPER, days=270, batch_tokens=6e7, batch_power=0.0, kernel_seconds=110e-6 / 4, reduce_seconds=0.0)
    flop = wall(case)
    assert flop == pytest.approx(6e31, rel=0.05)
    assert case.shape(flop)[0] == pytest.approx(700e12, rel=0.03)


def test_tokens_that_memory_wants() -> None:
    """Note 94: 333, printed as 330."""
    assert replace(PAPER, memory=3e12).least_tokens == pytest.approx(333, abs=0.5)


def test_the_cliffs_are_within_the_stated_factors() -> None:
    """2e28 within 2, 1e30 with another network within 2.5, nothing above about 2e31 within 2; 1e28 with InfiniBand."""
    by_variant = {name: limits(name, machine) for name, machine in variants(PAPER).items()}
    cliffs = {name: require(bounds.cliff) for name, bounds in by_variant.items()}
    described, hops = cliffs["as described"], cliffs.pop("5 µs more for each doubling of nodes")
    assert 1 / 2 < described / HEADLINES["cliff"] < 2
    assert 1 / 2 < require(by_variant["as described"].infeasible) / HEADLINES["wall"] < 2
    assert 1 / 2.5 < cliffs["the same, infinite memory rate"] / HEADLINES["cliff with another network"] < 2.5
    assert 1 / 2 < hops / 1e28 < 2
    assert hops < described == min(cliffs.values()), "a better machine never lowers the cliff"
    assert described < cliffs["the same, infinite memory rate"]


def test_the_best_way_fits_its_own_formula() -> None:
    """The way that is reported, computed again for its step: less than peak, in time, degrees that multiply up."""
    way = utilisation(1e28, PAPER)
    assert way.gpus == way.pp * way.tp * way.dp
    seconds = way.flop / (way.share * way.gpus * PAPER.flop_per_second)
    assert seconds <= 90 * 86400
    assert way.micro_batches >= way.pp
    parameters, _, batch, layers = PAPER.shape(1e28)
    fewest = (way.micro_batches * layers / way.pp + way.pp - 1) * 6 * parameters / (layers * way.tp)
    ideal = fewest * batch / (way.dp * way.micro_batches) / PAPER.flop_per_second
    assert 6 * parameters * batch / (way.gpus * PAPER.flop_per_second * ideal) >= way.share


def test_utilisation_ends_where_nothing_is_done_in_time() -> None:
    points = curve(PAPER)
    assert points[-1].share == 0 < points[-2].share
    assert points[0].share > 0.99


@pytest.mark.parametrize("value", ["least", "most"])
@pytest.mark.parametrize("field", [field.name for field in fields(PAPER)])
@pytest.mark.filterwarnings("error")
def test_constants_at_their_bounds_give_numbers(field: str, value: str) -> None:
    least = 1 if field == "per_host" else _LEAST
    changes = {field: _MOST.get(field, 1e30) if value == "most" else least}
    machine = replace(PAPER, **changes)  # type: ignore[arg-type]
    for flop in (1e25, 1e36):
        assert 0 <= utilisation(flop, machine).share <= 1
    assert wall(machine) > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"inner": 0.0},
        {"days": -1.0},
        {"outer": float("nan")},
        {"memory": float("inf")},
        {"per_host": 1025},
        {"per_host": 10**400},
        {"layers_power": 60.0},
        {"tokens": 1e-300},
    ],
)
def test_constants_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError) as refused:
        replace(PAPER, **changes)  # type: ignore[arg-type]
    assert refused.value.code == "limits"
