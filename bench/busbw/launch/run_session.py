"""How a launcher comes by a run folder: a new one, or that of a run that is resumed; and how it closes it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from busbw.backends import backend_named
from busbw.errors import BusbwError, Interrupted, LaunchError, StoreError, UsageError
from busbw.escape import say
from busbw.launch.base import Result, Settings, finish, finish_well
from busbw.measure.unsupported import Place
from busbw.ops import OPS
from busbw.ops.storage import Way
from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.causes import failed
from busbw.runs.compress import pack, unpack
from busbw.runs.lock import RunLock
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock
from busbw.runs.records import EndStatus, Failed
from busbw.runs.resume import Lack, Remaining, lack_of
from busbw.system import environment
from busbw.system.storage import files_folder, refuse_path, remove_files, storage_facts, way_of_all
from busbw.units import about_size, format_size, parse_sizes
from busbw.workloads.shapes import StepShape, model_name

_RANKS_A_CORE = 64
_LEAST_CROWD = 256
"""So many local ranks a core start in minutes; so many are always allowed."""


@dataclass(frozen=True, slots=True)
class RunSession:
    """A run folder that nobody else writes into. ``launches`` are those to come: number, and what to measure (None:
    everything). ``lack`` is what a resumed run lacks (None: a new run), ``size_bytes`` what its samples had.
    """

    folder: Path
    launches: tuple[tuple[int, Remaining | None], ...]
    lack: Lack | None = None
    size_bytes: int = 0

    @property
    def failed(self) -> int:
        """Cases that have failed before."""
        return len(self.lack.void) if self.lack else 0

    def nothing_to_do(self) -> Result | None:
        """The result when a resumed run lacks nothing. Its end is written when it came to none of its own, or to one
        that was the fault of a rank or the machine.
        """
        if self.lack is None or self.launches:
            return None
        end = self.lack.stored.end
        if end is None or end.status == "interrupted" or (end.status == "failed" and not self.failed):
            finish_well(self.folder, self.failed)
        else:
            pack(self.folder)  # as it was found
        return Result(self.folder, 0, self.failed, speaks=True, whole=True)

    def broke(self, error: Exception, launch: int, during: CaseBlock | None) -> None:
        """Write that ``error`` broke ``launch``, and with it the block that was under way, if one was."""
        self.finish("failed", str(error), None if during is None else failed(during[0], launch, during[1], error))

    def finish(self, status: EndStatus, reason: str, failure: Failed | None = None) -> None:
        """As ``base.finish``; but a run that was to be resumed, and was not, stays as it was."""
        if self.lack is not None and _size_bytes(self.folder) == self.size_bytes:
            pack(self.folder)
            return
        finish(self.folder, status, reason, failure)


@contextmanager
def open_run(plan: Plan, settings: Settings, ranks_here: int = 1) -> Iterator[RunSession]:
    """The folder of a new run of ``plan``, or of the one that ``settings`` says is resumed, claimed meanwhile.

    ``ranks_here`` are the ranks that will make files on this host, where files are made. Raises UsageError when they
    cannot, and StoreError when there can be no run folder or somebody else has it. What breaks the run off comes out
    with its folder: Interrupted for a KeyboardInterrupt, a BusbwError as it is.
    """
    if settings.resume is None:
        _refuse_path(plan, ranks_here, _file_sizes(plan))
        with _claimed(store.create(settings.results_dir, environment.machine_name())) as folder, _named(plan, folder):
            yield RunSession(folder, tuple((number, None) for number in range(plan.launches)))
        return
    with RunLock(settings.resume) as lock:
        # Read only now: until the lock was there, somebody else may have been measuring.
        unpack(settings.resume)
        lack = lack_of(store.read(settings.resume), plan)
        if not lock.sure:
            say(f"this file system has no locks: take care that nobody else resumes {settings.resume}")
        say(lack.in_words())
        cases = {case for one in lack.launches for case in lack.by_case(one)}
        try:
            _refuse_path(plan, ranks_here, [case.size_bytes for case in cases if OPS[case.op].stores])
        except UsageError:
            pack(settings.resume)  # as it was found
            raise
        launches = tuple((lack.first + one.number, one) for one in lack.launches)
        with _named(plan, settings.resume):
            yield RunSession(settings.resume, launches, lack, _size_bytes(settings.resume))


def way_here(plan: Plan, ranks_here: int) -> Way:
    """How the page cache can be kept out of the files of ``plan`` on this host, before any of its ranks is there.
    Raises UsageError when they cannot be made, as the run does.
    """
    _refuse_path(plan, ranks_here, _file_sizes(plan))
    return way_of_all([storage_facts(plan.files_below)])


def place_here(ranks: int) -> Place:
    """What decides whether a case can run with ``ranks`` ranks of this host alone, before any of them is there."""
    facts = environment.host_facts()
    host, cores = str(facts["host"]), environment.cores_of_launcher()
    return Place(
        oversubscribed=ranks > cores,
        comparable=True,
        cores=max(1, cores // ranks),
        numa_nodes=environment.common_numa_nodes([facts]),
        hosts=(host,) * ranks,
        memory={host: facts["memory"]["available_bytes"]},
    )


def refuse_impossible(plan: Plan, ranks: int, *, on_one_host: bool) -> None:
    """Raise UsageError for what cannot be on ``ranks`` ranks, whatever the backend: groups and traffic of other numbers
    of ranks, a root that is none of them, storage without a path, models that are not known, and buffers or models that
    the memory of this host could not hold if it were empty.
    """
    plan.require_path()
    device = backend_named(plan.backend).device
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    planned = expand(plan, ranks, 1, device).cases
    # Of a model at one scale many cases may differ in how ranks share it.
    trained = {(one.model, one.scale): one for case in planned if (one := case.workload) is not None}
    for workload in trained.values():
        model_name(workload.model)
        needed = ranks * StepShape(workload).least_bytes
        if on_one_host and needed > total:
            message = (
                f"key 'scale': {ranks} ranks that train {workload.model} at scale {workload.scale:g} need "
                f"{about_size(needed)} or more, and the memory of this host is {about_size(total)}; give a smaller one"
            )
            raise UsageError(message)
    for case in planned:
        op = OPS[case.op]
        if case.root is not None and case.root >= ranks:
            raise UsageError(f"key 'root': rank {case.root} is not there; {ranks} ranks are 0 to {ranks - 1}")
        if not on_one_host or device != "cpu" or op.local or op.stores or case.dtype is None:
            continue
        # Over a network S is the largest buffer of a rank.
        if case.size_bytes > total:
            raise UsageError(
                f"key 'sizes': {case.op} of {format_size(case.size_bytes)} needs a buffer larger than the memory of "
                f"this host, which is {about_size(total)}; give smaller ones"
            )


def refuse_crowd(ranks: int) -> None:
    """Raise UsageError for more local ranks than this host could start, let alone measure with."""
    most = max(_LEAST_CROWD, _RANKS_A_CORE * environment.cores_of_launcher())
    if ranks > most:
        raise UsageError(
            f"key 'ranks': {ranks} processes on the {environment.cores_of_launcher()} cores of this host are too many; "
            f"allowed are up to {most}; torchrun, mpirun and srun start ranks on several hosts"
        )


def _file_sizes(plan: Plan) -> list[int]:
    storing = [sweep for sweep in plan.sweep if any(OPS[name].stores for name in sweep.ops)]
    return [size for sweep in storing for size in parse_sizes(sweep.sizes)]


def _refuse_path(plan: Plan, ranks_here: int, sizes: Sequence[int]) -> None:
    """Raise UsageError when not even the smallest of the files to come can be made here. A larger one that has no room
    fails alone.
    """
    if plan.files_below is not None and sizes:
        refuse_path(plan.files_below, ranks_here, min(sizes))


@contextmanager
def _named(plan: Plan, folder: Path) -> Iterator[None]:
    """Whatever breaks off the run in ``folder`` says where it is, once there is something to go on with. And it leaves
    no files on the storage of this host, also where its ranks were killed; those of other hosts remove theirs
    themselves.
    """
    try:
        try:
            yield
        finally:
            # Within: removing GiB takes seconds, in which a second Ctrl-C may come.
            remove_files(files_folder(plan.files_below, folder.name))
    except KeyboardInterrupt as interrupt:
        if not (folder / store.RUN_FILE).exists():
            say("interrupted before anything was measured: there is nothing to resume, start it again")
            raise
        raise Interrupted(folder) from interrupt
    except BusbwError as error:
        # A world that does not come to life, or is another one, will not do so the next time either.
        if not isinstance(error, LaunchError) and (folder / store.RUN_FILE).exists():
            error.folder = folder
        raise


@contextmanager
def _claimed(folder: Path) -> Iterator[Path]:
    """A new folder, claimed; where not even that is possible it does not stay."""
    try:
        lock = RunLock(folder)
    except StoreError:
        folder.rmdir()
        raise
    with lock:
        yield folder


def _size_bytes(folder: Path) -> int:
    try:
        return (folder / store.SAMPLES_FILE).stat().st_size
    except OSError:
        return 0
