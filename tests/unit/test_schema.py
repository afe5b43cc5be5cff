"""JSON Schemas of stored files accept what busbw stores, and nothing that has other fields."""

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from busbw.cli.main import main
from busbw.cli.schema import schema_of
from busbw.runs import store

ROOT = Path(__file__).parents[2]
RUN = next(store.folders(ROOT / "results/samples"))
RULE = 'op = "all_reduce"\nsizes = "1MiB.."\nmetric = "busbw"\nat_least = "380GB/s"'


def stored(name: str) -> list[Any]:
    if name == "run":
        return [json.loads((RUN / store.RUN_FILE).read_text())]
    if name == "row":
        return [json.loads(line) for line in (RUN / store.SAMPLES_FILE).read_text().splitlines()]
    return [tomllib.loads(RULE)]


@pytest.mark.parametrize("name", ["run", "row", "rule"])
def test_the_schema_accepts_what_is_stored_and_refuses_an_unknown_field(name: str) -> None:
    validator = jsonschema.Draft202012Validator(schema_of(name))
    validator.check_schema(validator.schema)
    documents = stored(name)
    assert documents
    for document in documents:
        validator.validate(document)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**document, "unknown_field": 1})


def test_the_command_prints_it() -> None:
    printed = CliRunner().invoke(main, ["schema", "baseline"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == schema_of("baseline")
