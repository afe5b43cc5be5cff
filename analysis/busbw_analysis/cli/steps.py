"""Prints the steps of a training program's log, for ``busbw show`` and ``busbw training log``."""

from contextlib import suppress

from busbw.errors import LogError
from busbw.system.catalog import Gpu
from busbw_analysis.cli.options import print_answer
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.readers.training import FailedTraining, TrainingLog
from busbw_analysis.report.document import Paragraph
from busbw_analysis.training.log import facts_table, findings, headline, step_times


def print_steps(log: TrainingLog, gpu: Gpu | None, dtype: str = "bfloat16", *, as_json: bool) -> None:
    """Print the step times of ``log``, what is unusual about them, and their share of the peak of ``gpu``.

    Raises LogError (``too-few-steps``).
    """
    times = step_times(log, gpu, dtype)
    noted = tuple(findings(times))
    document = {"steps": plain(times), "warnings": [finding.as_json() for finding in noted]}
    notes = (Paragraph(f"{finding.severity}: {finding.text}") for finding in noted)
    print_answer(headline(times), document, [*notes, facts_table(times)], as_json=as_json)


def with_steps(failed: FailedTraining, gpu: Gpu | None) -> LogError:
    """The error about a job that ``failed``, with the steps before as further lines, if there are enough."""
    lines = list(failed.lines)
    with suppress(LogError):
        times = step_times(failed.steps, gpu)
        lines.append(("Steps", f"before that, {headline(times, past=True)}"))
        lines += [("Steps", f"{found.severity}: {found.text}") for found in findings(times) if found.code != "timeout"]
    return LogError(failed.said, lines, code=failed.code, log=failed.log)
