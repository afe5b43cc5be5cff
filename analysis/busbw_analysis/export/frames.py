"""Tables of ``Run.table()`` and ``Run.samples()`` (docs/python.md) as CSV, JSON lines and Parquet."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

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
    """A Parquet file."""
    import duckdb  # noqa: PLC0415 - 0.1 s, for this format only

    with TemporaryDirectory() as folder, duckdb.connect(":memory:") as connection:
        path = Path(folder) / "frame.parquet"
        connection.register("frame", frame)
        connection.execute("COPY frame TO ? (FORMAT parquet, COMPRESSION zstd)", [str(path)])
        return path.read_bytes()
