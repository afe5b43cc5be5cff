"""Share of the lines of the GPU side that tests execute on the simulated machine: the end of ``make test``."""

from typing import Final

import pytest
from coverage import Coverage
from testing.covered import FOLDER, GPU_SIDE
from testing.gpu import REAL
from testing.narrow import require

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REAL, reason="lines are recorded on the simulated machine"),
    pytest.mark.skipif(FOLDER is None, reason="make test records them"),
]

LEAST: Final = 0.95
NOT_HERE: Final = {
    r"^class ComputeLoad": "computes on the host",
    r"^def take\(": "calls of the host",
    r"^def take_overlapped\(": "calls of the host",
    r"torch\.set_num_threads\(threads\)": "threads are the host's",
    r"partial\(torch\.set_num_threads, own\)": "threads are the host's",
    r"_at_once\(lambda: partial\(_wait_for, \(": "messages of Gloo",
    r"(coming|going) = \[partial|in_both_directions\(coming": "messages of Gloo",
    r"return partial\(call, buffer, other\)": "messages of Gloo",
}
"""Beginning of a statement, with its block → why a simulated GPU does not execute it."""


def test_nearly_all_lines_of_the_gpu_side_are_executed() -> None:
    lines = Coverage(f"{require(FOLDER)}/lines", config_file=False)
    lines.combine([require(FOLDER)], keep=True)
    for pattern in NOT_HERE:
        lines.exclude(pattern)
    statements = missing = 0
    left_out = {}
    for path in GPU_SIDE:
        _, counted, _, lacking, ranges = lines.analysis2(str(path))
        statements, missing = statements + len(counted), missing + len(lacking)
        left_out[path.name] = ranges
    assert 1 - missing / statements >= LEAST, left_out
