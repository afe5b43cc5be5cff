"""The comparison of copies in a GPU's memory, as far as it goes without one: its marks, and the runtime's own call."""

import ctypes
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

HBM = run_path(str(Path(__file__).parents[1] / "bench/hbm.py"))


class Library:
    """A runtime whose copy copies, unless it is to fail; it keeps what it was given."""

    def __init__(self, code: int = 0) -> None:
        self.given: list[tuple[Any, ...]] = []

        def cudaMemcpyAsync(target: int, source: int, size: int, kind: int, stream: int) -> int:  # noqa: N802
            self.given.append((size, kind, stream))
            if not code:
                ctypes.memmove(target, source, size)
            return code

        self.cudaMemcpyAsync = cudaMemcpyAsync


@pytest.mark.parametrize(("own", "marked"), [(100.0, False), (102.0, False), (103.0, True)])
def test_less_than_98_percent_of_the_fastest_is_marked(
    own: float,
    marked: bool,  # noqa: FBT001
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {"busbw memory_copy": own, "busbw stream_copy": 200.0, "torch copy_": 150.0, "cudaMemcpyAsync": 100.0}
    HBM["report"](1 << 30, times)
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"{100 / own:.3f}" in last
    assert last.endswith(" OUT") == marked


def test_the_runtimes_own_copy_is_called_on_the_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    source, target = torch.arange(1000, dtype=torch.float32), torch.zeros(1000)
    library = Library()
    call = HBM["by_runtime"](source, target, library)
    assert library.given == [(4000, 3, 7)], "device to device"
    assert not target.any(), "what the check has copied is taken away"
    call()
    assert torch.equal(source, target)
    with pytest.raises(SystemExit, match="cudaMemcpyAsync"):
        HBM["by_runtime"](source, target, Library(code=2))


def test_without_the_runtime_it_is_left_out() -> None:
    assert HBM["by_runtime"](torch.zeros(1), torch.zeros(1), None) is None
    if not torch.cuda.is_available():
        assert HBM["runtime"]() is None
