"""Tables of ``Run.table()`` and ``Run.samples()`` (docs/python.md) as CSV, JSON lines and Parquet."""

import io

import pandas as pd

from busbw.errors import UsageError
from busbw.escape import as_cell


def csv(frame: pd.DataFrame) -> bytes:
    """A header and one line per row; unknown numbers are empty, and no text is a formula (``as_cell``)."""
    texts = {
        str(name): column.map(lambda value: as_cell(value) if isinstance(value, str) else value)
        for name, column in frame.select_dtypes(exclude="number").items()
    }
    return frame.assign(**texts).to_csv(index=False).encode()


def json_lines(frame: pd.DataFrame) -> bytes:
    """One object per row; unknown numbers are null."""
    return frame.to_json(orient="records", lines=True, double_precision=15, force_ascii=False).encode()


def parquet(frame: pd.DataFrame) -> bytes:
    """A Parquet file. Raises UsageError if pyarrow is not installed."""
    kept = io.BytesIO()
    try:
        frame.to_parquet(kept, engine="pyarrow", index=False)
    except ImportError as error:
        message = "Parquet needs pyarrow, which is not installed; run pip install 'busbw[parquet]'"
        raise UsageError(message, code="no-pyarrow") from error
    return kept.getvalue()
