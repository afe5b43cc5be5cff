"""Marks of tests that need a real GPU and NCCL."""

import pytest
import torch

from busbw.backends import BACKENDS

MISSING = BACKENDS["nccl"].missing() or (None if torch.cuda.is_available() else "torch.cuda is not available")
"""Why there is no GPU for NCCL here; None: there is one."""

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(MISSING is not None, reason=f"needs a GPU: {MISSING}"),
    pytest.mark.filterwarnings("default"),  # what torch and NCCL think of a world of one is not ours to mend
]
