"""What the kernel and the tools of a host print of its links, devices and services: kinds of evidence.

Sources: ``drivers/pci/pcie/aer.c`` and ``pci.c`` of Linux; ``nvidia-smi -q`` and ``nvlink``; DCGM; ``ibv_devinfo`` of
rdma-core; ``ethtool -S``; systemd; ``kubectl describe``; ``ucx_info`` and UCX's messages.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Evidence(NamedTuple):
    """A kind of line that tells how data travel, or of a fault on their way.

    code: of the note; ``nccl_info.ACTIONS`` says what to do
    pattern: recognises the line
    text: what it means; ``{}`` are the groups of the pattern, ``{interface}`` that of the sockets
    """

    code: str
    pattern: re.Pattern[str]
    text: str


SIGN: Final = re.compile(
    rb"PCIe Bus Error: severity=|available PCIe bandwidth, limited by|Slowdown +: Active|Remapping Failure Occurred"
    rb"|(?i:\| ?(?:pcie|memory|diagnostic|targeted \w+) {3,}\| Fail)|^\s*Fabric\s*\n\s*State +:|NV_WARN_NOTHING_TO_DO"
    rb"|\.service: (?:Main|Control|Failed)|^\s*Warning {2,}[A-Z][A-Za-z]+ {2,}|LustreError: |EDAC MC\d+: "
    rb"|AMD-Vi: Event|DMAR: \[DMA"
    rb"|resource \d+ +: +md \d+ +dev \d+ +flags|# +Transport: \w|cfg#\d+ tag\(|I/O error, dev "
    rb"|: server \S+ not responding|blocked for more than \d+ seconds|temperature (?:is )?above threshold"
    rb"|Link \d+: (?:Replay|Recovery|CRC)[\w ]{0,20} Errors:|^hca_id:\s|^link \S+/\d+ .*physical_state"
    rb"|^\s*Reason=\S.{2,140} \[[\w.-]+@\d{4}-|update_node: node \S+ reason|Node state check: "
    rb"|libfabric:\d+:\d*:\S*<warn>|all links are inActive|libibverbs: Warning"
    rb"|^\S+ +\d+/\d+ +(?:Init:)?(?:CrashLoop|Error|OOMK|ErrIm|ImagePull|Evict|CreateCont)"
    rb"|/hw_counters/|(?:_phy|out_of_buffer): [1-9]|back-off \S+ restart"
    rb"|(?<!-)-{74}\r?\n(?:\S{1,40}: )?(?:WARNING|A|The|No|An|It|By|Open)\b|^\s*Local host: +\S"
)
"""In a text that has such lines, and perhaps no results."""
LIKELY: Final = re.compile(
    "PCIe|Slowdown|Remapping|Uncorrectable|[|] Fail|NvLink link|Fabric|NV_WARN_N|service: |Warning  |cfg#"
    "|EDAC|AMD-Vi|DMAR|not responding|blocked for|I/O error|above thr|Errors:|Lustre|^State +:|_err|discards"
    "|^Reason=|update_node|state check|libfabric provider"
    "|<warn>|inActive|back-off|libibverbs|\\d/\\d+ +(?:Init|Cra|Err|OOM|Ima|Evi|Pen|Unk|Creat)"
    "|y assigned |link_downed|out_of_|CRC|^link |hca_id|state:"
)
"""One of which is in every line of these kinds."""
KINDS: Final = (
    Evidence(
        "pcie-fatal",
        re.compile(r"([\da-f:.]{7,16}): PCIe Bus Error: severity=(Uncorrect\w+(?: \([\w-]+\))?), type=([\w ]+),"),
        "PCI Express reports errors of {} that it cannot correct ({}, {})",
    ),
    Evidence(
        "pcie-errors",
        re.compile(r"([\da-f:.]{7,16}): PCIe Bus Error: severity=Correct\w+, type=([\w ]+),"),
        "PCI Express corrects errors of {} again and again ({}), for which it sends data twice",
    ),
    Evidence(
        "pcie-degraded",
        re.compile(
            r"([\d.]+) Gb/s available PCIe bandwidth, limited by ([\d.]+) ?GT/s (?:PCIe )?(x\d+) link"
            r".{0,60}\(capable of ([\d.]+) Gb/s"
        ),
        "a device has {} Gb/s of PCI Express (a link of {} GT/s {}), and could use {} Gb/s",
    ),
    Evidence(
        "gpu-throttled",
        re.compile(r"((?:HW|SW) (?:Thermal |Power Brake )?Slowdown) +: Active"),
        "a GPU lowers its clocks ({})",
    ),
    Evidence("gpu-memory", re.compile(r"(Remapping Failure) Occurred +: Yes"), "the memory of a GPU is broken ({})"),
    Evidence(
        "gpu-memory",
        re.compile(r"((?:[DS]RAM )?Uncorrectable(?: Parity| SEC-DED)?) +: ([1-9]\d*)"),
        "the memory of a GPU has errors ({}: {})",
    ),
    Evidence(
        "port-down",
        re.compile(r"^link ([\w.-]+)/\d+ .*?\bstate (DOWN|INIT)"),
        "port of {} is {}, not active (rdma link)",
    ),
    Evidence("no-fabric", re.compile(r"^State +: (In Progress|Not Started)"), "NVSwitch is not set up (Fabric: {})"),
    Evidence("no-nvswitch", re.compile(r"NV_WARN_NOTHING_TO_DO"), "nvidia-fabricmanager finds no NVSwitch"),
    Evidence("nvlink-down", re.compile(r"NvLink link (\d+) is currently down"), "NVLink {} is down (DCGM)"),
    Evidence("nvlink-idle", re.compile(r"all links are inActive"), "a GPU has NVLinks, and none is in use"),
    Evidence(
        "nvlink-errors",
        re.compile(r"Link (\d+): ((?:Replay|Recovery|CRC)[\w ]{0,20}) Errors: ([1-9]\d*)"),
        "NVLink {} has errors ({}: {})",
    ),
    Evidence(
        "dcgm-failed",
        re.compile(
            r"(?i:\| ?(pcie|memory(?: bandwidth)?|diagnostic|nvbandwidth|targeted \w+|sm stress|memtest|pulse test|eud"
            r"|context create|software|nccl_tests)) {3,}\| Fail\b"
        ),
        "DCGM's test {} failed",
    ),
    Evidence(
        "pod-unscheduled",
        re.compile(r"\bWarning +FailedScheduling .*? (\d+/\d+ nodes are available: .{1,160}?)(?:\. |\.*$)"),
        "Kubernetes finds no node for a pod ({})",
    ),
    Evidence(
        "pod-warning",
        re.compile(
            r"\bWarning {2,}((?!FailedScheduling)[A-Z][A-Za-z]+) {2,}(?:\S(?: ?\S){0,99} {2,}){0,2}"
            r"(?:.*?\b(?=error [a-z]))?(\S(?: ?\S){0,159})"
        ),
        "Kubernetes warns of a pod ({}: {})",
    ),
    Evidence(
        "pod-warning",
        re.compile(
            r"^(\S+) +\d+/\d+ +((?:Init:)?(?:CrashLoopBackOff|Error|OOMKilled)|ErrImagePull|ImagePullBackOff|Evicted"
            r"|Unknown|CreateContainer(?:Config)?Error)\b"
        ),
        "Kubernetes does not run pod {} ({})",
    ),
    Evidence(
        "pod-warning",
        re.compile(r"back-off \S+ restarting failed container=(\S+) pod=([\w.-]+)"),
        "Kubernetes starts container {} of pod {} again and again",
    ),
    Evidence(
        "no-driver",
        re.compile(r"libibverbs: Warning: no userspace device-specific driver found for (\S+)"),
        "libibverbs has no driver for a NIC ({})",
    ),
    Evidence(
        "service-failed",
        re.compile(
            r"(?:^|\s)([\w@.-]{1,99})\.service: (?:(?:Main|Control) process exited, code=\w+, status=(?!0/)\S+"
            r"|Failed with result)"
        ),
        "the service {} failed",
    ),
    Evidence(
        "ucx-tcp",
        re.compile(r"(?:inter-node|ep_cfg|\bep).{0,20}cfg#\d+ tag\((tcp/[^\s)]+)(?: tcp/[^\s)]+)*\)"),
        "UCX sends over TCP ({})",
    ),
    Evidence(
        "node-drained",
        re.compile(
            r"^Reason=(\S.{2,140}?) \[[\w.-]+@\d{4}-|update_node: node (\S+ reason set to: \S.{2,80})"
            r"|Node state check: (\S.{2,120})"
        ),
        "Slurm does not use a host, or lost it ({})",
    ),
    Evidence(
        "libfabric-warns",
        re.compile(r"^libfabric:\d+:\d*:\S*<warn> (\S.{3,160})"),
        "libfabric warns: {}",
    ),
    Evidence("host-memory", re.compile(r"EDAC MC\d+: (\d+ [CU]E)"), "the memory of a host has errors ({})"),
    Evidence("storage", re.compile(r"\bn?fs: server (\S+) not responding"), "the file server {} does not answer"),
    Evidence("storage", re.compile(r"I/O error, dev (\w+)"), "a disk has errors ({})"),
    Evidence("storage", re.compile(r"\b(LustreError: .{1,99})"), "Lustre has an error ({})"),
    Evidence(
        "blocked",
        re.compile(r"task (\S{1,40}) blocked for more than (\d+) seconds"),
        "the kernel makes {} wait for more than {} s",
    ),
    Evidence(
        "iommu-faults",
        re.compile(r"AMD-Vi: Event logged \[(IO_PAGE_FAULT)|(DMAR): \[DMA (?:Read|Write)"),
        "the IOMMU stops copies of a device ({})",
    ),
    Evidence("hot", re.compile(r"([Cc]ore|[Pp]ackage) temperature (?:is )?above thr"), "a processor is too hot ({})"),
    Evidence(
        "nic-errors",
        re.compile(
            r"\b(symbol_error(?:_counter)?|link_downed|port_rcv_errors|rx_crc_errors(?:_phy)?|rx_symbol_err_phy"
            r"|packet_seq_err|local_ack_timeout_err|out_of_sequence|rnr_nak_retry_err|rx_discards_phy|rx_out_of_buffer)"
            r"\s*[:=|]?\s*([1-9]\d*)\b"
        ),
        "a NIC counts errors ({}: {})",
    ),
)
ACTIONS: Final = {
    "network-path": {
        "ucx-tcp": "let UCX see the NIC (ibv_devinfo there; ucx_info -d has to list rc; UCX_TLS, UCX_NET_DEVICES); it "
        "has to be built with verbs",
        "no-driver": "install it (rdma-core, libmlx5), if that NIC is to be used",
        "nic-errors": "look whether it grows during a run; then cable, module and port, or flow control (PFC, ECN)",
    },
    "host-path": {
        "nvlink-idle": "expect that without a bridge between GPUs; where NVSwitch or a bridge is, reset the GPUs",
        "nvlink-groups": "keep what exchanges most within a group; between groups expect what PCI Express has",
        "gpu-memory": "drain the host, reset the GPU; have it replaced if errors come again (nvidia-smi -q -d ECC)",
        "nvlink-errors": "reset the GPUs; if they grow again, replace the GPU, bridge or board",
        "gpu-throttled": "check cooling, power and the power brake of that host (nvidia-smi -q -d PERFORMANCE)",
    },
    "settings": {
        "pcie-fatal": "reseat or replace that device, its riser or cable (lspci names it); update its firmware",
        "iommu-faults": "start the kernel with iommu=pt, or turn the IOMMU off; until then NCCL_P2P_DISABLE=1",
        "hot": "check the cooling of that host",
        "pcie-errors": "reseat that device, its riser or cable (lspci names it), or lower its link by a generation; "
        "pci=noaer only hides them",
    },
    "beside": {
        "no-nvswitch": "do without it where there is none (cards of PCI Express, bridges); else load the switches' "
        "driver, and for Blackwell install nvlsm",
        "dcgm-failed": "read what stands below it; drain the host if the test fails again (dcgmi diag -r 3)",
        "pod-unscheduled": "compare what the pod asks for with the nodes (kubectl describe node: Allocatable, Taints"
        "); a resource that they lack needs its device plugin",
        "node-drained": "mend what it names (slurmd -C and slurmd's log there), then scontrol update nodename=NAME "
        "state=resume",
        "libfabric-warns": "FI_LOG_LEVEL=info tells more; fi_info lists the networks",
        "pod-warning": "mend what it names; kubectl logs --previous and kubectl describe of that pod tell more",
        "storage": "look at that server or disk (dmesg there); it is no fault of the network between GPUs",
        "blocked": "look what it waits for (its stack in dmesg; storage, a driver)",
        "host-memory": "have the module replaced that edac-util names",
        "mpi-says": "follow it; mpirun --mca pml ucx (or ob1 with --mca btl ^openib) takes another transport",
        "service-failed": "read its messages (journalctl -u)",
        "pcie-rest": "look again while data are copied: at rest devices lower it; if it stays, reseat the device",
    },
}
"""Codes of evidence, and what to do about it: for what goes over a network, within a host, for both; what is beside
them explains no rate.
"""
SCHEDULED: Final = "Successfully assigned "
"""Of a pod for which there was no node before."""
PASSING: Final = frozenset({"nvlink-groups", "nvlink-idle", "mpi-says", "libfabric-warns", "no-driver"})
"""Codes of evidence that healthy hosts have as well."""
_TRANSPORT: Final = re.compile(
    r"^#? *(?:resource \d+ +: +md \d+ +dev \d+ +flags \S+ |Transport: )([a-z]+)[\w]*(?:/(\S+))?"
)


class Transports:
    """The transports that ``ucx_info`` lists."""

    def __init__(self) -> None:
        self._names, self._line, self._over = set[str](), 0, ""

    def take(self, number: int, text: str) -> None:
        """Note the transport of a line."""
        if text[:1] in {"#", "r", "T"} and (match := _TRANSPORT.match(text)) is not None:
            self._names.add(match[1])
            if match[1] == "tcp" and not self._line:
                self._line, self._over = number, match[2] or ""

    def evidence(self) -> Iterator[tuple[str, int, str]]:
        """Code, line and meaning, if TCP is all that leaves the host."""
        if self._line and not self._names & {"rc", "dc", "ud", "srd", "gga", "ugni"}:
            over = f" ({self._over})" if self._over else ""
            yield "ucx-tcp", self._line, f"UCX finds no NIC for RDMA, and has only TCP{over} to other hosts"


_ROW: Final = re.compile(r"GPU(\d{1,3})\s+((?:(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS)\s+)+)")
_BETWEEN: Final = {"SYS": "the link between processors", "NODE": "the host's bridges", "PHB": "the host's bridge"}


class Topology:
    """The matrix of ``nvidia-smi topo -m``."""

    def __init__(self) -> None:
        self._rows: dict[int, list[str]] = {}
        self._line = 0

    def take(self, number: int, text: str) -> None:
        """Note a row."""
        if text.startswith("GPU") and (match := _ROW.match(f"{text} ")) is not None:
            self._rows.setdefault(int(match[1]), match[2].split())
            self._line = self._line or number

    def evidence(self) -> Iterator[tuple[str, int, str]]:
        """Code, line and meaning, if NVLink joins some GPUs, and not all."""
        group = {gpu: gpu for gpu in self._rows}
        for gpu, cells in self._rows.items():
            for other, cell in enumerate(cells[: len(group)]):
                if cell.startswith("NV") and other in group and group[gpu] != group[other]:
                    joined, last = group[gpu], group[other]
                    group = {each: joined if of == last else of for each, of in group.items()}
        groups = [[gpu for gpu in group if group[gpu] == of] for of in dict.fromkeys(group.values())]
        kinds = {cell for cells in self._rows.values() for cell in cells[: len(group)]}
        if 1 < len(groups) < len(group):
            shown = "; ".join(", ".join(map(str, members)) for members in groups[:_MOST_GROUPS])
            between = next((words for kind, words in _BETWEEN.items() if kind in kinds), "PCI Express")
            yield (
                "nvlink-groups",
                self._line,
                f"NVLink joins only GPUs within groups ({shown}); between them data go over {between}",
            )


_MOST_GROUPS: Final = 8
