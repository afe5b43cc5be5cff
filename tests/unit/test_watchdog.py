"""Timeouts of torch's watchdog: which ranks wait in what, and which are behind, in the formats of torch 2.0 to 2.9."""

import re
from pathlib import Path

import pytest
from testing.logs import LOGS, read_log

from busbw.errors import LogError
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.watchdog import read


def timeout(rank: int, work: int, op: str = "ALLREDUCE", elements: int | None = 4_096) -> str:
    count = "" if elements is None else f"NumelIn={elements}, NumelOut={elements}, "
    return (
        f"[E ProcessGroupNCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
        f"{work}, OpType={op}, {count}Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
    )


STATES = (
    "[Rank {0}] Timeout at NCCL work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: {3}.",
    "[PG 1 Rank {0}] Exception (either an error or timeout) detected by watchdog at work: {1}, last enqueued NCCL work: {2}, last completed NCCL work: {3}.",  # noqa: E501 - as printed
    "[PG ID 0 PG GUID 0(default_pg) Rank {0}] failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: {2}, last completed work: {3}",  # noqa: E501 - as printed
)


def said(*lines: str) -> str:
    with pytest.raises(LogError) as refused:
        read(Draft("torch watchdog", "log"), lines)
    assert refused.value.code == "hang"
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("missing", {"3", "1580"}), ("mismatch", {"7", "80078", "5,056"}), ("behind", {"7", "1579", "4,096"})],
)
def test_a_log_says_who_is_behind(name: str, numbers: set[str]) -> None:
    with pytest.raises(LogError) as refused:
        read_log(LOGS / f"watchdog-{name}.txt")
    assert refused.value.code == "hang"
    assert numbers <= set(re.findall(r"\d[\d,]*\d|\d", str(refused.value)))


@pytest.mark.parametrize("state", STATES)
def test_a_rank_that_has_enqueued_less_is_behind(state: str) -> None:
    lines = [line for rank in range(4) for line in (timeout(rank, 12), state.format(rank, 12, 14, 11))]
    text = said(*lines, timeout(4, 11), state.format(4, 11, 11, 10))
    assert "rank 4 behind" in text
    assert "behind" not in said(*lines)


def test_the_rank_of_the_launcher_is_that_of_the_world() -> None:
    """In a group of some ranks torch counts the ranks of the group."""
    assert "ranks 8, 9 in" in said(f"[rank8]:{timeout(0, 3)}", f"[rank9]:{timeout(1, 3)}")


def test_groups_are_judged_apart() -> None:
    lines = []
    for rank, group, work in ((0, "1", 5), (1, "1", 5), (2, "2", 900), (3, "2", 900)):
        state = STATES[1].format(rank % 2, work, work, work - 1).replace("PG 1", f"PG {group}")
        lines += [f"[rank{rank}]:{timeout(rank % 2, work)}", f"[rank{rank}]:{state}"]
    text = said(*lines)
    assert "behind" not in text
    assert "group 1" in text
    assert "group 2" in text
    assert "several groups" in text


def test_a_rank_that_the_watchdog_ended_is_not_silent() -> None:
    """axolotl-ai-cloud/axolotl#3476, snowflakedb/ArcticTraining#219."""
    dump = (
        "[rank1]:[E ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a "
        "collective timeout from this local rank and we will try our best. Last enqueued NCCL work: 855, last "
        "completed NCCL work: 12.This is"
    )
    assert "rank 1 in work 13" in said(dump)
    assert "rank 0 without" in said(dump)
    assert "rank 0" not in said(dump, "[rank0]:[E x.cpp:744] [Rank 0] Some NCCL operations have failed or timed out.")
    found = (
        "[rank5]:[E ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank 5]  failure detected by watchdog at "
        "work sequence id: 120049 PG status: last enqueued work: 120051, last completed work: 120048"
    )
    assert "rank 5 in work 120049" in said(found)


def test_without_elements_the_operation_is_named() -> None:
    assert "BROADCAST" in said(timeout(0, 3, "BROADCAST", None), timeout(1, 3, "BROADCAST", None))


def test_a_line_that_a_terminal_broke_is_read() -> None:
    """huggingface/open-r1#620, mila-iqia/milabench#269."""
    whole = [timeout(rank, 4, "BROADCAST") for rank in range(1, 3)]
    broken = [part for line in whole for part in (line[:110], line[110:])]
    assert said(*broken) == said(*whole)
    state = STATES[0].format(3, 2070, 2082, 2069)
    assert "rank 3 in work 2070" in said(f"[rank3]:{state[:60]}\n", state[60:])


@pytest.mark.parametrize(
    ("op", "elements", "result", "absent"),
    [
        ("_REDUCE_SCATTER_BASE", 3_121_908_768, 32_519_883, "92 of the 96 ranks"),
        ("_ALLGATHER_BASE", 32_519_883, 3_121_908_768, "92 of the 96 ranks"),
        ("ALLREDUCE", 4_096, 4_096, ""),
    ],
)
def test_ranks_of_a_group_that_are_not_in_the_log_are_counted(op: str, elements: int, result: int, absent: str) -> None:
    """NVIDIA/nccl#1111: the elements of a rank and of all ranks say how many there are."""
    lines = [
        timeout(rank, 1_559, op, elements).replace(f"NumelOut={elements}", f"NumelOut={result}")
        for rank in range(64, 68)
    ]
    assert absent in said(*lines)
    assert ("of the" in said(*lines)) == bool(absent)


def test_a_first_call_that_hangs_on_all_ranks_asks_for_the_path() -> None:
    """vllm-project/vllm#1957."""
    first = [timeout(rank, 1, elements=1) for rank in range(2)]
    assert "NCCL_P2P_DISABLE=1" in said(*first)
    assert "NCCL_P2P_DISABLE" not in said(first[0])
    assert "NCCL_P2P_DISABLE" not in said(first[0], timeout(1, 1, "BROADCAST"))
    assert "NCCL_P2P_DISABLE" not in said(*(timeout(rank, 7, elements=1) for rank in range(2)))


def test_elements_that_torch_does_not_know_are_not_told() -> None:
    """NVIDIA-NeMo/Megatron-Bridge#943."""
    assert "elements" not in said(timeout(10, 1, "COALESCED", (1 << 64) - 1))


def test_timeouts_below_words_that_look_like_a_table_are_read(tmp_path: Path) -> None:
    """vllm-project/vllm#1957."""
    path = tmp_path / "log"
    above = "I'm using a 8 GPUs 3090, with --tensor-parallel-size 4, 4 gpus are 100% used, minutes later:\n"
    path.write_text(f"{above}{timeout(0, 5)}\n{timeout(1, 5)}\n", encoding="utf-8")
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code == "hang"
    assert "ranks 0, 1 in work 5" in str(refused.value)


def test_the_watchdog_of_another_library_is_read() -> None:
    """vllm-project/vllm-ascend#382."""
    text = said(*(timeout(rank, 196, elements=None).replace("WorkNCCL", "WorkHCCL") for rank in range(2)))
    assert "ranks 0, 1 in work 196, ALLREDUCE" in text
