"""A run as its launchers see it: settings and result, the run folder from its opening to its end, and listeners."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from busbw.backends import backend_named
from busbw.errors import BusbwError, Interrupted, LaunchError, StoreError, UsageError
from busbw.escape import say
from busbw.launch.launchers import LauncherRow
from busbw.launch.rendezvous import LaunchOrder, Rendezvous
from busbw.launch.signals import RankInfo, ShutdownHandler
from busbw.measure.unsupported import Place, anywhere, out_of_memory, unsuited
from busbw.ops import OPS
from busbw.ops.settings import Way
from busbw.ops.training import Workload
from busbw.runs import store
from busbw.runs.cases import Cases, expand
from busbw.runs.causes import failed
from busbw.runs.placement import oversubscribed
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock
from busbw.runs.records import Case, Ended, EndStatus, Failed, Measurement, Skipped
from busbw.runs.resume import Lack, Remaining, lack_of
from busbw.runs.store import locked, pack, unpack
from busbw.system import environment
from busbw.system.storage import files_folder, refuse_path, remove_files, storage_facts, way_of_all
from busbw.units import about_size, format_size, parse_sizes
from busbw.workloads.shapes import StepShape, model_name


@dataclass(slots=True)
class Attachment:
    """A rank that ``launcher`` has started.

    ``rendezvous``: how rank 0 reaches the other ranks.
    ``published``: whether rank 0 has published its order.
    """

    launcher: LauncherRow
    info: RankInfo
    rendezvous: Rendezvous
    shutdown: ShutdownHandler
    published: bool = False

    def publish(self, order: LaunchOrder) -> None:
        """Publish the order to the other ranks (rank 0, once). Raises LaunchError when that fails."""
        self.published = True
        self.rendezvous.publish(order)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run besides the plan.

    ``port``: local rendezvous port (0: a free one).
    ``resume``: folder of the run to resume (None: a new run).
    ``attached``: this rank, if a launcher has started it (None: this process starts the ranks).
    """

    results_dir: Path
    port: int = 0
    quiet: bool = False
    resume: Path | None = None
    attached: Attachment | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    ``measured``: number of blocks.
    ``failed``: number of cases.
    ``speaks``: whether this process prints the result.
    ``whole``: whether the run was to be resumed and lacked nothing.
    ``status``: exit status if something failed.
    """

    folder: Path
    measured: int
    failed: int
    speaks: bool
    whole: bool = False
    status: int = 1


class Listener:
    """Receives the events of a launch, and calls ``report`` with the current block: case and number, or None once its
    row is on disk.
    """

    def __init__(self, report: Callable[[CaseBlock | None], None] = lambda _: None) -> None:
        self._report = report

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """All ranks are connected; this launch has ``blocks`` blocks. ``cautions`` are to be shown first."""

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - for observers that count them
        """A block begins."""
        self._report((case, block))

    def row_written(self, row: Measurement | Skipped | Failed) -> None:  # noqa: ARG002 - for observers that show it
        """A row was written to disk."""
        self._report(None)

    def launch_ended(self) -> None:
        """All blocks of this launch are written."""


_RANKS_A_CORE = 64
_LEAST_CROWD = 256
"""Local ranks per core that still start within minutes; number of ranks that is always allowed."""


@dataclass(frozen=True, slots=True)
class RunSession:
    """A locked run folder.

    ``launches``: the launches to come, each with its number and what to measure (None: everything).
    ``lack``: what a resumed run lacks (None: a new run).
    ``size_bytes``: size of the samples file of a resumed run when it was opened.
    """

    folder: Path
    launches: tuple[tuple[int, Remaining | None], ...]
    lack: Lack | None = None
    size_bytes: int = 0

    @property
    def failed(self) -> int:
        """Number of cases that failed before the run was resumed."""
        return len(self.lack.void) if self.lack else 0

    def nothing_to_do(self) -> Result | None:
        """The result if a resumed run lacks nothing, else None.

        Its end is written if it has none, or if a rank or the machine caused its end.
        """
        if self.lack is None or self.launches:
            return None
        end = self.lack.stored.end
        if end is None or end.status == "interrupted" or (end.status == "failed" and not self.failed):
            self.complete(self.failed)
        else:
            pack(self.folder)  # restore the original state
        return Result(self.folder, 0, self.failed, speaks=True, whole=True)

    def broke(self, error: Exception, launch: int, during: CaseBlock | None) -> None:
        """Write ``error`` as the end of the run and as the failure of the block ``during`` (None: no block)."""
        self.finish("failed", str(error), None if during is None else failed(during[0], launch, during[1], error))

    def finish(self, status: EndStatus, reason: str, failure: Failed | None = None) -> None:
        """Write the end of a failed or interrupted run. Nothing is written to a run that never began, whose folder is
        removed, or that was to be resumed and got no row.

        Does not raise: the run is failing already, maybe because of this disk, and the first error is the one to
        report.
        """
        if self.lack is not None and _size_bytes(self.folder) == self.size_bytes:
            pack(self.folder)
            return
        with suppress(StoreError, OSError):
            if not (self.folder / store.RUN_FILE).exists():
                for file in self.folder.iterdir():
                    file.unlink()
                self.folder.rmdir()
                return
            with store.Appender(self.folder) as appender:
                if failure is not None:
                    appender.append(failure)
                appender.append(Ended(status=status, reason=reason, ended=store.utc_now()))

    def complete(self, failed: int) -> None:
        """Write the end of a run whose launches are complete, and compress it if it is large. Raises StoreError."""
        status: EndStatus = "failed" if failed else "complete"
        reason = f"{failed} case(s) failed" if failed else None
        with store.Appender(self.folder) as appender:
            appender.append(Ended(status=status, reason=reason, ended=store.utc_now()))
        store.pack(self.folder)


@contextmanager
def open_run(plan: Plan, settings: Settings, ranks_here: int = 1) -> Iterator[RunSession]:
    """Lock the folder of a new run of ``plan``, or of the run that ``settings`` resumes.

    ``ranks_here``: number of ranks that write files on this host.

    Raises UsageError if they cannot, and StoreError if the run folder cannot be created or is locked. Errors inside the
    block are raised with the folder: Interrupted for a KeyboardInterrupt, and a BusbwError unchanged.
    """
    if settings.resume is None:
        _refuse_path(plan, ranks_here, _file_sizes(plan))
        folder = store.create(settings.results_dir, environment.machine_name())
        with _cleanup(plan, folder), locked(folder):
            yield RunSession(folder, tuple((number, None) for number in range(plan.launches)))
        return
    with locked(settings.resume) as sure:
        # Read after locking, because another process may have been measuring before.
        unpack(settings.resume)
        lack = lack_of(store.read(settings.resume), plan)
        if not sure:
            say(f"this file system does not support locks: make sure that no other process resumes {settings.resume}")
        say(lack.in_words())
        cases = {case for launch in lack.launches for case in lack.by_case(launch)}
        try:
            _refuse_path(plan, ranks_here, [case.size_bytes for case in cases if OPS[case.op].stores])
        except UsageError:
            pack(settings.resume)  # restore the original state
            raise
        launches = tuple((lack.first + launch.number, launch) for launch in lack.launches)
        with _cleanup(plan, settings.resume):
            yield RunSession(settings.resume, launches, lack, _size_bytes(settings.resume))


def way_here(plan: Plan, ranks_here: int) -> Way:
    """How files of ``plan`` can bypass the page cache on this host, before any rank has started.

    Raises UsageError when the files cannot be created.
    """
    _refuse_path(plan, ranks_here, _file_sizes(plan))
    return way_of_all([storage_facts(plan.files_below)])


def place_here(ranks: int) -> Place:
    """The facts that decide which cases can run with ``ranks`` local ranks, before any of them has started."""
    facts = environment.host_facts()
    host, cores = str(facts.host), environment.cores_of_launcher()
    return Place(
        oversubscribed=oversubscribed(ranks, cores),
        comparable=True,
        cores=max(1, cores // ranks),
        numa_nodes=environment.common_numa_nodes([facts]),
        hosts=(host,) * ranks,
        memory={host: environment.available_memory_bytes()},
    )


def refuse_impossible(plan: Plan, ranks: int, *, on_one_host: bool) -> None:
    """Raise UsageError for a plan that cannot run on ``ranks`` ranks with any backend.

    That is: too few ranks for a controller, groups or traffic for other numbers, a root that does not exist, storage
    without a path, unknown models, models larger than the total memory of this host, and buffers of all its ranks
    larger than what is free.
    On several hosts, ranks find out together which cases do not fit (``measure.unsupported``).
    """
    plan.require_path()
    plan.require_nodes(ranks)
    device = backend_named(plan.backend).device
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    planned = expand(plan, ranks, 1, device).cases
    # Many cases may share a model and scale, and differ in how ranks divide the model.
    workloads = [case.settings for case in planned if isinstance(case.settings, Workload)]
    trained = {(workload.model, workload.scale): workload for workload in workloads}
    for workload in trained.values():
        model_name(workload.model)
        needed = ranks * StepShape(workload).least_bytes
        if on_one_host and needed > total:
            message = (
                f"key 'scale': {ranks} ranks that train {workload.model} at scale {workload.scale:g} need at least "
                f"{about_size(needed)}, but this host has {about_size(total)} of memory; use a smaller scale"
            )
            raise UsageError(message)
    place = anywhere()
    if on_one_host:
        # Not ``place_here``: this process forks the ranks, and other facts would start libraries of GPUs in it.
        host = socket.gethostname()
        place = replace(place, hosts=(host,) * ranks, memory={host: environment.available_memory_bytes()})
    for case in planned:
        # Kernels that are too large are only skipped, because suites ask for sizes up to the whole memory.
        if OPS[case.op].local or OPS[case.op].stores:
            continue
        reason = out_of_memory(case, place)
        if reason is not None and unsuited(case, anywhere()) is None:
            raise UsageError(f"key 'sizes': {case.op} of {format_size(case.size_bytes)}: {reason}")


def refuse_crowd(ranks: int) -> None:
    """Raise UsageError for more local ranks than this host can reasonably start."""
    most = max(_LEAST_CROWD, _RANKS_A_CORE * environment.cores_of_launcher())
    if ranks > most:
        raise UsageError(
            f"key 'ranks': {ranks} processes are too many for the {environment.cores_of_launcher()} cores here; "
            f"allowed are up to {most}; use torchrun, mpirun or srun to start ranks on several hosts"
        )


def _file_sizes(plan: Plan) -> list[int]:
    storing = [sweep for sweep in plan.sweep if any(OPS[name].stores for name in sweep.ops)]
    return [size for sweep in storing for size in parse_sizes(sweep.sizes)]


def _refuse_path(plan: Plan, ranks_here: int, sizes: Sequence[int]) -> None:
    """Raise UsageError when not even the smallest file can be created here. Larger files that do not fit fail
    individually later.
    """
    if plan.files_below is not None and sizes:
        refuse_path(plan.files_below, ranks_here, min(sizes))


@contextmanager
def _cleanup(plan: Plan, folder: Path) -> Iterator[None]:
    """Add ``folder`` to an error that ends the run, if the run can be resumed, and remove its files from the storage of
    this host, even if its ranks were killed. Ranks on other hosts remove their own files.
    """
    try:
        try:
            yield
        finally:
            # Inside the outer try, because removing GiB takes seconds and may be interrupted by a second Ctrl-C.
            remove_files(files_folder(plan.files_below, folder.name))
    except KeyboardInterrupt as interrupt:
        if not (folder / store.RUN_FILE).exists():
            say("interrupted before anything was measured: there is nothing to resume; start the run again")
            raise
        raise Interrupted(folder) from interrupt
    except BusbwError as error:
        if not (folder / store.RUN_FILE).exists():
            with suppress(OSError):  # it has files, or is gone already
                folder.rmdir()
        # A LaunchError would occur again, because the ranks do not start or do not match the run.
        elif not isinstance(error, LaunchError):
            error.folder = folder
        raise


def _size_bytes(folder: Path) -> int:
    try:
        return (folder / store.SAMPLES_FILE).stat().st_size
    except OSError:
        return 0
