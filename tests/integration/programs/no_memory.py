"""Stands in for ``busbw``: the same command where no memory is left for the scores of attention."""

import torch

from busbw.cli import main

_softmax = torch.softmax


def _without_memory(scores: torch.Tensor, dim: int) -> torch.Tensor:
    if scores.dtype == torch.float64:  # what the result is held against
        return _softmax(scores, dim=dim)
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes."
    raise RuntimeError(message)


torch.softmax = _without_memory  # type: ignore[assignment]

if __name__ == "__main__":
    main.main(prog_name="busbw")
