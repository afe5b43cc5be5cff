"""Marks of tests that run on a GPU: a real one, or the simulated one where there is none."""

from typing import Final

import pytest
import torch

GPUS: Final = torch.cuda.device_count() if torch.cuda.is_available() else 2
"""GPUs of this machine, or of the simulated one."""
ON_GPU: Final = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what torch and NCCL think of a world of one is not ours to mend
]
