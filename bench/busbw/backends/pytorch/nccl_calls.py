"""NCCL's own functions, for calls that torch has not: all_reduce, broadcast and reduce from one buffer into another.

The library is the one that torch has loaded, the communicator that of torch's process group (``_comm_ptr``, since 2.8),
and the stream the current one, as in torch's synchronous calls since 2.8. Arguments and numbers are those of nccl.h. It
has not run on hardware yet.
"""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from busbw.backends.base import Bound, Operation
from busbw.errors import BackendError
from busbw.ops import OPS

IN_PLACE_ONLY: Final = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations that torch.distributed has in place only."""
_TYPES: Final = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 11,
}
"""ncclDataType_t."""
_REDUCTIONS: Final = {"sum": 0, "product": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t."""
_NONBLOCKING: Final = "TORCH_NCCL_USE_COMM_NONBLOCKING"
"""Variable with which torch creates communicators whose calls are in progress when they return (ncclInProgress)."""


def loaded() -> Any:  # noqa: ANN401 - a library has any function
    """The NCCL that torch has loaded; None if torch contains it. Another copy would know none of the communicators."""
    try:
        return ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def why_not(process_group: object) -> str | None:
    """Reason why NCCL cannot be called on the communicator of one of torch's NCCL objects, or None."""
    if loaded() is None:
        return "torch has loaded no libnccl.so.2"
    if os.environ.get(_NONBLOCKING) == "1":
        return f"with {_NONBLOCKING}=1 its functions return before a call is in the stream"
    known = hasattr(process_group, "_comm_ptr")
    return None if known else f"torch {torch.__version__} does not show its communicators; 2.8 and later do"


def bind(bound: Bound, communicator: Callable[[], int]) -> Operation:
    """Bind an operation of ``IN_PLACE_ONLY`` to two buffers.

    communicator: returns the pointer of the group's at the first call, before which torch has none (0)
    The operation raises BackendError, in NCCL's own words.
    """
    op, library = OPS[bound.case.op], loaded()
    longer = max(bound.send, bound.receive, key=len)
    elements = longer if op.reduces else longer.view(torch.uint8)
    # Ranks other than the root may lack one of the buffers, at which NCCL then does not look.
    buffers = [ctypes.c_void_p(buffer.data_ptr() or longer.data_ptr()) for buffer in (bound.send, bound.receive)]
    arguments = [*buffers, ctypes.c_size_t(len(elements)), _TYPES[elements.dtype]]
    arguments += [_REDUCTIONS[bound.redop]] if op.reduces else []
    arguments += [_rank_of_root(bound)] if op.rooted else []
    every = {"all_reduce": library.ncclAllReduce, "broadcast": library.ncclBroadcast, "reduce": library.ncclReduce}
    call: Callable[[ctypes.c_void_p], int] | None = None

    def checked() -> None:
        nonlocal call
        if call is None:
            if not (pointer := communicator()):
                raise BackendError(f"{op.name}: torch has no communicator of these ranks for the current GPU")
            call = partial(every[op.name], *arguments, ctypes.c_void_p(pointer))
        status = call(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if status:
            raise BackendError(f"NCCL: {_words(library, status)} ({status})")

    return Operation(checked)


def _rank_of_root(bound: Bound) -> int:
    """The root in torch's order of the group."""
    root = bound.group[bound.root]
    return root if bound.comm is None else dist.get_group_rank(bound.comm, root)


def _words(library: Any, status: int) -> str:  # noqa: ANN401 - as above
    """NCCL's words for an error."""
    library.ncclGetErrorString.restype = ctypes.c_char_p
    words: bytes | None = library.ncclGetErrorString(status)
    return (words or b"unknown error").decode()
