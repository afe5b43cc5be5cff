"""Predictions of what was not measured: all that commands, reports and training plans use of them."""

from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.predict.selection import read_groups, read_results
from busbw_analysis.predict.ways import Line, Prediction, Questions, Scaling, Ways, scaling, sized

__all__ = [
    "Forecast",
    "Line",
    "Prediction",
    "Questions",
    "Scaling",
    "Ways",
    "read_groups",
    "read_results",
    "scaling",
    "sized",
]
