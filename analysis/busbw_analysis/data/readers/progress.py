"""How far a job came before its first result, and the message with which it failed: what a log without rows tells."""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from busbw.units import counted
from busbw_analysis.data.readers.failures import FAILURES, NUMBERING, SIGNS, WORDS, Failure
from busbw_analysis.data.readers.literals import words_of


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
        WORDS["which_path"],
    ),
    Phase(
        "Connected all|Init COMPLETE",
        "the first call runs",
        WORDS["why_calls_hang"],
        WORDS["which_path"],
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
    r"|distributed_init_method=|GLOBAL_RANK: \d|is using nccl==|init_process_group|Initializing TorchBackend"
)
"""What programs print when they start their ranks."""
_MEMBER: Final = re.compile(r"GLOBAL_RANK: (\d{1,7}), MEMBER: \d{1,7}/(\d{1,7})\b")
"""What Lightning prints on every rank."""
STARTS: Final = re.compile(
    rf"{_STARTS.pattern}|\b(?:[NR]CCL|MPI|UCX|OFI|SHARP|RDMA|torchrun|mpirun|srun|MASTER_ADDR)\b".encode()
)
"""In a text about a program whose ranks start."""
_STARTED: Final = re.compile(
    r"Init (?:torch distributed|nccl) ends?|All distributed processes registered"
    r"|(?i:load(?:ing)? (?:the )?(?:model|weight|safetensors|checkpoint))"
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
_NODES: Final = re.compile(r"\bnNodes (\d{1,7})\b")
_VIA: Final = re.compile(r" via (P2P/[A-Za-z ]+|SHM|NET/[A-Za-z][\w ]*)(?:.*/(GDRDMA))?")
_CHANNELS: Final = re.compile(r"\b(\d{1,4}) coll channels|Channel \d{1,4}/(\d{1,4}) : +\d+ +\d")
_PRINTING: Final = re.compile(
    r"\[?([\w.<>-]{1,255}):\d+:\d+(?::\d+\] | \[\w*\] )|srun: error: ([\w.-]{1,255}): tasks? \d"
)
"""A message of NCCL, UCX or srun, which names its host."""
_APART: Final = re.compile(r"NCCL (?:INFO|WARN) ")
_HANGS: Final = re.compile(
    r"(?i)(?<!no )(?<!not )(?<!n't )(?<!never )(?<!longer )(?<!timer )(?<![a-z_])"
    r"(?:hang(?:s|ed|ing)?|hung|stuck(?:s|ed)?"
    r"|freez[a-z]{1,4}|frozen|deadlock[a-z]{0,3}|(?<!-)(?:timeouts?|time out|times out|timed out|timedout)(?! \())"
    r"(?![a-z_])(?! ?[=:] ?\S|\(| -+\w| \d+[smhd]?\b| recovery\b)"
    r"(?! (?:the )?(?:\w+ )?(?:layer|weight|param|embedding|encoder|backbone))"
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
_OF_HANGS: Final = words_of((_HANGS.pattern, _STALLS.pattern))
"""One of which is in every line that says so, in small letters."""
_FIRST_OF_TORCHRUN: Final = re.compile(r"Root Cause \(first observed failure\)")
_PRINTED_BY: Final = re.compile(r"(?:\[(?:default|rank)(?=\d+\]:)|:mpi_rank_)(\d{1,7})\]")
_CALLER: Final = re.compile(
    r"\b(?:dist|distributed|c10d|torch\.distributed|comm)(?:\.|::)(?:ProcessGroup\w{1,9}::)?"
    r"(init_process_group|new_group|_verify_params_across_processes|(?:monitored_)?barrier|broadcast\w*|(?:all_?)?reduce\w*"
    r"|all_?gather\w*|all_?to_?all\w*|gather\w*|scatter\w*|i?send|i?recv)(?:_impl)?\("
)
"""A call in a traceback of Python or C++."""
_SENTENCES: Final = re.compile(r"(?:[-*>] )?[A-Z][\w',]*(?: [\w',;()/.=?!-]+){4,}(?<=[\w)][.?!])")
_DENIED: Final = re.compile(r"(?i)(?:n't|\b(?:no|not|never|without|avoid\w*|prevent\w*|instead of))(?: \w+){0,2} $")
"""What stands before a message that did not come."""
_SENTENCE: Final = re.compile(r".+?(?:[.?!](?= )|$)")
_LARGEST_MENTION: Final = 0.45
"""Share of a sentence that a message has which a person mentions in it: it is most of those that programs print."""
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


def _is_mentioned(match: re.Match[str]) -> bool:
    """Whether a message is in a sentence of a person."""
    text = match.string
    if _SENTENCES.fullmatch(text.strip()) is None:
        return False
    sentence = next(each for each in _SENTENCE.finditer(text) if each.end() >= match.end())
    return len(match[0]) < _LARGEST_MENTION * len(sentence[0])


class Ending(NamedTuple):
    """How a job ended, its usual causes, what to do, and how often it follows from a failure of another rank, as
    ``LogError.follows`` says it.
    """

    answer: str
    causes: str
    action: str
    follows: int = 0
    network: bool = False
    """Whether an interface or port that is evidently wrong explains it."""
    is_mentioned: bool = False
    """Whether only the text around logs mentions it."""
    fault: tuple[str, str] | None = None
    """A fault that the log shows, and what to do about it: more likely than the usual causes."""

    @property
    def lines(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The lines of a ``LogError`` below its first sentence."""
        why, do = (f"{part}; else " for part in self.fault) if self.fault else ("", "")
        return ("Why", f"{why}usually {self.causes}"), ("Do", f"{do}{self.action}")


class _Failed(NamedTuple):
    """A message: its place in ``FAILURES``, its line, what it means, and whether it names what failed."""

    place: int
    line: int
    words: str
    is_named: bool

    @property
    def failure(self) -> Failure:
        """What the message means."""
        return FAILURES[self.place]


_Member = tuple[str, int]
"""Name of a communicator of NCCL, or its number of ranks, and a rank."""


class Progress:
    """How far a job came before its first result, and the message with which it failed."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
        self.helped = ""
        """The variable with its value that helped, as the text says."""
        self._line, self._text = 0, ""
        self._started, self._complete = set[_Member](), set[_Member]()
        self._hosts, self._nodes, self._ways, self._channels = set[str](), 0, Counter[str](), 0
        self._is_reached, self.is_excerpt, self.is_unknown = False, False, False
        """Whether a tool reached a call, the log is an excerpt in a text, and it is of a program that nobody knows."""
        self._reported: int | None = None
        self._networks: dict[str, str] = {}
        self._largest: tuple[int, str] = 0, ""
        """Of the communicators, the number of ranks and the name of the largest."""
        self._said = dict[bool, _Failed]()
        """What says most of a failure in the log (False), and in sentences around it (True)."""
        self._at = set[str]()
        """The hosts that print it."""
        self._twice: tuple[int, int, int] | None = None
        """Where a rank started once more, its number, and how many there are."""
        self.in_summary, self._first = False, ""
        """Whether torchrun's summary goes on, up to the rank that failed first; and this rank."""
        self._rank, self._call, self._of = "", "", set[int]()

    def watched(self, lines: Iterable[str]) -> Iterator[str]:
        """The ``lines``, whose rank, as torchrun prints it before them, and calls of collectives are noted."""
        for text in lines:
            self._rank = match[1] if (match := _PRINTED_BY.search(text)) is not None else ""
            if (match := _CALLER.search(text)) is not None and (False not in self._said or "::" in match[0]):
                self._call = match[1]
            yield text

    def take(self, number: int, message: str) -> None:
        """Note the phase that a message of NCCL begins, the addresses over which ranks meet, and the ways of data."""
        self._hosts |= _host_of(message)
        if _RETURNED.search(message) is not None:
            self.fail(number, message)
        if (nodes := _NODES.search(message)) is not None:
            self._nodes = max(self._nodes, int(nodes[1]))
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
            if (member := _MEMBER.search(text)) is not None:
                rank, ranks = map(int, member.groups())
                if ("", rank) in self._started:
                    self._twice = self._twice or (number, rank, ranks)
                self._started.add(("", rank))
                self._largest = max(self._largest, (ranks, ""), key=lambda each: each[0])
        elif _STARTED.search(text) is not None:
            self.phase = None
            self._started.clear()

    def hear(self, number: int, text: str) -> None:
        """Note a line of a person who says that the job hangs."""
        if self._reported is not None or _APART.search(text) is not None:
            return
        lower = text.lower()
        if not any(map(lower.__contains__, _OF_HANGS)) or _NO_HANG.search(text) is not None:
            return
        is_of_a_job = not (self.is_unknown and text.isascii()) or _SUBJECT.search(text) is not None
        hangs = _HANGS.search(text) is not None and is_of_a_job
        if hangs or _STALLS.search(text) is not None:
            self._reported = number

    def fail(self, number: int, text: str) -> None:
        """Note what a line says of a failure; of several, what says most, where it comes first and names something."""
        if self.in_summary and (rank := _RANK_OF_TORCHRUN.search(text)) is not None:
            self._first, self.in_summary = f"; by torchrun, rank {rank[1]} failed first", False
        self.in_summary = self.in_summary or _FIRST_OF_TORCHRUN.search(text) is not None
        found = ((place, match) for place, sign in enumerate(SIGNS) if (match := sign.search(text)) is not None)
        place, match = next(found, (0, None))
        if match is None:
            return
        is_mentioned = _is_mentioned(match)
        if is_mentioned and _DENIED.search(text[: match.start()]) is not None:
            return
        is_first = self._say(place, number, [*filter(None, match.groups())], is_mentioned=is_mentioned)
        if is_mentioned:
            return
        if is_first:
            self._of, self._at = set(), set()
        self._of |= {int(self._rank)} if self._rank else set()
        self._at |= _host_of(text)

    def _say(self, place: int, number: int, names: Sequence[str], *, is_mentioned: bool = False) -> bool:
        """Keep a message if it says more than those before it; whether it is the first of its kind."""
        known = self._said.get(is_mentioned)
        is_first = known is None or place < known.place
        if known is None or is_first or (place == known.place and not known.is_named and names):
            template = FAILURES[place].text
            words = template.format(*names, *[""] * template.count("{}")).replace(" ()", "").strip()
            self._said[is_mentioned] = _Failed(place, number, words, bool(names))
        return is_first

    def went_on(self) -> None:
        """Forget a failure that only waits: what it waited for came."""
        if self.waits:
            del self._said[False]

    @property
    def waits(self) -> bool:
        """Whether ranks waited for others in vain."""
        return False in self._said and self._said[False].failure.waits

    def failure(self, *, alone: bool = True) -> Ending | None:
        """The message with which the job failed, its usual causes and what to do; None without one that is known.

        alone: whether messages count that usually follow from a failure of another rank
        """
        if self._twice is not None and len(self._started) < self._twice[-1]:
            number, rank, ranks = self._twice
            self._say(NUMBERING, number, [f"rank {rank} of {ranks} twice"])
        failed, mentioned = self._said.get(False), self._said.get(True)
        if failed is None and mentioned is not None and alone:
            failure = mentioned.failure
            mentions = f"the text mentions a failure: {mentioned.words} (line {mentioned.line})"
            return Ending(mentions, failure.causes, failure.action, 2, failure.network, is_mentioned=True)
        if failed is None or (failed.failure.follows and not alone):
            return None
        if failed.failure.passes and (self.phase is not None or self.hangs):
            return None
        failure, fault = failed.failure, None
        if failure.follows and mentioned is not None:
            fault = f"{mentioned.words}, as the text says (line {mentioned.line})", mentioned.failure.action
        doing = self.phase.doing if failure.follows and self.phase is not None else failure.doing
        when = f" while {doing}" if doing else ""
        call = f", in {self._call}" if self._call else ""
        of = f", on {ranks_in_words(self._of)}" if self._of else ""
        at = f", on {', '.join(sorted(self._at)[:_MOST_RANKS])}" if self._at else ""
        where = f"the job failed{when}{call}: {failed.words} (line {failed.line}){of}{at}{self._first}{self._apart()}"
        follows = 2 if failure.follows else int(failure.waits)
        return Ending(where, failure.causes, failure.action, follows, failure.network, fault=fault)

    @property
    def is_of_hosts(self) -> bool:
        """Whether the messages are of a job on several hosts."""
        return max(len(self._hosts), self._nodes) > 1 or any(way.startswith("NET/") for way in self._ways)

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
        if action is WORDS["which_path"] and len(left) < len(_SWITCHES):
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
        missing = sorted(set(range(ranks)) - started) if len(started) > 1 or (started and self.phase is SET_UP) else []
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
