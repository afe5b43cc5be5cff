"""What a run is made of: the values that the instrument writes and the analysis reads.

They are frozen, validate themselves, know nobody, and go to JSON and back through msgspec. What is stored is what
was measured (integer nanoseconds per sample); every statistic, algbw and busbw is derived on reading.

SCHEMA history (``upgrades.UPGRADES`` lifts older runs one step at a time):
1 - first format.
2 - how a sample is taken (``sync``, ``cache``, ``held``), entries and exits of every rank, exit skew, overlap, device
    time, clocks and their error, conditions of the machine, the empty call, and which launch another one resumes.
3 - which loop made the calls, what a call costs in the compiled one, mode ``persistent``, what another tool says.
4 - the end tells how many rows there are before it, and their checksum.
5 - the settings of a case are fields of it; before, they were words of one text, ``variant``.
6 - ``held`` is called ``pre_enqueue``; of a plan ``placement`` is ``in_place``, ``memory_nodes`` is ``numa_nodes``.
    A run has what the analysis must know of its ``backend``.
7 - steps of training: ``workload`` of a case, ``step`` of a block. Runs that are ``imported`` from logs, with rows of
    that kind, and ``tool_op`` of a case.
"""

import math
from collections.abc import Callable, Container, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from busbw.errors import refuse_unknown
from busbw.ops.storage import Access
from busbw.ops.training import Workload, workload_in_words
from busbw.units import format_size

SCHEMA = 7

JSON: TypeAlias = Any
"""A value as json.loads gives it. msgspec has no recursive aliases, so the edge stays open and is checked by use."""

Mode = Literal["isolated", "barriers", "pipelined", "persistent", "graph", "overlap"]
"""What a sample is: one call from a synchronised start; the same with the barrier behind it; calls back to back; the
same of calls that were prepared once, each started and waited for; a replay of a captured graph of calls; or a call
that is posted, computed beside, and waited for. Never compared with each other."""

Sync = Literal["none", "barrier", "dissemination", "window"]
"""How ranks start a sample together: not at all, by the library's barrier, by a dissemination barrier over
point-to-point messages, or at an agreed time of the synchronised clock."""

Cache = Literal["warm", "rotating", "flushed"]
"""Where the data of a call are: in the buffers of the call before, in other ones in turn, or out of the caches."""

TimedBy = Literal["host", "device"]
"""The clock that durations are from: the host's around the call, or the device's between two marks in its stream."""

LoopKind = Literal["python", "compiled"]
"""What makes the calls of a sample between the two reads of the clock. A Python call is longer than a short message."""

Pairs = Literal["together", "alone"]
"""How a matrix of pairs is measured: disjoint pairs at once, or one pair after another."""

Pinning = Literal["pinned", "pageable"]
"""Memory of the host that a GPU copies from or to: locked in its place, or not."""

StopReason = Literal["converged", "cap_time", "cap_samples"]
CheckState = Literal["verified", "wrong", "not checked"]
EndStatus = Literal["complete", "failed", "interrupted"]

TransportRules = Literal["gloo-tcp", "nccl-net", "mpi-net"]

FailureCause = Literal["wrong_data", "backend", "rank_lost", "timeout", "environment", "unknown"]
"""Why a case failed: its data were wrong; the library or the program refused it; a rank died; a rank did not answer in
time; a disk, a limit or a network was at fault; or it was not recorded (runs before schema 4)."""

TRANSIENT = frozenset({"rank_lost", "timeout", "environment"})
"""The causes that are not the case's own."""

DTYPE_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
CASE_DTYPE_BYTES = DTYPE_BYTES | {"uint32": 4, "uint64": 8, "float8_e4m3": 1, "float8_e5m2": 1}
"""The types of a case: also those that logs of other tools have, and busbw does not measure."""
REDOPS = ("sum", "avg", "min", "max", "product")
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles that are stored for every rank."""


def _require_finite(record: "Record", *fields: str) -> None:
    """JSON has no infinity and no NaN: msgspec would write null, and the row could not be read again. ``fields`` are
    numbers, or vectors of them.
    """
    for name in fields:
        value = getattr(record, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} is {number}; want a finite number")


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that is stored: immutable, compared by value, unknown fields refused."""


class Case(Record, frozen=True, kw_only=True):
    """One point of a sweep: everything that has to be equal for two measurements to be of the same thing.

    ``size_bytes`` is S of the definitions (nccl-tests' meaning). ``ranks`` is the number of ranks in the world and
    ``group`` says how they were split (``all`` or a split such as ``div:2``). ``dtype`` and ``redop`` are None where
    the op has none.
    ``mode``, ``sync`` and ``cache`` say how it was timed: they change the number as much as the library does, so they
    are part of what is measured. ``pre_enqueue``: the device's stream was blocked until all calls were enqueued, so
    that launching them is not in the time.

    The settings, None where the op has no such or it was not asked for (``settings_in_words`` says them):
    ``algorithm``: done by this one over send and receive; None: by the backend's own.
    ``threads``: how many threads of a rank share a call; None: the rank's own makes it.
    ``numa_node``: the NUMA node that memory of the host was put on; None: it lies where it was touched first.
    ``access``: how a file is gone through.
    ``pairs``: whether disjoint pairs of a matrix ran together.
    ``pinning``: what memory of the host is copied from or to.
    ``imbalance``: how uneven the traffic of all_to_all_v is, 0 (even) to 1.
    ``traffic``: fingerprint of the matrix that gives this traffic instead.
    ``workload``: what a step of training trains, and how ranks share it.
    ``tool_op``: what another tool calls it, of which it has several for one op.
    """

    op: str
    backend: str
    device: str
    dtype: str | None
    redop: str | None
    size_bytes: int
    ranks: int
    nodes: int
    group: str = "all"
    mode: Mode = "isolated"
    sync: Sync = "barrier"
    cache: Cache = "warm"
    pre_enqueue: bool = False
    in_place: bool = False
    root: int | None = None
    algorithm: str | None = None
    threads: int | None = None
    numa_node: int | None = None
    access: Access | None = None
    pairs: Pairs | None = None
    pinning: Pinning | None = None
    imbalance: float | None = None
    traffic: str | None = None
    workload: Workload | None = None
    tool_op: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in CASE_DTYPE_BYTES:
            refuse_unknown("dtype", self.dtype, CASE_DTYPE_BYTES)
        if self.redop is not None and self.redop not in REDOPS:
            refuse_unknown("redop", self.redop, REDOPS)
        if self.size_bytes < 0 or self.ranks < 1 or self.nodes < 1:
            raise ValueError(
                f"size_bytes {self.size_bytes}, ranks {self.ranks}, nodes {self.nodes}: want ≥ 0, ≥ 1, ≥ 1"
            )

    @property
    def count(self) -> int:
        """Elements in S (0 for an op without data)."""
        return 0 if self.dtype is None else self.size_bytes // CASE_DTYPE_BYTES[self.dtype]


_SETTINGS: dict[str, Callable[[Any], str]] = {
    "algorithm": lambda name: f"{name} over send/recv",
    "threads": lambda number: f"{number} thread{'s' if number != 1 else ''}",
    "numa_node": lambda node: f"NUMA node {node}",
    "access": lambda access: f"{format_size(access.block_bytes)} blocks, depth {access.depth}, {access.way}",
    "pairs": lambda how: f"pairs {how}",
    "pinning": str,
    "imbalance": lambda share: f"imbalance {share:g}",
    "traffic": lambda fingerprint: f"traffic matrix {fingerprint}",
    "workload": workload_in_words,
    "tool_op": str,
}
SETTINGS = tuple(_SETTINGS)
"""The fields of a case that only some ops have."""


def settings_in_words(of: object, only: Container[str] = SETTINGS) -> list[str]:
    """The settings of a case, or of what else has ``only`` some of these fields, as people call them."""
    return [
        words(value)
        for name, words in _SETTINGS.items()
        if name in only and (value := getattr(of, name, None)) is not None
    ]


_DETAILS: dict[str, Callable[[Any], str]] = {
    "op": str,
    "dtype": str,
    "redop": str,
    "in_place": lambda yes: "in place" if yes else "",
    **_SETTINGS,
    "device": lambda name: "" if name == "cpu" else name,
    "group": lambda name: "" if name == "all" else f"groups {name}",
    "mode": lambda name: "" if name == "isolated" else name,
    "sync": lambda name: "" if name == "barrier" else f"sync {name}",
    "cache": lambda name: "" if name == "warm" else name,
    "pre_enqueue": lambda yes: "pre-enqueued" if yes else "",
    "root": lambda rank: f"root {rank}" if rank else "",
}


def case_in_words(of: object, without: Container[str] = ()) -> list[str]:
    """The op of a case, or of what else has some of its fields, and what is not the usual of it; size and ranks apart.

    ``without`` names the fields that are not said.
    """
    known = {name: getattr(of, name, None) for name in _DETAILS if name not in without}
    words = [_DETAILS[name](value) for name, value in known.items() if value is not None]
    return [word for word in words if word]


class RankSamples(Record, frozen=True, kw_only=True):
    """What one rank of a group saw in one block: quantiles of its own durations (at ``QUANTILES``, in ns per
    sample), and every duration where the block was small enough to keep them (else None). ``entries_ns`` is when it
    entered each of these samples, in ns since the first entry of its group in this block, on the common clock; None
    where there is none.
    """

    rank: int
    quantiles_ns: tuple[int, ...]
    samples_ns: tuple[int, ...] | None
    entries_ns: tuple[int, ...] | None = None


class OverlapSamples(Record, frozen=True, kw_only=True):
    """Communication beside computation, one entry a sample, each the maximum over the ranks of a group, in ns.

    ``pure_ns`` is the call alone, posted and waited for at once, sampled in turns with the other; ``post_ns`` starting
    it, ``compute_ns`` the computation in between, ``wait_ns`` waiting for it afterwards, ``exposed_ns`` post and wait
    of the same rank together: what the computation did not hide. ``compute_alone_ns`` is what the same computation
    takes when nothing is under way (median over tries before and after the samples, each of the slowest rank). On a
    device all of them are by its clock, and ``host_post_ns`` is what starting the call took the host (None: the parts
    are by the host's clock as it is).
    """

    pure_ns: tuple[int, ...]
    post_ns: tuple[int, ...]
    compute_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    compute_alone_ns: int
    host_post_ns: tuple[int, ...] | None = None


class GroupSamples(Record, frozen=True, kw_only=True):
    """The samples of one block for one group of ranks that ran the op together; all vectors have one length.

    For the pair ops a group is the pair (source, destination). ``slowest_ns[i]`` is the maximum over the ranks of the
    duration of sample i (which is ``Measurement.calls`` calls), ``fastest_ns[i]`` the minimum, ``late_rank[i]`` the
    rank (global number) that holds the minimum: in a synchronising op usually the one that came last. ``last_rank[i]``
    is the rank that truly entered last, ``arrival_skew_ns[i]`` last entry minus first entry, ``exit_span_ns[i]`` last
    exit minus last entry, ``exit_skew_ns[i]`` last exit minus first exit; all four None where the clocks cannot be
    compared. ``disturbed`` numbers the samples in which a rank was switched out by the kernel, ``missed`` those for
    which a rank was not there when its window opened, or whose stream was not held long enough; they are kept like all
    others. ``timed_by`` says which clock the durations are from; where the ranks drive a device, ``beside_ns`` is the
    same by the other one (slowest rank). ``bus_factor`` turns algbw into busbw (None where there is no wire, one
    rank). ``wire_bytes`` is what all ranks of the group together must send for one call by the best algorithm;
    ``moved_factor`` how many times that the backend is known to move.
    """

    ranks: tuple[int, ...]
    bus_factor: float | None
    wire_bytes: float
    moved_factor: float = 1.0
    slowest_ns: tuple[int, ...]
    fastest_ns: tuple[int, ...]
    late_rank: tuple[int, ...]
    last_rank: tuple[int, ...] | None = None
    arrival_skew_ns: tuple[int, ...] | None
    exit_span_ns: tuple[int, ...] | None
    exit_skew_ns: tuple[int, ...] | None = None
    disturbed: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    timed_by: TimedBy = "host"
    beside_ns: tuple[int, ...] | None = None
    overlap: OverlapSamples | None = None
    per_rank: tuple[RankSamples, ...]

    def __post_init__(self) -> None:
        vectors: list[object] = [self.slowest_ns, self.fastest_ns, self.late_rank, self.last_rank, self.beside_ns]
        vectors += [self.arrival_skew_ns, self.exit_span_ns, self.exit_skew_ns]
        vectors += () if self.overlap is None else msgspec.structs.astuple(self.overlap)
        lengths = {len(vector) for vector in vectors if isinstance(vector, tuple)}
        if len(lengths) != 1:
            raise ValueError(f"the vectors of one group differ in length: {sorted(lengths)}")
        for name, durations in (("slowest_ns", self.slowest_ns), ("fastest_ns", self.fastest_ns)):
            if min(durations, default=1) <= 0:
                raise ValueError(
                    f"{name} has a sample of {min(durations)} ns, and a time is above 0: the clock is broken (busbw "
                    "selftest tells), or somebody changed the number"
                )
        _require_finite(self, "bus_factor", "wire_bytes", "moved_factor")


class Check(Record, frozen=True, kw_only=True):
    """Tri-state: were the data right? ``reason`` says why they were not checked."""

    state: CheckState
    wrong_elements: int = 0
    reason: str | None = None


def least_good(reasons: Sequence[StopReason]) -> StopReason:
    """The reason to stop that says most of what is wanting: a cap before convergence."""
    return max(reasons, key=("converged", "cap_samples", "cap_time").index)


class RankClock(Record, frozen=True, kw_only=True):
    """How the clock of one rank stands to that of rank 0, by an exchange of time stamps.

    ``offset_ns`` is rank 0's clock minus this one, ``error_ns`` the bound within which that is certain (half of the
    envelope, and those of the ranks in between), ``rtt_ns`` the shortest round trip, ``drift_ppm`` how many millionths
    rank 0's clock runs faster (None: not watched for long enough to tell).
    """

    rank: int
    offset_ns: int
    error_ns: int
    rtt_ns: int
    drift_ppm: float | None = None

    def __post_init__(self) -> None:
        _require_finite(self, "drift_ppm")


class GpuConditions(Record, frozen=True, kw_only=True):
    """One GPU before and after a block: clock of its processors in MHz (None: not told), and why it ran slower."""

    index: int
    mhz_before: float | None = None
    mhz_after: float | None = None
    throttled: tuple[str, ...] = ()


class HostConditions(Record, frozen=True, kw_only=True):
    """What a host was doing during one block; None is what it does not tell.

    ``load_before`` and ``load_after`` are runnable processes of the last minute. Shares are of the block's wall time
    on all cores: ``busy_share`` in use by anybody, ``foreign_share`` by others than the ranks, ``steal_share`` taken
    away by the hypervisor. ``switches`` counts, rank by rank in their order, how often the kernel took the core away.
    ``mhz_before`` and ``mhz_after`` are mean core frequencies.
    """

    host: str
    load_before: float
    load_after: float
    busy_share: float | None
    foreign_share: float | None
    steal_share: float | None
    switches: tuple[int, ...]
    mhz_before: float | None = None
    mhz_after: float | None = None
    gpus: tuple[GpuConditions, ...] = ()

    def __post_init__(self) -> None:
        shares = ("busy_share", "foreign_share", "steal_share")
        _require_finite(self, "load_before", "load_after", *shares, "mhz_before", "mhz_after")


class CrossCheck(Record, frozen=True, kw_only=True):
    """What another tool says of the same case, beside our own samples and never among them: ``tool`` with its
    ``version`` and ``settings``, and the rate of every rank of the world, in their order, while all of them ran it at
    once. ``error``: why it has none, by the first rank that has one.
    """

    tool: str
    version: str
    settings: str
    bytes_per_second: tuple[float, ...] = ()
    error: str | None = None

    def __post_init__(self) -> None:
        _require_finite(self, "bytes_per_second")


class Sent(Record, frozen=True, kw_only=True):
    """Equal calls of one collective in a step, as each of ``ranks`` made them: ``calls`` of S = ``size_bytes`` among
    ``group`` ranks. ``op`` is that of a collective; ``send_recv`` is one message to another rank.
    """

    op: str
    group: int
    size_bytes: int
    calls: int
    ranks: tuple[int, ...]


class RankTimeline(Record, frozen=True, kw_only=True):
    """What one rank did in one step, by the common clock: ``spans`` of ``compute`` or the name of a call, with their
    begin and end in ns since the first rank began. Computation with short breaks is one span.
    """

    rank: int
    spans: tuple[tuple[str, int, int], ...]


class RankMemory(Record, frozen=True, kw_only=True):
    """Bytes of tensors of one rank in a step: of all that is alive at once at its peak, of weights, and of gradients
    behind the backward pass. On the processor, what an operation needs within itself is not seen.
    """

    rank: int
    peak_bytes: int
    weights_bytes: int
    gradients_bytes: int


class StepParts(Record, frozen=True, kw_only=True):
    """A step of training taken apart, behind the samples of its block; vectors have one entry a try, ns of the slowest
    rank.

    step_ns: the whole step, watched as the next one is, which takes a little time.
    compute_ns: the same step on all ranks at once, in which nothing is sent.
    communication_ns: the same collectives in the order of the step, without anything else.
    sent: what was sent in a step, counted where torch.distributed hands it over.
    memory: of one more step, rank by rank; empty in a run that is older.
    timeline: one more step, rank by rank; empty where clocks cannot be compared, or ranks are many.
    parameters: of the whole model. flop: of a step of all ranks together, of matrix products alone. tokens: of a step.
    dropped: how often in a step an expert had no room for a token of its own.
    steps: how many of them the vectors and ``sent`` are of.
    gaps: by how much the loss is above its least, before the first of these steps and behind each of them; empty where
    the least loss is not known.
    """

    step_ns: tuple[int, ...]
    compute_ns: tuple[int, ...]
    communication_ns: tuple[int, ...]
    sent: tuple[Sent, ...]
    memory: tuple[RankMemory, ...] = ()
    timeline: tuple[RankTimeline, ...] = ()
    parameters: int
    flop: int
    tokens: int
    dropped: int = 0
    steps: int = 1
    gaps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require_finite(self, "gaps")


class Measurement(Record, frozen=True, kw_only=True, tag="measurement", tag_field="kind"):
    """One block: the raw samples of one case, with one set of buffers, in one launch.

    A sample is ``calls`` calls between two clock reads. ``first_call_ns`` is the very first call of the block
    (slowest rank), before the ``warmup_calls``. ``started`` is UTC, ISO 8601. ``elapsed_ns`` is the wall time of the
    whole block: buffers, checks, warm-up and barriers included. ``buffer_sets`` are used in turns. ``loop`` made the
    calls, the same one on all ranks. Entries of different ranks may be compared within ``clock_error_ns`` (0 on one
    clock, None: not at all); ``clocks`` says where that is from when the clocks had to be synchronised. ``conditions``
    has one entry a host. ``cross_check`` is there where another tool measured the same, ``step`` for training.
    """

    case: Case
    launch: int
    block: int
    calls: int
    first_call_ns: int
    warmup_calls: int
    stop_reason: StopReason
    check: Check
    started: str
    elapsed_ns: int
    buffer_sets: int = 1
    loop: LoopKind = "python"
    clock_error_ns: int | None = None
    clocks: tuple[RankClock, ...] | None = None
    conditions: tuple[HostConditions, ...] = ()
    cross_check: CrossCheck | None = None
    step: StepParts | None = None
    groups: tuple[GroupSamples, ...]


class Imported(Record, frozen=True, kw_only=True, tag="imported", tag_field="kind"):
    """One number that another tool printed for a case on one group of ranks.

    launch, block: which table of the log it is of, and which of the rows of that table that have its case
    ranks: the group; for the pair ops source and destination
    time_ns: of one call, as the tool states it or as its rate gives it; of ``samples_ns`` the median
    statistic: what the number is of the calls, by the tool: mean, median, max …; None: it does not say
    calls: how many calls it is of; None: not told
    bus_factor, wire_bytes: as in ``GroupSamples``
    line: where it stands in the log, from 1
    samples_ns: every call of the slowest process, where the tool keeps them; mostly empty
    """

    case: Case
    launch: int
    block: int
    ranks: tuple[int, ...]
    time_ns: float
    statistic: str | None
    calls: int | None
    bus_factor: float | None
    wire_bytes: float
    check: Check
    line: int
    samples_ns: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require_finite(self, "time_ns", "bus_factor", "wire_bytes")


class Skipped(Record, frozen=True, kw_only=True, tag="skipped", tag_field="kind"):
    """A case that cannot run here, and why."""

    case: Case
    reason: str


class Failed(Record, frozen=True, kw_only=True, tag="failed", tag_field="kind"):
    """A block that was tried and gave no result that may be believed, with the error in words and its cause."""

    case: Case
    launch: int
    block: int
    error: str
    cause: FailureCause = "unknown"

    @property
    def transient(self) -> bool:
        """Whether the case is not to blame: other launches of it count, and ``--resume`` measures it again. A failure
        whose cause was not recorded is taken for one of the case.
        """
        return self.cause in TRANSIENT


class LaunchStarted(Record, frozen=True, kw_only=True, tag="launch", tag_field="kind"):
    """A launch began: fresh processes. ``hosts[r]`` is the host of rank r, ``pids[r]`` its process.

    ``order_seed`` seeded the order of the blocks. ``timer_ns`` is the cost of one clock read on each rank (median of
    many back-to-back reads, or a step of the clock where that is longer), ``empty_call_ns`` and ``empty_loop_ns`` that
    of a call that does nothing, alone in a sample and in a row of calls, through the very loop that takes the samples
    (median, per rank; empty in runs of before it was measured); ``compiled_call_ns`` and ``compiled_loop_ns`` are the
    same of the compiled loop (empty where no rank, or not every one, has it). All are stored and never subtracted.
    ``shared_clock``: all ranks read the same clock. ``clocks`` is how they stand to each other by an exchange of time
    stamps, also where the truth is known to be 0. ``resumes`` is the launch whose missing blocks this one measures.
    """

    launch: int
    started: str
    order_seed: int
    hosts: tuple[str, ...]
    pids: tuple[int, ...]
    timer_ns: tuple[int, ...]
    shared_clock: bool
    load_average: float
    empty_call_ns: tuple[int, ...] = ()
    empty_loop_ns: tuple[int, ...] = ()
    compiled_call_ns: tuple[int, ...] = ()
    compiled_loop_ns: tuple[int, ...] = ()
    clocks: tuple[RankClock, ...] = ()
    resumes: int | None = None

    def __post_init__(self) -> None:
        _require_finite(self, "load_average")


class Ended(Record, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """The last row of a run that came to an end of its own; a run without it was killed.

    ``rows`` is how many rows stand before it, and ``checksum`` the SHA-256 of all their bytes, in hexadecimal digits
    (None in runs of before they were kept). ``store.Appender`` fills both in.
    """

    status: EndStatus
    reason: str | None
    ended: str
    rows: int | None = None
    checksum: str | None = None


Row: TypeAlias = Measurement | Imported | Skipped | Failed | LaunchStarted | Ended


class BackendTraits(Record, frozen=True, kw_only=True):
    """What the analysis has to know of a backend, so that it can judge one that it has never heard of.

    ``cost_models``: the family of cost models that its algorithms follow: ``gloo``, ``mpi`` (chosen by the library's
    tables), ``nccl`` (switches may add up); another name: none is known.
    ``transport``: whose rules say how messages leave a host: ``gloo-tcp`` (sockets of one interface, within a host,
    too), ``nccl-net`` or ``mpi-net`` (RDMA cards or sockets, by NCCL's or by MPI's variables).
    """

    cost_models: str
    transport: TransportRules = "gloo-tcp"


class LogNote(Record, frozen=True, kw_only=True):
    """What to know before believing a log: a stable ``code``, one sentence, and the line that it is about."""

    code: str
    text: str
    line: int | None = None


class ImportedLog(Record, frozen=True, kw_only=True):
    """The log that a run was imported from.

    tool, tool_version: what printed it
    file: its name
    command: the command line, where the log has one
    given: what the user said of it that it does not say, by the names of the options
    unknown: what neither of them said, by the names of the options
    notes: what its reader found odd
    """

    tool: str
    tool_version: str | None
    file: str
    command: str | None
    given: dict[str, str]
    unknown: tuple[str, ...]
    notes: tuple[LogNote, ...]


class Run(Record, frozen=True, kw_only=True):
    """``run.json``: what was asked for, of what, on what; written once, when the world has formed.

    ``plan`` is the plan as executed. ``cases`` are all cases of it, in the order of the plan, so that one that was
    never reached can be named. ``adjusted`` says in words which sizes were rounded. ``hosts[r]`` is the host of rank
    r and ``environments`` holds the facts of each host, from allow-lists only. ``launcher`` is how ranks came to life,
    ``backend`` what the analysis has to know of the plan's backend (None: a run of an older version with one that this
    version does not know). ``imported``: the log of another tool that it is from; None: busbw measured it.
    """

    schema: int
    id: str
    busbw: str
    machine: str
    started: str
    launcher: str
    plan: dict[str, JSON]
    cases: tuple[Case, ...]
    adjusted: tuple[str, ...]
    hosts: tuple[str, ...]
    environments: dict[str, dict[str, JSON]]
    backend: BackendTraits | None = None
    imported: ImportedLog | None = None
