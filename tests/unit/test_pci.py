"""Which network card is closest to which GPU, read from sysfs trees that are kept as text."""

from collections.abc import Callable
from pathlib import Path

import pytest

from busbw.runs.facts import GpuFacts, PciFacts, PciNic
from busbw.system.pci import affinity

LaidOut = Callable[[str], Path]
KNOWN = {"0000:19:00.0": GpuFacts(address="0000:19:00.0", index=0, name="Fast 9000")}


@pytest.fixture
def server(laid_out: LaidOut) -> PciFacts:
    return affinity(laid_out("sysfs/two-sockets"), KNOWN)


@pytest.mark.parametrize(
    ("address", "nics", "by", "numa_node"),
    [
        ("0000:19:00.0", ["mlx5_0", "ib0"], "PCI switch", 0),
        ("0000:41:00.0", ["mlx5_0", "ib0", "eno1"], "NUMA node", 0),
        ("0000:99:00.0", ["mlx5_1", "ens9f0np0"], "PCI root", 1),
        ("0000:c1:00.0", [], "none in its NUMA node", 2),
    ],
)
def test_the_closest_cards_of_a_gpu(server: PciFacts, address: str, nics: list[str], by: str, numa_node: int) -> None:
    (gpu,) = (gpu for gpu in server.gpus if gpu.address == address)
    assert sorted(gpu.closest_nics) == sorted(nics)
    assert (gpu.closest_by, gpu.numa_node) == (by, numa_node)


def test_the_display_of_the_management_controller_is_no_gpu(server: PciFacts) -> None:
    assert [gpu.address for gpu in server.gpus] == ["0000:19:00.0", "0000:41:00.0", "0000:99:00.0", "0000:c1:00.0"]
    assert server.unknown == ()


def test_a_card_has_all_of_its_names_its_way_and_its_node(server: PciFacts) -> None:
    (card,) = (nic for nic in server.nics if nic.address == "0000:1a:00.0")
    assert card == PciNic(
        names=("mlx5_0", "ib0"),
        address="0000:1a:00.0",
        path=("pci0000:16", "0000:16:02.0", "0000:17:00.0", "0000:18:01.0", "0000:1a:00.0"),
        numa_node=0,
    )


def test_numbers_and_names_are_those_of_nvml_and_else_not_told(server: PciFacts) -> None:
    assert [(gpu.index, gpu.name) for gpu in server.gpus] == [(0, "Fast 9000"), *[(None, None)] * 3]


def test_a_gpu_whose_name_is_empty_has_none(laid_out: LaidOut) -> None:
    """AMD's driver has a file for it, in which often nothing stands; the identity on PCI then tells which GPU it is."""
    sysfs = laid_out("sysfs/two-sockets")
    (sysfs / "bus/pci/devices/0000:c1:00.0").resolve().joinpath("product_name").write_text("\n", encoding="utf-8")
    (gpu,) = (gpu for gpu in affinity(sysfs, {}).gpus if gpu.address == "0000:c1:00.0")
    assert gpu.name is None


def test_a_virtual_machine_tells_its_card_and_no_node(laid_out: LaidOut) -> None:
    facts = affinity(laid_out("sysfs/virtual-machine"), {})
    assert facts.gpus == ()
    assert [(nic.names, nic.address, nic.numa_node) for nic in facts.nics] == [(("eth0",), "0000:00:03.0", None)]


def test_what_cannot_be_read_is_said(laid_out: LaidOut, tmp_path: Path) -> None:
    facts = affinity(laid_out("sysfs/no-pci"), KNOWN)
    assert facts == PciFacts(
        unknown=(
            "eth0 is not on PCI, so its location is unknown",
            "NVML reports a GPU at 0000:19:00.0 that sysfs does not show",
        )
    )
    assert affinity(tmp_path / "absent", {}) == PciFacts()


def test_without_a_common_root_or_numa_nodes_the_closest_is_not_known(laid_out: LaidOut) -> None:
    root = laid_out("sysfs/two-sockets")
    for file in root.glob("devices/**/numa_node"):
        file.write_text("-1\n", encoding="utf-8")
    by = {gpu.address: (gpu.closest_nics, gpu.closest_by) for gpu in affinity(root, {}).gpus}
    assert by["0000:19:00.0"][1] == "PCI switch", "which needs no NUMA"
    assert by["0000:41:00.0"] == ((), None)
