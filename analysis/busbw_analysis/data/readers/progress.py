"""How far a job came before its first result, and the message with which it failed: what a log without rows tells."""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from typing import Final, NamedTuple

from busbw.units import counted
from busbw_analysis.data.readers.failures import FAILURES, SIGNS, WHICH_PATH, WHY_CALLS_HANG


class Phase(NamedTuple):
    """A step before the first result: what NCCL does after it has printed ``sign``, why it usually stops there, and
    what to do.
    """

    sign: str
    doing: str
    causes: str
    action: str


PHASES: Final = (
    Phase(
        "Bootstrap ?: |Using network|Init START",
        "ranks meet",
        "a rank that never started, NCCL_SOCKET_IFNAME with an interface that other hosts do not reach, a firewall",
        "set NCCL_SOCKET_IFNAME to an interface that all hosts reach, and count the ranks that started",
    ),
    Phase(
        r"Bootstrap timings|Setting affinity|nRanks \d+ nNodes|Trees? \[|(?:Channel|Ring) .* via |Channel \d+/\d+ : "
        r"|NVLS comm|coll channels",
        "ranks connect",
        "a NIC that does not answer (interface, GID index, MTU), or GPUs whose peer access hangs (ACS, IOMMU)",
        WHICH_PATH,
    ),
    Phase(
        "Connected all|Init COMPLETE",
        "the first call runs",
        WHY_CALLS_HANG,
        WHICH_PATH,
    ),
)
FIRST_CALL: Final = PHASES[-1]
FIRST_CALL_OF_OTHERS: Final = Phase(
    "",
    FIRST_CALL.doing,
    "rows left out of the paste, a rank that does not make the call, a NIC or interface that other hosts do not reach",
    "paste the rows, or run it over one transport (UCX_TLS and UCX_NET_DEVICES; Open MPI: --mca btl tcp,self)",
)
"""Of programs that do not use NCCL."""
SET_UP: Final = Phase(
    "",
    "ranks meet and connect",
    "a rank that never started, an interface that other hosts do not reach, a firewall, a NIC that does not answer",
    "run it again with NCCL_DEBUG=INFO, which tells where it stops",
)
"""Of a program that has listed its ranks, and no message of NCCL."""
HANG: Final = Phase(
    "",
    "",
    "a rank that did not start or does not make the call, an interface or NIC that other hosts do not reach",
    "run it again with NCCL_DEBUG=INFO (MPI: I_MPI_DEBUG=6, UCX_LOG_LEVEL=info); compare the last lines of all ranks",
)
"""Of which a text says only that there is one."""
HELPING: Final = {
    "NCCL_P2P_DISABLE=1": (
        "GPUs whose peer access hangs (an IOMMU or ACS of PCI Express, the driver)",
        "turn the IOMMU (iommu=pt) and ACS off; with NCCL_P2P_DISABLE=1 data go through the host, at a lower rate",
    ),
    "NCCL_IB_DISABLE=1": (
        "a NIC that does not answer (GID index, MTU, VLAN, cable)",
        "check with ib_write_bw between the two ports (show_gids, ibstat); NCCL_IB_DISABLE=1 leaves slow sockets",
    ),
    "NCCL_SHM_DISABLE=1": (
        "shared memory of the host or container that is full",
        "give it more (docker run --shm-size, --ipc=host), and look at df /dev/shm",
    ),
}
"""For a variable that ends a hang, as the text says: the cause that this shows, and what to do."""
_SWITCHES: Final = {"NCCL_P2P_DISABLE=1": ("p2p-off",), "NCCL_IB_DISABLE=1": ("rdma-off", "no-rdma", "sockets")}
"""For a variable that forbids a path: codes of the evidence that this is not taken anyway."""
_STARTS: Final = re.compile(
    r"(?i:\binit(?:iali[sz]\w+)? (?:torch[. ])?(?:distributed|nccl|process group)\b(?! ends?\b))"
    r"|distributed_init_method=|is using nccl==|init_process_group|Initializing TorchBackend"
)
"""What programs print when they start their ranks."""
STARTS: Final = re.compile(
    rf"{_STARTS.pattern}|\b(?:[NR]CCL|MPI|UCX|OFI|SHARP|RDMA|torchrun|mpirun|srun|MASTER_ADDR)\b".encode()
)
"""In a text about a program whose ranks start."""
_STARTED: Final = re.compile(
    r"Init (?:torch distributed|nccl) ends?|(?i:load(?:ing)? (?:the )?(?:model|weight|safetensors|checkpoint))"
    r"|(?i:model load|KV cache|\bepoch\b|\bstep\b)"
)
"""What programs print later."""
TRACEBACK: Final = "Traceback (most recent call last)"
EXCEPTION: Final = re.compile(r"(?:\[\S{1,40}\]:? )?[\w.]{0,99}(?:Error|Exception): .{3}")
"""The last line of a traceback of Python."""
_PHASE: Final = re.compile("|".join(f"(?P<p{number}>{phase.sign})" for number, phase in enumerate(PHASES)))
_ADDRESS: Final = re.compile(r"Bootstrap ?: Using (?:\[0\])?([\w.-]{1,15}):(\d{1,3}\.\d{1,3})(\.\d{1,3}\.\d{1,3})<")
_MADE: Final = re.compile(r"NCCL INFO ([A-Z]\w{2,20}): opCount ([\da-f]{1,16}) .*count (\d{1,20}) ")
"""A call, which NCCL prints with NCCL_DEBUG_SUBSYS=COLL."""
_INIT: Final = re.compile(r"rank (\d{1,7}) nranks (\d{1,7}) .*?(?:commId (\w+) .*)?Init (START|COMPLETE)")
_RETURNED: Final = re.compile(r"group\.cc:\d+ -> [1-6]\b")
"""A function of NCCL that returns an error, as ``ncclResult_t`` numbers it; after those of others NCCL may go on."""
_VIA: Final = re.compile(r" via (P2P/[A-Za-z ]+|SHM|NET/[A-Za-z][\w ]*)(?:.*/(GDRDMA))?")
_CHANNELS: Final = re.compile(r"\b(\d{1,4}) coll channels|Channel \d{1,4}/(\d{1,4}) : +\d+ +\d")
_PRINTING: Final = re.compile(
    r"\[?([\w.<>-]{1,255}):\d+:\d+(?::\d+\] | \[\w*\] )|srun: error: ([\w.-]{1,255}): tasks? \d"
)
"""A message of NCCL, UCX or srun, which names its host."""
_APART: Final = re.compile(r"NCCL (?:INFO|WARN) ")
_HANGS: Final = re.compile(
    r"(?i)(?<!no )(?<!not )(?<!n't )(?<!never )(?<!longer )(?<!timer )"
    r"\b(?:hang(?:s|ed|ing)?|hung|stuck(?:s|ed)?|freez\w{1,4}|frozen|deadlock\w{0,3}|(?<!-)time[sd]? ?out(?! \())\b"
    r"(?! ?[=:]|\(| -+\w| \d+[smhd]?\b| recovery\b"
    r"| (?:the )?(?:\w+ )?(?:layer|weight|param|embedding|encoder|backbone))"
    r"|\u5361\u4f4f|\u5361\u6b7b|\u5361\u5728\u8fd9|\u8d85\u65f6"
)
"""What people say of a job that does not go on."""
_OF_A_JOB: Final = (
    r"(?i)\b(?:it|this|they|jobs?|ranks?|nodes?|hosts?|gpus?|training|programs?|scripts?|process(?:es)?|init\w*|code|runs?"
    r"|calls?|commands?|workers?|torchrun|nccl|all_?reduce|engine)\b"
)
_SUBJECT: Final = re.compile(_OF_A_JOB)
_STALLS: Final = re.compile(
    rf"{_OF_A_JOB}.{{0,80}}?\b(?:without (?:further|any) progress|(?:waits?|waiting|block(?:s|ed)|stays?|takes) forever"
    r"|never (?:returns?|finish\w{0,2}|completes?)(?! before| until)|no response"
    r"|does(?:n't| not) (?:proceed|continue|return|respond))\b"
)
"""What says so only of a job."""
_NO_HANG: Final = re.compile(
    r"(?i)\b(?:no|not|never|without)\b[^.;:]{0,30}\b(?:or|nor|any|a|and) (?:hang|deadlock|time-?out)s?\b"
    r"|\b(?:can|could|may|might)(?: \w+)? (?:(?:cause|lead to|result in) (?:an? )?)?(?:hang|deadlock)"
    r"|\b(?:hang(?:s|ing)?|deadlock) (?:is|are|was|were|has been) (?:fixed|gone|solved|resolved)"
    r"|\bno longer (?:hangs?|stuck|freezes)|\bwatchdog (?:thread )?is stuck"
)
"""What sounds like it."""
_OF_HANGS: Final = (
    *("hang", "hung", "stuck", "freez", "froz", "deadlock", "progress", "forever", "never ", "response", "does"),
    *("\u5361\u4f4f", "\u5361\u6b7b", "\u5361\u5728\u8fd9", "\u8d85\u65f6"),
    *(f"time{end}{space}out" for end in ("", "s", "d") for space in ("", " ")),
)
"""One of which is in every line that says so: found faster."""


_FIRST_OF_TORCHRUN: Final = re.compile(r"Root Cause \(first observed failure\)")
_PRINTED_BY: Final = re.compile(r"(?:\[(?:default|rank)(?=\d+\]:)|:mpi_rank_)(\d{1,7})\]")
_CALLER: Final = re.compile(
    r"\b(?:dist|distributed|c10d|torch\.distributed|comm)(?:\.|::)(?:ProcessGroup\w{1,9}::)?"
    r"(init_process_group|new_group|_verify_params_across_processes|(?:monitored_)?barrier|broadcast\w*|(?:all_?)?reduce\w*"
    r"|all_?gather\w*|all_?to_?all\w*|gather\w*|scatter\w*|i?send|i?recv)(?:_impl)?\("
)
"""A call in a traceback of Python or C++."""
_MOST_RANKS: Final = 8
_RANK_OF_TORCHRUN: Final = re.compile(r"\brank +: (\d{1,7}) ")


def ranks_in_words(ranks: Collection[int]) -> str:
    """The first ranks by number, and how many more."""
    named = ", ".join(map(str, sorted(ranks)[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}{more}"


def _host_of(text: str) -> set[str]:
    match = _PRINTING.match(text)
    return set() if match is None else {match[1] or match[2]}


class Ending(NamedTuple):
    """How a job ended, its usual causes, what to do, and how often it follows from a failure of another rank, as
    ``LogError.follows`` says it.
    """

    answer: str
    causes: str
    action: str
    follows: int = 0

    @property
    def lines(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The lines of a ``LogError`` below its first sentence."""
        return ("Why", f"usually {self.causes}"), ("Do", self.action)


_Member = tuple[str, int]
"""Name of a communicator of NCCL, or its number of ranks, and a rank."""


class Progress:
    """How far a job came before its first result, and the message with which it failed."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.waits, self.helped = False, ""
        """Whether ranks waited for others in vain, and the variable with its value that helped, as the text says."""
        self._line, self._text = 0, ""
        self._started, self._complete = set[_Member](), set[_Member]()
        self._hosts, self._ways, self._channels = set[str](), Counter[str](), 0
        self._is_reached, self.is_excerpt, self.is_unknown = False, False, False
        """Whether a tool reached a call, the log is an excerpt in a text, and it is of a program that nobody knows."""
        self._reported: int | None = None
        self._networks: dict[str, str] = {}
        self._largest: tuple[int, str] = 0, ""
        """Of the communicators, the number of ranks and the name of the largest."""
        self._failed: tuple[int, int, str] | None = None
        """Place in ``FAILURES``, line and meaning."""
        self._is_named, self._at = False, set[str]()
        """Whether the line names what failed, and the hosts that print it."""
        self._summary, self._first = False, ""
        self._rank, self._call, self._of = "", "", set[int]()

    def watched(self, lines: Iterable[str]) -> Iterator[str]:
        """The ``lines``, whose rank, as torchrun prints it before them, and calls of collectives are noted."""
        for text in lines:
            self._rank = match[1] if (match := _PRINTED_BY.search(text)) is not None else ""
            if (match := _CALLER.search(text)) is not None and (self._failed is None or "::" in match[0]):
                self._call = match[1]
            yield text

    def take(self, number: int, message: str) -> None:
        """Note the phase that a message of NCCL begins, the addresses over which ranks meet, and the ways of data."""
        self._hosts |= _host_of(message)
        if _RETURNED.search(message) is not None:
            self.fail(number, message)
        if (way := _VIA.search(message)) is not None:
            self._ways["/".join(filter(None, way.groups())).removesuffix("/read")] += 1
        elif (channels := _CHANNELS.search(message)) is not None:
            self._channels = int(channels[1] or channels[2])
        if (address := _ADDRESS.search(message)) is not None:
            self._networks.setdefault(address[2], f"{address[1]} {address[2]}{address[3]}")
        if (made := _MADE.search(message)) is not None:
            self._call = f"{made[1]} (opCount {made[2]}) of {int(made[3]):,} elements"
        if (match := _PHASE.search(message)) is None:
            return
        phase = PHASES[int(str(match.lastgroup)[1:])]
        if self.phase not in PHASES or PHASES.index(phase) >= PHASES.index(self.phase):
            self.phase, self._line = phase, number
            self._text = message.partition("NCCL INFO ")[2][:120].strip()
        if (init := _INIT.search(message)) is not None:
            of = init[3] or init[2]
            (self._started if init[4] == "START" else self._complete).add((of, int(init[1])))
            self._largest = max(self._largest, (int(init[2]), of), key=lambda each: each[0])

    def reach(self, number: int, phase: Phase, text: str) -> None:
        """Note the phase that a line of a tool begins; NCCL says more of the phases before the first call."""
        if phase is FIRST_CALL or self.phase not in PHASES:
            self.phase, self._line, self._text = phase, number, text.strip()[:120]
        self._is_reached = True

    def start(self, number: int, text: str) -> None:
        """Note a line of a program that starts its ranks, or goes on after that."""
        if (match := _STARTS.search(text)) is not None:
            self.phase, self._line, self._text = SET_UP, number, text[match.start() :][:80].strip()
        elif _STARTED.search(text) is not None:
            self.phase = None

    def hear(self, number: int, text: str) -> None:
        """Note a line of a person who says that the job hangs."""
        if self._reported is not None or _APART.search(text) is not None:
            return
        lower = text.lower()
        if not any(word in lower for word in _OF_HANGS) or _NO_HANG.search(text) is not None:
            return
        is_of_a_job = not (self.is_unknown and text.isascii()) or _SUBJECT.search(text) is not None
        hangs = _HANGS.search(text) is not None and is_of_a_job
        if hangs or _STALLS.search(text) is not None:
            self._reported = number

    def fail(self, number: int, text: str) -> None:
        """Note what a line says of a failure; of several, what says most, where it comes first and names something."""
        if self._summary and (rank := _RANK_OF_TORCHRUN.search(text)) is not None:
            self._first, self._summary = f"; by torchrun, rank {rank[1]} failed first", False
        self._summary = self._summary or _FIRST_OF_TORCHRUN.search(text) is not None
        known = len(SIGNS) if self._failed is None else self._failed[0] + 1
        found = ((place, match) for place, sign in enumerate(SIGNS[:known]) if (match := sign.search(text)) is not None)
        place, match = next(found, (known, None))
        if match is None:
            return
        is_first = self._failed is None or place < self._failed[0]
        if is_first or (not self._is_named and any(match.groups())):
            failure, self._is_named = FAILURES[place], any(match.groups())
            words = failure.text.format(*filter(None, match.groups()), *[""] * failure.text.count("{}"))
            self._failed, self.waits = (place, number, words.replace(" ()", "").strip()), failure.waits
        if is_first:
            self._of, self._at = set(), set()
        self._of |= {int(self._rank)} if self._rank else set()
        self._at |= _host_of(text)

    def went_on(self) -> None:
        """Forget a failure that only waits: what it waited for came."""
        if self._failed is not None and FAILURES[self._failed[0]].waits:
            self._failed = None

    def failure(self, *, alone: bool = True) -> Ending | None:
        """The message with which the job failed, its usual causes and what to do; None without one that is known.

        alone: whether messages count that usually follow from a failure of another rank
        """
        if self._failed is None or (FAILURES[self._failed[0]].follows and not alone):
            return None
        place, line, words = self._failed
        failure = FAILURES[place]
        doing = self.phase.doing if failure.follows and self.phase is not None else failure.doing
        when = f" while {doing}" if doing else ""
        call = f", in {self._call}" if self._call else ""
        of = f", on {ranks_in_words(self._of)}" if self._of else ""
        at = f", on {', '.join(sorted(self._at)[:_MOST_RANKS])}" if self._at else ""
        where = f"the job failed{when}{call}: {words} (line {line}){of}{at}{self._first}{self._apart()}"
        return Ending(where, failure.causes, failure.action, 2 if failure.follows else int(failure.waits))

    @property
    def hangs(self) -> bool:
        """Whether something shows a hang: a program of which nothing follows, ranks that did not start or are not
        ready beside others, addresses of different networks, a person who says it.
        """
        begun = len(self._started | self._complete) > 1 and (self._complete or not self.is_excerpt)
        lacks = begun and self._started - self._complete
        return bool(
            (self._is_reached and not self.is_excerpt) or lacks or len(self._networks) > 1 or self._reported is not None
        )

    def end(self, known: Container[str] = ()) -> Ending | None:
        """Where the log ends, who is missing, and the usual causes; None without a message of NCCL that says it.

        known: codes of evidence
        """
        causes, action = HELPING.get(self.helped, ((self.phase or HANG).causes, (self.phase or HANG).action))
        left = [variable for variable, codes in _SWITCHES.items() if not any(code in known for code in codes)]
        if action is WHICH_PATH and len(left) < len(_SWITCHES):
            action = (
                f"run it again with {left[0]}: if that ends the hang, the path that it turns off is bad"
                if left
                else HANG.action
            )
        if self.phase is None and self._reported is not None:
            return Ending(f"it hangs, as the text says (line {self._reported})", causes, action, 1)
        if self.phase is None:
            return None
        ranks, started = self._largest[0], self._in_largest(self._started)
        missing = sorted(set(range(ranks)) - started) if len(started) > 1 else []
        late = f"; no start of rank {', '.join(map(str, missing[:8]))} of {ranks}" if missing else ""
        call = f", {self._call}" if self._call else ""
        where = f"it ends while {self.phase.doing}{call} (line {self._line}: {self._text}){late}"
        return Ending(f"{where}{self._apart()}", causes, action, 1)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Label and text of what the messages of NCCL say of the job and of the ways of its data."""
        complete = self._in_largest(self._complete)
        ready = f"{len(complete)} of {counted(self._largest[0], 'rank')} ready (Init COMPLETE)"
        hosts = f"messages of {counted(len(self._hosts), 'host')}" if self._hosts else ""
        channels = counted(self._channels, "channel") if self._channels else ""
        if log := ", ".join(filter(None, (ready if complete else "", hosts, channels))):
            yield "Log", log
        if self._ways:
            yield "Path", ", ".join(f"{count} × {way}" for way, count in self._ways.most_common())

    def _in_largest(self, members: Iterable[_Member]) -> set[int]:
        return {rank for of, rank in members if of == self._largest[1]}

    def _apart(self) -> str:
        """That hosts meet over addresses that may not reach each other; "" if they do not."""
        shown = ", ".join(self._networks.values())
        return f"; hosts take addresses of different networks ({shown})" if len(self._networks) > 1 else ""
