"""busbw: measures collective communication and judges nothing; the judging is busbw_analysis's."""

__version__ = "0.1.0"
