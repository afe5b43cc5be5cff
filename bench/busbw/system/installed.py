"""Versions of what is below the libraries: drivers of GPUs and networks, and firmware.

Source of the files: sysfs-module, sysfs-class-infiniband and sysfs-class-dmi of the kernel's Documentation/ABI. Drivers
of the kernel itself have no version but the kernel's.
"""

from pathlib import Path
from typing import Final

from busbw.system.pci import driver_of
from busbw.system.sysfs import SYSFS, text_of

_DRIVERS: Final = (
    *("nvidia", "nvidia_fs", "nvidia_peermem", "gdrdrv", "amdgpu"),
    *("mlx5_core", "efa", "ena", "bnxt_en", "bnxt_re", "cxi_ss1", "hfi1", "ice", "irdma", "gve"),
    *("knem", "xpmem"),
)
"""Kernel modules by which GPUs, networks and ranks of a host exchange data."""


def driver_versions(sysfs: Path = SYSFS) -> dict[str, str]:
    """Kernel module → its version, of those that are loaded and have one."""
    versions = {name: text_of(sysfs / "module" / name / "version") for name in _DRIVERS}
    return {name: version for name, version in versions.items() if version}


def firmware_versions(sysfs: Path = SYSFS, processors: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """``bios``, ``microcode`` and the driver of RDMA devices → the version; several of one kind are one text."""
    lines = (line.partition(":") for line in (text_of(processors) or "").splitlines())
    read = [
        ("bios", text_of(sysfs / "class/dmi/id/bios_version")),
        *(("microcode", value.strip()) for key, _, value in lines if key.strip() == "microcode"),
        *(
            (driver_of(path.parent) or path.parent.name, text_of(path))
            for path in (sysfs / "class/infiniband").glob("*/fw_ver")
        ),
    ]
    versions: dict[str, set[str]] = {}
    for name, version in read:
        if version:
            versions.setdefault(name, set()).add(version)
    return {name: ", ".join(sorted(of)) for name, of in versions.items()}
