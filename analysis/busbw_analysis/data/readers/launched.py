"""What the command line of a launcher says: how many ranks it starts, and on how many hosts."""

import re
from typing import Final, NamedTuple

from busbw_analysis.data.readers.lines import HOSTS

LAUNCHER: Final = re.compile(r"\b(?:mpirun(?:_rsh)?|mpiexec|srun|jsrun)\b")
_OF_MPI: Final = re.compile(r"\b(?:mpirun|mpiexec)\b")
_BINDING: Final = re.compile(r"\b(?:numactl|nice)\b(?:\s+-\S+(?:\s+(?:\d[\d,-]*|all)(?!\S))?)*")
"""Programs before the tool whose options look like those of a launcher."""
_MCA: Final = re.compile(r"(?<!\S)--?mca\s+\S+\s+\S+")
_OPTIONS: Final = tuple(
    (re.compile(rf"(?<!\S)(?:{options})(\d{{1,6}})\b(?!-\d)"), name)
    for options, name in (
        (r"-np\s*|-n\s*|--ntasks[= ]|--np[= ]", "ranks"),
        (r"-N\s*|--nodes[= ]", "hosts"),
        (r"--ntasks-per-node[= ]|--?npernode[= ]|-ppn\s+|--map-by ppr:(?=\d+:node(?!\S))", "of_host"),
    )
)
_OTHER_COUNTS: Final = re.compile(r"(?<!\S)--?(?:np?|n?per(?:node|socket)|N)(?![\w-])|\bppr:")
"""Options of Open MPI that say how many ranks there are, or are in each node."""
_PATHS: Final = frozenset(
    {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f", "-D", "--chdir", "-wdir", "--wdir"}
    | {"-o", "--output", "-e", "--error", "-i", "--input", "--container-image", "--container-mounts", "--cpu-bind"}
)
"""Options of launchers whose value may be a path."""
_GPUS: Final = re.compile(r"(?<!\S)(?:-g|--n?gpus)[= ]+(?!1\b)\d")
"""An option of a program that drives several GPUs, which are ranks as well."""
_SHORT: Final = re.compile(r"-[A-Za-z]\d+")
_STARTERS: Final = re.compile(r"\b(?:torchrun|deepspeed|accelerate|python\S*|(?:ba)?sh|bash)\b")
"""Programs that may start more ranks themselves."""


class Launched(NamedTuple):
    """How many ranks and hosts there are; None: not said."""

    ranks: int | None = None
    hosts: int | None = None

    @property
    def even_hosts(self) -> int | None:
        """The hosts, if each may have as many ranks."""
        return self.hosts if self.hosts is not None and (self.ranks or 0) % self.hosts == 0 else None


def launched(launcher: str) -> Launched:
    """What the part of a command line says that stands before the name of the program."""
    launcher = _BINDING.sub("", launcher)
    if "jsrun" in launcher:  # whose -n counts sets of resources
        return Launched()
    options = {name: int(match[1]) for sign, name in _OPTIONS if (match := sign.search(launcher)) is not None}
    if "hosts" in options and _OF_MPI.search(launcher) is not None:  # -N of Open MPI
        options["of_host"] = options.pop("hosts")
    named = HOSTS.search(launcher)
    listed = [] if named is None else [host.partition(":") for host in named[1].split(",")]
    ranks, of_host = options.get("ranks", 0), options.get("of_host", 0)
    is_part = (
        ranks and not of_host and any(count for *_, count in listed)
    )  # more slots: perhaps on the first hosts only
    is_part = is_part and ranks != sum(int(count or 1) for *_, count in listed)
    hosts = options.get("hosts", 0 if is_part else len({name for name, *_ in listed}))
    if not hosts and ranks and of_host and ranks % of_host == 0:
        hosts = ranks // of_host
    slots = [count for *_, count in listed] if _OTHER_COUNTS.search(launcher) is None else []
    if not ranks and slots and all(slots) and "mpirun" in launcher:
        ranks = sum(map(int, slots))
    ranks = ranks or hosts * of_host
    return Launched(ranks or None, hosts or None)


def launched_any(command: str) -> Launched:
    """The same of a whole command line of any program that starts no ranks itself; nothing for any other line."""
    begin = LAUNCHER.search(command)
    if begin is None or _STARTERS.search(command) is not None or " : " in command:  # of several programs
        return Launched()
    words = _MCA.sub("", command[begin.end() :]).split()
    before = begin[0]
    own = [begin[0]]
    for at, word in enumerate(words):
        is_value = before[0] == "-" and "=" not in before and _SHORT.fullmatch(before) is None
        is_path = word[0] in "./" and before not in _PATHS
        if word[0] != "-" and (is_path or not is_value):
            return Launched() if _GPUS.search(" ".join(words[at:])) is not None else launched(" ".join(own))
        own.append(word)
        before = word
    return Launched()
