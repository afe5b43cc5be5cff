"""Which runs may be pooled: the facts that must be equal, and the differences between two runs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from pathlib import PurePath
from typing import Final

from busbw.errors import UnlikeRuns, refuse_unknown
from busbw.runs import store
from busbw.runs.described import fact_over_hosts, in_words, variables_over_hosts
from busbw.runs.facts import LIBRARY_VARIABLES, SAME_FACTS, SAME_VARIABLES
from busbw.runs.placement import Variable, binding, rank_placements
from busbw.runs.plan import LogPlan
from busbw.runs.run import Run
from busbw.system.catalog import catalogue
from busbw.system.named import gpus_meant
from busbw.units import format_size
from busbw_analysis.data.grouped import by_key, grouped

_SHOWN_VALUE = 120
"""Maximum characters of a value in an error message."""

_SIZES = frozenset(
    {"-b", "-e", "-f", "-i", "-n", "-w", "--minbytes", "--maxbytes", "--stepfactor", "--stepbytes", "--iters"}
)
"""Options of nccl-tests, each with a value, that say which sizes are measured and how often."""
_TOOL = re.compile(r"(?:_perf|osu_\w+|IMB-\w+|(?:ib|raw_ethernet)_\w+)$")
"""End of the path of a benchmark's program."""
_BOUND = re.compile(r"\bnumactl\b(?:\s+-\S+(?:\s+(?:[\d,-]+|all)(?!\S))?)+")
_IN_NAME = re.compile(rf"(?:{'|'.join(map(re.escape, SAME_VARIABLES))})[A-Z0-9_]*=[A-Za-z0-9]+")
"""A variable that changes results, in the name of a log: ``NCCL_ALGO=Ring.log``."""
_WARM_UP_RULES = ("launch_warmup_seconds", "warmup_seconds", "warmup_calls", "max_warmup_calls")


def _memory(run: Run) -> str | None:
    """Memory of the hosts in whole GiB: the kernel's own share differs by some pages from boot to boot."""
    sizes = (host.memory.total_bytes for host in run.environments.values())
    return in_words(f"{round(size / 2**30)} GiB" for size in sizes if size is not None)


def _variables(run: Run) -> dict[Variable, str | None] | None:
    """Each environment variable that changes results → its values over the hosts."""
    return None if run.imported is not None else variables_over_hosts(run.environments)


def _placement(run: Run) -> str | None:
    """Which ranks share a host. Hosts are numbered in order of appearance, because their names may differ."""
    if is_unknown(run, "hosts"):
        return None
    seen = {host: str(number) for number, host in enumerate(dict.fromkeys(run.hosts))}
    return " ".join(seen[host] for host in run.hosts)


def _binding(run: Run) -> str | None:
    """How ranks are bound to cores, without core numbers: another job may get other cores of the same kind."""
    by_host = grouped(rank_placements(run.hosts, run.environments), lambda placement: placement.host)
    return in_words(words for placements in by_host.values() if (words := binding(placements)) is not None)


def is_unknown(run: Run, name: str) -> bool:
    """Whether neither the log of an imported run nor the user stated the fact ``name``."""
    return run.imported is not None and name in run.imported.unknown


def to_be_given(run: Run) -> tuple[str, ...]:
    """The unknown facts of a log that the user can give, by the names of their options. Of TPUs no fact would help: no
    source gives the rates of their links.
    """
    on_tpus = all(case.device == "tpu" for case in run.cases)
    unknown = () if run.imported is None or on_tpus else run.imported.unknown
    return tuple(name for name in unknown if name != "machine")


def _of_cases(field: str) -> Callable[[Run], str | None]:
    return lambda run: in_words(getattr(case, field) for case in run.cases)


def _warm_up(run: Run) -> str | None:
    if isinstance(run.plan, LogPlan):
        return None
    return ", ".join(f"{name}={getattr(run.plan.timing, name)}" for name in _WARM_UP_RULES)


def options_of(command: str | None) -> frozenset[str]:
    """What a command runs and sets: its program, its binding by numactl, variables that change results, and the tool's
    own options with their values, without those that say which sizes are measured and how often. Hosts and files of the
    launcher are left out.
    """
    words = (command or "").split()
    own = next((at for at, word in enumerate(words) if _TOOL.search(word)), len(words))
    end = next((at for at, word in enumerate(words) if at > own and word[0] in "|&;<>#"), len(words))
    options = words[own + 1 : end]
    set_to = (
        f"{word} {value}" if value and value[0] != "-" else word
        for word, value in pairwise([*options, ""])
        if word[0] == "-" and word not in _SIZES
    )
    variables = (
        word for word in words if "=" in word and word.startswith(SAME_VARIABLES) and not word.startswith("NCCL_DEBUG")
    )
    program = (PurePath(word).name for word in words[own : own + 1])
    bound = (" ".join(match.split()) for match in _BOUND.findall(command or ""))
    return frozenset([*program, *set_to, *variables, *bound])


def _over_hosts(name: str) -> Callable[[Run], str | None]:
    return lambda run: fact_over_hosts(run.environments, name)


_FACTS = tuple((name, _over_hosts(name)) for name in SAME_FACTS)

CHECKED: tuple[tuple[str, Callable[[Run], object]], ...] = (
    ("machine", lambda run: None if is_unknown(run, "machine") else run.machine),
    ("ranks", lambda run: len(run.hosts)),
    ("hosts", lambda run: None if is_unknown(run, "hosts") else len(set(run.hosts))),
    ("placement of ranks on hosts", _placement),
    ("backend", _of_cases("backend")),
    ("device", _of_cases("device")),
    *_FACTS[:4],
    ("binding of ranks to cores", _binding),
    ("memory", _memory),
    *_FACTS[4:],
    ("variables", _variables),
    ("warm-up", _warm_up),
    ("busbw", lambda run: None if run.imported is not None else run.busbw),
)
"""The facts that must be equal in pooled runs: name for messages, and function that reads the fact from a run.

A fact that one run did not record is not a difference; it becomes a notice instead.
"""

SOFTWARE: Final = frozenset(
    {"kernel", "drivers", "firmware", "python", "torch", "mpi.library", "nccl.version", "busbw", "tool version"}
)
"""Differences that leave a machine and its settings what they are: a gate asks whether they made it slower."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in ``CHECKED``, the benchmark loop, or the command of a log, that differs between two runs.

    key: its name
    runs: the names of both
    values: in both; None: not recorded, or of a variable: not set
    variable: the one that differs, if ``key`` is ``variables``
    where: of the loop: cases
    """

    key: str
    runs: tuple[str, str]
    values: tuple[object, object]
    variable: Variable | None = None
    where: str = ""

    @property
    def name(self) -> str:
        """The key, or the name of the variable: what ``--allow`` takes."""
        return self.key if self.variable is None else self.variable.name

    @property
    def is_of_backend(self) -> bool:
        """Whether only one run has it, a variable or fact of a communication library: the other may have another."""
        return None in self.values and self.name.startswith((*LIBRARY_VARIABLES, "mpi.", "nccl."))

    @property
    def unknown_in(self) -> str | None:
        """The run that did not record it; None if both did."""
        unknown = None in self.values and self.variable is None
        return self.runs[self.values.index(None)] if unknown else None

    @property
    def text(self) -> str:
        """A sentence with both values."""
        if (without := self.unknown_in) is not None:
            return f"run {without} did not record {self.key!r}, so it could not be compared with the other runs"
        what = repr(self.key) if self.variable is None else f"variable {self.variable.in_words}"
        first, second = (_set_to(value) for value in self.values)
        return f"{what} is {first} in run {self.runs[0]} and {second} in run {self.runs[1]}{self.where}"


def differences(first: store.StoredRun, second: store.StoredRun) -> tuple[Difference, ...]:
    """All facts in ``CHECKED`` that differ between two runs, and whether their cases used different benchmark loops."""
    runs = first.run.id, second.run.id
    collected: list[Difference] = []
    for key, value_of in CHECKED:
        value, other = value_of(first.run), value_of(second.run)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            unlike = [
                name
                for name in sorted({*value, *other}, key=attrgetter("in_words"))
                if value.get(name) != other.get(name)
            ]
            collected += [Difference(key, runs, (value.get(name), other.get(name)), name) for name in unlike]
        elif value != other:
            collected.append(Difference(key, runs, (value, other)))
    return (*collected, *_other_loops(first, second), *_other_commands(first, second))


def _set_to(value: object) -> str:
    return "not set" if value is None else _short(value)


def _other_loops(first: store.StoredRun, second: store.StoredRun) -> Iterator[Difference]:
    """The Python loop takes two or three times as long for short calls: results of different loops do not compare."""
    loops, others = (by_key((row.case, row.loop) for row in stored.measurements) for stored in (first, second))
    unlike = [case for case, used in loops.items() if case in others and {*others[case]} != {*used}]
    if unlike:
        case = unlike[0]
        values = in_words(loops[case]), in_words(others[case])
        where = f", for {case.op} at {format_size(case.size_bytes)} and {len(unlike) - 1} more common cases"
        yield Difference("loop", (first.run.id, second.run.id), values, where=where)


def _other_commands(first: store.StoredRun, second: store.StoredRun) -> Iterator[Difference]:
    """Logs of common cases by other versions of the tool, with other options, or of other GPUs."""
    log, other = first.run.imported, second.run.imported
    if log is None or other is None or not set(first.run.cases) & set(second.run.cases):
        return
    runs = first.run.id, second.run.id
    versions = log.tool_version, other.tool_version
    options = [options_of(each.command) | {*_IN_NAME.findall(each.file)} for each in (log, other)]
    if all(versions) and versions[0] != versions[1]:
        yield Difference("tool version", runs, versions)
    if all(options) and options[0] != options[1]:
        own, others = (in_words(some - rest) or "nothing more" for some, rest in (options, options[::-1]))
        yield Difference("command", runs, (own, others))
    gpus = _gpus(first.run), _gpus(second.run)
    if all(gpus) and gpus[0] != gpus[1] and not set.intersection(*map(_kinds, gpus)):
        yield Difference("gpu", runs, (in_words(gpus[0]), in_words(gpus[1])))


def _gpus(run: Run) -> frozenset[str]:
    """The names of the GPUs of a run, as its log has them."""
    return frozenset(gpu.name for host in run.environments.values() for gpu in host.pci.gpus if gpu.name)


def _kinds(gpus: Iterable[str]) -> set[str]:
    """What ``gpus`` may be: a tool and the user may name one by different words."""
    rows = catalogue()
    exact = {gpu.name for gpu in rows.gpus for name in gpus if name in gpu.names}
    return exact or {gpu.name for name in gpus for gpu in gpus_meant(rows, name)} or {*gpus}


OF_LOGS: Final = ("tool version", "command", "gpu")
"""Differences between logs of common cases."""


def refuse_unknown_names(names: Iterable[str], runs: Iterable[Run]) -> None:
    """Raise UsageError for a name that is neither that of a difference nor of a variable that changes results."""
    variables = (variable.name for run in runs for variable in variables_over_hosts(run.environments))
    known = dict.fromkeys([*(key for key, _ in CHECKED), "loop", *OF_LOGS, *sorted(variables)])
    for name in names:
        if name not in known and not name.startswith(SAME_VARIABLES):
            refuse_unknown("--allow", name, known)


def notices_of(dissimilar: Sequence[Difference], *, force: bool | None) -> list[str]:
    """``dissimilar`` as notices. Raises UnlikeRuns for a difference that both runs recorded, unless ``force``; None:
    nothing can force it.
    """
    unlike = [difference for difference in dissimilar if difference.unknown_in is None]
    if unlike and not force:
        text = "; ".join(difference.text for difference in unlike if difference.key == unlike[0].key)  # every variable
        others = "see them beside each other (busbw report), compare two (busbw compare), or pool them with --force"
        hint = "take them one by one" if force is None else others
        message = f"these runs may not be pooled: {text}; {hint}"
        raise UnlikeRuns(message)
    return [each.text if each.unknown_in is not None else f"pooled although {each.text}" for each in dissimilar]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"
