"""The rough time of a training step, for the estimated duration of a run."""

from typing import Final

from busbw.ops import STRATEGIES
from busbw.ops.training import LEAST_SQUARES, SAMPLES, STEPS, Workload, problem_width
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.workloads.model_rows import parameters
from busbw.workloads.shapes import StepShape

_FLOP_PER_SECOND: Final = 5e10
"""Rate of a core in the products of a step."""
_BYTES_PER_SECOND: Final = 1e9
"""Rate at which all ranks of a host send together."""
_LAYER_SECONDS: Final = 1e-3
"""Time of one layer in one micro-batch, or of one exchange, besides its products. All three were measured with Gloo on
two cores of a virtual machine that was otherwise idle.
"""
_GPU: Final = 500.0
"""A GPU is taken to be this much faster in all three; none was measured."""


def step_seconds(case: Case, cores: int) -> float:
    """Seconds of one call of a training step whose ranks share ``cores`` usable cores on each host; 0 for other ops."""
    workload = case.settings
    if not isinstance(workload, Workload):
        return 0.0
    per_host = -(-case.ranks // case.nodes)
    flop, sent, layers = _least_squares(workload) if workload.model == LEAST_SQUARES else _of_model(case.op, workload)
    at_work, faster = (max(1, min(per_host, cores)), 1.0) if case.device == "cpu" else (per_host, _GPU)
    computing = flop / (at_work * case.nodes * _FLOP_PER_SECOND) if workload.wait_ns is None else workload.wait_ns / 1e9
    late = (workload.slow_ns or 0) / 1e9
    return (computing + per_host * sent / _BYTES_PER_SECOND + layers * _LAYER_SECONDS) / faster + late


def _least_squares(workload: Workload) -> tuple[float, float, int]:
    """FLOP of all ranks, bytes sent by each, and exchanges: a gradient is two products of a rank's samples."""
    width = problem_width(workload.scale)
    return STEPS * workload.dp * 4.0 * SAMPLES * width**3, STEPS * 2.0 * DTYPE_BYTES["float32"] * width**2, STEPS


def _of_model(op: str, workload: Workload) -> tuple[float, float, int]:
    """FLOP of all ranks, bytes sent by each, and its layers times micro-batches.

    Replicas exchange their part of the weights about twice, or three times with zero 3. Ranks that divide layers,
    sequences or experts exchange the activations of a layer about eight times.
    """
    shape = StepShape(workload)
    weights = DTYPE_BYTES["float32"] * parameters(shape.model) / (workload.pp * workload.tp)
    layers = -(-shape.model.layers // workload.pp)
    activations = DTYPE_BYTES["float32"] * shape.tokens / (workload.dp * workload.cp) * shape.model.hidden
    replicated = (3 if STRATEGIES[op].zero == 3 else 2) * weights * (workload.dp * workload.cp > 1)
    divided = 8 * layers * activations * (workload.tp * workload.cp * workload.ep > 1)
    return shape.flop, replicated + divided + 2 * activations * (workload.pp > 1), layers * workload.micro_batches
