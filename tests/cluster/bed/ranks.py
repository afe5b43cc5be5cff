"""``busbw`` on the hosts of a bed, one rank a host, with the variables of torchrun: worlds that start in a second."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from bed.hosts import BedError
from bed.whole import Bed

_FORKING = Path(__file__).resolve().parents[1] / "programs" / "forked_ranks.py"
_PORT = 29500


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank ended: its exit code, what it said to programs (out) and to people (err)."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a host, as ``SlowBackend`` of ``programs/forked_ranks.py`` has it."""

    seconds: float = 0.0
    times: int = 1


@dataclass(slots=True)
class Ranks:
    """A process that forks ranks onto the hosts of ``bed``; their results go to ``results``, which all hosts see."""

    bed: Bed
    results: Path
    _server: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, _FORKING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**self.bed.environment(), "TORCH_CPP_LOG_LEVEL": "ERROR"},
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._server.kill()
        self._server.communicate()

    def run(
        self,
        *arguments: str | Path,
        command: str = "run",
        hosts: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        faults: Mapping[str, Fault] = MappingProxyType({}),
        gpus: Mapping[str, int] = MappingProxyType({}),
    ) -> list[RankEnd]:
        """A ``command`` of busbw with these arguments, a rank on each of ``hosts`` (default: all), until all have
        ended; those named in ``faults`` are slow, those in ``gpus`` list so many
        simulated GPUs. Raises BedError when the forking process has ended.
        """
        hosts = hosts or self.bed.names
        outputs = self.results / "told"
        outputs.mkdir(parents=True, exist_ok=True)
        stem = uuid.uuid4().hex[:8]
        world = {
            **self.bed.environment(),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": self.bed.address(hosts[0]),
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "BUSBW_RESULTS_DIR": str(self.results),
            **(environment or {}),
        }
        ranks = [
            {
                "host": self.bed.pid(host),
                "environment": {**world, "RANK": str(rank)},
                "output": str(outputs / f"{stem}.{rank}.out"),
                "error": str(outputs / f"{stem}.{rank}.err"),
                "fault": asdict(faults[host]) if host in faults else None,
                "gpus": gpus.get(host, 0),
            }
            for rank, host in enumerate(hosts)
        ]
        order = {"arguments": [command, *map(str, arguments)], "folder": str(self.results), "ranks": ranks}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            message = f"the process that forks ranks has ended: {self._server.wait()}"
            raise BedError(message)
        ends = zip(json.loads(answer), ranks, strict=True)
        return [RankEnd(code, _read(rank["output"]), _read(rank["error"])) for code, rank in ends]


def _read(file: object) -> str:
    path = Path(str(file))
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
