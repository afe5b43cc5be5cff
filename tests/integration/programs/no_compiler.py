"""Stands in for ``busbw``: the same command where llvmlite is not installed."""

import sys

from busbw.cli import main

sys.modules["llvmlite"] = None  # type: ignore[assignment]
sys.modules["llvmlite.binding"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    main.main(prog_name="busbw")
