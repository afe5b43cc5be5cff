"""What several unit tests need: trees of sysfs that are kept as text, and an environment without a launcher."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testing.covered import recorded

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def no_launcher_around_us(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "BUSBW_RESULTS_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def lines_recorded() -> Iterator[None]:
    """The lines of the GPU side that a module executes count, as those of tests/gpu do."""
    with recorded():
        yield


@pytest.fixture
def laid_out(tmp_path: Path) -> Callable[[str], Path]:
    """Lays out the tree of tests/data/NAME.txt as files and links, and returns where."""

    def lay_out(name: str) -> Path:
        for line in (DATA / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if line.startswith("#"):
                continue
            link, arrow, target = line.partition(" -> ")
            path = tmp_path / (link if arrow else line.partition(" = ")[0])
            path.parent.mkdir(parents=True, exist_ok=True)
            if arrow:
                path.symlink_to(target)
            else:
                path.write_text(f"{line.partition(' = ')[2]}\n", encoding="utf-8")
        return tmp_path

    return lay_out
