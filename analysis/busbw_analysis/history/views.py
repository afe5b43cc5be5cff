"""The views ``runs`` and ``launches`` of all runs of a results folder, in a DuckDB in memory, and SQL over them.

Index files are read in place, out of core. Runs that the index lacks are read from their kept summaries first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from busbw.errors import UsageError
from busbw_analysis.history.columns import IN_BOTH, OF_LAUNCHES, OF_RUNS, quoted
from busbw_analysis.history.engine import Engine
from busbw_analysis.history.index import Unreadable, contents, fresh_table, insert

_RUNS: Final = ", ".join(column.name for column in OF_RUNS)
_LAUNCHES: Final = ", ".join(
    [*(f"live.{name}" for name in IN_BOTH), *(f"stored.{quoted(column)}" for column in OF_LAUNCHES)]
)
_RUNS_AT_A_TIME: Final = 500
_VIEWS: Final = (
    # A run that was copied to another folder of these results counts once: the most complete of its copies.
    f"""
    CREATE TABLE live AS SELECT entry, {", ".join(IN_BOTH)} FROM stored SEMI JOIN present USING (entry)
    WHERE kind = 'run' QUALIFY row_number() OVER (PARTITION BY run ORDER BY rows DESC, folder) = 1
    """,  # noqa: S608 - names of columns, as below
    f"CREATE VIEW runs AS SELECT {_RUNS} FROM stored SEMI JOIN live USING (entry) WHERE kind = 'run'",  # noqa: S608
    f"CREATE VIEW launches AS SELECT {_LAUNCHES} FROM stored JOIN live USING (entry) WHERE stored.kind = 'launch'",  # noqa: S608
)
_LOCKS: Final = (
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)
"""What keeps a query to the views; the files of the index are allowed before."""


@dataclass(frozen=True, slots=True)
class Views:
    """The views, in a database that can read nothing else.

    folders: number of run folders
    fresh: number of runs that the index lacks
    unreadable: runs that cannot be read
    """

    connection: duckdb.DuckDBPyConnection
    folders: int
    fresh: int
    unreadable: tuple[Unreadable, ...]

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query of our own."""
        return self.connection.execute(query, parameters).fetchall()

    def answer(self, query: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """The names of the columns and the rows of a user's query.

        Raises UsageError unless it is one SELECT that reads nothing but the views.
        """
        try:
            statements = self.connection.extract_statements(query)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                kinds = ", ".join(str(statement.type.name) for statement in statements) or "none"
                message = f"the query must be one SELECT over the views runs and launches; given: {kinds}"
                raise UsageError(message, code="not-a-select")
            result = self.connection.execute(statements[0])
            return tuple(str(column[0]) for column in result.description or ()), result.fetchall()
        except duckdb.Error as error:
            raise UsageError(f"the query failed: {error}", code="sql") from error


@contextmanager
def views_of(results_dir: Path, places: Sequence[Path | str], engine: Engine) -> Iterator[Views]:
    """The views of the runs in ``places``, all of them below ``results_dir``; those that are no run folders are left
    out. Raises the errors of ``engine``.
    """
    unreadable: list[Unreadable] = []
    with fresh_table() as connection:
        index = contents(results_dir, places, connection)  # opening another one would take as long as its query
        entries = [entry for _, entry in index.entries]
        for first in range(0, len(index.fresh), _RUNS_AT_A_TIME):
            inserted, without = insert(connection, index.fresh[first : first + _RUNS_AT_A_TIME], engine)
            entries += inserted.values()
            unreadable += without
        paths = ", ".join("'{}'".format(str(path).replace("'", "''")) for path in index.files)
        of_files = f"SELECT * FROM read_parquet([{paths}], hive_partitioning = false) UNION ALL BY NAME"  # noqa: S608
        connection.execute(f"SET allowed_paths = [{paths}]")
        connection.execute(f"CREATE VIEW stored AS {of_files if index.files else ''} SELECT * FROM fresh")  # noqa: S608
        connection.execute("CREATE TABLE present AS SELECT unnest($entries::BIGINT[]) AS entry", {"entries": entries})
        for statement in (*_VIEWS, *_LOCKS):
            connection.execute(statement)
        yield Views(connection, len(index.entries) + len(index.fresh), len(index.fresh), tuple(unreadable))
