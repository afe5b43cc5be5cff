"""Counters of errors, repairs and congestion that moved while runs were measured."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busbw.runs.records import CounterDelta, Measurement, Window
from busbw.runs.store import StoredRun
from busbw.system.counters import COUNTERS, Kind


@dataclass(frozen=True, slots=True)
class Moved:
    """A counter of a host over all runs.

    host, device, port: where; port: of an RDMA NIC; of ``xid``, its number
    name: of its row in ``COUNTERS``
    delta: how far it moved
    kind, meaning: of its row
    """

    host: str
    device: str
    port: int | None
    name: str
    delta: int
    kind: Kind
    meaning: str

    @property
    def in_words(self) -> str:
        """``mlx5_0 port 1 link_downed +2 (the link went down)``."""
        port = "" if self.port is None else f" port {self.port}"
        name = f"XID {self.port}" if self.name == "xid" else self.name
        return f"{self.device}{'' if self.name == 'xid' else port} {name} +{self.delta} ({self.meaning})"


def moved_in(runs: Sequence[StoredRun]) -> tuple[Moved, ...]:
    """The counters that moved: errors first, then repairs, then congestion. Names that this busbw does not know are
    left out.
    """
    total: Counter[tuple[str, str, str, int | None]] = Counter()
    for stored in runs:
        for host, moved in _of_rows(stored):
            total[host, moved.name, moved.device, moved.port] += moved.delta
    known = [
        Moved(host, device, port, name, delta, COUNTERS[name].kind, COUNTERS[name].meaning)
        for (host, name, device, port), delta in total.items()
        if name in COUNTERS
    ]
    order: tuple[Kind, ...] = ("error", "repair", "congestion")
    return tuple(sorted(known, key=lambda moved: order.index(moved.kind)))


def hosts_watched(runs: Sequence[StoredRun]) -> frozenset[str]:
    """The hosts of which conditions were recorded: elsewhere none that moved does not mean that none did."""
    of_windows = (host for stored in runs if stored.windows for host in stored.run.hosts)
    of_blocks = (host.host for stored in runs for row in stored.measurements for host in row.conditions)
    return frozenset((*of_windows, *of_blocks))


def _of_rows(stored: StoredRun) -> Iterator[tuple[str, CounterDelta]]:
    """Every host with a counter that moved. Windows contain what the blocks of their case have."""
    windows = [row for row in stored.rows if isinstance(row, Window)]
    counted = {(row.case, row.launch) for row in windows}
    for row in stored.rows:
        if isinstance(row, Measurement) and (row.case, row.launch) not in counted:
            yield from ((host.host, moved) for host in row.conditions for moved in host.counters)
    yield from ((host, moved) for row in windows for host, of_host in row.counters.items() for moved in of_host)
