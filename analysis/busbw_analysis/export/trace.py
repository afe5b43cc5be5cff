"""Timelines of steps as Chrome's trace events, which Perfetto and chrome://tracing draw.

The format is "Trace Event Format" (Google, 2016): ``X`` is a span with its length in µs, ``b`` and ``e`` are the ends
of one that others of its kind may overlap, ``M`` names a process or thread.
"""

from collections.abc import Iterator

import msgspec

from busbw.errors import AnalysisError
from busbw.ops.training import workload_in_words
from busbw.runs.records import JSON
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.steps import Trained
from busbw_analysis.diagnosis.timelines import COMPUTE, rank_times


def text(judgement: Judgement) -> bytes:
    """A process for each kind of step, a thread for each rank. Raises AnalysisError for a run without timelines."""
    events = [event for process, one in enumerate(judgement.steps) for event in _events(process, one)]
    if not events:
        message = "the run has no timeline of a step of training; busbw run --op train_… records some"
        raise AnalysisError(message)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n"


def _events(process: int, one: Trained) -> Iterator[JSON]:
    if not one.timeline:
        return
    name = f"{one.op}, {workload_in_words(one.workload)}"
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    for row, time in zip(one.timeline, rank_times(one.timeline, one.sent), strict=True):
        at = {"pid": process, "tid": row.rank}
        yield {"ph": "M", **at, "name": "thread_name", "args": {"name": f"rank {row.rank}"}}
        for number, (what, begin, end) in enumerate(row.spans):
            if what == COMPUTE:
                yield _whole(what, at, begin, end)
            else:
                both = {**at, "cat": f"calls of rank {row.rank}", "name": what, "id": f"{process}.{row.rank}.{number}"}
                yield {"ph": "b", **both, "ts": begin / 1e3}
                yield {"ph": "e", **both, "ts": end / 1e3}
        for begin, end in time.waiting:
            yield _whole("waiting", at, begin, end)


def _whole(name: str, at: dict[str, int], begin_ns: int, end_ns: int) -> JSON:
    return {"ph": "X", **at, "name": name, "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
