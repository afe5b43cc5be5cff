from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.keys import series_key
from testing.narrow import require_type

from busbw.runs.facts import MpiFacts
from busbw.runs.placement import Variable
from busbw.system.environment import VARIABLES
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import TABLES, Calls, Choice, Library, library_of, selected
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.library_algorithms import formula_of
from busbw_analysis.models.select import Prediction, models_of, predict

KIB, MIB = 1 << 10, 1 << 20
TUNED = Library("Open MPI", (5, 0, 8))
CH4 = Library("MPICH", (5, 0, 2), "ch4:ucx ofi")


def called(library: Library, op: str, ranks: int, size: int, hosts: int = 1) -> str:
    choice = require_type(Choice, Calls(library, "float32").choice(op, ranks, hosts, size))
    return choice.name


def why(library: Library, op: str, ranks: int, size: int, hosts: int = 1, mode: str = "isolated") -> str:
    refusal = require_type(Unavailable, Calls(library, "float32", mode).choice(op, ranks, hosts, size))
    return refusal.reason


@pytest.mark.parametrize(
    ("op", "ranks", "size", "name"),
    [
        ("all_reduce", 2, 4, "recursive_doubling"),  # its rule is a ring, of which one element has no two pieces
        ("all_reduce", 60, 124, "recursive_doubling"),
        ("reduce", 2, 4, "linear"),
        ("all_reduce", 3, 4 * KIB, "ring"),
        ("all_reduce", 2, 256 * KIB - 1, "segmented_ring"),
        ("all_reduce", 2, 256 * KIB, "rabenseifner"),
        ("all_reduce", 4, 8 * KIB, "rabenseifner"),
        # By the block of a rank, S/n: 31 ranks take recursive doubling at any size, 32 the ring from 64 KiB a block.
        ("all_gather", 2, MIB, "two_proc"),
        ("all_gather", 31, 31 * MIB, "recursive_doubling"),
        ("all_gather", 32, 32 * 64 * KIB, "ring"),
        ("all_gather", 32, 32 * 64 * KIB - 32, "neighbor"),
        ("all_to_all", 2, 2 * 128 * KIB, "linear_sync"),
        ("all_to_all", 16, 16 * 256, "modified_bruck"),
        ("broadcast", 2, 64 * KIB, "binary_tree"),
        ("broadcast", 4, MIB, "chain"),
        ("reduce_scatter", 4, 4 * KIB, "recursive_halving"),
        ("gather", 8, MIB, "binomial"),
        ("scatter", 2, KIB, "basic_linear"),
        ("barrier", 8, 0, "recursive_doubling"),
    ],
)
def test_open_mpi_takes_what_its_table_says(op: str, ranks: int, size: int, name: str) -> None:
    assert called(TUNED, op, ranks, size) == name


@pytest.mark.parametrize(
    ("op", "ranks", "size", "name"),
    [
        ("all_reduce", 4, 12, "recursive_doubling"),  # 3 elements cannot be scattered over 4 ranks
        ("all_reduce", 4, 16, "reduce_scatter_allgather"),
        ("all_reduce", 7, 16, "reduce_scatter_allgather"),  # over the 4 of its core
        ("all_gather", 4, 512 * KIB - 4, "recursive_doubling"),
        ("all_gather", 6, 80 * KIB - 4, "brucks"),
        ("all_to_all", 8, 8 * 256, "brucks"),
        ("all_to_all", 4, 4 * 32 * KIB + 4, "pairwise"),
        ("broadcast", 8, 12 * KIB + 4, "scatter_recursive_doubling_allgather"),
        ("broadcast", 8, MIB, "scatter_ring_allgather"),
        ("broadcast", 9, 16 * KIB, "scatter_ring_allgather"),
        ("reduce", 4, 2 * KIB, "binomial"),
        ("reduce", 4, 4 * KIB, "reduce_scatter_gather"),
        ("reduce_scatter", 4, 512 * KIB, "pairwise"),
        ("gather", 5, MIB, "binomial"),
        ("barrier", 5, 0, "k_dissemination"),
    ],
)
def test_mpich_takes_what_its_table_says(op: str, ranks: int, size: int, name: str) -> None:
    assert called(CH4, op, ranks, size) == name


def test_mpich_on_one_host_shares_memory_unless_threads_or_a_variable_keep_it_from_that() -> None:
    shared = replace(CH4, shared=True)
    assert "shared" in why(shared, "all_reduce", 2, MIB)
    assert "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM=mpir" in why(shared, "broadcast", 2, MIB)
    assert called(shared, "all_gather", 2, MIB) == "ring"
    assert called(shared, "broadcast", 8, MIB) == "scatter_ring_allgather"
    assert called(replace(shared, by_messages=frozenset({"all_reduce"})), "all_reduce", 2, MIB)
    assert called(shared, "all_reduce", 2, MIB, hosts=2) == "reduce_scatter_allgather"
    assert "levels" in why(shared, "all_reduce", 4, MIB, hosts=2)


def test_what_a_run_recorded_becomes_a_library() -> None:
    facts = MpiFacts(library="MPICH Version: 5.0.2", threads="funneled", device="ch4:ofi")
    variables = {Variable("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM"): "mpir", Variable("FI_PROVIDER"): "tcp"}
    library = library_of(facts, variables)
    assert library_of(MpiFacts(library="Open MPI v5.0.8"), {}) == replace(TUNED, shared=True)
    assert library == Library("MPICH", (5, 0, 2), "ch4:ofi", shared=True, by_messages=frozenset({"broadcast"}))
    assert library_of(msgspec.structs.replace(facts, threads="multiple"), {}) == Library("MPICH", (5, 0, 2), "ch4:ofi")
    assert isinstance(library_of(None, {}), Unavailable)
    assert isinstance(library_of(MpiFacts(), {}), Unavailable)
    require_type(Unavailable, library_of(MpiFacts(library="Intel(R) MPI Library 2021.9"), {}))


@pytest.mark.parametrize(
    ("variable", "counts"),
    [
        ("OMPI_MCA_coll_tuned_use_dynamic_rules", True),
        ("OMPI_MCA_coll", True),
        ("OMPI_MCA_btl", False),
        ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", True),
        ("MPIR_CVAR_BCAST_COMPOSITION", True),
        ("MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE", True),
        ("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM", True),
        ("MPIR_CVAR_CH4_NETMOD", False),
    ],
)
def test_a_variable_that_overrides_the_table_forbids_a_prediction(variable: str, counts: bool) -> None:  # noqa: FBT001
    """And it has to be among those that a run records, or nobody would know of it."""
    assert variable in VARIABLES
    library = require_type(Library, library_of(MpiFacts(library="Open MPI v5.0.8"), {Variable(variable): "1"}))
    assert (library.overrides == (variable,)) == counts
    if counts:
        assert variable in why(library, "all_reduce", 2, MIB)


def test_versions_and_calls_of_which_nothing_was_read_are_refused() -> None:
    assert "4.1" in why(replace(TUNED, version=(6, 1, 0)), "all_reduce", 2, MIB)
    assert "4.1" in why(replace(TUNED, version=(3, 1, 6)), "all_reduce", 2, MIB)
    assert "ch4" in why(replace(CH4, version=(4, 2, 1)), "all_reduce", 2, MIB)
    assert "ch4" in why(replace(CH4, device="ch3:nemesis"), "all_reduce", 2, MIB)
    assert "(han)" in why(TUNED, "all_reduce", 4, MIB, hosts=2)
    assert called(TUNED, "all_reduce", 4, MIB, hosts=4)
    assert called(replace(TUNED, version=(4, 1, 6)), "all_reduce", 4, MIB, hosts=2)
    assert "persistent" in why(TUNED, "all_reduce", 2, MIB, mode="persistent")
    assert "formula" in why(TUNED, "broadcast", 24, MIB)  # scatter_allgather, for no power of two


def test_every_name_in_a_table_is_spelled_as_where_its_formula_is_sought() -> None:
    """A name without any formula is one that is known to have none: no slip of the pen hides there."""
    nowhere = {
        ("broadcast", "split_binary_tree"),
        ("reduce", "in-order_binary"),
        ("all_reduce", "nonoverlapping"),  # two collectives, one after the other
        ("reduce_scatter", "basic_linear"),
    }
    for op, rows in TABLES["Open MPI"].items():
        names = {name for line in rows.values() for name in line.split()[::2]}
        unknown = {(op, name) for name in names if not any(formula_of("Open MPI", op, name, n) for n in (2, 4, 6))}
        assert unknown <= nowhere, unknown
    for op in TABLES["MPICH"]:
        for n, size in product((2, 4, 8, 16), (0, 8, 64 * KIB, 16 * MIB)):
            assert formula_of("MPICH", op, selected("MPICH", op, n, size, size // 4), n)


def test_the_bounds_of_every_line_ascend_and_so_do_the_ranks() -> None:
    units = {"K": KIB, "M": MIB}
    for rows in (rows for table in TABLES.values() for rows in table.values()):
        *below, last = (ranks for ranks in rows if ranks != "power-of-two")
        assert last == "more"
        assert below == [str(ranks) for ranks in sorted(set(map(int, below)))]
        for line in rows.values():
            words = line.split()
            bounds = [int(word[:-1]) * units[word[-1]] if word[-1] in units else int(word) for word in words[1::2]]
            assert len(words) % 2 == 1
            assert bounds == sorted(set(bounds))


@given(
    library=st.sampled_from([TUNED, CH4]),
    op=st.sampled_from(sorted(TABLES["Open MPI"])),
    ranks=st.integers(2, 5000),
    size=st.integers(0, 1 << 32),
)
def test_every_call_has_an_algorithm_with_a_formula_or_a_reason(
    library: Library, op: str, ranks: int, size: int
) -> None:
    choice = Calls(library, "float32").choice(op, ranks, 1, size)
    if isinstance(choice, Unavailable):
        assert choice.reason
        return
    row = choice.row
    assert row.op == op
    assert row.rounds(ranks, 1, 1) >= 1
    assert row.sent(ranks, 1, 1) >= 0
    assert row.added(ranks, 1, 1) >= 0
    assert choice.model.source.startswith("default choice of")


def test_two_collectives_in_a_row_cost_the_sum_of_both() -> None:
    assert formula_of("MPICH", "broadcast", "scatter_recursive_doubling_allgather", 6) is None
    chosen = require_type(Choice, Calls(TUNED, "float32").choice("all_reduce", 200, 1, 64 * KIB))
    reduced, sent = (
        require_type(Choice, Calls(TUNED, "float32").choice(op, 200, 1, 64 * KIB)) for op in ("reduce", "broadcast")
    )
    assert (reduced.row.algorithm, sent.row.algorithm) == ("binomial-tree", "4-nomial-tree-at-once")
    assert chosen.row.rounds(200, 1, 1) == reduced.row.rounds(200, 1, 1) + sent.row.rounds(200, 1, 1) == 8 + 4
    block = require_type(Choice, Calls(TUNED, "float32").choice("reduce_scatter", 2, 1, MIB))
    assert block.name == "basic_linear"
    assert block.row.algorithm == "reduce, then scatter"


KEY = series_key("mpi", in_place=True)
LINK = Parameters(1e-6, 1e-9, None, "the test")


def predicted(
    key: SeriesKey, sizes: list[int], library: Library | Unavailable | None
) -> tuple[Prediction, ...] | Unavailable:
    return predict(key, 1.5, sizes, models_of(key, sizes, library), LINK)


def test_a_curve_over_mpi_is_predicted_by_what_the_library_takes_at_each_size() -> None:
    predictions = predicted(KEY, [KIB, MIB], TUNED)
    assert not isinstance(predictions, Unavailable)
    assert predictions[0].algorithm == "recursive doubling (recursive_doubling of Open MPI 5.0.8)"
    assert predictions[0].time_ns == pytest.approx(2 * (1e3 + KIB))
    assert predictions[1].time_ns == pytest.approx(4e3 + 1.5 * MIB)
    assert "coll_tuned_decision_fixed.c" in predictions[0].source


def test_without_a_library_there_is_no_model_of_a_collective_and_still_one_of_a_message() -> None:
    require_type(Unavailable, predicted(KEY, [KIB], None))
    assert predicted(KEY, [KIB], Unavailable("why", "because")) == Unavailable("why", "because")
    message = predicted(msgspec.structs.replace(KEY, op="send_recv"), [KIB], Unavailable("why", "because"))
    assert not isinstance(message, Unavailable)
    assert message[0].time_ns == pytest.approx(1e3 + KIB)


def test_how_much_of_the_tables_has_no_formula_is_what_the_docs_say() -> None:
    """Of every op, 2 to 64 ranks of one host and six sizes."""
    without: Counter[str] = Counter()
    asked = 0
    for library, op, ranks, size in product(
        (TUNED, CH4), TABLES["Open MPI"], range(2, 65), (64, KIB, 16 * KIB, 256 * KIB, MIB, 16 * MIB)
    ):
        choice = Calls(library, "float32").choice(op, ranks, 1, size)
        asked += 1
        if isinstance(choice, Unavailable):
            without[choice.reason.split(" of ")[0]] += 1
    assert without == {
        "Open MPI 5.0.8 selects scatter_allgather for broadcast": 30,
        "Open MPI 5.0.8 selects recursive_doubling for reduce_scatter": 3,
    }
    docs = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"{without.total()} of {asked:,} calls" in " ".join(docs.split())
