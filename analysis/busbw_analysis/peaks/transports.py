"""The transport by which messages leave a host, as far as recorded: RDMA or sockets, with ports and interfaces.

Every library has its own environment variables for it. If a deciding fact was not recorded, the result is the reason,
not a guess.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from busbw.runs.facts import HostFacts, MpiFacts
from busbw.runs.records import TransportRules
from busbw_analysis.data.unavailable import Unavailable

NETWORK_NOT_KNOWN: Final = "network-not-known"
"""The code of what is missing to know how messages leave a host."""

_NOT_REPORTED = "not reported by the library"
"""Recorded value of an MPI setting that the library did not report."""
_UCX_OVER_RDMA = re.compile("(rc|ud|dc|ib|srd|gga|all)(_|$)")
"""Start of the names of RDMA transports in UCX_TLS; ``all`` is all transports. Source: openucx.readthedocs.io, FAQ."""
_BTL_OVER_RDMA = frozenset({"openib", "uct", "ofi", "usnic", "ugni", "portals4"})
"""The BTL modules of Open MPI 2 to 5 that use more than sockets and shared memory."""
_SOCKET_PROVIDERS = frozenset({"tcp", "sockets", "udp", "net"})
"""The providers of libfabric that use kernel sockets (fi_tcp, fi_sockets, fi_udp, fi_net)."""
_MPICH_OVER_TCP = frozenset({"ch3:sock", "ch3:nemesis", "ch3:nemesis:tcp"})
"""The devices of MPICH up to version 3 that use TCP by default."""
_NO_WIRE = frozenset({"shm", "ofi_rxm", "ofi_rxd", "lnx", "self"})
"""Entries in a list of providers that do not leave the host."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The devices that an environment variable allows.

    variable, value: name and value of the variable (None: not set, all devices)
    prefixes: NCCL's format: a list of prefixes, after ``=`` of full names, after ``^`` of excluded devices. Format:
        NCCL user guide, NCCL_IB_HCA and NCCL_SOCKET_IFNAME. Otherwise it is a list of full names.
    subnets: Open MPI's format, with subnets among the names (``eth0,10.0.0.0/8``). Format: www.open-mpi.org/faq, "TCP"

    All formats may name a port of a device (``mlx5_0:1``).
    """

    variable: str
    value: str | None = None
    prefixes: bool = False
    subnets: bool = False

    @property
    def named(self) -> bool:
        """Whether the variable names any device."""
        return bool(self.value and self.value.lstrip("^="))

    @property
    def by_subnet(self) -> bool:
        """Whether a subnet decides. Runs record no addresses, so any device may then be allowed."""
        return self.subnets and self.value is not None and "/" in self.value

    def allows(self, device: str, port: int | None = None) -> bool:
        """Whether the variable allows, or may allow, this device or this port of it."""
        if not self.named or self.value is None or self.by_subnet:
            return True
        unwanted, rest = self.value.startswith("^"), self.value.removeprefix("^")
        whole, rest = rest.startswith("=") or not self.prefixes, rest.removeprefix("=")
        is_named = False
        for entry in rest.split(","):
            name, colon, number = entry.strip().partition(":")
            matches = bool(name) and (device == name if whole else device.startswith(name))
            is_named = is_named or (matches and (not colon or port is None or number == str(port)))
        return is_named != unwanted


@dataclass(frozen=True, slots=True)
class Transport:
    """The transports that a backend may use.

    rdma: whether it uses RDMA if the host has it, or why this is unknown
    ports: the RDMA ports that it may use
    interfaces: the interfaces that its sockets may use
    together: whether several interfaces may carry one message
    """

    rdma: bool | Unavailable
    ports: Choice
    interfaces: Choice
    together: bool


def transport_of(host: HostFacts, by: TransportRules) -> Transport:
    """The transport of a backend that follows the rules ``by``, from the facts of a host."""
    if by == "nccl-net":
        return _of_nccl(host.variables)
    if by == "mpi-net":
        return _of_mpi(host)
    return _over_sockets("GLOO_SOCKET_IFNAME", host.variables)


def _over_sockets(named_by: str, variables: Mapping[str, str]) -> Transport:
    chosen = Choice(named_by, variables.get(named_by))
    return Transport(rdma=False, ports=Choice(named_by), interfaces=chosen, together=False)


def _of_nccl(variables: Mapping[str, str]) -> Transport:
    off = variables.get("NCCL_IB_DISABLE") == "1" or variables.get("NCCL_NET", "").casefold() == "socket"
    ports, interfaces = (
        Choice(name, variables.get(name), prefixes=True) for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")
    )
    return Transport(not off, ports, interfaces, together=True)


def _of_mpi(host: HostFacts) -> Transport:
    """MPI uses UCX, libfabric or Open MPI's own modules; the facts contain which, if the library reported it."""
    mpi, variables = host.mpi or MpiFacts(), host.variables
    reported = {name: value for name, value in mpi.transport.items() if value != _NOT_REPORTED}
    if mpi.device in _MPICH_OVER_TCP and "MPIR_CVAR_NEMESIS_NETMOD" not in reported:
        reported["netmod"] = "tcp"
    layer = _layer_of(reported, variables)
    if layer == "tcp":
        return _over_sockets("MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE", variables)
    if layer is not None:
        return _LAYERS[layer](reported, variables)
    # It is unknown which one was used: RDMA is assumed only if no variable of any of them disables it.
    ucx, ofi, ob1 = (settings_of(reported, variables) for settings_of in _LAYERS.values())
    off = {"OMPI_MCA_btl": ob1, "UCX_TLS": ucx, "I_MPI_OFI_PROVIDER": ofi, "FI_PROVIDER": ofi}
    doubts = [
        f"{name}={variables[name]}" for name, settings in off.items() if name in variables and settings.rdma is False
    ]
    if not any(ucx.ports.allows(port.device, port.port) for port in host.rdma):
        doubts += [f"{ucx.ports.variable}={ucx.ports.value}"] if ucx.ports.named else []
        ucx = replace(ucx, ports=Choice(ucx.ports.variable))
    doubt = f"did not record MPI's transport, and {', '.join(doubts)} may have disabled RDMA"
    layers = (ob1, ucx, ofi)
    named = next((settings.interfaces for settings in layers if settings.interfaces.named), None)
    either = Choice(", ".join(settings.interfaces.variable for settings in layers) + ", whichever your MPI uses")
    rdma = Unavailable(NETWORK_NOT_KNOWN, doubt) if doubts else True
    return Transport(rdma, ucx.ports, named or either, together=True)


def _layer_of(reported: Mapping[str, str], variables: Mapping[str, str]) -> str | None:
    """The layer that MPI sends with: ``ucx``, ``ofi``, ``ob1`` or ``tcp`` (MPICH's own); None if unknown."""
    pml = reported.get("pml") or variables.get("OMPI_MCA_pml", "")
    if pml in {"ucx", "ob1"}:
        return pml
    netmod = (
        reported.get("netmod") or reported.get("MPIR_CVAR_NEMESIS_NETMOD") or variables.get("MPIR_CVAR_CH4_NETMOD", "")
    )
    if netmod in {"ucx", "ofi", "tcp"}:
        return netmod
    fabrics = reported.get("fabrics") or variables.get("I_MPI_FABRICS", "")
    if "tcp" in re.split("[:,]", fabrics):
        return "tcp"
    intel = "fabrics" in reported or "provider" in reported or fabrics
    return "ofi" if intel or (pml == "cm" and (reported.get("mtl") or "ofi") == "ofi") else None


def _by_ucx(reported: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    by = reported.get("UCX_TLS") or variables.get("UCX_TLS") or "all"
    names = [name.strip().lstrip("\\") for name in by.removeprefix("^").split(",")]
    rdma = "ib" not in names and "all" not in names if by.startswith("^") else any(map(_UCX_OVER_RDMA.match, names))
    devices = variables.get("UCX_NET_DEVICES")
    chosen = Choice("UCX_NET_DEVICES", None if devices == "all" else devices)
    return Transport(rdma, ports=chosen, interfaces=chosen, together=True)


def _by_libfabric(reported: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    of_mpich = "netmod" in reported  # which does not know Intel MPI's variable
    own = (*([] if of_mpich else ["I_MPI_OFI_PROVIDER"]), "MPIR_CVAR_OFI_USE_PROVIDER", "FI_PROVIDER")
    by = reported.get("provider") or next((variables[name] for name in own if name in variables), "")
    names = {name.strip() for name in re.split("[;,]", by.casefold())} - _NO_WIRE - {""}
    off = not by.startswith("^") and bool(names) and names <= _SOCKET_PROVIDERS
    interfaces = Choice("FI_TCP_IFACE", variables.get("FI_TCP_IFACE"))
    return Transport(not off, ports=Choice("FI_PROVIDER"), interfaces=interfaces, together=False)


def _by_open_mpi(reported: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    """``ob1`` over a list of BTL modules; it may split a message over all allowed interfaces."""
    by = reported.get("btl") or variables.get("OMPI_MCA_btl") or ""
    include = "OMPI_MCA_btl_tcp_if_include"
    interfaces = Choice(include, variables.get(include), subnets=True)
    rdma: bool | Unavailable = bool(_BTL_OVER_RDMA & {name.strip() for name in by.split(",")})
    if not by or by.startswith("^"):
        rdma = Unavailable(
            NETWORK_NOT_KNOWN, "did not record the BTL modules of Open MPI's ob1; name them with OMPI_MCA_btl"
        )
    return Transport(rdma, ports=Choice(include), interfaces=interfaces, together=True)


_LAYERS: Mapping[str, Callable[[Mapping[str, str], Mapping[str, str]], Transport]] = {
    "ucx": _by_ucx,
    "ofi": _by_libfabric,
    "ob1": _by_open_mpi,
}
"""Communication layer of an MPI library → function that reads its settings."""
