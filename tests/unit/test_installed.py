"""Versions of drivers and firmware, as the kernel reports them."""

from pathlib import Path

from busbw.system.installed import driver_versions, firmware_versions


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def test_drivers_and_firmware_of_a_node(tmp_path: Path) -> None:
    written(tmp_path / "module/nvidia/version", "570.86.15")
    written(tmp_path / "module/loop/refcnt", "0")
    written(tmp_path / "module/floppy/version", "1.0")
    (tmp_path / "module/mlx5_core").mkdir()  # the kernel's own, without a version
    written(tmp_path / "class/dmi/id/bios_version", "2.4b")
    for device, version in (("mlx5_0", "28.39.1002"), ("mlx5_1", "28.39.1002"), ("mlx5_2", "28.43.1014")):
        written(tmp_path / "class/infiniband" / device / "fw_ver", version)
        driver = tmp_path / "bus/mlx5_core"
        driver.mkdir(parents=True, exist_ok=True)
        (tmp_path / "class/infiniband" / device / "device").mkdir()
        (tmp_path / "class/infiniband" / device / "device/driver").symlink_to(driver)
    written(tmp_path / "class/infiniband/virtual/fw_ver", "")
    processors = written(tmp_path / "cpuinfo", "processor : 0\nmicrocode\t: 0x2b\nprocessor : 1\nmicrocode\t: 0x2b")
    assert driver_versions(tmp_path) == {"nvidia": "570.86.15"}
    assert firmware_versions(tmp_path, processors) == {
        "bios": "2.4b",
        "microcode": "0x2b",
        "mlx5_core": "28.39.1002, 28.43.1014",
    }


def test_a_machine_that_tells_nothing_has_none(tmp_path: Path) -> None:
    assert (driver_versions(tmp_path), firmware_versions(tmp_path, tmp_path / "none")) == ({}, {})
