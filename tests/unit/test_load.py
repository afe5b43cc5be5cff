from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest
from testing.narrow import require
from testing.synthetic import Machine, SyntheticEnd, World, case, synthetic_run, with_blocks, write_synthetic

from busbw.errors import AnalysisError, BusbwError, UnlikeRuns, UsageError
from busbw.runs.facts import MpiFacts
from busbw.runs.records import JSON, Check, Failed, FailureCause, Measurement
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.compose import compose
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.likeness import CHECKED
from busbw_analysis.data.load import load, pool
from busbw_analysis.data.names import rank_list


def small(seed: int = 0, machine: Machine | None = None) -> StoredRun:
    return synthetic_run([case("all_reduce", 64)], machine=machine, launches=2, samples=5, seed=seed)


def test_every_block_of_every_group_is_there_with_its_run_launch_and_case(tmp_path: Path) -> None:
    cases = [case("all_reduce", 64), case("ping_pong", 1024)]
    first, second = (synthetic_run(cases, launches=2, blocks=3, samples=5, seed=seed) for seed in (1, 2))
    dataset = load([write_synthetic(tmp_path, first), write_synthetic(tmp_path, second)])
    rows = list(dataset.samples.rows())
    assert len(rows) == 2 * 2 * 3 * 2
    assert {(run, row.launch, case) for run, case, row in rows} == set(product(range(2), repeat=3))
    assert (0, 1, first.measurements[-1]) in rows
    assert dataset.summaries[1].case.op == "ping_pong"


def test_samples_without_a_shared_clock_have_no_skew() -> None:
    dataset = pool((synthetic_run([case("barrier", 0)], World(shared_clock=False), launches=1, samples=3),))
    group = require(dataset.summaries[0].only)
    assert (group.skew_share, group.span_ns) == (None, None)


def ranks(*cores: str, **variables: str) -> list[JSON]:
    return [{"rank": rank, "cores": text, "variables": variables} for rank, text in enumerate(cores)]


@pytest.mark.parametrize(
    ("machine", "key", "value"),
    [
        (Machine(name="other"), "'machine'", "'other'"),
        (Machine(usable_cores=2), "'cpu.physical_cores'", "'2'"),
        (Machine(facts={"kernel": "9.9"}), "'kernel'", "'9.9'"),
        (Machine(facts={"torch": "2.4.0"}), "'torch'", "'2.4.0'"),
        (Machine(facts={"variables": {"GLOO_SOCKET_IFNAME": "eth1"}}), "GLOO_SOCKET_IFNAME is not set", "'eth1'"),
        (Machine(facts={"variables": {"UCX_TLS": "tcp"}}), "UCX_TLS is not set", "'tcp'"),
        (
            Machine(facts={"ranks": ranks("0", "1", "2", "3")}),
            "'binding of ranks to cores'",
            "each rank has 1 core of its own",
        ),
        (
            Machine(facts={"ranks": ranks(*["0-63"] * 4, UCX_TLS="rc")}),
            "UCX_TLS of rank 0 of its host is not set",
            "'rc'",
        ),
        (
            Machine(facts={"variables": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}),
            "PYTORCH_CUDA_ALLOC_CONF is not set",
            "'expandable_segments:True'",
        ),
        (Machine(hosts=("node0", "node1")), "'hosts'", "2"),
        (Machine(facts={"memory": {"total_bytes": 32 << 30}}), "'memory'", "32 GiB"),
    ],
)
def test_unlike_runs_are_refused_naming_the_key_and_both_values(machine: Machine, key: str, value: str) -> None:
    first, second = small(1), small(2, machine)
    with pytest.raises(UnlikeRuns) as refused:
        pool((first, second))
    message = str(refused.value)
    assert key in message
    assert value in message
    assert first.run.id in message
    assert second.run.id in message
    assert any(key in notice for notice in pool((first, second), force=True).notices)


@pytest.mark.parametrize("counts", [(4, 8), (8, 4)])
def test_runs_of_other_sizes_that_are_pooled_by_force_are_judged(counts: tuple[int, int]) -> None:
    """Where a rank is, is known of all ranks, whichever run comes first."""
    machine = Machine(hosts=("node0", "node1"))
    runs = []
    for ranks in counts:
        of_pairs = [case("pair_matrix", size, ranks, nodes=2, pairs="together") for size in (8, 1 << 20)]
        others = [case(op, 1 << 22, ranks, nodes=2) for op in ("all_reduce", "memory_copy", "ping_pong")]
        runs.append(synthetic_run(of_pairs + others, machine=machine, launches=2, samples=5, seed=ranks))
    judgement = judge(pool(runs, force=True))
    assert judgement.facts.hosts == max((run.run.hosts for run in runs), key=len)
    assert {len(matrix.ranks) for matrix in judgement.matrices} == {4, 8}
    assert compose(judgement).json


def test_every_checked_key_is_equal_for_a_run_and_its_twin_and_none_is_missing() -> None:
    run = small().run
    assert {key: value_of(run) for key, value_of in CHECKED} == {
        key: value_of(small(7).run) for key, value_of in CHECKED
    }
    missing = [key for key, value_of in CHECKED if value_of(run) is None]
    no_libraries = ["mpi.library", "mpi.threads", "mpi.transport", "nccl.version"]
    assert sorted(missing) == ["drivers", "firmware", *no_libraries, "storage.device", "storage.type", "virtualization"]


@pytest.mark.parametrize(("cause", "launches"), [("rank_lost", 3), ("wrong_data", 0), ("backend", 0)])
def test_a_launch_that_lost_a_rank_hides_no_other_launch(cause: FailureCause, launches: int) -> None:
    planned = case("all_reduce", 64)
    stored = synthetic_run([planned], launches=4, samples=5)
    kept = [row for row in stored.rows if not (isinstance(row, Measurement) and row.launch == 3)]
    lost = Failed(case=planned, launch=3, block=0, error="rank 1 was killed by SIGKILL", cause=cause)
    dataset = pool((replace(stored, rows=(*kept, lost)),))
    (summary,) = dataset.summaries
    assert sum(group.launches for group in summary.groups) == launches
    assert summary.state == ("measured" if launches else "failed")
    assert bool(summary.lost) == bool(launches)
    said = [finding for finding in judge(dataset).findings if finding.code == "launch-lost"]
    assert [lost.error in finding.text for finding in said] == [True] * bool(launches)
    (whole,) = pool((replace(stored, rows=(*stored.rows, lost)),)).summaries
    assert whole.lost == (), "what was measured again is not lost"


def test_a_case_that_was_never_whole_has_failed_with_its_reason() -> None:
    planned = case("all_reduce", 64)
    stored = synthetic_run([planned], launches=1, samples=5)
    lost = Failed(case=planned, launch=0, block=0, error="rank 1 was killed by SIGKILL", cause="rank_lost")
    rows = tuple(row for row in stored.rows if not isinstance(row, Measurement))
    (row,) = pool((replace(stored, rows=(*rows, lost)),)).summaries
    assert row.state == "failed"
    assert lost.error in row.reasons[0]


def test_an_empty_fact_proves_no_difference() -> None:
    """Runs from before MPI's transport was asked for have one that says nothing."""

    def with_transport(number: int, transport: dict[str, str]) -> StoredRun:
        stored = small(number)
        there = {
            host: msgspec.structs.replace(facts, mpi=MpiFacts(transport=transport))
            for host, facts in stored.run.environments.items()
        }
        return replace(stored, run=msgspec.structs.replace(stored.run, environments=there))

    assert pool((with_transport(1, {}), with_transport(2, {"netmod": "ucx"}))).runs
    with pytest.raises(UnlikeRuns, match=r"mpi\.transport"):
        pool((with_transport(1, {"netmod": "ofi"}), with_transport(2, {"netmod": "ucx"})))


def test_cases_that_another_loop_has_timed_are_not_pooled() -> None:
    first, second = small(1), small(2)
    other = with_blocks(second, lambda block: msgspec.structs.replace(block, loop="compiled"))
    said = f"'loop' is 'python' in run {first.run.id} and 'compiled' in run {second.run.id}, for "
    with pytest.raises(UnlikeRuns, match=said):
        pool((first, other))
    assert any(said in notice for notice in pool((first, other), force=True).notices)
    assert pool((other, replace(other, run=small(3).run))).notices == ()


def test_a_fact_that_one_run_lacks_is_a_notice_and_no_refusal() -> None:
    dataset = pool((small(1), small(2, Machine(facts={"kernel": None}))))
    assert any("'kernel'" in notice and "synthetic-2" in notice for notice in dataset.notices)


JOB = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_RESTART_COUNT": "1", "PMIX_NAMESPACE": "slurm.pmix.77.2"}


@pytest.mark.parametrize(
    "facts",
    [
        {"variables": JOB, "ranks": ranks(*["0-63"] * 4, SLURM_PROCID="0", PMIX_RANK="0")},
        {"memory": {"total_bytes": (1 << 36) - 8192}},  # two boots of one machine were seen to differ by 8 KiB
    ],
)
def test_what_names_a_job_or_a_boot_does_not_matter(facts: dict[str, JSON]) -> None:
    assert pool((small(1), small(2, Machine(facts=facts)))).notices == ()


def test_every_variable_that_differs_is_named_with_both_values() -> None:
    first, second = (
        small(seed, Machine(facts={"variables": {"NCCL_ALGO": algorithm, "NCCL_PROTO": "LL", **more}}))
        for seed, algorithm, more in ((1, "Ring", {}), (2, "Tree", {"UCX_TLS": "tcp"}))
    )
    with pytest.raises(UnlikeRuns) as refused:
        pool((first, second))
    message = str(refused.value)
    assert [name for name in ("NCCL_ALGO", "'Ring'", "'Tree'", "UCX_TLS", "'tcp'") if name not in message] == []
    assert "NCCL_PROTO" not in message


@pytest.mark.parametrize(("runs", "error"), [((), AnalysisError), ((small(3), small(3)), UsageError)])
def test_no_run_and_the_same_run_twice_are_refused(runs: tuple[StoredRun, ...], error: type[BusbwError]) -> None:
    with pytest.raises(error):
        pool(runs)


def test_every_state_of_a_case_appears() -> None:
    cases = [case("all_reduce", size) for size in (64, 128, 256, 512)]
    end = SyntheticEnd(failed={cases[1]: "rank 2 died"}, skipped={cases[2]: "no such dtype"}, reached=3)
    dataset = pool((synthetic_run(cases, launches=1, samples=3, end=end),))
    assert [row.state for row in dataset.summaries] == ["measured", "failed", "skipped", "not reached"]
    assert dataset.summaries[1].reasons == ("rank 2 died",)


def test_wrong_data_in_a_measurement_is_a_failure() -> None:
    wrong = Check(state="wrong", wrong_elements=3)
    dataset = pool((with_blocks(small(), lambda block: msgspec.structs.replace(block, check=wrong)),))
    assert dataset.summaries[0].state == "failed"
    assert "3 elements" in dataset.summaries[0].reasons[0]


def test_control_characters_from_outside_are_written_out_everywhere() -> None:
    nasty = "a\x1b[31mb\x9b2J\u202ec\nd\x00"
    measured, lost = case("all_reduce", 64, algorithm=nasty), case("broadcast", 64)
    machine = Machine(name=nasty, hosts=(nasty,), facts={nasty: {"kernel": [nasty, nasty]}})
    end = SyntheticEnd(failed={lost: nasty})
    dataset = pool((synthetic_run([measured, lost], launches=1, samples=3, machine=machine, end=end),))
    everything = repr(dataset.runs) + repr(dataset.summaries)
    shown = "a\\x1b[31mb\\x9b2J\\u202ec d\\x00"
    assert dataset.runs[0].run.machine == shown
    assert dataset.summaries[1].reasons == (shown,)
    assert next(dataset.samples.rows())[1] == 0
    assert not any(
        repr(sign)[1:-1] in everything.replace(repr(shown)[1:-1], "")
        for sign in nasty
        if ord(sign) != 0x0A and not sign.isprintable()
    )


@pytest.mark.parametrize(
    ("ranks", "text"), [((0, 1, 2, 3), "0-3"), ((0, 1), "0,1"), ((1, 0), "1,0"), ((0, 2, 4), "0,2,4"), ((5,), "5")]
)
def test_ranks_as_text(ranks: tuple[int, ...], text: str) -> None:
    assert rank_list(ranks) == text
