"""What a log says of the way that its bytes took: lines of NCCL, and of ibstat, lspci and ``nvidia-smi topo -m``.

Sources: the messages in ``src/transport/net_ib``, ``net_socket.cc``, ``nvls.cc``, ``graph/paths.cc`` and ``tuning.cc``
of NVIDIA/nccl, 2.4 to 2.29; ``ibstat`` of rdma-core and ``lspci -vv`` of pciutils.
"""

import re
from collections.abc import Iterator
from typing import Final

from busbw.runs.facts import RdmaPort
from busbw_analysis.data.readers import hosts
from busbw_analysis.data.readers.hosts import Evidence

SIGN: Final = re.compile(rb"NCCL (?:INFO|WARN) |\bINFO NET/")
HARDWARE: Final = re.compile(
    rb"(?m)^[ \t]+GPU0[ \t]+(?:GPU1|NIC0|CPU Aff)|LnkSta:|ACSCtl:"
    rb"|^(?:CA|Infiniband device) '|NvLink Link Status|Link 0: "
)
"""What ``nvidia-smi``, ``lspci``, ``ibstat`` and ``dcgmi`` print of links: evidence without results."""
LIKELY: Final = re.compile(
    r"NET/|NCCL WARN |Using network|set by environment|NVLS multicast|via SHM|retrying|Lnk(?:Sta|Cap):"
    r"|Express \(v|ACSCtl:"
    r"|CANNOT Access|^GPU\d|CA '|State:"
    r"|[Rr]ate:|layer:|device '|use ring PXN|HINT:|P2P is disabled|GPU Direct|libibverbs|NCCL_IB_HCA set to"
    r"|(?:Bootstrap|NET) ?: Using|Cuda failure|Link \d|^(?:[DUX_] ){3}"
    r"|output empty list|(?:-x|-env|export) NCCL_|^\s*NCCL_\w+=\S+ \\$|NCCL_\w+=.*_perf\b"
)
"""Whether a line may be evidence; nearly all lines of NCCL are not."""


def _variable(names: str, values: str) -> re.Pattern[str]:
    """What NCCL prints of a variable, or a command line that sets it."""
    return re.compile(rf"\b({names})(?: set (?:by environment )?to |=)({values})(?:\.|\s|$)")


_ONE_NIC: Final = r"=?(?!mlx\d\b)\w{0,30}\d(?::\d+)?"
"""The name of a NIC and perhaps its port; ``mlx5`` is the beginning of several names."""
KINDS: Final = (
    Evidence("rdma-off", _variable("NCCL_IB_DISABLE", "1"), "{}={} turns RDMA off"),
    Evidence("no-rdma", re.compile(r"NET/IB\S* ?: No device found"), "NCCL has no InfiniBand or RoCE device"),
    Evidence("no-rdma", re.compile(r"Failed to open libibverbs"), "NCCL finds no libibverbs, so no RDMA"),
    Evidence(
        "no-rdma",
        re.compile(r"NET/OFI .{0,200}(?:[Ii]nitialization failed|Unable to find a protocol|Failing initialization)"),
        "the network plugin for libfabric (EFA, Slingshot) found no provider",
    ),
    Evidence("no-provider", re.compile(r"provider (efa|cxi|verbs) output empty list"), "libfabric finds no NIC for {}"),
    Evidence("nic-closed", re.compile(r"Unable to open device ([\w.-]+)"), "NCCL cannot open the NIC {}"),
    Evidence("nic-closed", re.compile(r"NCCL WARN Call to ibv_open_device failed"), "NCCL cannot open a NIC"),
    Evidence(
        "rdma-failed",
        re.compile(r"Got completion .*?\b(?:error |status=)(\d+)"),
        "transfers over RDMA end with completion status {} (12: the other NIC does not answer; 5: after another error)",
    ),
    Evidence(
        "rdma-failed",
        re.compile(r"Call to (ibv_modify_qp) failed with (?:error )?(.*)"),
        "a NIC does not connect to another one ({}: {})",
    ),
    Evidence(
        "locked-memory",
        re.compile(r"Call to ibv_reg_\w*mr\w* failed"),
        "a NIC cannot register memory: too little may be locked (ulimit -l), or that of GPUs needs nvidia-peermem",
    ),
    Evidence(
        "peer-gone",
        re.compile(r"Connection closed by remote peer|Connection reset by peer|remote process exited"),
        "another rank ended first",
    ),
    Evidence(
        "wrong-interface",
        re.compile(
            r"(?:Bootstrap|NET(?:/Socket)?) ?: Using (?:interface |\[\d+\])?"
            r"((?:docker|virbr|veth|cni|cali|ip6tnl|tunl|sit)[^:<\s]{0,15}|br-[\da-f]{12}|lo(?=:))"
        ),
        "NCCL takes the interface {}, which other hosts do not reach",
    ),
    Evidence("sockets", re.compile(r"Using network Socket|via NET/Socket"), "NCCL sends over sockets{interface}"),
    Evidence(
        "sockets",
        re.compile(r"NET/OFI Selected [Pp]rovider is (tcp|sockets)\b"),
        "the network plugin sends over sockets (libfabric's provider {})",
    ),
    Evidence(
        "sockets",
        re.compile(r"MPI startup\(\): libfabric provider: ((?:tcp|sockets|udp)\b\S*)"),
        "Intel MPI sends over sockets (libfabric's provider {})",
    ),
    Evidence("p2p-off", _variable("NCCL_P2P_DISABLE", "1"), "{}={} forbids copies from GPU to GPU"),
    Evidence(
        "no-peers",
        re.compile(r"P2P is disabled between (?:NVLINK )?connected GPUs (\d+) and (\d+)"),
        "GPUs {} and {} have no peer access",
    ),
    Evidence(
        "no-peers",
        re.compile(r"Device=(\d+) CANNOT Access Peer Device=(\d+)"),
        "GPUs {} and {} have no peer access (p2pBandwidthLatencyTest)",
    ),
    Evidence(
        "acs-on",
        re.compile(r"ACSCtl:\s*SrcValid\+"),
        "PCI Express ACS is on, which sends copies between GPUs and NICs through the root (lspci)",
    ),
    Evidence("p2p-off", _variable("NCCL_P2P_LEVEL", "LOC"), "{}={} forbids copies from GPU to GPU"),
    Evidence(
        "no-nvlink",
        re.compile(r"^GPU(\d+)\s+(?:(?!NV\d)\S+\s+)*?(?:PIX|PXB|PHB|NODE|SYS)\s(?!.*\bNV\d)"),
        "GPU {} has no NVLink",
    ),
    Evidence(
        "sharp-off",
        re.compile(r"NCCL WARN .*?(SHARP (?:coll init error|group create)|Cannot initialize CollNet)"),
        "switches do not add (SHARP, CollNet), although they were asked to ({})",
    ),
    Evidence("shm-off", _variable("NCCL_SHM_DISABLE", "1"), "{}={} sends the data of a host over its network"),
    Evidence(
        "shm-full",
        re.compile(r"WARN (?:.*[Ss]hared memory segment|.*failed to extend /dev/shm|.*/dev/shm/.*(?:space|size))"),
        "NCCL gets no segment of shared memory (/dev/shm)",
    ),
    Evidence(
        "no-fabric",
        re.compile(r"'system not yet initialized'"),
        "NVSwitch is not set up, because nvidia-fabricmanager does not run or has another version than the driver",
    ),
    Evidence(
        "too-many-peers",
        re.compile(r"'peer mapping resources exhausted'"),
        "a GPU has more peers than CUDA allows",
    ),
    Evidence("nvlink-down", re.compile(r"Link (\d+): <inactive>"), "NVLink {} is down"),
    Evidence("nvlink-down", re.compile(r"^(?:[UX_] )*D(?: [DUX_]){3,}$"), "an NVLink is down (dcgmi nvlink)"),
    Evidence("gpu-shared", re.compile(r"Duplicate GPU detected : (rank \d+ and rank \d+)"), "{} use the same GPU"),
    Evidence("via-shm", re.compile(r"via SHM"), "GPUs of a host exchange data through host memory (via SHM)"),
    Evidence("nvls-off", _variable("NCCL_NVLS_ENABLE", "0"), "{}={} keeps NVSwitch from adding (NVLink SHARP)"),
    Evidence(
        "gdr-off",
        re.compile(
            r"GPU Direct RDMA Disabled for HCA|NET/OFI .{1,99}, disabling GDR"
            r"|via NET/(?!Socket)[\w ]+/\d+(?:\(\d+\))?(?:/Shared)?\s*$|PXN \d GDR 0"
        ),
        "data between GPUs and NICs go through host memory (no GPUDirect RDMA)",
    ),
    Evidence("gdr-off", _variable("NCCL_NET_GDR_LEVEL", "0|LOC"), "{}={} sends data through host memory"),
    Evidence("nics-chosen", _variable("NCCL_IB_HCA", _ONE_NIC), "{}={} leaves NCCL one NIC"),
    Evidence("pxn-off", _variable("NCCL_PXN_DISABLE", "1"), "{}={} keeps GPUs from the NICs of others"),
    Evidence("choice-forced", _variable("NCCL_(?:ALGO|PROTO)", r"\S+"), "{}={} forces NCCL's choice"),
    Evidence(
        "few-channels", _variable("NCCL_MAX_(?:NCHANNELS|CTAS)|NCCL_MAX_NRINGS", r"\d+"), "{}={} limits the channels"
    ),
    Evidence("nccl-hint", re.compile(r"HINT: (.*\bwhen\b.*)"), "NCCL's hint: {}"),
    Evidence("numa-balancing", re.compile(r"NUMA auto balancing enabled"), "the kernel moves pages between NUMA nodes"),
    Evidence("no-iommu-pt", re.compile(r"Missing \"iommu=pt\""), "the IOMMU translates copies between devices"),
    Evidence("not-set", re.compile(r"Missing \"((?:HSA|HIP)_\w+=\w+)\""), "{} is not set, which RCCL asks for"),
    Evidence(
        "retries",
        re.compile(r"\b(?:Call to )?(\w{1,64})(?: to \S{1,99})? returned .{1,200}, retrying"),
        "{} failed and was tried again",
    ),
    Evidence(
        "pcie-degraded",
        # At rest a link of full width has 2.5 GT/s.
        re.compile(
            r"LnkSta:\s*Speed (?!2\.5GT/s[^,]*, Width x\d+(?! \(downgraded))"
            r"([\d.]+)GT/s(?=.*downgraded)[^,]*, Width (x\d+)"
        ),
        "a PCI Express link runs at {} GT/s {}, less than its device can (lspci)",
    ),
    Evidence(
        "pcie-rest",
        re.compile(r"LnkSta:\s*Speed (2\.5)GT/s \(downgraded\), Width (x\d+)(?! \(downgraded)"),
        "a PCI Express link runs at {} GT/s {}, as it does at rest (lspci)",
    ),
)
HARMLESS: Final = frozenset(
    {"no-rdma", "no-provider", "nic-closed", "no-peers", "numa-balancing", "no-iommu-pt", "not-set", "sharp-off"}
)
"""Codes of evidence after which NCCL goes on, although it warns."""
REMEDY: Final = "remedy"
"""Code of a sentence in a paste that names a variable which helped."""
_UNSET: Final = "unset it and run the tool again"
_NO_PEERS: Final = "check why the GPUs have no peer access (nvidia-smi topo -p2p r)"
ACTIONS: Final = {
    "network-path": {
        "rdma-off": _UNSET,
        "wrong-interface": "name the right one (NCCL_SOCKET_IFNAME)",
        "no-rdma": "give the job its RDMA devices (ibv_devices must list them there), then run it again",
        "no-provider": "give the job its RDMA devices (fi_info must list them there), then run it again",
        "nic-closed": "give the job that device too (/dev/infiniband, device plugin)",
        "rdma-failed": "check that the NICs of both hosts reach each other (ib_write_bw; GID index, MTU, cable)",
        "locked-memory": "raise the limit of locked memory (ulimit -l), load nvidia-peermem",
        "peer-gone": "read the log of that rank",
        "sockets": "let NCCL use RDMA or the network's plugin (NCCL_DEBUG=INFO says what it finds)",
        "port-down": "bring the port up (ibstat)",
        "gdr-off": "load nvidia-peermem or use DMA-BUF, and put NIC and GPU below one switch",
        "pxn-off": _UNSET,
        "nics-chosen": "unset it, or name all NICs of the network for data",
        "retries": "check that connection: interface, firewall, cable",
        **hosts.ACTIONS["network-path"],
    },
    "host-path": {
        "p2p-off": _UNSET,
        "shm-off": _UNSET,
        "shm-full": "raise its limit (docker run --shm-size)",
        "no-fabric": "start nvidia-fabricmanager of the driver's version",
        "too-many-peers": "use at most 8 GPUs of a host",
        "nvlink-down": "reset the GPUs; if the link stays down, replace the bridge or GPU (nvidia-smi nvlink -s)",
        "gpu-shared": "give every rank a GPU of its own",
        "no-peers": _NO_PEERS,
        "no-nvlink": "expect what PCI Express has (nvidia-smi topo -m), or check the bridge",
        "via-shm": _NO_PEERS,
        "nvls-off": _UNSET,
        **hosts.ACTIONS["host-path"],
    },
    "settings": {
        "acs-on": "turn ACS off in the firmware, or with setpci (NCCL's troubleshooting)",
        "pcie-degraded": "reseat that device, or check the slot",
        "nccl-hint": "follow it",
        REMEDY: "try that setting here",
        "numa-balancing": "turn it off (sysctl kernel.numa_balancing=0)",
        "no-iommu-pt": "start the kernel with iommu=pt",
        "not-set": "set it (mpirun -x)",
        "sharp-off": "check sharp_am of the subnet manager, and sharp_hello of every host",
        "choice-forced": _UNSET,
        "few-channels": _UNSET,
        **hosts.ACTIONS["settings"],
    },
    "beside": hosts.ACTIONS["beside"],
}
"""Evidence in a log (codes of its notes), and what to do about it: for what goes over a network, within a host, for
both; what is beside them explains no rate.
"""
PASSING: Final = hosts.PASSING | {
    *("sockets", "via-shm", "no-nvlink", "no-peers", "gdr-off", "nvls-off", "nics-chosen", "choice-forced"),
    *("few-channels", "numa-balancing", "retries", "pxn-off", "peer-gone", "nccl-hint", "acs-on"),
}
"""Codes of evidence that healthy jobs have as well."""
EVIDENCE: Final = frozenset({"port-down", REMEDY, *(kind.code for kind in (*KINDS, *hosts.KINDS))})
"""All codes of evidence."""
ACTION: Final = {code: action for actions in ACTIONS.values() for code, action in actions.items()}
FAULTS: Final = (
    *(
        "no-fabric",
        "gpu-shared",
        "shm-full",
        "locked-memory",
        "port-down",
        "rdma-failed",
        "wrong-interface",
        "nvlink-down",
    ),
    *("too-many-peers", "retries", "acs-on", "no-iommu-pt", "not-set", "pcie-degraded"),
)
"""Codes of what nobody chooses and what is wrong on any machine, the gravest first."""
UNUSUAL: Final = (*FAULTS, *(code for code in ACTION if code not in PASSING and code not in FAULTS))
"""Codes of what healthy jobs do not have, the gravest first."""
OF_PORTS: Final = ("wrong-interface", "port-down")
"""Those of interfaces and ports."""
OF_NETWORKS: Final = frozenset({"no-rdma", "sockets", "gdr-off", "pxn-off", "nics-chosen", "rdma-off"})
"""Codes of evidence that says something only of jobs on several hosts."""
_HELPED: Final = re.compile(r"(?i)\b(?:s[lo]{2}ve[sd]|fix(?:ed|es)|resolve[sd]|work(?:ed|s)|help(?:ed|s)|workaround)\b")
_VARIABLE: Final = re.compile(
    r"\b((?:NCCL|RCCL|UCX|UCC|GLOO|FI|HSA|CUDA|TORCH_NCCL)_[A-Z\d_]{2,40} ?= ?[\w,:.^=/-]*[\w/])"
)
_ASSIGNED: Final = re.compile(r"\b[A-Z][A-Z\d_]+ ?=")
_CLAUSES: Final = re.compile(r"[,.](?=\s|$)|;|\bbut\b")
_DENIED: Final = re.compile(r"(?i)n't\b|\b(?:not|no|never|nor|without|still|unless|if)\b|\?")
_FAILED: Final = re.compile(r"(?i)\b(?:hang|hung|fail|br[eo]ak|broke|crash|error|stuck|slow|same\b)")
_DOUBTED: Final = re.compile(
    r"(?i)debug|version|\b(?:until|only|tr(?:y|ied|ying)|see|how|nothing|before|except|otherwise|instead|even|also"
    r"|should|would|could|might|may|maybe|seems?|although|despite)\b"
)


def remedy(text: str) -> str | None:
    """The variable that helped, with its value, as a sentence of a paste says: the one of a clause that names success.
    None if there is no such clause or several, or a doubt in it, or a failure up to the next clause with a variable.
    """
    if _DENIED.search(text):
        return None
    helped: set[str] = set()
    last = None
    for clause in _CLAUSES.split(text):
        if (count := len(_ASSIGNED.findall(clause))) == 0:
            if _FAILED.search(clause):
                helped.discard(last or "")
            continue
        match = _VARIABLE.search(clause)
        last = match[1] if match is not None and count == 1 and _HELPED.search(clause) else None
        if last is not None and not _DOUBTED.search(clause) and not _FAILED.search(clause):
            helped.add(last)
    return helped.pop() if len(helped) == 1 else None


_SOCKET: Final = re.compile(r"NET/Socket : Using \[\d+\]([\w.-]+):")
_PORT: Final = re.compile(r"NET/IB\w*: \[\d+\] ([\w.-]+):[\w.-]+:(\d+)/(IB|RoCE) .*speed=(\d{1,9})\b")
"""Speed in Mbit/s."""
_DEVICE: Final = re.compile(r"(?:CA|[Ii]nfiniband device) '([\w.-]+)'|hca_id:\s+([\w.-]+)")
_STATE: Final = re.compile(r"\s*(?:State|state):\s+(?:\d: )?(?:PORT_)?(\w+)")
_RATE: Final = re.compile(r"\s*[Rr]ate: (\d{1,5})\b")
"""Gbit/s."""
_LAYER: Final = re.compile(r"\s*(?:Link |link_)layer:\s{1,9}(InfiniBand|Ethernet)\b")
_LINK: Final = re.compile(r"Lnk(Cap|Sta):.*?Speed ([\d.]+)GT/s.*?, Width x(\d+)")
_RDMA: Final = re.compile(r"link (\S+)/\d+ .*?\bstate (\w+) physical_state")
"""A line of ``rdma link``."""
_AT_REST: Final = 2.5
"""GT/s of a link that nobody uses."""


class Paths:
    """The evidence and the ports of NICs in a log, read line by line."""

    def __init__(self) -> None:
        self.ports: dict[str, RdmaPort] = {}
        self.is_connected = False
        """Whether a port is active."""
        self._able, self._is_endpoint, self._down = (0.0, 0), False, set[str]()
        self._device, self._rated, self._active = "", "", False
        self._interface = ""

    def evidence(self, text: str) -> Iterator[tuple[str, str]]:
        """Code and meaning of a line that :data:`LIKELY` or that of ``hosts`` matches."""
        if (match := _SOCKET.search(text)) is not None:
            self._interface = f" of {match[1]}"
        kinds = (*KINDS, *hosts.KINDS) if hosts.LIKELY.search(text) is not None else KINDS
        for kind in kinds:
            if (match := kind.pattern.search(text)) is not None:
                yield kind.code, kind.text.format(*filter(None, match.groups()), interface=self._interface)
        if (match := _PORT.search(text)) is not None:
            name, port, layer, speed = match.groups()
            layer = {"IB": "InfiniBand", "RoCE": "Ethernet"}[layer]
            self._add(name, int(speed) * 1e6 / 8, int(port), layer)
        elif (match := _DEVICE.search(text)) is not None:
            self._device, self._rated, self._active = match[1] or match[2], "", False
        elif "Express (v" in text:
            self._is_endpoint = "Endpoint" in text
        elif (match := _LINK.search(text)) is not None:
            yield from self._link(match[1], float(match[2]), int(match[3]), text)
        else:
            yield from self._port(text)

    def _port(self, text: str) -> Iterator[tuple[str, str]]:
        """Note state, rate and layer of the port of a device; one that is not active is evidence."""
        if (match := _RDMA.match(text)) is not None:
            if match[2] != "ACTIVE":
                self._down.add(match[1])
            self.is_connected = self.is_connected or match[1] not in self._down
        if self._device and (match := _STATE.match(text)) is not None:
            self._active = match[1].upper() == "ACTIVE"
            self.is_connected = self.is_connected or self._active
            if not self._active:
                yield "port-down", f"port of {self._device} is {match[1]}, not active"
        elif self._device and self._active and (match := _RATE.match(text)) is not None:
            self._add(self._device, int(match[1]) * 1e9 / 8, 1, None)
            self._rated, self._device = self._device, ""
        elif self._rated and (match := _LAYER.match(text)) is not None:
            self._add(self._rated, self.ports[self._rated].bytes_per_second or 0.0, 1, match[1])
            self._rated = ""

    def _link(self, what: str, speed: float, width: int, text: str) -> Iterator[tuple[str, str]]:
        """Note what a device can; what its link has is evidence if that is less and lspci does not say it itself."""
        if what == "Cap":
            self._able = (speed, width) if self._is_endpoint else (0.0, 0)  # ports have what is behind them
            return
        (most, widest), self._able = self._able, (0.0, 0)
        is_slow = speed < most and speed != _AT_REST
        if width and (is_slow or width < widest) and "downgraded" not in text:
            able = f"of {most:g} GT/s x{widest} that its device can"
            yield "pcie-degraded", f"a PCI Express link runs at {speed:g} GT/s x{width}, {able} (lspci)"

    def _add(self, name: str, rate: float, port: int, layer: str | None) -> None:
        self.ports[name] = RdmaPort(device=name, port=port, bytes_per_second=rate, layer=layer, up=True)
