"""Reader of the results of nccl-tests that CollectiveX of InferenceX keeps as JSON.

Source: ``run_nccl.py`` in ``experimental/CollectiveX`` of SemiAnalysisAI/InferenceX, schema 1.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, real, text
from busbw_analysis.data.readers.lines import scaled, verdict, whole

SIGN: Final = re.compile(rb'"generated_by"\s*:\s*"run_nccl\.py"')
_PLACES: Final = {"out_of_place": False, "in_place": True}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The rows of one operation."""
    parsed = document(draft.source, lines)
    draft.facts |= {"ranks": whole(parsed.get("world_size")), "hosts": whole(parsed.get("nodes"))}
    draft.facts["command"] = text(parsed.get("command"))
    rows = [mapping(row) for row in items(parsed.get("rows"))]
    for row, line in zip(rows, parsed.lines_of("size_bytes", len(rows)), strict=True):
        for name, in_place in _PLACES.items():
            cells = mapping(row.get(name))
            time, algbw, busbw = (real(cells.get(key)) for key in ("time_us", "algbw_gbps", "busbw_gbps"))
            draft.collective(
                line,
                text(parsed.get("op")),
                {"size": row.get("size_bytes"), "type": row.get("dtype")},
                time_seconds=scaled(time, 1e-6),
                algbw=scaled(algbw, 1e9),
                busbw=scaled(busbw, 1e9),
                in_place=in_place,
                statistic="mean",
                **verdict(real(cells.get("wrong"))),
            )
