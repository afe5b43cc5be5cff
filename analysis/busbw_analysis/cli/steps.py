"""Prints the steps of a training program's log, for ``busbw show`` and ``busbw training log``."""

from busbw.system.catalog import Gpu
from busbw_analysis.cli.options import print_answer
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.readers.training import TrainingLog
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
