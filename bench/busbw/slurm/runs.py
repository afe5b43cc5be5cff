"""Find the runs of a job and the jobs of a run: a run stores the environment variables of its jobs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from busbw.errors import StoreError
from busbw.runs import store
from busbw.runs.outline import outline
from busbw.runs.progress import progress_of

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """A job number, and the nodes of the job as Slurm writes them: ``n[1-4]``."""

    job: str
    nodes: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run.

    ``done``, ``planned``: blocks.
    ``begun``: sets of processes that have started to measure.
    ``launches``: the state of the launches as text.
    ``ended``: final status and reason (None: running or killed).
    ``broken_off``: whether a launch was interrupted.
    """

    done: int
    planned: int
    begun: int
    launches: str
    ended: str | None
    broken_off: bool

    @property
    def whole(self) -> bool:
        """Whether all blocks are measured."""
        return self.done == self.planned

    @property
    def blocks(self) -> str:
        """Short form: blocks only."""
        return f"{self.done} of {self.planned} blocks"

    def in_words(self) -> str:
        """Blocks, launches and final status."""
        end = f"; {self.ended}" if self.ended else ""
        return f"{self.blocks}, {self.launches}{end}"


def read_progress(folder: Path) -> RunProgress:
    """The progress of the run in ``folder``. Raises StoreError when it cannot be read."""
    run = outline(folder)
    progress = progress_of(run)
    end = run.end
    return RunProgress(
        done=sum(len(blocks & progress.whole) for blocks in progress.there.values()),
        planned=progress.planned * len(progress.whole),
        begun=len(run.launches),
        launches=progress.in_words(),
        ended=None if end is None else end.in_words(),
        broken_off=bool(progress.partial),
    )


class _Job(msgspec.Struct):
    """Decoded part of ``ResumedJob``."""

    variables: dict[str, str] = {}


class _Facts(_Job):
    """Decoded part of ``HostFacts``; the other facts are skipped, because there may be thousands of runs."""

    resumed: tuple[_Job, ...] = ()


class _RunFile(msgspec.Struct):
    environments: dict[str, _Facts]


_RUN = msgspec.json.Decoder(_RunFile)


def _allocations(facts: _Facts) -> tuple[JobAllocation, ...]:
    """The jobs in the facts of a host: the job that began the run, and those in which it was resumed."""
    of_jobs = [job.variables for job in (facts, *facts.resumed) if JOB in job.variables]
    return tuple(dict.fromkeys(JobAllocation(variables[JOB], variables.get(NODES, "")) for variables in of_jobs))


@dataclass(slots=True)
class JobRuns:
    """The runs below ``results_dir`` and their jobs. A run is only read again when its file has changed, for example
    because another job has resumed it.
    """

    results_dir: Path
    _known: dict[Path, tuple[int, tuple[JobAllocation, ...]]] = field(default_factory=dict)

    def of(self, job: str, nodes: str | None = None) -> Iterator[Path]:
        """The folders of the runs of ``job``, newest first; only those on ``nodes`` if given."""
        for folder in reversed(list(store.folders(self.results_dir))):
            if any(entry.job == job and nodes in {None, entry.nodes} for entry in self.jobs(folder)):
                yield folder

    def jobs(self, folder: Path) -> tuple[JobAllocation, ...]:
        """The jobs of the run in ``folder``, in order; empty if it cannot be read."""
        try:
            written = (folder / store.RUN_FILE).stat().st_mtime_ns
            if folder not in self._known or self._known[folder][0] != written:
                run = _RUN.decode(store.run_document(folder / store.RUN_FILE))
                facts = next(iter(run.environments.values()), _Facts())
                self._known[folder] = (written, _allocations(facts))
        except (OSError, StoreError, *store.NOT_A_RECORD):
            return ()
        return self._known[folder][1]
