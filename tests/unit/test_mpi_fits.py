"""Joint fits and predictions over MPI, whose libraries choose algorithms by tables of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from testing.synthetic import Machine, World, case, synthetic_run

from busbw.errors import AnalysisError, UnlikeRuns
from busbw.ops import OPS
from busbw.runs.records import JSON
from busbw.runs.store import StoredRun
from busbw_analysis.data.load import pool
from busbw_analysis.fitting.design import PARAMETERS, Parameter, amounts
from busbw_analysis.fitting.joint import JointFit
from busbw_analysis.models.choices import Calls, Library
from busbw_analysis.models.select import candidates
from busbw_analysis.predict import joint_fits_of, prediction
from busbw_analysis.predict.prediction import Prediction, query
from busbw_analysis.predict.selection import measured_curves, read_groups
from busbw_analysis.report.tables import predict as predict_tables
from busbw_analysis.report.to_terminal import render

SIZES = tuple(64 * 4**step for step in range(9))
OPEN_MPI, MPICH = "Open MPI v5.0.8", "MPICH Version: 5.0.2"
TUNED, CH4 = Library("Open MPI", (5, 0, 8)), Library("MPICH", (5, 0, 2), "ch4:ucx ofi")
ALPHA, BETA, GAMMA, CALL = 5e-6, 1e-9, 4e-10, 2e-6
TRUE: dict[Parameter, float] = {"alpha": ALPHA, "beta": BETA, "gamma": GAMMA, "per_call": CALL}
MIB = 1 << 20


def truth(op: str, ranks: int, size_bytes: int, library: Library | None, algorithm: str | None = None) -> float:
    """Seconds of one call where the library does what its table says, or always the same."""
    calls = None if library is None else Calls(library, "float32")
    term = candidates(op, "mpi", algorithm, calls)[0]
    taken = dict(zip(PARAMETERS, amounts(term, ranks, 1, size_bytes), strict=True))
    return sum(taken[name] * value for name, value in TRUE.items())


@dataclass(frozen=True, slots=True)
class Obeying(World):
    """A library that does what its table says (None: ``always`` the same algorithm)."""

    library: Library | None = None
    always: str | None = None

    def seconds(self, op: str, size_bytes: int, ranks: Sequence[int], apart: int | None = None) -> float:
        del apart
        single = OPS[op].members != "all"
        return truth(op, len(ranks), size_bytes, None if single else self.library, None if single else self.always)


def run(
    ranks: int,
    world: World | None = None,
    ops: Sequence[str] = ("all_reduce",),
    *,
    library: str = MPICH,
    threads: str = "multiple",
    cores: int = 64,
    seed: int | None = None,
) -> StoredRun:
    facts: dict[str, JSON] = {"mpi": {"library": library, "threads": threads, "device": "ch4:ucx ofi"}}
    cases = [case(op, size, ranks, backend="mpi") for op in ops for size in SIZES]
    machine = Machine(usable_cores=cores, facts=facts)
    return synthetic_run(cases, world or World(), machine=machine, samples=7, seed=seed or ranks)


def test_the_level_of_threads_that_follows_from_shared_cores_keeps_no_runs_apart() -> None:
    """Two ranks on two cores ask for ``funneled``, three for ``multiple``, and nobody chose that."""
    alone, crowded = run(2, threads="funneled", cores=2), run(3, cores=2)
    assert len(read_groups([alone, crowded])) == 2
    assert len(read_groups([crowded, alone, run(4, cores=2)])) == 3


def test_a_level_of_threads_that_somebody_chose_still_keeps_runs_apart() -> None:
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'funneled' in run synthetic-2 and 'multiple'"):
        read_groups([run(2, threads="funneled"), run(3)])
    # The first is of another kind; the two that share cores are not alike.
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'multiple' in run synthetic-3 and 'funneled'"):
        read_groups([run(2, threads="funneled", cores=2), run(3, cores=2), run(4, threads="funneled", cores=2)])
    with pytest.raises(UnlikeRuns, match=r"may not be pooled: 'mpi.threads'"):
        pool((run(2, threads="funneled"), run(2, seed=9)))


def joint_of(runs: Sequence[StoredRun]) -> JointFit:
    (one,) = joint_fits_of(read_groups(runs))
    assert one.joint is not None, one.refused
    return one.joint


def answer(runs: Sequence[StoredRun], op: str, ranks: int, *sizes: int) -> Prediction:
    known = measured_curves(read_groups(runs), op)
    return prediction.answer(known, query(known, ranks, sizes))


@pytest.mark.parametrize(
    ("text", "library", "shapes"),
    [(OPEN_MPI, TUNED, (4, 8, 16, 32)), (MPICH, CH4, (4, 6, 8, 16))],
)
def test_what_a_library_runs_by_its_table_is_found_and_parameters_are_those_of_all_its_algorithms(
    text: str, library: Library, shapes: Sequence[int]
) -> None:
    world = Obeying(sample_noise=0.01, library=library)
    joint = joint_of([run(ranks, world, ("broadcast",), library=text) for ranks in shapes])
    assert joint.algorithms == {"broadcast": f"choice of {library.called}"}
    assert not joint.ties
    assert joint.parameters["alpha"].value == pytest.approx(ALPHA, rel=0.1)
    assert joint.parameters["beta"].value == pytest.approx(BETA, rel=0.1)
    assert any(note.startswith(f"default choice of {library.called}: ") for note in joint.notes)


def test_a_library_that_does_not_do_what_its_table_says_is_found_out() -> None:
    world = Obeying(sample_noise=0.01, always="ring")
    joint = joint_of([run(ranks, world, ("all_reduce",), library=OPEN_MPI) for ranks in (2, 4, 8, 16)])
    rivals = {rival.algorithm: rival for rival in joint.candidates["all_reduce"]}
    assert joint.algorithms["all_reduce"] == "ring"
    assert rivals["choice of Open MPI 5.0.8"].error > 0.2
    assert "choice of Open MPI 5.0.8" not in joint.ties.get("all_reduce", ())


def test_too_few_numbers_of_ranks_leave_what_the_library_is_known_to_run_and_no_ring() -> None:
    joint = joint_of([run(ranks, Obeying(sample_noise=0.01, library=CH4)) for ranks in (4, 8)])
    assert joint.algorithms == {"all_reduce": "choice of MPICH 5.0.2"}
    assert any("all_reduce (choice of MPICH 5.0.2) is undecided" in note for note in joint.notes)


def test_an_algorithm_without_a_formula_is_said_and_takes_the_table_out_of_the_race() -> None:
    world = Obeying(sample_noise=0.01, always="binomial-tree")
    joint = joint_of([run(ranks, world, ("broadcast",), library=OPEN_MPI) for ranks in (8, 16, 24)])
    assert joint.algorithms["broadcast"] == "binomial-tree"
    assert all(not rival.algorithm.startswith("choice") for rival in joint.candidates["broadcast"])
    said = "the algorithm of mpi for broadcast is unknown: Open MPI 5.0.8 selects scatter_allgather for broadcast of"
    assert any(note.startswith(said) for note in joint.notes)


def test_messages_and_the_table_answer_for_numbers_of_ranks_that_were_not_measured() -> None:
    """And each size is answered by what the library takes for it, with its name."""
    runs = [run(2, Obeying(sample_noise=0.01, library=CH4), ("broadcast", "ping_pong"))]
    found = answer(runs, "broadcast", 8, 1024, 64 * 1024, MIB)
    assert [one.algorithm for one in found.forecasts] == [
        "binomial-tree (binomial of MPICH 5.0.2)",
        "scatter-recursive-doubling (scatter_recursive_doubling_allgather of MPICH 5.0.2)",
        "scatter-ring (scatter_ring_allgather of MPICH 5.0.2)",
    ]
    term = candidates("broadcast", "mpi", None, Calls(CH4, "float32"))[0]
    for one in found.forecasts:
        rounds, sent, *_ = amounts(term, 8, 1, one.size_bytes)
        # What a call takes by itself is in the time of every message.
        assert one.seconds.value == pytest.approx(rounds * (ALPHA + CALL) + sent * BETA, rel=0.1)
    assert any(note.startswith("default choice of MPICH 5.0.2: the selection") for note in found.notes)


def test_collectives_in_shared_memory_are_not_answered_by_a_table_of_messages() -> None:
    shared = run(2, Obeying(library=CH4), ("all_reduce", "ping_pong"), threads="funneled")
    with pytest.raises(
        AnalysisError, match=r"the algorithm of mpi for all_reduce is unknown: MPICH 5.0.2 runs all_reduce"
    ):
        answer([shared], "all_reduce", 4, MIB)
    (one,) = joint_fits_of(read_groups([run(2, Obeying(library=CH4), threads="funneled")]))
    assert one.joint is not None
    assert any("within a host in shared memory" in note for note in one.joint.notes)


def test_numbers_of_ranks_that_share_cores_are_answered_as_those_that_did() -> None:
    """MPICH sends messages where ranks share cores, and none where they have a core each: two ways on one machine."""
    ops = ("all_reduce", "ping_pong")
    world = Obeying(sample_noise=0.01, library=CH4)
    runs = [run(2, world, ops, threads="funneled", cores=2), run(3, world, ops, cores=2)]
    (found,) = answer(runs, "all_reduce", 4, MIB).forecasts
    assert found.algorithm == "rabenseifner (reduce_scatter_allgather of MPICH 5.0.2)"
    calls = measured_curves(read_groups(runs), "all_reduce").calls
    told = [one.library for one in (calls(2, 1), calls(3, 1), calls(64, 1)) if one is not None]
    assert [isinstance(library, Library) and library.shared for library in told] == [True, False, False]


def test_where_the_table_names_what_has_no_formula_its_equal_answers_and_the_reason_is_said() -> None:
    world = Obeying(sample_noise=0.01, library=TUNED)
    runs = [run(ranks, world, ("broadcast",), library=OPEN_MPI) for ranks in (2, 3, 4)]
    (found,) = answer(runs, "broadcast", 24, MIB).forecasts
    assert found.algorithm is not None
    assert any(
        said.startswith(
            "algorithm: choice of Open MPI 5.0.8 is unknown there (Open MPI 5.0.8 selects scatter_allgather"
        )
        and f"used instead: {found.algorithm}" in said
        for said in found.extrapolated
    )
    assert not found.held_out.passed


@pytest.mark.parametrize("shapes", [(2,), (4, 8, 16, 32)])
def test_a_size_without_a_formula_leaves_the_others_their_answers(shapes: Sequence[int]) -> None:
    """By messages, and by a joint fit that is sure of the table."""
    world = Obeying(sample_noise=0.01, library=TUNED)
    runs = [run(ranks, world, ("broadcast", "ping_pong"), library=OPEN_MPI) for ranks in shapes]
    found = answer(runs, "broadcast", 20, 1024, MIB, 4 * MIB)
    assert [one.size_bytes for one in found.forecasts] == [1024]
    assert list(found.unanswered) == [MIB, 4 * MIB]
    assert all("selects scatter_allgather for broadcast of" in why for why in found.unanswered.values())
    rows = render([predict_tables.predict_table(found)]).splitlines()
    assert [row.split()[0] for row in rows if row.endswith("no answer")] == ["1", "4"]
    assert any(row.startswith("# no answer (1 MiB): broadcast by choice of Open MPI 5.0.8 is unknown") for row in rows)
    unanswered = predict_tables.document(found)["unanswered"]
    assert [one["size_bytes"] for one in unanswered] == [MIB, 4 * MIB]
    with pytest.raises(AnalysisError, match="selects scatter_allgather for broadcast of"):
        answer(runs, "broadcast", 20, MIB, 4 * MIB)


def test_notes_are_those_of_the_algorithm_that_answers() -> None:
    world = Obeying(sample_noise=0.01, library=TUNED)
    runs = [run(ranks, world, ("broadcast",), library=OPEN_MPI) for ranks in (2, 3, 4)]
    table = "default choice of Open MPI 5.0.8"
    assert not any(note.startswith(table) for note in answer(runs, "broadcast", 24, MIB).notes)
    assert [note.startswith(table) for note in answer(runs, "broadcast", 6, 1024).notes].count(True) == 1
