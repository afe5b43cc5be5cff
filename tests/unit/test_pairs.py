"""What is slow in a pair matrix: known answers, healthy matrices, and matrices that can tell nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from testing.synthetic import Machine, World, case, synthetic_run

from busbw.system.catalog import catalogue
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.groups import groups_of
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.distances import kinds
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.pairs import Outlier, PairMatrix, matrices_of, outliers_in
from busbw_analysis.report.show import show_rows

Floats = npt.NDArray[np.float64]
Slow = Callable[[Floats], None]
"""Adds to the logarithms of the times (launches × n × n) of what is slow."""

MIB = 1 << 20
ONE_HOST = ("n0",) * 8
HOST_EACH = tuple(f"n{rank}" for rank in range(8))
TWO_EACH = tuple(f"n{rank // 2}" for rank in range(8))
HALF = float(np.log(2))


def times_ns(
    hosts: tuple[str, ...], slow: Slow | None = None, *, launches: int = 6, noise: float = 0.03, seed: int = 0
) -> Floats:
    """Launch medians with the noise of real machines: launches apart by 3 %, and a one-sided tail now and then."""
    generator = np.random.default_rng(seed)
    count = len(hosts)
    shape = (launches, count, count)
    near = np.asarray([[host == other for other in hosts] for host in hosts])
    logs = 12 + np.where(near, 0, 1) + generator.normal(0, noise, shape) + generator.normal(0, 0.03, (launches, 1, 1))
    logs += generator.normal(0, 0.02, (count, count))
    logs += np.where(generator.random(shape) < 0.05, generator.exponential(0.3, shape), 0)
    if slow is not None:
        slow(logs)
    logs[:, range(count), range(count)] = np.nan
    return np.asarray(np.exp(logs))


def odd_parts(hosts: tuple[str, ...], slow: Slow | None = None, **how: float) -> tuple[Outlier, ...]:
    launches, seed = int(how.get("launches", 6)), int(how.get("seed", 0))
    made = times_ns(hosts, slow, launches=launches, noise=how.get("noise", 0.03), seed=seed)
    alike = kinds(tuple(tuple(int(host != other) for other in hosts) for host in hosts))
    return outliers_in(tuple(range(len(hosts))), hosts, made, MIB, alike, pairs=True, few=0.25)


def both_ways(*ranks: int) -> Slow:
    def slow(logs: Floats) -> None:
        mine = np.isin(np.arange(logs.shape[1]), ranks)
        logs[:, mine[:, None] != mine] += HALF

    return slow


def sends(*ranks: int) -> Slow:
    def slow(logs: Floats) -> None:
        logs[:, ranks, :] += HALF

    return slow


def receives(*ranks: int) -> Slow:
    def slow(logs: Floats) -> None:
        logs[:, :, ranks] += HALF

    return slow


def pairs(*cells: tuple[int, int]) -> Slow:
    def slow(logs: Floats) -> None:
        for source, to in cells:
            logs[:, source, to] += HALF

    return slow


@pytest.mark.parametrize("count", [4, 5, 8])
@pytest.mark.parametrize(
    ("hosts", "slow", "expected"),
    [
        (ONE_HOST, both_ways(3), [("rank", "rank 3", (3,))]),
        (HOST_EACH, both_ways(3), [("host", "host n3", (3,))]),
        (HOST_EACH, sends(1), [("sender", "host n1", (1,))]),
        (ONE_HOST, sends(1), [("sender", "rank 1", (1,))]),
        (ONE_HOST, receives(0), [("receiver", "rank 0", (0,))]),
        (ONE_HOST, pairs((1, 2)), [("pair", "1 → 2", (1, 2))]),
        (ONE_HOST, pairs((1, 2), (2, 1)), [("pair", "1 ↔ 2", (1, 2))]),
        (ONE_HOST, None, []),
    ],
)
def test_what_is_slow_is_named_and_nothing_else(
    count: int, hosts: tuple[str, ...], slow: Slow | None, expected: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    odd = odd_parts(hosts[:count], slow)
    assert [(part.kind, part.name, tuple(sorted(part.ranks))) for part in odd] == expected
    assert all(part.ratio == pytest.approx(0.5, rel=0.2) for part in odd)


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (both_ways(2, 3), [("host", "host n1", (2, 3))]),
        (both_ways(3), [("rank", "rank 3", (3,))]),
        (sends(6, 7), [("sender", "host n3", (6, 7))]),
        (pairs((0, 4), (0, 5), (1, 4), (1, 5)), [("pair", "host n0 → host n2", (0, 1, 4, 5))]),
        (pairs((0, 4)), [("pair", "0 → 4", (0, 4))]),
        (None, []),
    ],
)
def test_where_ranks_share_hosts_the_host_is_named(
    slow: Slow | None, expected: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    assert [(part.kind, part.name, part.ranks) for part in odd_parts(TWO_EACH, slow)] == expected


@pytest.mark.parametrize("hosts", [ONE_HOST[:4], HOST_EACH, TWO_EACH])
@pytest.mark.parametrize("launches", [1, 4, 6])
@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_healthy_matrices_accuse_nobody(hosts: tuple[str, ...], launches: int, noise: float) -> None:
    wrong = [seed for seed in range(40) if odd_parts(hosts, launches=launches, noise=noise, seed=seed)]
    assert len(wrong) <= 2


def test_one_slow_launch_of_a_pair_is_not_a_slow_pair() -> None:
    def slow(logs: Floats) -> None:
        logs[2, 1, 2] += 2.0

    assert odd_parts(ONE_HOST, slow) == ()


def test_half_of_the_ranks_cannot_all_be_unusual() -> None:
    assert odd_parts(ONE_HOST[:4], sends(0, 1)) == ()


def test_a_sender_that_only_some_of_its_pairs_share_is_no_slow_sender() -> None:
    odd = odd_parts(ONE_HOST, pairs((1, 0), (1, 2), (1, 3), (1, 4)))
    assert {part.kind for part in odd} == {"pair"}


# --- in a run --------------------------------------------------------------------------------------------------


def judged(
    ranks: int = 4, world: World | None = None, *, launches: int = 6, sizes: tuple[int, ...] = (MIB,)
) -> Judgement:
    cases = [case("pair_matrix", size, ranks) for size in sizes]
    return judge(pool((synthetic_run(cases, world, machine=Machine(hosts=("n0",)), launches=launches),)))


def matrix_of(ranks: int, world: World, *, launches: int = 6) -> PairMatrix:
    return judged(ranks, world, launches=launches).matrices[0]


def test_a_slow_pair_is_named_alone() -> None:
    matrix = matrix_of(5, World(slow_pairs=((1, 2),), slow_factor=4.0, launch_noise=0.03))
    assert [(odd.kind, odd.ranks) for odd in matrix.outliers] == [("pair", (1, 2))]
    assert matrix.outliers[0].ratio == pytest.approx(0.25, rel=0.1)
    assert matrix.rate[1, 2] == np.nanmin(matrix.rate)
    assert matrix.unknown is None


def test_a_slow_rank_is_one_finding_and_not_two() -> None:
    judgement = judged(6, World(slow_ranks=(3,)), launches=1)
    assert [(odd.kind, odd.ranks) for odd in judgement.matrices[0].outliers] == [("rank", (3,))]
    assert np.isnan(np.diag(judgement.matrices[0].rate)).all()


@pytest.mark.parametrize(("slow", "stands_out"), [((), False), (((2, 0),), True)])
def test_no_pair_that_is_slow_by_chance_stands_out(slow: tuple[tuple[int, int], ...], *, stands_out: bool) -> None:
    world = World(slow_pairs=slow, slow_factor=5.0, launch_noise=0.02)
    answer = answer_of(judged(world=world, sizes=(8, MIB))).answer
    assert ("No pair of ranks is significantly slow" not in answer) == stands_out


def test_a_pair_that_is_slow_at_every_size_is_one_remark() -> None:
    cases = [case("pair_matrix", size, pairs=how) for size in (MIB, 4 * MIB) for how in ("together", "alone")]
    run = synthetic_run(cases, World(slow_pairs=((2, 1),), sample_noise=0.01), launches=4)
    judgement = judge(pool((run,)))
    findings = [finding.text for finding in judgement.findings if finding.code == "slow-pair"]
    assert len(findings) == 1


@pytest.mark.parametrize(
    ("ranks", "launches", "why"),
    [
        (2, 6, "two ranks form only one pair"),
        (3, 6, "3 ranks are too few to name a slow one"),
        (4, 3, "single pairs are only judged below 25% of the usual rate"),
    ],
)
def test_what_cannot_be_told_is_said_with_its_reason(ranks: int, launches: int, why: str) -> None:
    judgement = judged(ranks, World(slow_pairs=((0, 1),), slow_factor=2.0), launches=launches)
    assert judgement.matrices[0].outliers == ()
    assert why in (judgement.matrices[0].unknown or "")
    assert why.lower() in compose(judgement).html.lower()
    if ranks > 2:  # one pair is no slowest of any
        assert why.lower() in answer_of(judgement).answer.lower(), "and not that no pair is slow"


def test_no_pair_is_judged_where_medians_jump_between_two_modes() -> None:
    world = World(slow_pairs=((1, 2),), slow_factor=4.0, slow_share=0.4, slow_seconds=4e-3)
    matrix = matrix_of(4, world)
    assert matrix.outliers == ()
    assert matrix.unknown is not None
    rank = matrix_of(6, replace(world, slow_pairs=(), slow_ranks=(2,)))
    assert [odd.name for odd in rank.outliers] == ["rank 2"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_output_has_the_same_median_pair(ranks: int) -> None:
    judgement = judged(ranks, World(slow_pairs=((1, 0),), slow_factor=1.5))
    (matrix,) = judgement.matrices
    ordered = np.sort(matrix.time_ns[np.isfinite(matrix.time_ns)])
    middle = float(ordered[(len(ordered) - 1) // 2])
    shown = {row.row: row for row in show_rows(judgement)}
    assert shown["median pair"].time_ns == matrix.time_ns.flat[matrix.middle] == middle
    assert shown["median pair"].group != shown["slowest pair"].group


def test_a_matrix_with_holes_names_nobody() -> None:
    judgement = judged(4)
    cut = judgement.cases[0]
    without_last = cut.groups.rows.take(np.arange(int(cut.groups.first[-1])))
    cut = replace(cut, groups=groups_of(cut.index, cut.case, [(0, without_last)]))
    (matrix,) = matrices_of([cut], judgement.facts, catalogue())
    assert matrix.outliers == ()
    assert matrix.unknown is not None
