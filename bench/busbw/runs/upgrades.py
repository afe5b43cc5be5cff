"""Upgrades of runs of older schemas, one schema at a time. They add nothing that was not measured."""

from collections.abc import Callable
from typing import Final

from busbw.runs.records import JSON, SCHEMA

UPGRADES: Final[dict[int, Callable[[JSON], JSON]]] = {}
"""Schema n → function that turns ``run.json``, or a row of the samples, into that of schema n + 1."""


def upgraded(document: JSON, schema: int) -> JSON:
    """``run.json`` or a row of ``schema`` in the current schema."""
    for step in range(schema, SCHEMA):
        document = UPGRADES[step](document)
    return document
