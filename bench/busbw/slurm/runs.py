"""Which runs belong to which jobs: a run keeps the variables of the job that began it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from busbw import store
from busbw.errors import StoreError
from busbw.progress import progress_of
from busbw.records import Run

JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is: blocks ``done`` of those ``planned``, ``launches`` in words, how it ``ended`` (None: not yet,
    or it was killed), and whether a launch was ``broken_off`` in the middle.
    """

    done: int
    planned: int
    launches: str
    ended: str | None
    broken_off: bool

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return self.done == self.planned

    def in_words(self) -> str:
        """For people: blocks, launches, and how it ended."""
        end = f"; {self.ended}" if self.ended else ""
        return f"{self.done} of {self.planned} blocks, {self.launches}{end}"


def standing_of(folder: Path) -> Standing:
    """How far the run in ``folder`` is. Raises StoreError when it cannot be read."""
    stored = store.read(folder)
    progress = progress_of(stored)
    end = stored.end
    return Standing(
        done=sum(len(blocks & progress.whole) for blocks in progress.there.values()),
        planned=progress.planned * len(progress.whole),
        launches=progress.in_words(),
        ended=None if end is None else end.status + (f": {end.reason}" if end.reason else ""),
        broken_off=bool(progress.partial),
    )


def variables_of(run: Run) -> Mapping[str, str]:
    """The recorded variables of the first host of ``run`` that has any: those of a job are the same on all."""
    for facts in run.environments.values():
        variables = facts.get("variables")
        if variables:
            return {str(name): str(value) for name, value in variables.items()}
    return {}


@dataclass(slots=True)
class JobRuns:
    """The runs below ``results_dir`` by the job that began them. Each is read once: that never changes."""

    results_dir: Path
    _known: dict[Path, Mapping[str, str]] = field(default_factory=dict)

    def of(self, job: str, nodes: str | None = None) -> Iterator[Path]:
        """The folders of the runs of ``job``, newest first; on the nodes ``nodes`` alone where they are given."""
        for folder in reversed(list(store.folders(self.results_dir))):
            there = self.variables(folder)
            if there.get(JOB) == job and nodes in {None, there.get(NODES)}:
                yield folder

    def variables(self, folder: Path) -> Mapping[str, str]:
        """The recorded variables of the run in ``folder``; none of one that cannot be read."""
        if folder not in self._known:
            try:
                self._known[folder] = variables_of(store.read_run(folder))
            except StoreError:
                return {}
        return self._known[folder]
