"""By what messages leave a host, as far as the run recorded it: RDMA cards or sockets, and which ports and interfaces.

Every library is told this by variables of its own. What decides and was not recorded is a reason in words, no guess.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from busbw.runs.facts import fact
from busbw.runs.records import JSON, TransportRules
from busbw.system.networks import rdma_ports

_NOT_TOLD = "not told by the library"
_UCX_OVER_RDMA = re.compile("(rc|ud|dc|ib|srd|gga|all)(_|$)")
"""How UCX_TLS begins the names of transports of RDMA cards, ``all`` being all. Source: openucx.readthedocs.io, FAQ."""
_BTL_OVER_RDMA = frozenset({"openib", "uct", "ofi", "usnic", "ugni", "portals4"})
"""The modules below ``ob1`` in Open MPI, versions 2 to 5, that send by more than sockets and shared memory."""
_SOCKET_PROVIDERS = frozenset({"tcp", "sockets", "udp", "net"})
"""The providers of libfabric that go by the kernel's sockets (fi_tcp, fi_sockets, fi_udp, fi_net)."""
_MPICH_OVER_TCP = frozenset({"ch3:sock", "ch3:nemesis", "ch3:nemesis:tcp"})
"""The devices of MPICH 3 and before that send over TCP where they are told nothing else."""
_NO_WIRE = frozenset({"shm", "ofi_rxm", "ofi_rxd", "lnx", "self"})
"""What stands beside them in a list of providers, and is no way out of a host."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which devices a ``variable`` leaves, by its value (None: all). The rules of NCCL (``prefixes``) are a list of
    prefixes, of whole names after ``=``, of what not after ``^``; elsewhere it is a list of whole names. Either may
    name a port of a device (``mlx5_0:1``). Format: NCCL user guide, NCCL_IB_HCA and NCCL_SOCKET_IFNAME.
    Open MPI (``subnets``) takes subnets among the names (``eth0,10.0.0.0/8``). Format: www.open-mpi.org/faq, "TCP".
    """

    variable: str
    value: str | None = None
    prefixes: bool = False
    subnets: bool = False

    @property
    def named(self) -> bool:
        """Whether the variable says anything at all."""
        return bool(self.value and self.value.lstrip("^="))

    @property
    def by_subnet(self) -> bool:
        """Whether a subnet decides: runs record no addresses, so any device may be one of those that it leaves."""
        return self.subnets and self.value is not None and "/" in self.value

    def leaves(self, device: str, port: JSON = None) -> bool:
        """Whether this device, or this port of it, is one of those, or may be."""
        if not self.named or self.value is None or self.by_subnet:
            return True
        unwanted, rest = self.value.startswith("^"), self.value.removeprefix("^")
        whole, rest = rest.startswith("=") or not self.prefixes, rest.removeprefix("=")
        found = False
        for entry in rest.split(","):
            name, colon, number = entry.strip().partition(":")
            here = bool(name) and (device == name if whole else device.startswith(name))
            found = found or (here and (not colon or port is None or number == str(port)))
        return found != unwanted


@dataclass(frozen=True, slots=True)
class Transport:
    """How a backend may send: over RDMA cards where there are any (``rdma``), and by which ``ports``, else over sockets
    by which ``interfaces``. ``rdma`` is the reason, in words, where it is not known whether they carried anything.
    ``together``: several interfaces may carry one message.
    """

    rdma: bool | str
    ports: Choice
    interfaces: Choice
    together: bool


def transport_of(environment: Mapping[str, JSON], by: TransportRules) -> Transport:
    """What a backend that follows the rules ``by`` may have sent by, by the facts of a host."""
    variables: dict[str, str] = fact(environment, "variables") or {}
    if by == "nccl-net":
        return _of_nccl(variables)
    if by == "mpi-net":
        return _of_mpi(environment, variables)
    return _over_sockets("GLOO_SOCKET_IFNAME", variables)


def _over_sockets(named_by: str, variables: Mapping[str, str]) -> Transport:
    chosen = Choice(named_by, variables.get(named_by))
    return Transport(rdma=False, ports=Choice(named_by), interfaces=chosen, together=False)


def _of_nccl(variables: Mapping[str, str]) -> Transport:
    off = variables.get("NCCL_IB_DISABLE") == "1" or variables.get("NCCL_NET", "").casefold() == "socket"
    ports, interfaces = (
        Choice(name, variables.get(name), prefixes=True) for name in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")
    )
    return Transport(not off, ports, interfaces, together=True)


def _of_mpi(environment: Mapping[str, JSON], variables: Mapping[str, str]) -> Transport:
    """MPI sends by UCX, by libfabric, or by Open MPI's own modules: which of them, the library told where it could."""
    said = fact(environment, "mpi.transport") or {}
    told: dict[str, str] = {name: value for name, value in said.items() if value != _NOT_TOLD}
    if fact(environment, "mpi.device") in _MPICH_OVER_TCP and "MPIR_CVAR_NEMESIS_NETMOD" not in told:
        told["netmod"] = "tcp"
    below = _below(told, variables)
    if below == "tcp":
        return _over_sockets("MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE", variables)
    if below is not None:
        return _WAYS[below](told, variables)
    # Nobody says which of them it was: RDMA counts only where no variable of any of them keeps it off.
    ucx, ofi, ob1 = (way(told, variables) for way in _WAYS.values())
    off = {"OMPI_MCA_btl": ob1, "UCX_TLS": ucx, "I_MPI_OFI_PROVIDER": ofi, "FI_PROVIDER": ofi}
    doubts = [f"{name}={variables[name]}" for name, way in off.items() if name in variables and way.rdma is False]
    if not any(ucx.ports.leaves(str(port.get("device")), port.get("port")) for port in rdma_ports(environment)):
        doubts += [f"{ucx.ports.variable}={ucx.ports.value}"] if ucx.ports.named else []
        ucx = replace(ucx, ports=Choice(ucx.ports.variable))
    doubt = f"does not tell by what MPI sent, and {', '.join(doubts)} may have kept it off RDMA" if doubts else True
    named = next((one.interfaces for one in (ob1, ucx, ofi) if one.interfaces.named), None)
    either = Choice(", ".join(one.interfaces.variable for one in (ob1, ucx, ofi)) + ", whichever your MPI goes by")
    return Transport(doubt, ucx.ports, named or either, together=True)


def _below(told: Mapping[str, str], variables: Mapping[str, str]) -> str | None:
    """What the library sends by: ``ucx``, ``ofi``, ``ob1`` or ``tcp`` (MPICH's own); None where that is not known."""
    pml = told.get("pml") or variables.get("OMPI_MCA_pml", "")
    if pml in {"ucx", "ob1"}:
        return pml
    netmod = told.get("netmod") or told.get("MPIR_CVAR_NEMESIS_NETMOD") or variables.get("MPIR_CVAR_CH4_NETMOD", "")
    if netmod in {"ucx", "ofi", "tcp"}:
        return netmod
    fabrics = told.get("fabrics") or variables.get("I_MPI_FABRICS", "")
    if "tcp" in re.split("[:,]", fabrics):
        return "tcp"
    intel = "fabrics" in told or "provider" in told or fabrics
    return "ofi" if intel or (pml == "cm" and (told.get("mtl") or "ofi") == "ofi") else None


def _by_ucx(told: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    by = told.get("UCX_TLS") or variables.get("UCX_TLS") or "all"
    names = [name.strip().lstrip("\\") for name in by.removeprefix("^").split(",")]
    rdma = "ib" not in names and "all" not in names if by.startswith("^") else any(map(_UCX_OVER_RDMA.match, names))
    devices = variables.get("UCX_NET_DEVICES")
    chosen = Choice("UCX_NET_DEVICES", None if devices == "all" else devices)
    return Transport(rdma, ports=chosen, interfaces=chosen, together=True)


def _by_libfabric(told: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    own = ("I_MPI_OFI_PROVIDER", "MPIR_CVAR_OFI_USE_PROVIDER", "FI_PROVIDER")
    by = told.get("provider") or next((variables[name] for name in own if name in variables), "")
    names = {name.strip() for name in re.split("[;,]", by.casefold())} - _NO_WIRE - {""}
    off = not by.startswith("^") and bool(names) and names <= _SOCKET_PROVIDERS
    interfaces = Choice("FI_TCP_IFACE", variables.get("FI_TCP_IFACE"))
    return Transport(not off, ports=Choice("FI_PROVIDER"), interfaces=interfaces, together=False)


def _by_open_mpi(told: Mapping[str, str], variables: Mapping[str, str]) -> Transport:
    """By ``ob1`` over the modules of a list, which sends parts of a message over each interface that it may use."""
    by = told.get("btl") or variables.get("OMPI_MCA_btl") or ""
    include = "OMPI_MCA_btl_tcp_if_include"
    interfaces = Choice(include, variables.get(include), subnets=True)
    rdma: bool | str = bool(_BTL_OVER_RDMA & {name.strip() for name in by.split(",")})
    if not by or by.startswith("^"):
        rdma = "does not tell by which modules Open MPI's ob1 sent: name them (OMPI_MCA_btl)"
    return Transport(rdma, ports=Choice(include), interfaces=interfaces, together=True)


_WAYS: Mapping[str, Callable[[Mapping[str, str], Mapping[str, str]], Transport]] = {
    "ucx": _by_ucx,
    "ofi": _by_libfabric,
    "ob1": _by_open_mpi,
}
"""What MPI libraries send by → what was told of it."""
