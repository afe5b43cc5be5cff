"""Facts that the initialised MPI library reports: version, transport, CUDA support.

Nothing is guessed: a property of the transport that the library does not report has the value ``NOT_REPORTED``.
"""

import ctypes
import os
from collections.abc import Mapping

import msgspec

from busbw.backends import compiled_loop
from busbw.backends.mpi.native import MPI, function, scopes
from busbw.runs.facts import HostFacts, MpiFacts

THREADS = {
    "single": MPI.THREAD_SINGLE,
    "funneled": MPI.THREAD_FUNNELED,
    "serialized": MPI.THREAD_SERIALIZED,
    "multiple": MPI.THREAD_MULTIPLE,
}

NOT_REPORTED = "not reported by the library"

_DEVICE = "MPICH Device:"


def library() -> str:
    """Name and version of the MPI library, as it reports them."""
    return MPI.Get_library_version().replace("\0", "").strip()


def short_name(version: str) -> str:
    """First line of ``version`` up to a comma, with whitespace normalised: enough to distinguish libraries."""
    return " ".join(version.splitlines()[0].partition(",")[0].split()) if version else "unknown"


def device_in(version: str) -> str | None:
    """MPICH's device and network modules from its ``version`` text; None for other libraries."""
    lines = (line for line in version.splitlines() if line.startswith(_DEVICE))
    return next((" ".join(line.removeprefix(_DEVICE).split()) for line in lines), None)


def with_facts(host: HostFacts) -> HostFacts:
    """``host`` with the facts of MPI, which decide whether two runs may be compared."""
    aware, why = cuda_aware(), compiled_loop.missing()
    facts = MpiFacts(
        library=short_name(library()),
        standard=MPI.Get_version(),
        threads=next(name for name, level in THREADS.items() if level == MPI.Query_thread()),
        device=device_in(library()),
        transport=transport(),
        cuda_aware="unknown" if aware is None else aware,
        loop="compiled" if why is None else "python",
        loop_missing=why,
    )
    return msgspec.structs.replace(host, mpi=facts)


def cuda_aware() -> bool | None:
    """Whether the library accepts CUDA memory, by MPIX_Query_cuda_support; None if it has no such function.

    Open MPI knows the answer only after initialisation.
    """
    query = function("MPIX_Query_cuda_support")
    return None if query is None else query() == 1


def unaware(name: str, *, aware: bool | None) -> str | None:
    """Reason why MPI library ``name`` does not accept GPU memory, or None; ``aware`` is its own report."""
    if aware:
        return None
    if aware is None:
        return f"{name} has no MPIX_Query_cuda_support, so it is unknown whether it is CUDA-aware"
    return f"{name} is not CUDA-aware according to MPIX_Query_cuda_support"


def transport() -> dict[str, str]:
    """The communication module that the library uses; its further configuration is in the environment variables."""
    version = library()
    if version.startswith("Open MPI"):
        return {"pml": selected("mca_pml_base_selected_component") or NOT_REPORTED}
    if (device := device_in(version)) is not None:
        return {"netmod": netmod_of(device, os.environ)}
    if version.startswith("Intel(R) MPI"):
        provider = os.environ.get("I_MPI_OFI_PROVIDER") or os.environ.get("FI_PROVIDER", NOT_REPORTED)
        return {"fabrics": os.environ.get("I_MPI_FABRICS", NOT_REPORTED), "provider": provider}
    return {"transport": NOT_REPORTED}


def netmod_of(device: str, variables: Mapping[str, str]) -> str:
    """MPICH's network module, one of those in ``device`` (``ch4:ucx ofi``).

    It is the one named by a variable with one of three prefixes, else the first (src/mpid/ch4/src/ch4_init.c,
    choose_netmod). Devices other than ch4 have other rules.
    """
    kind, _, modules = device.partition(":")
    if kind != "ch4":
        return NOT_REPORTED
    prefixes = ("MPIR_CVAR", "MPIR_PARAM", "MPICH")
    named = next((value for prefix in prefixes if (value := variables.get(f"{prefix}_CH4_NETMOD"))), None)
    return (named or next(iter(modules.replace(",", " ").split()), NOT_REPORTED)).lower()


_TYPE_AT, _NAME_AT = 40, 84
"""Offsets of type and name in an Open MPI component (struct mca_base_component_t, opal/mca/mca.h, Open MPI 2 to 5).
Two versions of three numbers each and a project name of 16 characters precede the type.
"""


def selected(name: str) -> str | None:
    """Name of the component in Open MPI's variable ``name``, such as ``mca_pml_base_selected_component``.

    None if there is no such variable, or it does not start like a component.
    """
    kind = name.split("_")[1].encode()
    for scope in scopes():
        try:
            raw = bytes((ctypes.c_char * (_NAME_AT + 64)).in_dll(scope, name))
        except ValueError:
            continue
        found_kind, found_name = (raw[at:].partition(b"\0")[0] for at in (_TYPE_AT, _NAME_AT))
        if found_kind == kind and found_name.isascii():
            return found_name.decode() or None
    return None
