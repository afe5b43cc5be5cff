"""The recorded facts of pooled runs: hosts, ranks, GPUs, backend; made once, from the runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from busbw.runs.facts import UNKNOWN_HOST, GpuFacts, HostFacts
from busbw.runs.placement import RankPlacement, rank_placements, ranks_and_cores
from busbw.runs.records import BackendTraits
from busbw.runs.store import StoredRun
from busbw.units import counted
from busbw_analysis.data.likeness import is_unknown, to_be_given


@dataclass(frozen=True, slots=True)
class RankGpu:
    """The GPU of a rank, or the reason why it is unknown."""

    rank: int
    host: str
    gpu: GpuFacts | str


@dataclass(frozen=True, slots=True)
class Facts:
    """The recorded facts of runs. Ranks and hosts are those of the first run with the most ranks: only runs pooled by
    force can differ in them.

    hosts: the host of every rank
    environments: the facts of every host
    placements: the placement of every rank
    backend: the traits of the backend
    is_log: whether the first run is the log of another tool, which has fewer facts
    to_be_given: unknown facts of that log that the user can give
    hosts_known: whether it is recorded which ranks share a host
    hosts_in_words: the number of hosts of all runs: ``1 host``, ``2 hosts`` or ``unknown hosts``
    cores: ranks and usable cores of every host; hosts with an unknown number of cores are left out
    """

    hosts: tuple[str, ...]
    environments: Mapping[str, HostFacts]
    placements: tuple[RankPlacement, ...]
    backend: BackendTraits
    is_log: bool
    to_be_given: tuple[str, ...]
    hosts_known: bool
    hosts_in_words: str
    cores: Mapping[str, tuple[int, int]]

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The distinct hosts of ``ranks``, in rank order."""
        return tuple(dict.fromkeys(self.hosts[rank] for rank in ranks if rank < len(self.hosts)))

    def host_count(self, ranks: Iterable[int]) -> int | None:
        """The number of hosts of ``ranks``; None if a log of another tool does not contain it."""
        return len(self.hosts_of(ranks)) if self.hosts_known else None

    def environment(self, host: str) -> HostFacts:
        """The recorded facts of ``host``; all unknown if there are none."""
        return self.environments.get(host, UNKNOWN_HOST)

    @property
    def oversubscribed_hosts(self) -> dict[str, tuple[int, int]]:
        """The hosts with more ranks than usable cores, with (ranks, cores)."""
        return {host: (ranks, cores) for host, (ranks, cores) in self.cores.items() if ranks > cores}

    @property
    def full_hosts(self) -> tuple[str, ...]:
        """The hosts with exactly one rank per usable core, and so no spare core."""
        return tuple(host for host, (ranks, cores) in self.cores.items() if ranks == cores)

    def gpus_of(self, ranks: Iterable[int]) -> tuple[RankGpu, ...]:
        """The GPU of each of ``ranks``."""
        return tuple(RankGpu(rank, self.hosts[rank], self._gpu(rank)) for rank in ranks)

    def _gpu(self, rank: int) -> GpuFacts | str:
        host, place = self.hosts[rank], self.placements[rank]
        key, value = ("address", place.gpu_address) if place.gpu is None else ("index", place.gpu)
        if value is None and self.is_log:
            options = " and ".join(f"--{name}" for name in ("hosts", "gpu") if name in self.to_be_given)
            return f"the log does not name the device of rank {rank}{f'; give {options}' if options else ''}"
        if value is None:
            return (
                f"the run did not record which GPU rank {rank} drove: NVML was not available or does not list the GPU, "
                "and torch did not report its PCI address"
            )
        gpus = (gpu for gpu in self.environment(host).pci.gpus if getattr(gpu, key) == value)
        return next(gpus, f"the run has no facts of GPU {value} on {host}")


def facts_of(runs: Sequence[StoredRun]) -> Facts:
    """The facts of pooled runs."""
    first, largest = runs[0].run, max((stored.run for stored in runs), key=lambda run: len(run.hosts))
    unknown = any(is_unknown(stored.run, "hosts") for stored in runs)
    hosts = {host for stored in runs for host in stored.run.hosts}
    return Facts(
        hosts=largest.hosts,
        environments=largest.environments,
        placements=rank_placements(largest.hosts, largest.environments),
        backend=first.backend,
        is_log=first.imported is not None,
        to_be_given=to_be_given(first),
        hosts_known=not is_unknown(first, "hosts"),
        hosts_in_words="unknown hosts" if unknown else counted(len(hosts), "host"),
        cores=ranks_and_cores(largest.hosts, largest.environments),
    )
