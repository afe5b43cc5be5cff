"""Which peaks apply to a machine, and what is odd about it: asked of machines on record and of this one."""

import json
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pynvml
import pytest
from simulated.management import SWITCH, Driver, ManagedGpu, managed, managed_gpus, write_sysfs
from testing.narrow import require, require_type

from busbw.cli import machine
from busbw.runs.facts import Drive, GpuFacts, HostFacts, Lanes, LinkFacts, MemoryModules, Nic, PciFacts, RdmaPort
from busbw.runs.plan import read_suite
from busbw.system import detect, environment
from busbw.system.catalog import Catalogue, HardwarePeak, catalogue
from busbw.system.detect import Level, Name, Picture, picture
from busbw.system.dimms import memory_facts
from busbw.system.pci import affinity, driver_of, ports

pytestmark = pytest.mark.usefixtures("lines_recorded")

LaidOut = Callable[[str], Path]
MACHINES = Path(__file__).parents[1] / "data/machines"


@pytest.fixture(scope="module")
def rows() -> Catalogue:
    return catalogue(environment={})


Facts = Callable[..., HostFacts]


@pytest.fixture
def facts_of(laid_out: LaidOut) -> Facts:
    """The facts of a machine on record, as host_facts would have them there."""

    def facts(
        name: str, down: int = 0, virtualization: str | None = None, change: Callable[[Path], None] | None = None
    ) -> HostFacts:
        path = MACHINES / f"{name}.nvml.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        sysfs = laid_out(f"machines/{name}")
        if change is not None:
            change(sysfs)
        with managed(Driver(managed_gpus(record, down))):
            pci = affinity(sysfs)
        host = HostFacts(
            pci=pci,
            rdma=tuple(ports(sysfs)),
            memory_modules=memory_facts(sysfs),
            virtualization=virtualization,
        )
        assert msgspec.json.decode(msgspec.json.encode(host), type=HostFacts) == host
        return host

    return facts


def named(facts: HostFacts, name: str) -> HostFacts:
    """The facts of a host with one GPU, called ``name``."""
    (gpu,) = facts.pci.gpus
    pci = msgspec.structs.replace(facts.pci, gpus=(msgspec.structs.replace(gpu, name=name),))
    return msgspec.structs.replace(facts, pci=pci)


def at(seen: Picture, name: str) -> Level:
    return next(level for level in seen.levels if level.name == name)


def nominal(seen: Picture, name: str) -> float:
    peak = require(at(seen, name).peak)
    return peak.nominal


ADDRESSES = ("0000:1b:00.0", "0000:43:00.0")


def two_gpus(folder: Path, *gpus: ManagedGpu, error: int = 0, lanes: int = 16) -> Picture:
    with managed(Driver(gpus, error=error)):
        return picture(HostFacts(pci=affinity(write_sysfs(folder, ADDRESSES, lanes=lanes))), catalogue(environment={}))


def test_a_gpu_that_fell_off_the_bus_is_the_first_finding(tmp_path: Path) -> None:
    sound = ManagedGpu(address=ADDRESSES[0], ends=(SWITCH,) * 18)
    lost = ManagedGpu(address=ADDRESSES[1], error=pynvml.NVML_ERROR_GPU_IS_LOST)
    seen = two_gpus(tmp_path, sound, lost)
    assert ADDRESSES[1] in seen.findings[0]
    assert "GPU is lost" in seen.findings[0]
    memories = [level for level in seen.levels if level.name == "HBM"]
    assert [level.peak is None for level in memories] == [False, True]
    assert not [reason for reason in seen.unknown if ADDRESSES[1] in reason]


def test_a_driver_that_does_not_match_its_library_is_said_once(tmp_path: Path) -> None:
    seen = two_gpus(tmp_path, error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    (reason,) = [reason for reason in seen.unknown if "mismatch" in reason]
    assert all(address in reason for address in ADDRESSES)
    assert "mismatch" in at(seen, "NVLink").why
    assert not seen.findings


def test_an_instance_of_a_gpu_is_not_held_against_the_whole_gpu(tmp_path: Path) -> None:
    seen = two_gpus(
        tmp_path,
        *(ManagedGpu(address=address, mig=split) for address, split in zip(ADDRESSES, (True, False), strict=True)),
    )
    split, whole = (level for level in seen.levels if level.name == "HBM")
    assert split.peak is None
    assert "MIG" in split.why
    assert require(whole.peak).nominal == 3.35e12


def test_half_of_the_lanes_and_links_halve_their_peaks(tmp_path: Path) -> None:
    gpus = [ManagedGpu(address=address, ends=(SWITCH,) * 18, down=9) for address in ADDRESSES]
    halved = two_gpus(tmp_path / "halved", *gpus, lanes=8)
    full = two_gpus(tmp_path / "full", *(replace(gpu, down=0) for gpu in gpus))
    for name in ("NVLink", "PCIe"):
        assert nominal(halved, name) == nominal(full, name) / 2
    assert len(halved.findings) == 4
    assert not full.findings


def test_an_h200_with_its_card(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("h200"), rows)
    assert nominal(seen, "HBM") == 4.8e12
    assert nominal(seen, "NVLink") == 18 * 25e9
    assert nominal(seen, "PCIe") == pytest.approx(63.0e9, rel=1e-3)
    assert nominal(seen, "NIC") == 50e9
    assert at(seen, "NIC").why == "400G Ethernet", "RoCE: the layer is Ethernet, whatever the kernel calls the rate"
    assert seen.findings == ()
    peak = require(at(seen, "NVLink").peak)
    assert peak.practical == pytest.approx(783e9 / 2, rel=1e-3)
    link = require(at(seen, "PCIe").peak)
    assert link.practical == pytest.approx(55.43e9, rel=1e-3), "by a copy engine: kernels are slower"


def test_links_that_are_down_are_found(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("h200", down=2), rows)
    assert nominal(seen, "NVLink") == 16 * 25e9
    assert len(seen.findings) == 1


def test_a_gpu_alone_whose_links_are_down_is_no_finding(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("h200", down=18), rows)
    assert seen.findings == ()
    facts = facts_of("dgx1-v100", down=6)
    assert len(picture(facts, rows).findings) == 2


def test_a_gpu_known_only_by_name_has_the_lanes_of_its_row(rows: Catalogue) -> None:
    row = next(row for row in rows.gpus if row.pcie is not None and row.host_link is None)
    half = replace(rows, gpus=(msgspec.structs.replace(row, lanes=8),))
    gpu = GpuFacts(address="0000:01:00.0", name=row.name, source="nccl-tests")
    whole, narrow = (require_type(HardwarePeak, of.known(gpu).to_host) for of in (rows, half))
    assert narrow.nominal == whole.nominal / 2


def test_gpus_without_a_switch_reach_their_neighbours_only(facts_of: Facts, rows: Catalogue) -> None:
    facts = facts_of("dgx1-v100")
    seen = picture(facts, rows)
    assert nominal(seen, "NVLink") == 6 * 25e9
    assert nominal(seen, "PCIe") == pytest.approx(15.75e9, rel=1e-3), "speeds of an older kernel"
    first, second = facts.pci.gpus
    assert require(first.nvlink).peers == {"0000:07:00.0": 1, "0000:0a:00.0": 1, "0000:0b:00.0": 2, "0000:85:00.0": 2}
    for peers, links in ((["0000:07:00.0"], 1), (["0000:0b:00.0", "0000:85:00.0"], 4)):
        peak = require_type(HardwarePeak, detect.nvlink_of(rows.known(first), peers))
        assert peak.nominal == links * 25e9
    assert isinstance(detect.nvlink_of(rows.known(first), ["0000:86:00.0"]), str)
    assert isinstance(detect.nvlink_of(rows.known(second), ["0000:86:00.0"]), HardwarePeak)
    assert seen.findings == ()


def test_bridges_of_ga102_are_slower_than_nvlinks_of_the_same_generation(tmp_path: Path) -> None:
    first, second = ADDRESSES
    bridged = [
        ManagedGpu(name="NVIDIA A40", address=address, ends=(peer,) * 4, generation=5)
        for address, peer in ((first, second), (second, first))
    ]
    assert nominal(two_gpus(tmp_path, *bridged), "NVLink") == 56.25e9, "GA102 whitepaper"


def test_a_dgx_a100(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("dgx-a100"), rows)
    assert nominal(seen, "HBM") == 1.555e12
    assert nominal(seen, "NVLink") == 300e9
    assert nominal(seen, "NIC") == 25e9
    assert at(seen, "NIC").why == "4X HDR"
    assert at(seen, "NIC").holder == "mlx5_0 port 1"
    assert seen.findings == ()


def test_in_a_virtual_machine_made_up_bridges_are_no_finding(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("h100-virtual", virtualization="QEMU"), rows)
    assert nominal(seen, "HBM") == 3.35e12
    assert nominal(seen, "NVLink") == 450e9
    assert at(seen, "PCIe").peak is None
    assert seen.findings == ()


def test_a_bottleneck_on_the_way_is_found(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("eight-lanes"), rows)
    assert len(seen.findings) == 1
    assert at(seen, "HBM").peak is None


def test_a_drive_on_half_its_lanes_is_found(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(facts_of("nvme-two-lanes"), rows)
    assert nominal(seen, "NVMe") == pytest.approx(1.97e9, rel=1e-2)
    (lanes,) = seen.findings
    assert "bifurcation" in lanes
    (speed,) = seen.resting
    assert "0000:c9:00.0" in speed


def test_a_slot_that_has_no_more_is_said_to(facts_of: Facts, rows: Catalogue) -> None:
    def narrow(sysfs: Path) -> None:
        port = sysfs / "devices/pci0000:c8/0000:c8:01.1"
        (port / "max_link_width").write_text("2\n", encoding="utf-8")
        (port / "max_link_speed").write_text("8.0 GT/s PCIe\n", encoding="utf-8")

    seen = picture(facts_of("nvme-two-lanes", change=narrow), rows)
    assert [finding.endswith("no more") for finding in seen.findings] == [False, True]
    assert seen.resting == ()


def test_a_card_faster_than_its_way_to_the_host_is_found(facts_of: Facts, rows: Catalogue) -> None:
    def halve(sysfs: Path) -> None:
        for width in sysfs.glob("devices/**/0000:19:00.0/*_link_width"):
            width.write_text("8\n", encoding="utf-8")

    seen = picture(facts_of("h200", change=halve), rows)
    (finding,) = seen.findings
    assert finding.startswith("mlx5_0/ens9np0 ")


@pytest.mark.parametrize("lanes", ["255", "0", "", "many"])
def test_lanes_that_cannot_be_are_not_told(facts_of: Facts, rows: Catalogue, lanes: str) -> None:
    def damage(sysfs: Path) -> None:
        for width in sysfs.glob("devices/**/0000:18:00.0/current_link_width"):
            width.write_text(f"{lanes}\n", encoding="utf-8")

    assert at(picture(facts_of("h200", change=damage), rows), "PCIe").peak is None


def test_an_unknown_gpu_has_no_number_and_says_what_to_do(facts_of: Facts, rows: Catalogue) -> None:
    seen = picture(named(facts_of("h200"), "NVIDIA Fast 9000"), rows)
    level = at(seen, "HBM")
    assert (level.holder, level.peak, level.gpu) == ("GPU 0", None, 0)
    assert nominal(seen, "NVLink") == 450e9, "NVML tells the generation and the number of links of any GPU"


def test_ports_that_are_down_are_no_level(facts_of: Facts, rows: Catalogue) -> None:
    def unplug(sysfs: Path) -> None:
        (sysfs / "class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n", encoding="utf-8")

    facts = facts_of("dgx-a100", change=unplug)
    assert [port.up for port in facts.rdma] == [False]
    assert [level for level in picture(facts, rows).levels if level.name == "NIC"] == []


@pytest.mark.parametrize(
    ("name", "row", "rate"),
    [
        ("NVIDIA GH200 480GB", "NVLink-C2C of Grace Hopper", 450e9),
        ("NVIDIA GH200 144G HBM3e", "NVLink-C2C of Grace Hopper", 450e9),
        # Two GPUs share one Grace.
        ("NVIDIA GB200", "NVLink-C2C of Grace Blackwell", 225e9),
        ("NVIDIA GB300", "NVLink-C2C of Grace Blackwell", 225e9),
    ],
)
def test_the_gpu_of_a_superchip_reaches_the_host_past_pcie(
    facts_of: Facts, rows: Catalogue, name: str, row: str, rate: float
) -> None:
    def narrow(sysfs: Path) -> None:
        for width in sysfs.glob("devices/**/0000:18:00.0/current_link_width"):
            width.write_text("1\n", encoding="utf-8")

    seen = picture(named(facts_of("h200", change=narrow), name), rows)
    assert nominal(seen, "C2C") == rate
    assert at(seen, "C2C").why == row
    assert "PCIe" not in {level.name for level in seen.levels}
    assert seen.findings == seen.resting == (), "its link of PCI Express carries no copies"


def card(sysfs: Path, kind: str, name: str, driver: str) -> Path:
    """A card of ``driver`` under /sys/class/KIND/NAME."""
    drivers = sysfs / "bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    folder = sysfs / "class" / kind / name
    (folder / "device").mkdir(parents=True)
    (folder / "device/driver").symlink_to(drivers)
    return folder


def test_ports_of_efa_are_called_so(tmp_path: Path, rows: Catalogue) -> None:
    for slot in (6, 7, 8, 9):
        port = card(tmp_path, "infiniband", f"rdmap0s{slot}", "efa") / "ports/1"
        port.mkdir(parents=True)
        attributes = {"rate": "100 Gb/sec (4X EDR)", "state": "4: ACTIVE", "link_layer": "Unspecified"}
        for what, text in attributes.items():
            (port / what).write_text(f"{text}\n", encoding="utf-8")
    efa_ports = list(ports(tmp_path))
    assert {port.driver for port in efa_ports} == {"efa"}
    peaks = [detect.port_of(port, rows) for port in efa_ports]
    assert peaks == [HardwarePeak(12.5e9, None, "EFA", "one direction", "stated by the system")] * 4
    instance = require(detect.efa_together([peak for peak in peaks if isinstance(peak, HardwarePeak)], rows))
    assert (instance.what, instance.nominal, instance.practical) == ("EFA of P4d", 50e9, 42.5e9)
    assert detect.efa_together([HardwarePeak(50e9, None, "4X NDR", "one direction", "")], rows) is None


@pytest.mark.parametrize(
    ("instance", "count", "rate"),
    [
        ("P4d", 4, 12.5e9),
        ("P5", 32, 12.5e9),
        ("P5en", 16, 25e9),
        ("P6-B200", 8, 50e9),
        ("P6-B300", 16, 50e9),
        ("Trn1", 8, 12.5e9),
        ("Trn1n", 16, 12.5e9),
    ],
)
def test_an_instance_is_known_by_its_ports_and_what_they_carry_together(
    rows: Catalogue, instance: str, count: int, rate: float
) -> None:
    ports = tuple(
        RdmaPort(device=f"rdmap{slot}", port=1, up=True, driver="efa", bytes_per_second=rate) for slot in range(count)
    )
    seen = [level for level in picture(HostFacts(rdma=ports), rows).levels if level.name == "NIC"]
    assert [(level.holder, level.why) for level in seen] == [(f"{count} EFA ports together", f"EFA of {instance}")]
    assert require(seen[0].peak).nominal == count * rate
    fewer = [level for level in picture(HostFacts(rdma=ports[1:]), rows).levels if level.name == "NIC"]
    assert [level.why for level in fewer] == ["EFA"] * (count - 1), "no instance has so many"


def fru(name: str | None, identity: str, index: int | None = None) -> HostFacts:
    gpu = GpuFacts(address="0000:0c:00.0", index=index, name=name, id=identity)
    return HostFacts(pci=PciFacts(gpus=(gpu,)))


@pytest.mark.parametrize("name", [None, "AMD Instinct MI350 OAM", "Made by somebody"])
def test_a_name_that_only_the_kernel_tells_leaves_the_word_to_the_identity(rows: Catalogue, name: str | None) -> None:
    seen = picture(fru(name, "1002:75a0"), rows)
    assert at(seen, "HBM").why.startswith("memory of MI350X")


def test_a_name_that_nvml_tells_counts_alone(rows: Catalogue) -> None:
    seen = picture(fru("NVIDIA H200 of another speed", "10de:2335", index=0), rows)
    assert at(seen, "HBM").peak is None


@pytest.mark.parametrize("name", [None, "AMD Instinct MI250X / MI250"])
def test_an_identity_that_two_gpus_share_names_neither(rows: Catalogue, name: str | None) -> None:
    seen = picture(fru(name, "1002:740c"), rows)
    assert at(seen, "HBM").peak is None
    named = picture(fru("AMD Instinct MI250", "1002:740c"), rows)
    assert at(named, "HBM").why.startswith("memory of MI250, one of two dies")


@pytest.mark.parametrize(
    ("rate", "name", "payload"),
    [
        ("10 Gb/sec (4X SDR)", "4X SDR", 1e9),
        ("20 Gb/sec (4X DDR)", "4X DDR", 2e9),
        ("40 Gb/sec (4X QDR)", "4X QDR", 4e9),
        ("40 Gb/sec (4X FDR10)", "4X FDR10", 5e9),
        ("56 Gb/sec (4X FDR)", "4X FDR", 4 * 14.0625e9 * 64 / 66 / 8),
        ("100 Gb/sec (4X EDR)", "4X EDR", 12.5e9),
        ("400 Gb/sec (4X NDR)", "4X NDR", 50e9),
    ],
)
def test_a_port_of_infiniband_carries_its_payload_and_not_what_the_wire_signals(
    tmp_path: Path, rows: Catalogue, rate: str, name: str, payload: float
) -> None:
    folder = card(tmp_path, "infiniband", "mlx4_0", "mlx4_core") / "ports/1"
    folder.mkdir(parents=True)
    for what, text in {"rate": rate, "state": "4: ACTIVE", "link_layer": "InfiniBand"}.items():
        (folder / what).write_text(f"{text}\n", encoding="utf-8")
    (port,) = ports(tmp_path)
    peak = require_type(HardwarePeak, detect.port_of(port, rows))
    assert peak.what == name
    assert peak.nominal == pytest.approx(payload, rel=1e-3)
    row = require(rows.rate("infiniband", name))
    coded = (port.bytes_per_second or 0) > 1.01 * payload
    assert peak.source == (row.source if coded else "stated by the system")
    # A port of Ethernet (RoCE) has no such coding in what the kernel tells.
    roce = require_type(HardwarePeak, detect.port_of(msgspec.structs.replace(port, layer="Ethernet"), rows))
    assert roce.nominal == port.bytes_per_second


def test_an_interface_of_slingshot_is_known_by_its_driver(tmp_path: Path, rows: Catalogue) -> None:
    driver = driver_of(card(tmp_path, "net", "hsn0", "cxi_ss1"))
    nic = Nic(name="hsn0", kind="physical", up=True, speed_bytes_per_second=25e9, driver=driver)
    seen = picture(HostFacts(nics=(nic,)), rows)
    assert at(seen, "NIC").why == "Slingshot 11"
    peak = require(at(seen, "NIC").peak)
    assert (peak.nominal, peak.practical) == (25e9, 24.3e9)
    plain = picture(HostFacts(nics=(msgspec.structs.replace(nic, driver="mlx5_core"),)), rows)
    assert at(plain, "NIC").why == "200G Ethernet"
    slower = picture(HostFacts(nics=(msgspec.structs.replace(nic, speed_bytes_per_second=1.25e9),)), rows)
    assert at(slower, "NIC").why == "10G Ethernet"


# --- memory modules ----------------------------------------------------------------------------------------------


def structure(kind: int, body: bytes, *strings: str) -> bytes:
    head = bytes([kind, 4 + len(body), 0, 0])
    return head + body + b"".join(text.encode() + b"\0" for text in strings) + (b"\0" if strings else b"\0\0")


def module(locator: str, bank: str, size_mb: int, kind: int, speed: int) -> bytes:
    """A memory device (type 17) of SMBIOS 3.0 with 40 bytes, as DMTF DSP0134 7.18 lays it out."""
    body = bytearray(36)  # the fields from offset 4 on

    def put(at: int, value: int, width: int = 2) -> None:
        body[at - 4 : at - 4 + width] = value.to_bytes(width, "little")

    put(0x08, 72)
    put(0x0A, 64)
    put(0x0C, min(32767, size_mb))
    put(0x10, 1, 1)
    put(0x11, 2, 1)
    put(0x12, kind, 1)
    put(0x15, speed + 800)  # what is printed on it, and not how fast it runs
    put(0x1C, size_mb, 4)
    put(0x20, speed if size_mb else 0)
    return structure(17, bytes(body), locator, bank)


END = structure(127, b"")
DDR4, DDR5 = 0x1A, 0x22


def table(folder: Path, *structures: bytes) -> Path:
    path = folder / "firmware/dmi/tables/DMI"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(structures) + END)
    return folder


@pytest.mark.parametrize(
    ("modules", "kind", "speed", "channels"),
    [
        (
            [
                module("DIMM000 J11", "SOCKET 0 CHANNEL 0 DIMM 0", 32768, DDR4, 2400),
                module("DIMM001 J12", "SOCKET 0 CHANNEL 0 DIMM 1", 0, DDR4, 0),
                module("DIMM020 J5", "SOCKET 0 CHANNEL 2 DIMM 0", 32768, DDR4, 2400),
            ],
            "DDR4",
            2400,
            2,
        ),
        ([module("DIMM 1", "P0 CHANNEL A", 32768, DDR4, 2933)], "DDR4", 2933, 1),
        (
            [
                module(f"DIMM {channel}", f"P0_Node{node}_Channel{channel}_Dimm{dimm}", 32768, DDR4, 3200)
                for node in (0, 1)
                for channel in (0, 1, 2)
                for dimm in (0, 1)
            ],
            "DDR4",
            3200,
            6,
        ),
        (
            [
                module(f"CPU{socket}_DIMM_{channel}1", f"CPU{socket}_Channel_{channel}_DIMM0", 32768, DDR5, 5600)
                for socket in (0, 1)
                for channel in "ABCDEFGH"
            ],
            "DDR5",
            5600,
            16,
        ),
        ([module(f"DIMM{channel}", f"Channel-{channel}", 16384, DDR5, 4800) for channel in "AB"], "DDR5", 4800, 2),
        ([module("ChannelA-DIMM0", "BANK 0", 16384, DDR4, 2933)], "DDR4", 2933, 1),
        (
            [
                module(f"DIMM {dimm}", f"P{socket} CHANNEL {channel}", 32768, DDR5, 4800)
                for socket in (0, 1)
                for channel in "ABCDEFGHIJKL"
                for dimm in (0, 1)
            ],
            "DDR5",
            4800,
            24,
        ),
    ],
)
def test_modules_that_the_firmware_lists(
    tmp_path: Path, rows: Catalogue, modules: list[bytes], kind: str, speed: int, channels: int
) -> None:
    memory = memory_facts(table(tmp_path, structure(0, bytes(20), "Vendor"), *modules))
    assert (memory.kind, memory.megatransfers, memory.channels) == (kind, speed, channels)
    assert memory.source == "SMBIOS"
    assert memory.unknown == ()
    peak = require_type(HardwarePeak, detect.dram_of(HostFacts(memory_modules=memory), rows))
    assert peak.nominal == pytest.approx(channels * speed * 8e6)
    assert peak.direction == "reads and writes together"


@pytest.mark.parametrize(
    ("kind", "speed", "counted"),
    [
        *[("DDR4", 1867, 1866), ("DDR4", 2134, 2133), ("DDR4", 2667, 2666), ("DDR4", 2934, 2933)],  # rounded up
        *[("DDR5", speed, speed) for speed in (4400, 4800, 5200, 5600, 6000, 6400, 8800)],
    ],
)
def test_every_speed_that_firmware_states_has_its_row(rows: Catalogue, kind: str, speed: int, counted: int) -> None:
    modules = MemoryModules(kind=kind, megatransfers=speed, channels=12)
    peak = require_type(HardwarePeak, detect.dram_of(HostFacts(memory_modules=modules), rows))
    assert peak.nominal == pytest.approx(12 * counted * 8e6)


def test_channels_of_unknown_width_give_no_number(rows: Catalogue) -> None:
    memory = MemoryModules(kind="LPDDR5", megatransfers=6400, channels=1)
    assert isinstance(detect.dram_of(HostFacts(memory_modules=memory), rows), str)


def test_modules_whose_channels_have_no_name_give_no_number(tmp_path: Path, rows: Catalogue) -> None:
    memory = memory_facts(table(tmp_path, module("A1", "Not Specified", 16384, DDR4, 3200)))
    assert (memory.modules, memory.megatransfers, memory.channels) == (1, 3200, None)
    assert len(memory.unknown) == 1
    assert isinstance(detect.dram_of(HostFacts(memory_modules=memory), rows), str)


def test_modules_of_unlike_speed_give_no_speed(tmp_path: Path) -> None:
    memory = memory_facts(
        table(tmp_path, *(module("", f"P0 CHANNEL {c}", 8192, DDR5, s) for c, s in (("A", 4800), ("B", 4400))))
    )
    assert memory.megatransfers is None
    assert len(memory.unknown) == 1


def test_the_table_is_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert any("root" in fact for fact in memory_facts(tmp_path).unknown)


@pytest.mark.parametrize("damage", [b"", b"\x11", b"\x11\x01\0\0", b"\x11\x28\0\0\0\0", b"\xff" * 64])
def test_a_damaged_table_has_no_modules(tmp_path: Path, damage: bytes) -> None:
    path = table(tmp_path) / "firmware/dmi/tables/DMI"
    path.write_bytes(damage)
    assert memory_facts(tmp_path).modules is None


# --- as it is printed --------------------------------------------------------------------------------------------


def test_what_is_the_same_of_several_gpus_is_one_row() -> None:
    peak = HardwarePeak(1e12, None, "memory of X", "reads and writes together", "https://example.org/x")
    gpus = [Level("HBM", f"GPU {number}", peak, peak.what, number) for number in (0, 1, 2, 4)]
    cards = [Level("NIC", f"mlx5_{number} port 1", None, "why") for number in (0, 1)]
    seen = Picture((*gpus, *cards), (), (), ())
    table_rows = machine.level_rows(seen)
    assert [row.of for row in table_rows] == ["GPU 0-2,4", "mlx5_0 port 1, mlx5_1 port 1"]
    assert table_rows[0].nominal_bytes_per_second == 1e12
    assert table_rows[1].why == "why"
    assert table_rows[0].measured_by is None


@pytest.mark.parametrize("name", typing.get_args(Name))
def test_a_level_of_unknown_peak_says_what_measures_it(name: Name) -> None:
    """By a command that exists: with options that are parsed, and a suite that has operations of that level."""
    (row,) = machine.level_rows(Picture((Level(name, "host", None, "why"),), (), (), ()))
    _, command, *arguments = str(row.measured_by)[str(row.measured_by).index("busbw run") :].split()
    assert command == "run"
    suite = arguments[arguments.index("--suite") + 1]
    ops = {op for sweep in read_suite(suite).sweep for op in sweep.ops}
    of_level = {"DRAM": "stream_copy", "HBM": "stream_copy", "NIC": "send_recv", "NVMe": "storage_read"}
    assert {**of_level, "NVLink": "peer_copy"}.get(name, "device_to_host") in ops


def test_a_drive_says_that_its_practical_rate_is_of_reads(rows: Catalogue) -> None:
    lanes = Lanes(gigatransfers=16.0, lanes=4)
    link = LinkFacts(trained=lanes, card=lanes)
    drive = Drive(address="0000:81:00.0", names=("nvme0",), model="Fast", link=link)
    seen = picture(HostFacts(pci=PciFacts(drives=(drive,))), rows)
    (level,) = [level_row for level_row in machine.level_rows(seen) if level_row.level == "NVMe"]
    row = require(rows.rate("nvme", "NVMe on PCIe 4 x4"))
    assert level.practical_source == row.practical_source


def test_this_machine_has_a_picture(rows: Catalogue) -> None:
    seen = picture(environment.host_facts(), rows)
    assert [level.name for level in seen.levels].count("DRAM") == 1
    assert all(level.why for level in seen.levels)
    assert all(level.peak is None or level.peak.nominal > 0 for level in seen.levels)


def test_facts_of_older_runs_have_a_picture_too(rows: Catalogue) -> None:
    seen = picture(HostFacts(), rows)
    assert seen.levels == (Level("DRAM", "host", None, "its modules were not recorded"),)
    assert seen.findings == ()
