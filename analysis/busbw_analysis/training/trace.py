"""Export of training step timelines as Chrome trace events, for Perfetto and chrome://tracing.

Source: "Trace Event Format" (Google, 2016). ``X`` is a span with its length in µs, ``b`` and ``e`` are the begin and
end of a span that others may overlap, ``M`` names a process or thread.
"""

from collections.abc import Iterator

import msgspec

from busbw.errors import AnalysisError
from busbw.ops.training import workload_in_words
from busbw.runs.records import JSON
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.training.judgement import Training
from busbw_analysis.training.steps import Trained
from busbw_analysis.training.timelines import COMPUTE


def text(judgement: Judgement) -> bytes:
    """A process for each kind of step, a thread for each rank. Raises AnalysisError for a run without timelines."""
    events = [event for process, step in enumerate(judgement.of(Training).steps) for event in _events(process, step)]
    if not events:
        message = "the run has no timeline of a training step; record one with busbw run --op train_…"
        raise AnalysisError(message)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events}) + b"\n"


def _events(process: int, step: Trained) -> Iterator[JSON]:
    if not step.timeline:
        return
    name = f"{step.op}, {workload_in_words(step.workload)}"
    yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
    for row in step.timeline:
        at = {"pid": process, "tid": row.rank}
        yield {"ph": "M", **at, "name": "thread_name", "args": {"name": f"rank {row.rank}"}}
        for number, (name, begin, end) in enumerate(row.spans):
            if name == COMPUTE:
                yield _span(name, at, begin, end)
            else:
                both = {**at, "cat": f"calls of rank {row.rank}", "name": name, "id": f"{process}.{row.rank}.{number}"}
                yield {"ph": "b", **both, "ts": begin / 1e3}
                yield {"ph": "e", **both, "ts": end / 1e3}
        for begin, end in row.waiting:
            yield _span("waiting", at, begin, end)


def _span(name: str, at: dict[str, int], begin_ns: int, end_ns: int) -> JSON:
    return {"ph": "X", **at, "name": name, "ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
