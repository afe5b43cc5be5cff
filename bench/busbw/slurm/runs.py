"""Which runs belong to which jobs: a run keeps the variables of the job that began it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from busbw.errors import StoreError
from busbw.runs import store
from busbw.runs.outline import outline
from busbw.runs.placement import mappings
from busbw.runs.progress import progress_of
from busbw.runs.records import JSON

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """A job, by its number, and its nodes as Slurm writes them: ``n[1-4]``."""

    job: str
    nodes: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is: blocks ``done`` of those ``planned``, the sets of processes that have ``begun`` to measure,
    ``launches`` in words, how it ``ended`` (None: not yet, or it was killed), and whether a launch was ``broken_off``
    in the middle.
    """

    done: int
    planned: int
    begun: int
    launches: str
    ended: str | None
    broken_off: bool

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return self.done == self.planned

    @property
    def blocks(self) -> str:
        """How far it is, in short."""
        return f"{self.done} of {self.planned} blocks"

    def in_words(self) -> str:
        """Blocks, launches, and how it ended."""
        end = f"; {self.ended}" if self.ended else ""
        return f"{self.blocks}, {self.launches}{end}"


def read_progress(folder: Path) -> RunProgress:
    """How far the run in ``folder`` is. Raises StoreError when it cannot be read."""
    told = outline(folder)
    progress = progress_of(told)
    end = told.end
    return RunProgress(
        done=sum(len(blocks & progress.whole) for blocks in progress.there.values()),
        planned=progress.planned * len(progress.whole),
        begun=len(told.launches),
        launches=progress.in_words(),
        ended=None if end is None else end.status + (f": {end.reason}" if end.reason else ""),
        broken_off=bool(progress.partial),
    )


class _Facts(msgspec.Struct):
    """What is read of the facts of a host: they are many, and there may be thousands of runs."""

    variables: JSON = None
    resumed: JSON = None


class _RunFile(msgspec.Struct):
    environments: dict[str, _Facts]


_RUN = msgspec.json.Decoder(_RunFile)


def _allocations(facts: _Facts) -> tuple[JobAllocation, ...]:
    """The jobs that the facts of a host tell of: the one that began the run, and those that it was resumed in."""
    variables = [facts.variables, *(one.get("variables") for one in mappings(facts.resumed))]
    told = [one for one in variables if isinstance(one, Mapping) and JOB in one]
    return tuple(dict.fromkeys(JobAllocation(str(one[JOB]), str(one.get(NODES, ""))) for one in told))


@dataclass(slots=True)
class JobRuns:
    """The runs below ``results_dir`` by the jobs that measured them; each is read again only when it was written anew,
    which a run that is resumed in another job is.
    """

    results_dir: Path
    _known: dict[Path, tuple[int, tuple[JobAllocation, ...]]] = field(default_factory=dict)

    def of(self, job: str, nodes: str | None = None) -> Iterator[Path]:
        """The folders of the runs of ``job``, newest first; on the nodes ``nodes`` alone where they are given."""
        for folder in reversed(list(store.folders(self.results_dir))):
            if any(stay.job == job and nodes in {None, stay.nodes} for stay in self.jobs(folder)):
                yield folder

    def jobs(self, folder: Path) -> tuple[JobAllocation, ...]:
        """The jobs of the run in ``folder``, in order; none of one that cannot be read."""
        try:
            written = (folder / store.RUN_FILE).stat().st_mtime_ns
            if folder not in self._known or self._known[folder][0] != written:
                told = _RUN.decode(store.run_document(folder / store.RUN_FILE))
                facts = next(iter(told.environments.values()), _Facts())
                self._known[folder] = (written, _allocations(facts))
        except (OSError, StoreError, *store.NOT_A_RECORD):
            return ()
        return self._known[folder][1]
