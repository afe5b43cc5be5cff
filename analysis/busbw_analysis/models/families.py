"""The families of cost models of backends (``BackendTraits.cost_models``)."""

from typing import Final

GLOO: Final = "gloo"
"""One algorithm per op, as in the sources of Gloo."""
MPI: Final = "mpi"
"""The algorithm that the MPI library selects from its tables."""
NCCL: Final = "nccl"
"""The algorithm that NCCL's tuner selects, possibly with reduction in switches."""
