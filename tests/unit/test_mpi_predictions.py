"""Predictions over MPI, whose libraries choose algorithms by tables of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from refused import refused
from testing.narrow import require
from testing.synthetic import Machine, World, case, synthetic_run

from busbw.errors import AnalysisError, UnlikeRuns
from busbw.ops import OPS
from busbw.runs.records import JSON
from busbw.runs.store import StoredRun
from busbw_analysis.data.load import pool
from busbw_analysis.models.choices import Calls, Choice, Library
from busbw_analysis.models.select import candidates
from busbw_analysis.predict.selection import measured_curves, query, read_results
from busbw_analysis.predict.ways import Prediction, Ways
from busbw_analysis.report import predict as predict_tables
from busbw_analysis.report.to_terminal import render

SIZES = tuple(64 * 4**step for step in range(9))
OPEN_MPI, MPICH = "Open MPI v5.0.8", "MPICH Version: 5.0.2"
TUNED, CH4 = Library("Open MPI", (5, 0, 8)), Library("MPICH", (5, 0, 2), "ch4:ucx ofi")
ALPHA, BETA = 5e-6, 1e-9
MIB = 1 << 20


def truth(op: str, ranks: int, size_bytes: int, library: Library | None, algorithm: str | None = None) -> float:
    """Seconds of one call where the library does what its table says, or always the same."""
    calls = None if library is None else Calls(library, "float32")
    model, where = candidates(op, "mpi", algorithm, calls)[0], (ranks, 1, size_bytes)
    return model.rounds(*where) * ALPHA + model.sent(*where) * size_bytes * BETA


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
    assert len(read_results([alone, crowded])) == 2
    assert len(read_results([crowded, alone, run(4, cores=2)])) == 3


def test_a_level_of_threads_that_somebody_chose_still_keeps_runs_apart() -> None:
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'funneled' in run synthetic-2 and 'multiple'"):
        read_results([run(2, threads="funneled"), run(3)])
    # The first is of another kind; the two that share cores are not alike.
    with pytest.raises(UnlikeRuns, match=r"'mpi.threads' is 'multiple' in run synthetic-3 and 'funneled'"):
        read_results([run(2, threads="funneled", cores=2), run(3, cores=2), run(4, threads="funneled", cores=2)])
    with pytest.raises(UnlikeRuns, match=r"may not be pooled: 'mpi.threads'"):
        pool((run(2, threads="funneled"), run(2, seed=9)))


def answer(runs: Sequence[StoredRun], op: str, ranks: int, *sizes: int) -> Prediction:
    known = measured_curves(read_results(runs), op)
    return Ways(known).predict(query(known, ranks, sizes))


def test_messages_and_the_table_answer_for_numbers_of_ranks_that_were_not_measured() -> None:
    """And each size is answered by what the library takes for it, with its name."""
    runs = [run(2, Obeying(sample_noise=0.01, library=CH4), ("broadcast", "ping_pong"))]
    prediction = answer(runs, "broadcast", 8, 1024, 64 * 1024, MIB)
    assert [forecast.algorithm for forecast in prediction.forecasts] == [
        "binomial-tree (binomial of MPICH 5.0.2)",
        "scatter-recursive-doubling (scatter_recursive_doubling_allgather of MPICH 5.0.2)",
        "scatter-ring (scatter_ring_allgather of MPICH 5.0.2)",
    ]
    for forecast in prediction.forecasts:
        assert forecast.seconds.value == pytest.approx(truth("broadcast", 8, forecast.size_bytes, CH4), rel=0.1)
    assert any(note.startswith("default choice of MPICH 5.0.2: the selection") for note in prediction.notes)


def test_collectives_in_shared_memory_are_not_answered_by_a_table_of_messages() -> None:
    shared = run(2, Obeying(library=CH4), ("all_reduce", "ping_pong"), threads="funneled")
    with refused(AnalysisError, "shared-memory"):
        answer([shared], "all_reduce", 4, MIB)
    # What it runs there is known to be no ring, so a ring is not carried from it.
    four = run(4, Obeying(library=CH4), ("all_reduce", "ping_pong"), threads="funneled")
    named = measured_curves(read_results([four]), "all_reduce", "ring")
    assert Ways(named).predict(query(named, 8, [MIB])).forecasts[0].basis == "messages"


def test_numbers_of_ranks_that_share_cores_are_answered_as_those_that_did() -> None:
    """MPICH sends messages where ranks share cores, and none where they have a core each: two ways on one machine."""
    ops = ("all_reduce", "ping_pong")
    world = Obeying(sample_noise=0.01, library=CH4)
    runs = [run(2, world, ops, threads="funneled", cores=2), run(3, world, ops, cores=2)]
    (forecast,) = answer(runs, "all_reduce", 4, MIB).forecasts
    assert forecast.algorithm == "rabenseifner (reduce_scatter_allgather of MPICH 5.0.2)"
    calls = measured_curves(read_results(runs), "all_reduce").calls
    libraries = [call.library for call in (calls((2, 1)), calls((3, 1)), calls((64, 1))) if call is not None]
    assert [isinstance(library, Library) and library.shared for library in libraries] == [True, False, False]


@pytest.mark.parametrize("shapes", [(2,), (4, 8, 16, 32)])
def test_a_size_without_a_formula_leaves_the_others_their_answers(shapes: Sequence[int]) -> None:
    """By messages, and carried from the curve of 16 ranks or of 32."""
    world = Obeying(sample_noise=0.01, library=TUNED)
    runs = [run(ranks, world, ("broadcast", "ping_pong"), library=OPEN_MPI) for ranks in shapes]
    prediction = answer(runs, "broadcast", 20, 1024, MIB, 4 * MIB)
    assert [forecast.size_bytes for forecast in prediction.forecasts] == [1024]
    assert list(prediction.unanswered) == [MIB, 4 * MIB]
    assert {why.code for why in prediction.unanswered.values()} == {"formula-not-known"}
    rows = render([predict_tables.predict_table(prediction)]).splitlines()
    assert [row.split()[0] for row in rows if row.endswith("no answer")] == ["1", "4"]
    unanswered = predict_tables.document(prediction)["unanswered"]
    assert [(row["size_bytes"], row["code"]) for row in unanswered] == [
        (size, "formula-not-known") for size in (MIB, 4 * MIB)
    ]
    with refused(AnalysisError, "formula-not-known"):
        answer(runs, "broadcast", 20, MIB, 4 * MIB)


def test_a_curve_is_carried_at_the_sizes_at_which_its_library_ran_the_same_algorithm() -> None:
    """MPICH broadcasts 1 MiB to 8 ranks by another algorithm than to 6: to 12 only the curve of 8 is carried."""
    world = Obeying(sample_noise=0.01, library=CH4)
    runs = [run(ranks, world, ("broadcast",)) for ranks in (6, 8)]
    carried = [answer(runs, "broadcast", 12, size).forecasts[0] for size in (1024, MIB)]
    ran = {ranks: Calls(CH4, "float32").choice("broadcast", ranks, 1, MIB) for ranks in (6, 8, 12)}
    assert all(isinstance(choice, Choice) for choice in ran.values())
    for forecast in carried:
        there, here = (
            Calls(CH4, "float32").choice("broadcast", n, 1, forecast.size_bytes)
            for n in (require(forecast.carried_from)[0], 12)
        )
        assert isinstance(there, Choice)
        assert isinstance(here, Choice)
        assert there.model.algorithm == here.model.algorithm == forecast.algorithm
    assert any(note.startswith("default choice of MPICH 5.0.2") for note in answer(runs, "broadcast", 12, MIB).notes)
