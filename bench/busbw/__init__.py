"""busbw: measures collective communication. The results are evaluated by busbw_analysis."""

from typing import TYPE_CHECKING

__version__: str
"""The version of the installation; ``0.dev0`` of sources that are not installed."""

if not TYPE_CHECKING:  # a checker would take any name for one of this module

    def __getattr__(name: str) -> str:
        """The version when it is asked for: the module that reads it takes as long to load as the command line."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            return version("busbw")
        except PackageNotFoundError:
            return "0.dev0"
