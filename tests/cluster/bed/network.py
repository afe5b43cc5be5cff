"""What the network between the hosts is: rate and delay of every cable, and of every path from host to host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Cable:
    """The cable of one host, from the host's point of view: Mbit/s up and down (0: unlimited), the milliseconds that it
    adds to a way (one way), whether it is cut, and the share of frames that it loses. None stands for what is usual in
    the network.
    """

    up_mbit: float | None = None
    down_mbit: float | None = None
    delay_ms: float | None = None
    cut: bool = False
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class Trunk:
    """What all ways between ``behind`` and the other hosts share: Mbit/s in each direction."""

    behind: Sequence[str]
    rate_mbit: float


@dataclass(frozen=True, slots=True)
class Path:
    """What the way from ``source`` to ``destination`` has beyond the cables, in this direction only: a rate (Mbit/s;
    0: no other limit) and more delay (ms).
    """

    source: str
    destination: str
    rate_mbit: float = 0.0
    delay_ms: float = 0.0


def both_ways(host: str, other: str, rate_mbit: float = 0.0, delay_ms: float = 0.0) -> tuple[Path, Path]:
    """The paths of a pair of hosts, the same in both directions."""
    return Path(host, other, rate_mbit, delay_ms), Path(other, host, rate_mbit, delay_ms)


@dataclass(frozen=True, slots=True)
class Network:
    """Every cable carries ``rate_mbit`` in each direction (0: unlimited), every way takes ``delay_ms`` from host to
    host (one way), but for the cables and paths that are named. The head node's cable is unlimited and has no delay.
    """

    rate_mbit: float = 0.0
    delay_ms: float = 0.0
    cables: Mapping[str, Cable] = field(default_factory=dict)
    paths: Sequence[Path] = ()
    trunk: Trunk | None = None

    def with_cut(self, host: str, *, cut: bool) -> Network:
        """This network, with the cable of one host cut or mended."""
        return replace(self, cables={**self.cables, host: replace(self.cables.get(host, Cable()), cut=cut)})

    def up_mbit(self, host: str, head: str) -> float:
        """The rate at which the cable of a host takes what it sends (Mbit/s; 0: unlimited)."""
        return self._whole(host, head).up_mbit or 0.0

    def configuration(self, hosts: Sequence[str], head: str) -> str:
        """The lines that the switch reads (switch.c). Raises ValueError for a host that there is not."""
        behind = () if self.trunk is None else self.trunk.behind
        named = {
            *self.cables,
            *behind,
            *(path.source for path in self.paths),
            *(path.destination for path in self.paths),
        }
        if unknown := sorted(named - {*hosts, head}):
            message = f"no host {', '.join(unknown)}; there are {', '.join((head, *hosts))}"
            raise ValueError(message)
        lines = [_cable_line(host, self._whole(host, head)) for host in (*hosts, head)]
        lines += [
            f"path {path.source} {path.destination} {path.rate_mbit} {round(path.delay_ms * 1e6)}"
            for path in self.paths
        ]
        lines += [f"trunk {host} {self.trunk.rate_mbit}" for host in behind if self.trunk is not None]
        return "".join(f"{line}\n" for line in lines)

    def _whole(self, host: str, head: str) -> Cable:
        """The cable of a host with nothing left open."""
        usual = Cable(0.0, 0.0, 0.0) if host == head else Cable(self.rate_mbit, self.rate_mbit, self.delay_ms / 2)
        own = self.cables.get(host, Cable())
        return Cable(
            usual.up_mbit if own.up_mbit is None else own.up_mbit,
            usual.down_mbit if own.down_mbit is None else own.down_mbit,
            usual.delay_ms if own.delay_ms is None else own.delay_ms,
            own.cut,
            own.lost,
        )


def _cable_line(host: str, cable: Cable) -> str:
    lost = 1 if cable.cut else cable.lost
    return f"cable {host} {cable.up_mbit} {cable.down_mbit} {round((cable.delay_ms or 0.0) * 1e6)} {lost}"
