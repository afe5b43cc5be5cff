"""busbw: measures collective communication. The results are evaluated by busbw_analysis."""

__version__ = "0.1.0"
