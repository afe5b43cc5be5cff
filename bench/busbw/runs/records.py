"""Records of a run: the values that the instrument writes and the analysis reads.

Records are frozen, validate themselves, depend on no other module, and are stored as JSON through msgspec. Only
measured values are stored (integer nanoseconds per sample); statistics, algbw and busbw are derived on reading.
"""

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from busbw.errors import refuse_unknown
from busbw.ops import LATENCIES
from busbw.ops.groups import groups_in_words
from busbw.ops.settings import Access, AlgorithmSettings, HostSettings, PairSettings, TrafficSettings
from busbw.ops.training import Workload

SCHEMA = 1
"""Version of the stored format."""

JSON: TypeAlias = Any
"""A value as json.loads returns it. msgspec has no recursive aliases, so readers check the type."""

Mode = Literal["isolated", "barriers", "pipelined", "persistent", "graph", "overlap"]
"""What a sample times. isolated: one call after a synchronised start; barriers: the same, including a barrier after it;
pipelined: back-to-back calls; persistent: back-to-back calls prepared once, each started and waited for; graph: replay
of a captured graph of calls; overlap: post a call, compute, wait. Modes are never compared with each other."""

Sync = Literal["none", "barrier", "dissemination", "window"]
"""How ranks are synchronised before a sample: not at all, with the library's barrier, with a dissemination barrier over
point-to-point messages, or by starting at an agreed time of the synchronised clock."""

Cache = Literal["warm", "rotating", "flushed"]
"""Location of a call's data: the buffers of the previous call, other buffers in turn, or flushed from the caches."""

TimedBy = Literal["host", "device"]
"""Clock of the durations: the host's around the call, or the device's between two events in its stream."""

LoopKind = Literal["python", "compiled"]
"""Loop that makes the calls between two clock reads. A Python call takes longer than a short message."""

StopReason = Literal["converged", "time_limit", "sample_limit"]
CheckState = Literal["verified", "wrong", "not checked"]
EndStatus = Literal["complete", "failed", "interrupted"]

TransportRules = Literal["gloo-tcp", "nccl-net", "mpi-net"]

FailureCause = Literal["wrong_data", "backend", "rank_lost", "timeout", "environment"]
"""Why a case failed: wrong data; an error of the library or program; a rank died; a rank did not answer in time; or a
failing disk, limit or network."""

TRANSIENT = frozenset({"rank_lost", "timeout", "environment"})
"""Causes that are not the fault of the case."""

FLOAT8 = {"float8_e4m3": 1, "float8_e5m2": 1}
"""Types that are moved as bytes, reduced by NCCL alone, and not computed with."""
DTYPE_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}
DTYPE_BYTES |= FLOAT8
CASE_DTYPE_BYTES = DTYPE_BYTES | {"uint32": 4, "uint64": 8}
"""Types of a case, including those of other tools' logs that busbw does not measure."""
REDOPS = ("sum", "avg", "min", "max", "product")
LONGEST_NS = 10**18
"""31 years; sums of several samples still fit into 64 bits."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Ns = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_NS)]
_DurationNs = Annotated[int, msgspec.Meta(le=LONGEST_NS)]  # the least is checked below, with advice
_PrintedNs = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_NS)]
"""Ranges are checked when a record is read; ``soundness`` checks fields against each other."""

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Quantiles that are stored for every rank."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all stored records: immutable, compared by value, unknown fields refused."""


@cache
def _float_fields(record: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record) if "float" in str(field.type))


def _flat(value: object) -> Iterator[Any]:
    """A number, or those of tuples in tuples."""
    if isinstance(value, tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


class FiniteRecord(Record, frozen=True, kw_only=True):
    """A record that refuses NaN and infinity: msgspec would write null, and the row could not be read again."""

    def __post_init__(self) -> None:
        for name in _float_fields(type(self)):
            for number in _flat(getattr(self, name)):
                if number is not None and not math.isfinite(number):
                    raise ValueError(f"{name} is {number}; want a finite number")


Settings: TypeAlias = AlgorithmSettings | HostSettings | Access | PairSettings | TrafficSettings | Workload
"""The families of settings that only some ops have."""


class Configuration(Record, frozen=True, kw_only=True):
    """All settings of a case but its size and ranks: what the cases of a curve have in common.

    group: split of the ranks, ``all`` or one such as ``div:2``; ``asked``: a controller chose the groups of each row
    dtype, redop: None if the op has none
    mode, sync, cache: how the call is timed, which changes the result as much as the library does
    pre_enqueue: the device's stream was blocked until all calls were enqueued, so that launch overhead is not timed
    registered: the buffers are registered with the library
    settings: of the op's family; None: the op has none, or all are the defaults
    tool_op: another tool's name of the op, if it has several for one op
    """

    op: str
    backend: str
    device: str
    dtype: str | None
    redop: str | None
    group: str = "all"
    mode: Mode = "isolated"
    sync: Sync = "barrier"
    cache: Cache = "warm"
    pre_enqueue: bool = False
    registered: bool = False
    in_place: bool = False
    root: int | None = None
    settings: Settings | None = None
    tool_op: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in CASE_DTYPE_BYTES:
            refuse_unknown("dtype", self.dtype, CASE_DTYPE_BYTES)
        if self.redop is not None and self.redop not in REDOPS:
            refuse_unknown("redop", self.redop, REDOPS)

    @property
    def setting_words(self) -> Mapping[str, str]:
        """Setting that only some ops have → its text."""
        words = {} if self.settings is None else self.settings.words
        return words if self.tool_op is None else {**words, "tool_op": self.tool_op}


class Case(Configuration, frozen=True, kw_only=True):
    """One point of a sweep: all settings that must be equal if two measurements are to be comparable.

    size_bytes: S as in nccl-tests
    ranks, nodes: ranks of the world, and hosts
    """

    size_bytes: int
    ranks: int
    nodes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size_bytes < 0 or self.ranks < 1 or self.nodes < 1:
            raise ValueError(
                f"size_bytes {self.size_bytes}, ranks {self.ranks}, nodes {self.nodes}: want ≥ 0, ≥ 1, ≥ 1"
            )

    @property
    def has_rate(self) -> bool:
        """Whether size over time is a rate: an overlapped sample includes computation."""
        return self.size_bytes > 0 and self.mode != "overlap" and self.op not in LATENCIES

    @property
    def count(self) -> int:
        """Elements in S (0 for an op without data)."""
        return 0 if self.dtype is None else self.size_bytes // CASE_DTYPE_BYTES[self.dtype]


def settings_in_words(case: Configuration) -> list[str]:
    """The settings of ``case`` that only some ops have, as text."""
    return list(case.setting_words.values())


Detail = Literal[
    "op",
    "dtype",
    "redop",
    "in_place",
    "settings",
    "device",
    "group",
    "mode",
    "sync",
    "cache",
    "pre_enqueue",
    "registered",
    "root",
]
"""What ``case_in_words`` may leave out."""

_DETAILS: dict[Detail, Callable[[Configuration], list[str]]] = {
    "op": lambda case: [case.op],
    "dtype": lambda case: [case.dtype or ""],
    "redop": lambda case: [case.redop or ""],
    "in_place": lambda case: ["in place"] * case.in_place,
    "settings": settings_in_words,
    "device": lambda case: [case.device] * (case.device != "cpu"),
    "group": lambda case: [text for text in (groups_in_words(case.group),) if text],
    "mode": lambda case: [case.mode] * (case.mode != "isolated"),
    "sync": lambda case: [f"sync {case.sync}"] * (case.sync != "barrier"),
    "cache": lambda case: [case.cache] * (case.cache != "warm"),
    "pre_enqueue": lambda case: ["pre-enqueued"] * case.pre_enqueue,
    "registered": lambda case: ["registered"] * case.registered,
    "root": lambda case: [f"root {case.root}"] * bool(case.root),
}


def case_in_words(case: Configuration, without: Container[Detail] = ()) -> list[str]:
    """The op of a case, and everything that differs from the defaults, except size and ranks.

    ``without``: details to leave out
    """
    words = (word for name, detail in _DETAILS.items() if name not in without for word in detail(case))
    return [word for word in words if word]


class RankSamples(Record, frozen=True, kw_only=True):
    """What one rank of a group measured in one block.

    quantiles_ns: its own durations at ``QUANTILES``, ns per sample
    samples_ns: all its durations; None if the block was too large to keep them
    entries_ns: when it entered each sample, ns since the first entry of its group in this block, on the common clock;
        None without a common clock
    """

    rank: int
    quantiles_ns: tuple[int, ...]
    samples_ns: tuple[int, ...] | None
    entries_ns: tuple[Ns, ...] | None = None


class OverlapSamples(Record, frozen=True, kw_only=True):
    """Communication overlapped with computation, one entry per sample: maximum over the ranks of a group, in ns.

    pure_ns: the call alone, posted and waited for immediately; alternates with the overlapped samples
    post_ns, compute_ns, wait_ns: posting the call, the computation, and waiting for the call
    exposed_ns: post plus wait of the same rank: communication time not hidden by the computation
    compute_alone_ns: the same computation without communication (median over tries before and after the samples, each
        of the slowest rank)
    host_post_ns: host time to post the call on a device, where all other times are by the device's clock; None: all
        times are by the host's clock
    """

    pure_ns: tuple[Ns, ...]
    post_ns: tuple[Ns, ...]
    compute_ns: tuple[Ns, ...]
    wait_ns: tuple[Ns, ...]
    exposed_ns: tuple[Ns, ...]
    compute_alone_ns: Ns
    host_post_ns: tuple[Ns, ...] | None = None


class GroupSamples(FiniteRecord, frozen=True, kw_only=True):
    """Samples of one block for one group of ranks that ran the op together. All vectors have the same length.

    ranks: the group; for pair ops (source, destination)
    bus_factor: busbw / algbw; None without a wire, as with one rank
    wire_bytes: bytes that all ranks of the group together must send per call under the best algorithm
    traffic_factor: bytes that the backend is known to move, over ``wire_bytes``
    slowest_ns, fastest_ns: maximum and minimum over the ranks of a sample's duration (``Measurement.calls`` calls)
    fastest_rank: rank (in the world) with the minimum duration; in a synchronising op usually the last arrival
    last_rank: rank that entered last; this and the next three are None if clocks cannot be compared
    arrival_skew_ns: last entry minus first entry
    exit_span_ns: last exit minus last entry
    exit_skew_ns: last exit minus first exit
    disturbed: indices of samples in which the kernel descheduled a rank; they are kept
    missed: indices of samples in which a rank missed its start window, or its stream was not blocked long enough; they
        are kept
    timed_by: clock of the durations
    other_clock_ns: durations by the other clock (slowest rank), if the ranks drive a device
    """

    ranks: tuple[int, ...]
    bus_factor: float | None
    wire_bytes: float
    traffic_factor: float = 1.0
    slowest_ns: tuple[_DurationNs, ...]
    fastest_ns: tuple[_DurationNs, ...]
    fastest_rank: tuple[int, ...]
    last_rank: tuple[int, ...] | None = None
    arrival_skew_ns: tuple[Ns, ...] | None
    exit_span_ns: tuple[Annotated[int, msgspec.Meta(ge=-LONGEST_NS, le=LONGEST_NS)], ...] | None
    exit_skew_ns: tuple[Ns, ...] | None = None
    disturbed: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    timed_by: TimedBy = "host"
    other_clock_ns: tuple[Ns, ...] | None = None
    overlap: OverlapSamples | None = None
    per_rank: tuple[RankSamples, ...]

    def __post_init__(self) -> None:
        vectors: list[object] = [self.slowest_ns, self.fastest_ns, self.fastest_rank, self.last_rank]
        vectors += [self.arrival_skew_ns, self.exit_span_ns, self.exit_skew_ns, self.other_clock_ns]
        vectors += () if self.overlap is None else msgspec.structs.astuple(self.overlap)
        lengths = {len(vector) for vector in vectors if isinstance(vector, tuple)}
        if len(lengths) != 1:
            raise ValueError(f"the vectors of one group differ in length: {sorted(lengths)}")
        for name, durations in (("slowest_ns", self.slowest_ns), ("fastest_ns", self.fastest_ns)):
            if min(durations, default=1) <= 0:
                raise ValueError(
                    f"{name} has a sample of {min(durations)} ns, but durations must be positive: the clock is faulty "
                    "(run busbw selftest) or the file was edited"
                )
        super().__post_init__()


class Check(Record, frozen=True, kw_only=True):
    """Result of the data check; ``reason``: why data were not checked."""

    state: CheckState
    wrong_elements: Count = 0
    reason: str | None = None


def least_good(reasons: Sequence[StopReason]) -> StopReason:
    """The least favourable stop reason: a limit before convergence."""
    return max(reasons, key=("converged", "sample_limit", "time_limit").index)


class RankClock(FiniteRecord, frozen=True, kw_only=True):
    """Clock of one rank relative to rank 0, from an exchange of time stamps.

    offset_ns: rank 0's clock minus this clock
    error_ns: error bound of the offset (half of the envelope, plus those of the ranks in between)
    rtt_ns: shortest round trip
    drift_ppm: rate of rank 0's clock relative to this clock, in millionths; None: not observed for long enough
    """

    rank: Natural
    offset_ns: int
    error_ns: Ns
    rtt_ns: Ns
    drift_ppm: float | None = None


class GpuConditions(FiniteRecord, frozen=True, kw_only=True):
    """One GPU before, during and after a block; None: unknown.

    mhz_before, mhz_after: clock of its processor
    throttled: reasons for a reduced clock
    memory_mhz, celsius: after it, clock of the memory and temperature
    joules: energy during it, checks included
    """

    index: int
    mhz_before: float | None = None
    mhz_after: float | None = None
    throttled: tuple[str, ...] = ()
    memory_mhz: float | None = None
    celsius: float | None = None
    joules: float | None = None


class CounterDelta(Record, frozen=True, kw_only=True):
    """A counter of errors, repairs or congestion that moved.

    name: a row of ``system.counters.COUNTERS``
    device: such as ``mlx5_0``, ``eth0``, ``tcp``, ``mc0`` or ``GPU 0``
    port: of an RDMA NIC; of ``xid``, its number
    delta: how far it moved since it was last read, at most since the start of the launch
    """

    name: str
    device: str
    port: Natural | None = None
    delta: Annotated[int, msgspec.Meta(ge=1, le=2**62)]


class HostConditions(FiniteRecord, frozen=True, kw_only=True):
    """State of a host during one block; None: not available.

    load_before, load_after: load average over the last minute
    busy_share: fraction of the block's wall time, over all cores, that is used by any process
    foreign_share: the same for processes other than the ranks
    steal_share: the same for time taken by the hypervisor
    switches: involuntary context switches of each rank, in rank order
    mhz_before, mhz_after: mean core frequency
    counters: those that moved
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
    counters: tuple[CounterDelta, ...] = ()


class CrossCheck(FiniteRecord, frozen=True, kw_only=True, tag="cross_check", tag_field="kind"):
    """Result of another tool for the same case, stored apart from busbw's samples.

    tool, version, settings: the tool and how it was run
    bytes_per_second: rate of every rank of the world, in rank order, while all ranks ran the tool together
    error: why there is no rate, from the first rank with an error
    """

    tool: str
    version: str
    settings: str
    bytes_per_second: tuple[float, ...] = ()
    error: str | None = None


class NcclChoice(Record, frozen=True, kw_only=True, tag="nccl_choice", tag_field="kind"):
    """What NCCL chose for a case, in its own names.

    algorithm: such as RING, or a kernel of symmetric memory
    protocol: such as LL128, or None
    channels: their number, or None
    """

    algorithm: str
    protocol: str | None = None
    channels: Positive | None = None

    @property
    def in_words(self) -> str:
        """``RING LL ×24``."""
        words = (self.algorithm, self.protocol, self.channels and f"×{self.channels}")
        return " ".join(word for word in words if word)


class Sent(Record, frozen=True, kw_only=True):
    """Identical calls of one collective in a step.

    op: a collective, or ``send_recv`` for one message to another rank
    group: size of the group
    size_bytes: S of a call
    calls: number of calls of each rank in ``ranks``
    ranks: the ranks that made these calls
    """

    op: str
    group: Positive
    size_bytes: Count
    calls: Count
    ranks: tuple[int, ...]


class RankTimeline(Record, frozen=True, kw_only=True):
    """Activity of one rank in one step, on the common clock. ``spans``: ``compute`` or the name of a call, with begin
    and end in ns since the first rank began. Computation with short breaks is one span.
    """

    rank: int
    spans: tuple[tuple[str, Ns, Ns], ...]


class RankMemory(Record, frozen=True, kw_only=True):
    """Tensor memory of one rank in a step. On a CPU, temporary memory inside an operation is not counted.

    peak_bytes: all tensors that are alive at the peak
    weights_bytes: weights
    gradients_bytes: gradients after the backward pass
    """

    rank: int
    peak_bytes: Count
    weights_bytes: Count
    gradients_bytes: Count


class StepParts(FiniteRecord, frozen=True, kw_only=True, tag="step", tag_field="kind"):
    """Breakdown of a training step, measured after the samples of its block. Vectors have one entry per try, in ns of
    the slowest rank.

    step_ns: the whole step, instrumented like the following ones, which costs a little time
    compute_ns: the same step without communication, on all ranks together
    communication_ns: the same collectives in the same order, without computation
    sent: calls of a step, counted at the interface of torch.distributed
    memory: memory of one more step, by rank
    timeline: one more step, by rank; empty if clocks cannot be compared, or for many ranks
    parameters: of the whole model
    flop: matrix products of a step, over all ranks
    tokens: tokens of a step
    dropped: times in a step that an expert was full and dropped a token
    steps: number of steps behind the vectors and ``sent``
    gaps: loss minus its minimum, before the first of these steps and after each; empty if the minimum is unknown
    """

    step_ns: tuple[Annotated[int, msgspec.Meta(ge=1, le=LONGEST_NS)], ...]
    compute_ns: tuple[Ns, ...]
    communication_ns: tuple[Ns, ...]
    sent: tuple[Sent, ...]
    memory: tuple[RankMemory, ...] = ()
    timeline: tuple[RankTimeline, ...] = ()
    parameters: Annotated[int, msgspec.Meta(ge=1, le=2**60)]
    flop: int
    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**60)]
    dropped: Count = 0
    steps: Positive = 1
    gaps: tuple[float, ...] = ()


Supplement: TypeAlias = StepParts | CrossCheck | NcclChoice
"""What some ops have measured after the samples of a block."""


class Measurement(Record, frozen=True, kw_only=True, tag="measurement", tag_field="kind"):
    """One block: the raw samples of one case, with one set of buffers, in one launch.

    A sample is ``calls`` calls between two clock reads.

    launch, block: number of the launch, and of the block among those of its case
    calls: calls per sample; divide durations by it (a ping-pong counts two)
    first_call_ns: first call of the block (slowest rank), before the warm-up
    warmup_calls: calls before the samples
    started: UTC, ISO 8601
    elapsed_ns: wall time of the whole block, including buffers, checks, warm-up and barriers
    buffer_sets: number of buffer sets used in turn
    loop: loop that made the calls, the same on all ranks
    clock_error_ns: error bound when entries of different ranks are compared (0: one clock, None: not comparable)
    clocks: the synchronised clocks behind that bound; None if no synchronisation was needed
    conditions: one entry per host
    supplement: for some ops
    """

    case: Case
    launch: Natural
    block: Natural
    calls: Positive
    first_call_ns: Ns
    warmup_calls: Natural
    stop_reason: StopReason
    check: Check
    started: str
    elapsed_ns: Ns
    buffer_sets: Positive = 1
    loop: LoopKind = "python"
    clock_error_ns: Ns | None = None
    clocks: tuple[RankClock, ...] | None = None
    conditions: tuple[HostConditions, ...] = ()
    supplement: Supplement | None = None
    groups: tuple[GroupSamples, ...]


class Window(FiniteRecord, frozen=True, kw_only=True, tag="window", tag_field="kind"):
    """Successive blocks of one case in a run with a duration, without their samples. Times are of the slowest rank, ns
    per call, over all groups of the case.

    launch: number of the launch
    begin_ns, end_ns: when they were measured, in time of the run, which leaves out interruptions
    started: the same begin as UTC, ISO 8601
    blocks: their number; blocks that are stored with their samples are among them
    count: number of samples
    min_ns, mean_ns, max_ns: of the samples
    quantiles_ns: of the samples, at ``QUANTILES``
    counters: host → its counters that moved
    """

    case: Case
    launch: Natural
    begin_ns: Ns
    end_ns: Ns
    started: str
    blocks: Positive
    count: Positive
    min_ns: _PrintedNs
    mean_ns: _PrintedNs
    max_ns: _PrintedNs
    quantiles_ns: tuple[_PrintedNs, ...]
    counters: dict[str, tuple[CounterDelta, ...]] = {}


class Imported(FiniteRecord, frozen=True, kw_only=True, tag="imported", tag_field="kind"):
    """One number that another tool printed for a case on one group of ranks.

    launch, block: number from 0 of the table in the log, and of the row among the table's rows for this case
    ranks: the group; for pair ops (source, destination)
    time_ns: of one call, as printed or derived from the rate; the median of ``samples_ns`` if there are any
    statistic: what the tool says the number is: mean, median, max, …; None: unknown
    calls: number of calls behind the number; None: unknown
    bus_factor, wire_bytes: as in ``GroupSamples``
    line: line in the log, from 1
    samples_ns: every call of the slowest process, if the tool prints them; mostly empty
    rank_samples_ns: the same calls of every rank, in the order of ``ranks``, if the tool prints them; mostly empty
    """

    case: Case
    launch: Natural
    block: Natural
    ranks: tuple[int, ...]
    time_ns: _PrintedNs
    statistic: str | None
    calls: Count | None
    bus_factor: float | None
    wire_bytes: float
    check: Check
    line: Positive
    samples_ns: tuple[_PrintedNs, ...] = ()
    rank_samples_ns: tuple[tuple[_PrintedNs, ...], ...] = ()

    def __post_init__(self) -> None:
        lengths = [len(samples) for samples in self.rank_samples_ns]
        if lengths and lengths != [len(self.samples_ns)] * len(self.ranks):
            expected = f"{len(self.samples_ns)} of each of {len(self.ranks)} ranks"
            raise ValueError(f"rank_samples_ns has {lengths} samples; expected {expected}")
        super().__post_init__()


class Skipped(Record, frozen=True, kw_only=True, tag="skipped", tag_field="kind"):
    """A case that cannot run here, and why."""

    case: Case
    reason: str


class Failed(Record, frozen=True, kw_only=True, tag="failed", tag_field="kind"):
    """A block that was tried but gave no trustworthy result, with the error message and its cause.

    ranks: those with wrong data; empty for other causes
    """

    case: Case
    launch: Natural
    block: Natural
    error: str
    cause: FailureCause
    ranks: tuple[Natural, ...] = ()

    @property
    def transient(self) -> bool:
        """Whether the failure is not the case's fault: its other launches count, and ``--resume`` measures it again."""
        return self.cause in TRANSIENT


class LaunchStarted(FiniteRecord, frozen=True, kw_only=True, tag="launch", tag_field="kind"):
    """Start of a launch, in fresh processes. Costs per rank are medians; they are stored but never subtracted.

    launch, started, load_average: number from 0 (tables count from 1), and the start and the load average then
    order_seed: seed of the order of the blocks: the plan's plus the number of the launch
    hosts, pids: host and process of rank r
    timer_ns: cost of one clock read (over many back-to-back reads), or the clock's resolution if that is longer
    shared_clock: all ranks read the same clock
    empty_call_ns, empty_loop_ns: cost of a call that does nothing, alone in a sample and in a row of calls, in the
        loop that takes the samples
    compiled_call_ns, compiled_loop_ns: the same for the compiled loop; empty unless every rank has it
    clocks: clock offsets from an exchange of time stamps, even if the true offset is known to be 0
    resumes: launch whose missing blocks this one measures
    """

    launch: Natural
    started: str
    order_seed: int
    hosts: tuple[str, ...]
    pids: tuple[int, ...]
    timer_ns: tuple[Ns, ...]
    shared_clock: bool
    load_average: float
    empty_call_ns: tuple[Ns, ...] = ()
    empty_loop_ns: tuple[Ns, ...] = ()
    compiled_call_ns: tuple[Ns, ...] = ()
    compiled_loop_ns: tuple[Ns, ...] = ()
    clocks: tuple[RankClock, ...] = ()
    resumes: int | None = None


class Ended(Record, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """Last row of a run that ended normally; a run without this row was killed.

    rows: number of rows before this one; filled in by ``store.Appender``
    checksum: SHA-256 of their bytes, in hexadecimal; likewise
    """

    status: EndStatus
    reason: str | None
    ended: str
    rows: int | None = None
    checksum: str | None = None

    def in_words(self) -> str:
        """Status and reason; a reason that begins with the status stands alone."""
        if not self.reason:
            return self.status
        return self.reason if self.reason.startswith(self.status) else f"{self.status}: {self.reason}"


Row: TypeAlias = Measurement | Window | Imported | Skipped | Failed | LaunchStarted | Ended


BACKEND_NAMES: Final = ("gloo", "nccl", "mpi", "mpi-cuda")
"""The rows of ``backends.BACKENDS``, for those who load no backend."""


class BackendTraits(Record, frozen=True, kw_only=True):
    """Properties of a backend that let the analysis handle backends it does not know.

    cost_models: family of cost models of its algorithms: ``gloo``, ``mpi`` (chosen by the library's tables), ``nccl``
        (in-network reduction possible); any other name: no model
    transport: rules for how messages leave a host: ``gloo-tcp`` (sockets of one interface, also within a host),
        ``nccl-net`` or ``mpi-net`` (RDMA NICs or sockets, by the variables of NCCL or MPI)
    """

    cost_models: str
    transport: TransportRules = "gloo-tcp"
