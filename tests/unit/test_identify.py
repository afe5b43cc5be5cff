"""What a design can separate is known from its columns alone: the known cases of rings, and many more by trial."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw_analysis.fitting.design import PARAMETERS, Floats, Parameter, amounts
from busbw_analysis.fitting.identify import Mixed, Remedy, columns_of, determined_by, identify, needs
from busbw_analysis.models.select import candidates

TRUTH = np.asarray([20e-6, 1e-10, 0.0, 30e-6, 5e-11, 0.0, 0.0, 0.0])
SIZES = [8 << step for step in range(0, 24, 2)]
WANTED: tuple[Parameter, ...] = ("alpha", "beta", "per_call", "gamma")

Measured = Sequence[tuple[str, str, int]]


def design(measured: Measured, sizes: Sequence[int] = SIZES) -> tuple[Floats, Floats]:
    """Rows and times of ops by algorithms on numbers of ranks."""
    rows = np.asarray(
        [
            amounts(candidates(op, "nobody", algorithm)[0], ranks, 1, size)
            for op, algorithm, ranks in measured
            for size in sizes
        ]
    )
    return rows, rows @ TRUTH


def ring(op: str, *ranks: int) -> list[tuple[str, str, int]]:
    return [(op, "ring", count) for count in ranks]


@pytest.mark.parametrize("ranks", [(4,), (2, 4, 8), (2, 3, 5, 7)])
def test_beta_and_gamma_of_a_ring_all_reduce_are_never_told_apart(ranks: tuple[int, ...]) -> None:
    found = identify(*design(ring("all_reduce", *ranks)), ("alpha", "beta", "gamma"))
    assert found.separable == ("alpha",)
    (mixed,) = found.mixed
    assert mixed.parameters == ("beta", "gamma")
    assert mixed.weights == pytest.approx((1, 0.5))
    assert mixed.sum == "β + 0.5 γ"
    assert "do not separate β and γ" in mixed.reason


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter"])
def test_an_all_gather_beside_it_separates_them_on_one_number_of_ranks(op: str) -> None:
    found = identify(*design([*ring(op, 4), *ring("all_gather", 4)]), ("alpha", "beta", "gamma"))
    assert found.separable == ("alpha", "beta", "gamma")
    assert found.mixed == ()
    assert found.unknown == ()


def test_the_constant_of_a_call_needs_other_rounds() -> None:
    alone = identify(*design(ring("all_gather", 4)), WANTED)
    assert alone.separable == ("beta",)
    assert alone.mixed[0].sum == "α + 0.333 c0"
    other_op = identify(*design([*ring("all_gather", 4), *ring("all_reduce", 4)]), WANTED)
    other_ranks = identify(*design(ring("all_gather", 2, 4, 8)), WANTED)
    assert {"alpha", "per_call"} <= set(other_op.separable)
    assert {"alpha", "per_call"} <= set(other_ranks.separable)


def test_equal_rounds_of_two_ops_leave_the_constant_where_it_is() -> None:
    found = identify(*design([*ring("reduce_scatter", 4), *ring("all_gather", 4)]), WANTED)
    assert set(found.separable) == {"beta", "gamma"}
    assert [mixed.sum for mixed in found.mixed] == ["α + 0.333 c0"]


def test_what_no_row_has_a_part_in_is_not_known_at_all() -> None:
    found = identify(*design(ring("all_gather", 2, 4)), WANTED)
    (mixed,) = found.mixed
    assert mixed == Mixed(("gamma",), ())
    assert mixed.sum == "γ"
    assert "these data do not depend on γ" in mixed.reason


def test_what_nearly_depends_is_refused_as_well() -> None:
    rows, times = design(ring("all_gather", 4))
    rows[:, PARAMETERS.index("per_call")] *= 1 + 1e-3 * np.sin(np.arange(len(rows)))
    found = identify(rows, times, WANTED)
    assert "per_call" not in found.separable
    assert "alpha" not in found.separable


@given(
    st.lists(
        st.sampled_from([*ring("all_reduce", 2, 3, 4, 8), *ring("all_gather", 2, 3, 4), *ring("reduce_scatter", 2, 4)]),
        min_size=1,
        max_size=5,
        unique=True,
    )
)
def test_separable_parameters_come_out_of_exact_times_and_sums_do_as_well(measured: Measured) -> None:
    rows, times = design(measured)
    found = identify(rows, times, WANTED)
    kept = columns_of(found.kept)
    solution = np.zeros(len(PARAMETERS))
    solution[kept] = np.linalg.lstsq(rows[:, kept] / times[:, None], np.ones(len(times)), rcond=None)[0]
    for name in found.separable:
        place = PARAMETERS.index(name)
        assert solution[place] == pytest.approx(TRUTH[place], rel=1e-6)
    for mixed in found.mixed:
        if mixed.weights:
            known = sum(
                weight * TRUTH[PARAMETERS.index(name)]
                for name, weight in zip(mixed.parameters, mixed.weights, strict=True)
            )
            assert solution[PARAMETERS.index(mixed.parameters[0])] == pytest.approx(known, rel=1e-6)
    assert set(found.separable) | {name for mixed in found.mixed for name in mixed.parameters} == set(WANTED)


def test_a_prediction_that_leans_on_what_is_unknown_is_seen() -> None:
    found = identify(*design(ring("all_reduce", 4)), WANTED)
    (gather,) = candidates("all_gather", "nobody", "ring")
    (reduce,) = candidates("all_reduce", "nobody", "ring")
    assert determined_by(np.asarray(amounts(reduce, 4, 1, 12345)), found.unknown)
    assert not determined_by(np.asarray(amounts(reduce, 8, 1, 8)), found.unknown)
    assert not determined_by(np.asarray(amounts(gather, 4, 1, 1 << 20)), found.unknown)


def remedy(words: str, measured: Measured) -> Remedy:
    return Remedy(words, *design(measured))


def test_only_measurements_that_would_help_are_named() -> None:
    rows, times = design(ring("all_reduce", 4))
    alpha, beta = identify(rows, times, WANTED).mixed
    assert (alpha.parameters, beta.parameters) == (("alpha", "per_call"), ("beta", "gamma"))
    remedies = [remedy("all_gather", ring("all_gather", 4)), remedy("other ranks", ring("all_reduce", 8))]
    assert needs(rows, times, WANTED, beta, remedies) == "add all_gather"
    assert needs(rows, times, WANTED, alpha, remedies) == "add all_gather or other ranks"
    useless = [remedy("more of the same", ring("all_reduce", 4))]
    assert needs(rows, times, WANTED, beta, useless).startswith("add ops with a different ratio")


def test_two_measurements_are_named_where_neither_alone_would_do() -> None:
    # Without the constant in the sums: γ needs something that adds, β something that does not.
    rows, times = design([("barrier", "dissemination", 4)], [0])
    wanted: tuple[Parameter, ...] = ("alpha", "beta", "gamma")
    beta = next(mixed for mixed in identify(rows, times, wanted).mixed if mixed.parameters == ("beta",))
    gamma = Mixed(("beta", "gamma"), (1.0, 0.5))
    remedies = [remedy("all_reduce", ring("all_reduce", 4)), remedy("all_gather", ring("all_gather", 4))]
    assert needs(rows, times, wanted, beta, remedies) == "add all_gather"
    assert needs(rows, times, wanted, gamma, remedies) == "add all_reduce and all_gather"
