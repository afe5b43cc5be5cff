"""Tidy files: the columns of ``Run.table()`` and ``Run.samples()`` (docs/python.md) as CSV, JSON lines and Parquet."""

import io

import pandas as pd

from busbw.errors import UsageError
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.report.tables.frames import case_frame, sample_frame


def csv(judgement: Judgement) -> bytes:
    """One line a case and group of ranks below a line of names; nothing where a number is not known."""
    return case_frame(judgement).to_csv(index=False).encode()


def csv_of_samples(dataset: Dataset) -> bytes:
    """One line a sample."""
    return sample_frame(dataset).to_csv(index=False).encode()


def json_lines(judgement: Judgement) -> bytes:
    """One object a case and group of ranks; null where a number is not known."""
    return _lines(case_frame(judgement))


def json_lines_of_samples(dataset: Dataset) -> bytes:
    """One object a sample."""
    return _lines(sample_frame(dataset))


def _lines(frame: pd.DataFrame) -> bytes:
    return frame.to_json(orient="records", lines=True, double_precision=15, force_ascii=False).encode()


def parquet(judgement: Judgement) -> bytes:
    """One row a case and group of ranks. Raises UsageError where pyarrow is not installed."""
    return _parquet(case_frame(judgement))


def parquet_of_samples(dataset: Dataset) -> bytes:
    """One row a sample. Raises as ``parquet``."""
    return _parquet(sample_frame(dataset))


def _parquet(frame: pd.DataFrame) -> bytes:
    kept = io.BytesIO()
    try:
        frame.to_parquet(kept, engine="pyarrow", index=False)
    except ImportError as error:
        message = "Parquet needs pyarrow, which is not installed; pip install 'busbw[parquet]'"
        raise UsageError(message, code="no-pyarrow") from error
    return kept.getvalue()
