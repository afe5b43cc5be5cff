"""Stands in for ``busbw``: the same command where llvmlite is not installed."""

import sys

from busbw import cli

sys.modules["llvmlite"] = None  # type: ignore[assignment]
sys.modules["llvmlite.binding"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    cli.main(prog_name="busbw")
