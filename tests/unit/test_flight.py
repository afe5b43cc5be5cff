"""Dumps of torch's flight recorder, and RAS of NCCL as JSON: which rank is missing in which call."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from testing.logs import LOGS, read_log

from busbw.errors import LogError
from busbw_analysis.data.readers.flight import dump_of
from busbw_analysis.data.sources import logs_in

RANKS = 4


def dump(calls: int, completed: int, **last: object) -> dict[str, Any]:
    """What a rank recorded that has made ``calls`` and finished ``completed`` of them; ``last``: keys of its last."""
    entries: list[dict[str, object]] = [
        {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": call,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[1024]],
            "state": "completed" if call <= completed else "scheduled",
        }
        for call in range(1, calls + 1)
    ]
    entries[-1] |= last
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}}
    return {"version": "2.10", "pg_config": config, "entries": entries}


def said(folder: Path, dumps: dict[int, dict[str, Any]], *, pickled: bool = False) -> str:
    for rank, content in dumps.items():
        written = pickle.dumps(content, protocol=2) if pickled else json.dumps(content).encode()
        (folder / f"nccl_trace_rank_{rank}{'' if pickled else '.json'}").write_bytes(written)
    with pytest.raises(LogError) as refused:
        logs_in(str(folder), lambda: folder)
    assert refused.value.code == "hang"
    return str(refused.value)


WAITS = dump(5, 4)


@pytest.mark.parametrize("pickled", [False, True])
def test_the_rank_that_did_not_make_the_call_is_named(tmp_path: Path, *, pickled: bool) -> None:
    text = said(tmp_path, {0: WAITS, 1: WAITS, 2: dump(4, 4), 3: WAITS}, pickled=pickled)
    assert "call 5" in text
    assert "rank 2 did not make it" in text


@pytest.mark.parametrize(
    ("dumps", "expected"),
    [
        ({0: WAITS, 1: WAITS, 3: WAITS}, "rank 2 without a dump"),
        (dict.fromkeys(range(RANKS), WAITS), "the network or a GPU hangs"),
        ({0: WAITS, 1: WAITS, 2: WAITS, 3: dump(5, 4, input_sizes=[[512]])}, "rank 3 all_reduce of [512]"),
    ],
)
def test_what_else_dumps_say(dumps: dict[int, dict[str, Any]], expected: str, tmp_path: Path) -> None:
    assert expected in said(tmp_path, dumps)


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"entries": Hostile()}, protocol=2),
        b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2^31 entries
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\x00\x00.",  # 2^48 bytes
        pickle.dumps([WAITS], protocol=2),
        pickle.dumps(WAITS, protocol=2)[:-9],
    ],
)
def test_other_pickles_are_not_loaded(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dump_of(content) is None
    assert not list(tmp_path.iterdir())
    path = tmp_path / "rank_0"
    path.write_bytes(content)
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code in {"binary", "not-a-log"}


def test_ras_as_json_names_who_is_behind_and_who_does_not_answer(tmp_path: Path) -> None:
    text = (LOGS / "nccl-ras.json").read_text(encoding="utf-8")
    path = tmp_path / "log"
    for content in (text, text.replace('"nvml_dev": 0,', '"nvml_dev": 0')):  # as NCCL 2.28.9 writes it
        path.write_text(content, encoding="utf-8")
        with pytest.raises(LogError) as refused:
            read_log(path)
        assert refused.value.code == "hang"
        assert "rank 3 (172.16.64.246, process 1524350) does not answer" in str(refused.value)
        assert "rank 2 (172.16.64.245, process 1524346) launched AllReduce operations up to 640" in str(refused.value)
