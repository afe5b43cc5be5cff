"""The families of cost models that the algorithms of a backend may follow (``BackendTraits.cost_models``)."""

from typing import Final

GLOO: Final = "gloo"
"""One algorithm an op, as Gloo's sources have it."""
MPI: Final = "mpi"
"""What the MPI library chooses by its tables."""
NCCL: Final = "nccl"
"""What NCCL's tuner chooses; switches may add up."""
