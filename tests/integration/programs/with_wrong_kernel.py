"""Stands in for ``busbw``: the same command with a triad in memory that leaves out the multiplication."""

import dataclasses

from busbw.backends.local import kernels
from busbw.cli import main

_made = kernels.kernels()
if _made.missing is None:
    _wrong = {**_made.addresses, "stream_triad_float64": _made.of("stream_add", "float64")}
    _faulty = dataclasses.replace(_made, addresses=_wrong)
    kernels.kernels = lambda: _faulty  # type: ignore[assignment]

if __name__ == "__main__":
    main.main(prog_name="busbw")
