"""What may be asked of measurements that did not measure it, and how far it lies outside of what they did."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from busbw.errors import AnalysisError, UsageError
from busbw.ops import OF_TWO_RANKS
from busbw.units import about_size
from busbw_analysis.predict.forecast import NEW_REGIME, size_words
from busbw_analysis.predict.selection import Evidence, shape_of


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: ``op`` on ``ranks`` ranks over ``hosts`` hosts at each of ``sizes_bytes`` ((0,) for an op that has
    no size).
    """

    op: str
    ranks: int
    hosts: int
    sizes_bytes: tuple[int, ...]


def question(
    evidence: Evidence,
    ranks: int,
    sizes_bytes: Sequence[int],
    *,
    hosts: int | None = None,
    ranks_per_host: int | None = None,
) -> Question:
    """The question as it can be asked of ``evidence``. Unless ``hosts`` or ``ranks_per_host`` say it, ranks are on
    hosts as in the measurement of as many, else with as many on each as were measured. Raises UsageError for what
    cannot be asked, AnalysisError for hosts between which nothing was measured.
    """
    op = evidence.op
    if ranks < 2:
        message = f"--ranks {ranks}: one rank sends nothing; want at least 2"
        raise UsageError(message, code="one-rank")
    if op in OF_TWO_RANKS and ranks != 2:
        message = f"--ranks {ranks}: {op} is between 2 ranks, however many there are; want 2"
        raise UsageError(message, code="two-ranks")
    unsized = not any(point.size_bytes for one in evidence.of_op for point in one.points)
    if unsized and sizes_bytes:
        message = f"{op} has no size; leave out --size"
        raise UsageError(message, code="no-size")
    if not unsized and (not sizes_bytes or not all(sizes_bytes)):
        given = "size 0" if sizes_bytes else "no size was given"
        message = f"{given}: {op} needs a size above 0 (--size 1MiB)"
        raise UsageError(message, code="size")
    found = _hosts(evidence, ranks, hosts, ranks_per_host)
    return Question(op, ranks, found, tuple(sizes_bytes) or (0,))


def _hosts(evidence: Evidence, ranks: int, hosts: int | None, ranks_per_host: int | None) -> int:
    shapes = [shape_of(one) for one in evidence.of_op]
    far = [shape for shape in shapes if shape[1] > 1]
    if hosts is not None and ranks_per_host is not None:
        message = "--hosts and --ranks-per-host say the same twice; give one of them"
        raise UsageError(message, code="said-twice")
    if ranks_per_host is not None:
        if ranks_per_host < 1:
            message = f"--ranks-per-host {ranks_per_host}: want at least 1"
            raise UsageError(message, code="ranks-per-host")
        hosts = -(-ranks // ranks_per_host)
    if hosts is None:
        same = [shape[1] for shape in shapes if shape[0] == ranks]
        most = max((-(-count // over) for count, over in far), default=ranks)
        hosts = same[0] if same else -(-ranks // most)
    if not 1 <= hosts <= ranks:
        message = f"--hosts {hosts}: want 1 to {ranks}, a rank on each at least"
        raise UsageError(message, code="hosts")
    if hosts > 1 and not far:
        message = (
            f"{ranks} ranks on {hosts} hosts cross a node boundary, and nothing in these runs was measured between "
            "hosts: what a network takes does not follow from one host. Measure on two hosts or more, or ask for one "
            "with --hosts 1"
        )
        raise AnalysisError(message, code="between-hosts-not-measured")
    if hosts == 1 and not any(shape[1] == 1 for shape in shapes):
        least = min(shape[1] for shape in shapes)
        message = (
            f"{ranks} ranks on 1 host: these runs have only measurements over {least} hosts or more, from which the "
            "time inside a host does not follow; measure on one host, or ask for more with --hosts"
        )
        raise AnalysisError(message, code="within-host-not-measured")
    return hosts


def reaches(evidence: Evidence, asked: Question, size_bytes: int) -> tuple[str, ...]:
    """What of the question lies outside of what was measured."""
    far = asked.hosts > 1
    curves = [one for one in evidence.curves or evidence.of_op if (one.key.hosts > 1) == far]
    sizes = sorted({point.size_bytes for one in curves for point in one.points if point.size_bytes})
    said = size_words(size_bytes, sizes[0], sizes[-1]) if sizes and size_bytes else []
    shapes = [shape_of(one) for one in curves]
    if evidence.curve(asked.ranks, asked.hosts) is not None or not shapes:
        return tuple(said)
    counts = sorted({ranks for ranks, _ in shapes})
    if asked.ranks > counts[-1]:
        said.append(f"ranks: {asked.ranks} are {asked.ranks / counts[-1]:.3g} × the most measured, {counts[-1]}")
    elif asked.ranks < counts[0]:
        said.append(f"ranks: {asked.ranks} are fewer than the fewest measured, {counts[0]}")
    over = sorted({hosts for _, hosts in shapes})
    if asked.hosts > over[-1]:
        said.append(f"hosts: {asked.hosts} are {asked.hosts / over[-1]:.3g} × the most measured, {over[-1]}")
    elif asked.hosts < over[0]:
        said.append(f"hosts: {asked.hosts} are fewer than the fewest measured, {over[0]}")
    return (*said, *_on_a_host(evidence, asked, shapes))


def _on_a_host(evidence: Evidence, asked: Question, shapes: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """What is said of the number of ranks on each host, and of the cores that they have."""
    counts = sorted({-(-ranks // hosts) for ranks, hosts in shapes})
    each, least, measured = -(-asked.ranks // asked.hosts), counts[0], counts[-1]
    crowded = [shape for shape in shapes if evidence.crowded(*shape)]
    of = f"{each} ranks on a host of {evidence.cores} usable cores"
    if evidence.crowded(asked.ranks, asked.hosts) and not crowded:
        return (f"cores: {of} share cores, {NEW_REGIME}: none of the measured ranks did",)
    if crowded and len(crowded) == len(shapes) and not evidence.crowded(asked.ranks, asked.hosts):
        return (f"cores: {of} have a core each, {NEW_REGIME}: none of the measured ranks had",)
    if crowded and each > measured:
        return (f"cores: {of} share cores more than the most measured, {measured}",)
    if each > measured:
        return (f"a host: {each} ranks on one are more than the most measured, {measured}",)
    if asked.hosts > 1 and each < least:
        return (f"a host: {each} on one are fewer than the fewest ranks measured, {least}",)
    return ()


def sized(label: str, said: Iterable[tuple[int, str]], sizes_bytes: Sequence[int]) -> list[str]:
    """Everything that is ``said`` of a size, once, with the sizes it is said of where that is not all of them."""
    found: dict[str, list[int]] = {}
    for size, words in said:
        found.setdefault(words, []).append(size)
    lines: list[str] = []
    for words, of in found.items():
        where = "" if set(of) >= set(sizes_bytes) else sizes_in_words(of)
        head = f"{label} ({where})" if label and where else label or where
        lines.append(f"{head}: {words}" if head else words)
    return lines


def sizes_in_words(sizes_bytes: Sequence[int]) -> str:
    """One size, or from which to which."""
    first, last = about_size(sizes_bytes[0]), about_size(sizes_bytes[-1])
    return first if len(sizes_bytes) == 1 else f"{first} to {last}"
