"""From a question to its prediction: by the curve of its ranks, carried from other ranks, or by messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from busbw.errors import AnalysisError
from busbw.units import about_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.predict.query import PredictionQuery
from busbw_analysis.predict.selection import MeasuredCurves
from busbw_analysis.predict.ways import Ways


def sized(label: str, notes: Iterable[tuple[int, str]], sizes_bytes: Sequence[int]) -> list[str]:
    """The ``notes`` (size, text) without duplicates, each with its sizes unless these are all of ``sizes_bytes``."""
    lines: list[str] = []
    for words, of in by_key((words, size) for size, words in notes).items():
        where = "" if set(of) >= set(sizes_bytes) else sizes_in_words(of)
        head = f"{label} ({where})" if label and where else label or where
        lines.append(f"{head}: {words}" if head else words)
    return lines


def sizes_in_words(sizes_bytes: Sequence[int]) -> str:
    """The size, or the first and last of several."""
    first, last = about_size(sizes_bytes[0]), about_size(sizes_bytes[-1])
    return first if len(sizes_bytes) == 1 else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """The forecasts of a question.

    ``forecasts``: one per size that has one.
    ``notes``: notes on all of them.
    ``unanswered``: the other sizes, each with the reason.
    """

    query: PredictionQuery
    data: MeasuredCurves
    forecasts: tuple[Forecast, ...]
    notes: tuple[str, ...]
    unanswered: Mapping[int, Unavailable] = field(default_factory=dict)


def answer(ways: Ways, asked: PredictionQuery) -> Prediction:
    """The prediction for ``asked``. Raises AnalysisError, with what to measure, if the data determine none."""
    by_size = {size: ways.forecast(asked, size) for size in asked.sizes_bytes}
    forecasts = tuple(outcome for outcome in by_size.values() if isinstance(outcome, Forecast))
    unanswered = {size: outcome for size, outcome in by_size.items() if isinstance(outcome, Unavailable)}
    if not forecasts:
        why = next(iter(unanswered.values()))
        message = f"no prediction for {asked.op} on {asked.ranks} ranks: {why.reason}"
        raise AnalysisError(message, code=why.code)
    answered = [forecast.size_bytes for forecast in forecasts]
    notes = [
        *ways.data.notes,
        *sized("", [(forecast.size_bytes, note) for forecast in forecasts for note in forecast.notes], answered),
    ]
    return Prediction(asked, ways.data, forecasts, tuple(notes), unanswered)
