"""The GPUs of this machine in the picture of its peaks. Skipped, with the reason, where there is none."""

import pytest
import torch

from busbw.system import environment
from busbw.system.catalog import catalogue
from busbw.system.detect import picture
from busbw.system.nvml import gpus_by_address

MISSING = None if torch.cuda.is_available() else "torch.cuda is not available"
MISSING = MISSING or (None if gpus_by_address() else "NVML knows no GPU (pip install '.[gpu]')")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(MISSING is not None, reason=f"needs a GPU: {MISSING}")]


def test_nvml_sysfs_and_torch_speak_of_the_same_gpus() -> None:
    facts = environment.host_facts()
    if hidden := [reason for reason in facts.pci.unknown if "that sysfs does not show" in reason]:
        pytest.skip("; ".join(hidden))
    gpus = facts.pci.gpus
    known = {gpu.name for gpu in gpus if gpu.index is not None}
    assert known
    assert {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())} <= known
    for gpu in gpus:
        links = gpu.nvlink
        if links is not None:
            assert links.up == links.switch + links.unknown + sum(links.peers.values())
            assert links.generation is not None or not links.up


def test_every_gpu_has_its_levels_or_a_reason() -> None:
    facts = environment.host_facts()
    seen = picture(facts, catalogue(environment={}))
    for names in ({"HBM"}, {"PCIe", "C2C"}):
        levels = [level for level in seen.levels if level.name in names]
        assert len(levels) == len(facts.pci.gpus)
        assert all(level.why for level in levels)
    for level in seen.levels:
        assert level.peak is None or 0 < level.peak.nominal < 1e15
