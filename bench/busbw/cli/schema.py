"""The command ``busbw schema``: JSON Schemas of stored files, from the records that define them."""

import importlib
import json
from typing import Any, Final

import click
import msgspec

from busbw.escape import echo

_TYPES: Final = {
    "run": ("busbw.runs.run", "RunDocument", "run.json"),
    "row": ("busbw.runs.records", "Row", "a line of samples.jsonl"),
    "rule": ("busbw_analysis.gate.rules", "Rule", "a [[rule]] of busbw gate"),
    "baseline": ("busbw_analysis.gate.baselines", "Baseline", "a file of results/baselines"),
}
"""Name → module, type, and the file that holds such values."""


@click.command()
@click.argument("name", type=click.Choice(list(_TYPES)))
def schema(name: str) -> None:
    """Print the JSON Schema of a stored file: run (run.json), row (a line of samples.jsonl), rule or baseline."""
    echo(json.dumps(schema_of(name), indent=2))


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``name``, one of the names above."""
    module, kind, what = _TYPES[name]
    made = msgspec.json.schema(getattr(importlib.import_module(module), kind))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"busbw: {what}", **made}
