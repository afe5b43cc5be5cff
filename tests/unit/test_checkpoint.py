"""A checkpoint of torch.distributed, in a world of one."""

import importlib
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from testing.synthetic import case

from busbw.backends import BACKENDS
from busbw.backends.base import Bound, World


@pytest.mark.parametrize("newer", [True, False])
def test_a_checkpoint_is_saved_by_what_torch_calls_its_tensors_before_2_5_too(
    tmp_path: Path,
    newer: bool,  # noqa: FBT001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = importlib.import_module("torch.distributed._tensor")
    if not newer:
        for name in ("DTensor", "Shard"):
            assert hasattr(private, name)
            monkeypatch.delattr(f"torch.distributed.tensor.{name}")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    backend = BACKENDS["gloo"].open(World(0, 1, 0, "local", 20.0, store=("127.0.0.1", store.port), folder=tmp_path))
    try:
        send, receive = torch.arange(16.0), torch.zeros(16)
        setting = case("checkpoint_save", 64, 1)
        saves = backend.bind(Bound(setting, send, receive))
        assert saves.prepare is not None
        assert saves.wrong is not None
        saves.prepare()
        saves.call()
        assert saves.wrong() == 0
        saves.free()
    finally:
        backend.close()
