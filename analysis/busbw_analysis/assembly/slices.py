"""The table of slices. A new one is a folder and a row here."""

from typing import Final

from busbw_analysis.endurance.slice import SLICE as ENDURANCE
from busbw_analysis.fleet.slice import SLICE as FLEET
from busbw_analysis.node.slice import SLICE as NODE
from busbw_analysis.report.slices import Slice
from busbw_analysis.training.slice import SLICE as TRAINING

SLICES: Final[tuple[Slice, ...]] = (FLEET, ENDURANCE, TRAINING, NODE)
"""In the order in which the answer and each chapter of the report name them."""
