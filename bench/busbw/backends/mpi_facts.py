"""What the MPI library says of itself once it is initialised: version, transport, whether it takes GPU memory.

Nothing is guessed: a variable of control that the library does not have, or that nobody has set, is not there.
"""

import ctypes

from busbw import compiled
from busbw.backends.mpi_native import MPI, function
from busbw.records import JSON

THREADS = {
    "single": MPI.THREAD_SINGLE,
    "funneled": MPI.THREAD_FUNNELED,
    "serialized": MPI.THREAD_SERIALIZED,
    "multiple": MPI.THREAD_MULTIPLE,
}

CONTROLS = (
    "MPIR_CVAR_CH4_NETMOD",
    "MPIR_CVAR_CH4_SHM",
    "MPIR_CVAR_OFI_USE_PROVIDER",
    "MPIR_CVAR_NEMESIS_NETMOD",
    "pml",
    "btl",
    "mtl",
    "osc",
    "coll",
)
"""Variables of control (MPI_T) that choose the transport, in MPICH and in Open MPI; their values are words. However one
was set, by the environment, a file or a default: the library tells it alike.
"""

_LONGEST = 4096
_DEVICE = "MPICH Device:"


def library() -> str:
    """Name and version of the MPI library, as it calls itself."""
    return MPI.Get_library_version().replace("\0", "").strip()


def first_words(version: str) -> str:
    """``library``'s first line up to a comma, tabs and blanks made one: enough to tell one from another."""
    return " ".join(version.splitlines()[0].partition(",")[0].split()) if version else "unknown"


def device_in(version: str) -> str | None:
    """The device that MPICH was built for, with its network modules, as its ``version`` text has it."""
    lines = (line for line in version.splitlines() if line.startswith(_DEVICE))
    return next((" ".join(line.removeprefix(_DEVICE).split()) for line in lines), None)


def facts() -> dict[str, JSON]:
    """What decides whether two runs over MPI may be compared. ``cuda_aware`` is "unknown" where the library has no way
    to say it; ``loop`` is what makes rows of calls here, and ``loop_missing`` why that is Python.
    """
    aware, why = cuda_aware(), compiled.missing()
    return {
        "library": first_words(library()),
        "standard": list(MPI.Get_version()),
        "threads": next(name for name, level in THREADS.items() if level == MPI.Query_thread()),
        "device": device_in(library()),
        "transport": transport(),
        "cuda_aware": "unknown" if aware is None else aware,
        "loop": "compiled" if why is None else "python",
        "loop_missing": why,
    }


def cuda_aware() -> bool | None:
    """Whether the library takes addresses of CUDA memory, by MPIX_Query_cuda_support; None when it has none.

    Open MPI knows it only once it is initialised.
    """
    query = function("MPIX_Query_cuda_support")
    return None if query is None else query() == 1


def unaware(name: str, *, aware: bool | None) -> str | None:
    """Why MPI library ``name`` cannot have addresses of GPU memory, by what it says; None when it can."""
    if aware:
        return None
    if aware is None:
        return f"{name} has no MPIX_Query_cuda_support to say whether it takes CUDA memory, and it is not tried"
    return f"{name} says by MPIX_Query_cuda_support that it does not take CUDA memory"


def transport() -> dict[str, str]:
    """The values of ``CONTROLS`` that are set, through the library's own interface to them."""
    start, end = function("MPI_T_init_thread"), function("MPI_T_finalize")
    provided = ctypes.c_int()
    if start is None or end is None or start(MPI.THREAD_SINGLE, ctypes.byref(provided)) != MPI.SUCCESS:
        return {}
    try:
        return {name: value for name in CONTROLS if (value := _control(name))}
    finally:
        end()


def _control(name: str) -> str | None:
    """The words that a variable of control holds; None when it is not there, or holds no words."""
    index, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    words = ctypes.create_string_buffer(_LONGEST)
    steps = (
        ("MPI_T_cvar_get_index", name.encode(), ctypes.byref(index)),
        ("MPI_T_cvar_handle_alloc", index, None, ctypes.byref(handle), ctypes.byref(count)),
    )
    for called, *arguments in steps:
        step = function(called)
        if step is None or step(*arguments) != MPI.SUCCESS:
            return None
    read, free = function("MPI_T_cvar_read"), function("MPI_T_cvar_handle_free")
    if read is None or free is None:
        return None
    told = count.value <= _LONGEST and read(handle, words) == MPI.SUCCESS
    free(ctypes.byref(handle))
    text = words.value.decode(errors="replace")
    return text if told and text.isprintable() else None
