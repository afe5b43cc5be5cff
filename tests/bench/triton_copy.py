"""A copy in Triton: every program moves a block of elements. A file of its own, for Triton reads a kernel's source."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(source, target, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, N803 - as Triton wants it
    """``target`` becomes ``source``, ``BLOCK`` elements a program."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(target + places, tl.load(source + places, mask=inside), mask=inside)
