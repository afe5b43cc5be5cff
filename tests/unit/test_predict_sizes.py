"""What answers each size of a prediction, and that it is the same whatever other sizes are asked for beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from zlib import crc32

import pytest
from testing.synthetic import Machine, World, case, synthetic_run

from busbw.errors import AnalysisError
from busbw.runs.store import StoredRun
from busbw_analysis.fitting.design import PARAMETERS, amounts
from busbw_analysis.models.select import candidates
from busbw_analysis.predict import prediction
from busbw_analysis.predict.prediction import Prediction, query
from busbw_analysis.predict.scaling_models import BY_MESSAGES, JOINTLY
from busbw_analysis.predict.selection import MeasuredCurves, measured_curves, read_groups
from busbw_analysis.report.tables import predict as predict_tables
from busbw_analysis.report.to_terminal import render

MIB = 1 << 20
SMALL, LARGE = 64, 64 * MIB
SIZES = tuple(64 << step for step in range(0, 20, 2))
COST = {"alpha": 60e-6, "beta": 1e-9, "per_call": 20e-6, "gamma": 1e-10, "inner_alpha": 5e-6, "inner_beta": 2e-10}
"""Each rank has a card of its own: none of it is shared."""

CARDS = "undecided whether the ranks of a host share a card"
TOO_FEW = "two numbers of ranks in one regime"


@dataclass(frozen=True, slots=True)
class ByHand(World):
    """All ops take on ``hosts`` hosts what ``algorithm`` costs; messages ``slower`` times as long."""

    hosts: int = 2
    algorithm: str | None = "ring"
    slower: float = 1.0

    def seconds(self, op: str, size_bytes: int, ranks: Sequence[int], apart: int | None = None) -> float:
        del apart
        return truth(op, self.algorithm, len(ranks), self.hosts, size_bytes, self.slower)


def truth(op: str, algorithm: str | None, ranks: int, hosts: int, size_bytes: int, slower: float = 1.0) -> float:
    row = amounts(candidates(op, "gloo", algorithm)[0], ranks, hosts, size_bytes)
    late = {"alpha", "inner_alpha", "per_call"}
    return sum(
        part * COST.get(name, 0.0) * (slower if name in late else 1) for name, part in zip(PARAMETERS, row, strict=True)
    )


def run(
    hosts: int, each: int, op: str, algorithm: str | None = "ring", *, slower: float = 1.0, cores: int = 8
) -> StoredRun:
    ranks = hosts * each
    return synthetic_run(
        [case(op, size, ranks, nodes=hosts, algorithm=algorithm) for size in SIZES],
        ByHand(sample_noise=0.003, hosts=hosts, algorithm=algorithm, slower=slower),
        machine=Machine(hosts=tuple(f"node{number}" for number in range(hosts)), usable_cores=cores),
        launches=2,
        samples=5,
        seed=crc32(f"{hosts} {each} {op} {algorithm}".encode()),
    )


@cache
def rings() -> tuple[StoredRun, ...]:
    """Rings alone, which do not tell a card for each rank from one for all of a host."""
    ops = ("all_reduce", "all_gather")
    return tuple(run(2, each, op) for each in (2, 4, 8) for op in ops)


def known(runs: Iterable[StoredRun]) -> MeasuredCurves:
    return measured_curves(read_groups(list(runs)), "all_reduce", "multi-ring")


def answer(evidence: MeasuredCurves, *sizes: int) -> Prediction:
    return prediction.answer(evidence, query(evidence, 16, sizes, ranks_per_host=8))


def test_a_size_has_the_same_answer_whatever_is_asked_for_beside_it() -> None:
    """The ranks that have a core each do not tell of large sizes; those that share cores do, 5 times as slowly."""
    shared = [
        run(hosts, each, op, algorithm, slower=5)
        for hosts, each in ((2, 16), (4, 16), (2, 32))
        for op, algorithm in (("all_reduce", "ring"), ("all_gather", "ring"), ("all_reduce", "hierarchical"))
    ]
    evidence = known([*rings(), *shared])
    small, large = answer(evidence, SMALL, LARGE).forecasts
    assert small.seconds.value == pytest.approx(truth("all_reduce", "multi-ring", 16, 2, SMALL), rel=0.05)
    for one in (small, large):
        (alone,) = answer(evidence, one.size_bytes).forecasts
        assert (alone.seconds, alone.parameters) == (one.seconds, one.parameters)
    assert not small.extrapolated
    regime = "several ranks on several hosts, more ranks than cores, not for ranks with a core each"
    assert large.extrapolated[1:] == (f"regime: the parameters are for {regime}",)
    (note,) = (note for note in answer(evidence, SMALL, LARGE).notes if "each rank has its own card" in note)
    assert note.startswith("64 MiB: ")


def test_messages_answer_the_sizes_that_the_joint_fit_does_not_tell() -> None:
    evidence = known([*rings(), run(2, 2, "ping_pong", None)])
    found = answer(evidence, SMALL, LARGE // 2, LARGE)
    assert [one.basis for one in found.forecasts] == [JOINTLY, BY_MESSAGES, BY_MESSAGES]
    assert not found.unanswered
    for one in found.forecasts:
        (alone,) = answer(evidence, one.size_bytes).forecasts
        assert (alone.seconds, alone.basis) == (one.seconds, one.basis)
    (why,) = (note for note in found.notes if CARDS in note)
    assert why.startswith("no joint fit (32 MiB to 64 MiB): ")
    assert "64 MiB would take" in why
    assert any(note.startswith("not used (64 B): messages between two ranks") for note in found.notes)
    assert any(
        note.startswith("no joint fit: ") and "all_reduce by multi-ring" in note
        for note in answer(evidence, LARGE).notes
    )


def test_what_was_measured_is_called_seen_for_the_sizes_whose_answer_has_seen_it() -> None:
    found = answer(known([*rings(), run(2, 2, "ping_pong", None)]), SMALL, LARGE)
    beside = tuple(replace(one, measured=found.data.of_op[0].points[0]) for one in found.forecasts)
    said = render([predict_tables.predict_table(replace(found, forecasts=beside))])
    assert "# measured (64 B): used for the prediction" in said
    assert "# measured (64 MiB): not used for the prediction" in said


@pytest.mark.parametrize("beside", [(), (("all_reduce", "ring"), ("all_gather", "ring"))])
def test_laws_that_do_not_tell_are_the_reason_and_not_the_ranks_that_another_regime_lacks(
    beside: Sequence[tuple[str, str]],
) -> None:
    evidence = known([*rings(), *(run(2, 1, op, algorithm) for op, algorithm in beside)])
    with pytest.raises(AnalysisError, match=CARDS) as caught:
        answer(evidence, LARGE)
    assert TOO_FEW not in str(caught.value)
    assert "add ping_pong to the plan" in str(caught.value)
    found = answer(evidence, SMALL, LARGE)
    assert [one.basis for one in found.forecasts] == [JOINTLY]
    assert list(found.unanswered) == [LARGE]
    assert CARDS in found.unanswered[LARGE]
    assert "add ping_pong to the plan" in found.unanswered[LARGE]
    with_messages = answer(known([*rings(), *(run(2, 1, *one) for one in beside), run(2, 2, "ping_pong", None)]), LARGE)
    assert with_messages.forecasts[0].basis == BY_MESSAGES
    assert any(CARDS in note for note in with_messages.notes)
    assert not any(TOO_FEW in note for note in with_messages.notes)


def test_too_few_numbers_of_ranks_are_the_reason_where_no_regime_has_two() -> None:
    evidence = known(
        [run(2, 4, "all_reduce"), run(2, 4, "all_gather"), run(2, 1, "all_reduce"), run(2, 1, "all_gather")]
    )
    with pytest.raises(AnalysisError, match=TOO_FEW) as caught:
        answer(evidence, LARGE)
    assert "one rank on each host: 2; several ranks on several hosts: 8" in str(caught.value)
