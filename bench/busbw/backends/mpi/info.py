"""What the MPI library says of itself once it is initialised: version, transport, whether it takes GPU memory.

Nothing is guessed: what decides the transport and is told by nobody is "not told by the library".
"""

import ctypes
import os
from collections.abc import Mapping

from busbw.backends import compiled_loop
from busbw.backends.mpi.native import MPI, function, scopes
from busbw.runs.records import JSON

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

NOT_TOLD = "not told by the library"

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
    """Of ``mpi``, what decides whether two runs over it may be compared. ``cuda_aware`` is "unknown" where the library
    has no way to say it; ``loop`` is what makes rows of calls here, and ``loop_missing`` why that is Python.
    """
    aware, why = cuda_aware(), compiled_loop.missing()
    facts: JSON = {
        "library": first_words(library()),
        "standard": list(MPI.Get_version()),
        "threads": next(name for name, level in THREADS.items() if level == MPI.Query_thread()),
        "device": device_in(library()),
        "transport": transport(),
        "cuda_aware": "unknown" if aware is None else aware,
        "loop": "compiled" if why is None else "python",
        "loop_missing": why,
    }
    return {"mpi": facts}


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
    """What brings messages to other ranks: the library's own module for it, and what that module was told to use.

    With it the values of ``CONTROLS`` that are set, through the library's own interface to them.
    """
    version = library()
    if version.startswith("Open MPI"):
        chosen = of_open_mpi(selected("mca_pml_base_selected_component"), os.environ)
    elif (device := device_in(version)) is not None:
        chosen = of_mpich(device, os.environ)
    elif version.startswith("Intel(R) MPI"):
        chosen = of_intel_mpi(os.environ)
    else:
        chosen = {"transport": NOT_TOLD}
    # A variable of control may be a filter (``pml``: ``^ucx``): what was selected through it says more.
    return {**chosen, **_controls(), **{name: value for name, value in chosen.items() if value != NOT_TOLD}}


def of_mpich(device: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The network module of MPICH, of those in ``device`` (``ch4:ucx ofi``): the one that a variable names, which may
    have three prefixes, or else the first (src/mpid/ch4/src/ch4_init.c, choose_netmod). Other devices have other rules.
    """
    kind, _, modules = device.partition(":")
    if kind != "ch4":
        return {"netmod": NOT_TOLD}
    prefixes = ("MPIR_CVAR", "MPIR_PARAM", "MPICH")
    named = next((value for one in prefixes if (value := variables.get(f"{one}_CH4_NETMOD"))), None)
    netmod = (named or next(iter(modules.replace(",", " ").split()), NOT_TOLD)).lower()
    named = next((value for one in prefixes if (value := variables.get(f"{one}_OFI_USE_PROVIDER"))), None)
    return {"netmod": netmod, **_below(netmod, variables, named)}


def of_open_mpi(pml: str | None, variables: Mapping[str, str]) -> dict[str, str]:
    """What Open MPI sends by: ``pml``, its selected component for messages between two ranks, and what lies below."""
    if pml == "ob1":
        return {"pml": pml, "btl": NOT_TOLD}
    if pml == "cm":
        return {"pml": pml, "mtl": NOT_TOLD}
    return {"pml": pml or NOT_TOLD, **_below(pml, variables)}


def of_intel_mpi(variables: Mapping[str, str]) -> dict[str, str]:
    """What Intel MPI was told: its fabrics, and libfabric's provider by a variable of its own or that of libfabric."""
    fabrics = variables.get("I_MPI_FABRICS", NOT_TOLD)
    return {"fabrics": fabrics, **_below("ofi", variables, variables.get("I_MPI_OFI_PROVIDER"))}


def _below(module: str | None, variables: Mapping[str, str], provider: str | None = None) -> dict[str, str]:
    """What UCX or libfabric was told to use, where ``module`` is one of them; which of it they use they do not say."""
    if module == "ucx":
        return {"UCX_TLS": variables.get("UCX_TLS", NOT_TOLD)}
    if module == "ofi":
        return {"provider": provider or variables.get("FI_PROVIDER", NOT_TOLD)}
    return {}


_TYPE_AT, _NAME_AT = 40, 84
"""Where a component of Open MPI says of what kind it is, and its name: struct mca_base_component_t, opal/mca/mca.h, of
Open MPI 2 to 5. Two versions, each of three numbers, stand before the first, and a project's name of 16 characters.
"""


def selected(name: str) -> str | None:
    """The component in Open MPI's variable ``name``, ``mca_pml_base_selected_component``; None where there is none, or
    it does not begin as a component does.
    """
    kind = name.split("_")[1].encode()
    for scope in scopes():
        try:
            raw = bytes((ctypes.c_char * (_NAME_AT + 64)).in_dll(scope, name))
        except ValueError:
            continue
        told, called = (raw[at:].partition(b"\0")[0] for at in (_TYPE_AT, _NAME_AT))
        if told == kind and called.isascii():
            return called.decode() or None
    return None


def _controls() -> dict[str, str]:
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
