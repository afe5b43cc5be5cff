"""Reader of the results of nccl-tests that CollectiveX of InferenceX keeps as JSON.

Source: ``run_nccl.py`` in ``experimental/CollectiveX`` of SemiAnalysisAI/InferenceX, schema 1.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, real, text
from busbw_analysis.data.readers.lines import scaled, verdict, whole

SIGN: Final = re.compile(rb'"generated_by"\s*:\s*"run_nccl\.py"')
_PLACES: Final = {"out_of_place": False, "in_place": True}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The rows of one operation."""
    parsed = document(draft.source, lines)
    ranks, hosts, command = (parsed.get(key) for key in ("world_size", "nodes", "command"))
    draft.facts |= {"ranks": whole(ranks), "hosts": whole(hosts), "command": text(command)}
    rows = [mapping(row) for row in items(parsed.get("rows"))]
    for row, line in zip(rows, parsed.lines_of("size_bytes", len(rows)), strict=True):
        words = {"size": row.get("size_bytes"), "type": row.get("dtype")}
        for place, in_place in _PLACES.items():
            cells = {name: real(value) for name, value in mapping(row.get(place)).items()}
            rates = {name: scaled(cells.get(f"{name}_gbps"), 1e9) for name in ("algbw", "busbw")}
            fields: dict[str, Any] = {"statistic": "mean", "in_place": in_place, **verdict(cells.get("wrong"))}
            fields |= rates | {"time_seconds": scaled(cells.get("time_us"), 1e-6)}
            draft.collective(line, text(parsed.get("op")), words, **fields)
