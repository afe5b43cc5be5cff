"""What a judged fleet says: sentences, a table, a heat map, node lists for Slurm, and JSON for controllers."""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from busbw.escape import plain_text
from busbw.ops import MESSAGES, OPS
from busbw.runs.asked import LEAST_NODES
from busbw.runs.records import JSON
from busbw.units import counted, format_seconds, format_size, format_time, listed
from busbw_analysis.data.as_json import plain
from busbw_analysis.fleet.controller import Judged
from busbw_analysis.fleet.cost import Cost
from busbw_analysis.fleet.search import ERROR_RATE, Options
from busbw_analysis.fleet.topology import compressed
from busbw_analysis.fleet.verdicts import Apart, Evidence, FleetJudgement, Found, Kind, Verdict, Way, fullest, ratios
from busbw_analysis.report.document import Column, Table, table, three_digits

CHECK: Final = "busbw-fleet"
_KINDS: Final[dict[Kind, str]] = {
    "failed": "failed",
    "wrong": "wrong results",
    "device": "missing device",
    "alone": "slow alone",
    "node": "node",
    "link": "link",
    "switch": "switch",
    "trunk": "trunk",
    "undecided": "undecided",
}
_WAYS: Final[dict[Way, str]] = {"both": "both ways", "out": "sending", "in": "receiving"}
_MOST_NAMED: Final = 3
_LEAST_COST: Final = 0.0005
_MOST_IN_A_MAP: Final = 20
_SHADES: Final = " ·░▒▓█"
"""Not measured: a blank; then up to 1.15, 1.5, 2 and 3 times the usual time, and above."""
_STEPS: Final = (1.15, 1.5, 2.0, 3.0)


def headline(judged: Judged, options: Options) -> str:
    """The answer in a sentence."""
    judgement = judged.judgement
    noun = judgement.fleet.noun
    many = f"{counted(judgement.fleet.count, noun)}, {_how_many(judged)}"
    if judgement.accused:
        first, *others = judgement.accused
        more = f"; {len(others)} more" if others else ""
        return f"{sentence(judged, first)}{more} ({many})"
    if not judgement.fleet.count:
        return "cannot tell: nothing was measured on a node alone or between two nodes, as busbw fleet does"
    if not judgement.is_comparable:
        return _too_few(judged)
    if judgement.verdicts:
        return f"cannot tell: {sentence(judged, judgement.verdicts[0])} ({many})"
    if judgement.apart is not None:
        return f"{_apart(judged, judgement.apart)} ({many})"
    suspects = f"; {counted(judgement.tests, 'suspect')}, normal when measured again" if judgement.tests else ""
    return f"no rate is found {_lower_rate(options):.0%} or more below that of others: {many}{suspects}"


def _apart(judged: Judged, apart: Apart) -> str:
    """What was compared, and what the times of pairs say without a verdict."""
    pair = "–".join(judged.judgement.fleet.names[node] for node in apart.slowest)
    times = f"{format_time(1e9 * apart.shortest)} to {format_time(1e9 * apart.longest)}"
    compared = f"{case_words(judged, apart.case)} takes {times} on {counted(apart.pairs, 'pair')}, longest {pair} "
    compared += f"({three_digits(apart.ratio)}× the shortest)"
    if apart.is_open:
        return f"cannot tell: {compared}; nothing says which time is usual"
    return f"no node or link is slower than times scatter: {compared}"


def found_sentence(judged: Judged) -> str:
    """From how much longer times on something is found, for each kind: by the steadiest case, and by the others."""
    nouns = f"{judged.judgement.fleet.noun}s"
    parts = []
    for kind, name in (("alone", f"{nouns} alone"), ("node", nouns), ("link", "links")):
        found = [each for each in judged.judgement.found if each.kind == kind]
        if not found:
            continue
        best, worst = (end(found, key=lambda each: each.ratio) for end in (min, max))
        if not math.isfinite(best.ratio):
            parts.append(f"no {name}")
            continue
        longest = f"{three_digits(worst.ratio)}×" if math.isfinite(worst.ratio) else "none"
        other = f"; {longest} for {case_words(judged, worst.case)}" if worst.case != best.case else ""
        usual = f"{three_digits(best.ratio)}× the usual time"
        parts.append(f"{name} from {usual} on ({case_words(judged, best.case)}{other})")
    return f"nine of ten slow ones would be found: {listed(parts)}"


def _how_many(judged: Judged) -> str:
    """The rounds that a controller chose, else the pairs that were measured."""
    rounds = judged.judgement.rounds
    if judged.in_rounds:
        return counted(len(rounds), "round")
    pairs = {pair for each in rounds for pair in each.pairs}
    both = sum(first != second for first, second in pairs)
    return counted(both, "pair") if both else f"each {judged.judgement.fleet.noun} alone"


def _too_few(judged: Judged) -> str:
    fleet = judged.judgement.fleet
    noun = fleet.noun
    many = f"{counted(fleet.count, noun)}, {_how_many(judged)}"
    return f"cannot tell: {many}, but it takes {LEAST_NODES} measured {noun}s to know what is usual"


def _lower_rate(options: Options) -> float:
    """``within`` as a share of the rate, as it was given."""
    return -math.expm1(-options.within)


def sentence(judged: Judged, verdict: Verdict) -> str:
    """A verdict with its numbers, without a full stop."""
    return plain_text(f"{_subject(judged, verdict)}{_numbers(judged, verdict)}{_sureness(verdict)}")


def _names(judged: Judged, verdict: Verdict) -> list[str]:
    return [judged.judgement.fleet.names[node] for node in verdict.nodes]


def _subject(judged: Judged, verdict: Verdict) -> str:
    names = _names(judged, verdict)
    slow = "loses or delays messages" if any(each.late for each in verdict.evidence[:1]) else "is slow"
    what = {
        "failed": "cannot be measured" if len(names) == 1 else "fail together, and work with others",
        "wrong": "computes other results than most" if len(names) == 1 else "get wrong data from each other",
        "device": f"has {_missing(verdict)}",
        "alone": "is slow by itself",
        "node": f"{slow} {_WAYS[verdict.way]}",
        "link": f"the link {slow}" if verdict.way == "both" else f"{slow} in this direction",
        "switch": f"switch {verdict.switch} is slow",
        "trunk": f"the trunk of switch {verdict.switch} is slow, pairs below it are not",
        "undecided": "may be slow" if len(names) == 1 else "the link may be slow",
    }[verdict.kind]
    if verdict.switch is not None:
        return f"{what}, {_WAYS[verdict.way]} ({compressed(names)})"
    if verdict.at_once:
        half = len(names) // 2
        sides = f"{compressed(names[:half])} and {compressed(names[half:])}"
        pairs = counted(verdict.at_once, "pair")
        return f"together they fail: {pairs} at once between {sides} are slow, as many within each side are not"
    if len(verdict.next_pairs) > 1:
        return f"{', '.join(names)} or the link between them {'may be slow' if verdict.kind == 'undecided' else slow}"
    if verdict.kind == "link" or (verdict.kind == "undecided" and len(names) == 2):
        return f"{(' ↔ ' if verdict.way == 'both' else ' → ').join(names)}: {what}"
    return f"{listed(names)} {what}"


def _missing(verdict: Verdict) -> str:
    device = verdict.device
    return "" if device is None else f"{device.count} {device.what}, others have {device.usual}"


def _numbers(judged: Judged, verdict: Verdict) -> str:
    if verdict.case is not None:
        return f"; {case_words(judged, verdict.case)}"
    parts = [
        f"{case_words(judged, each.case)} takes {three_digits(each.ratio)}× as long as elsewhere "
        f"({format_time(1e9 * each.measured_seconds)} instead of {format_time(1e9 * each.usual_seconds)}"
        f", {_count(each, _counted(judged, each))})"
        for each in verdict.evidence[:1]
    ]
    return "".join(f"; {part}" for part in parts)


def _counted(judged: Judged, evidence: Evidence) -> str:
    """What the evidence is counted in: a log of a node alone is of no pair."""
    if judged.in_rounds:
        return "round"
    return "time" if evidence.case in judged.judgement.fleet.alone else "pair"


def _count(evidence: Evidence, noun: str) -> str:
    if evidence.late:
        return f"on average; messages were lost or late in {evidence.late} of {counted(evidence.rounds, noun)}"
    return f"from {counted(evidence.rounds, noun)}"


def case_words(judged: Judged, place: int) -> str:
    """The operation and size of a case of the rounds: ``pair_uni at 16 MiB``."""
    case = judged.cases[place]
    sized = case.op in OPS and OPS[case.op].sized
    return f"{case.op} at {format_size(case.size_bytes)}" if sized else case.op


def _sureness(verdict: Verdict) -> str:
    if verdict.error is None:
        return ""
    if verdict.accuses:
        reasons = f"; its GPU is throttled: {listed(verdict.throttled)}" if verdict.throttled else ""
        return f"; probability {_percent(verdict.probability)}, otherwise a fault of another kind or direction{reasons}"
    if verdict.busy:
        return "; other programs took the CPUs meanwhile"
    return "; one more round would decide" if verdict.next_pairs else "; more rounds would decide"


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %" if probability < 0.9995 else "above 99.9 %"


def lines(judged: Judged, options: Options) -> list[tuple[str, str]]:
    """Labelled lines: the answer, then each further verdict, and the rounds that would decide."""
    judgement = judged.judgement
    noun = judgement.fleet.noun
    rows = [("fleet", headline(judged, options))]
    rows += [(_KINDS[verdict.kind], sentence(judged, verdict)) for verdict in judgement.verdicts[1:_MOST_NAMED]]
    if len(judgement.verdicts) > _MOST_NAMED:
        rows.append(("more", f"{len(judgement.verdicts) - _MOST_NAMED} more verdicts are in the table"))
    if judgement.found and judgement.code == 0:
        rows.append(("found", found_sentence(judged)))
    undecided = [pair for verdict in judgement.verdicts for pair in verdict.next_pairs if not verdict.busy]
    busy = sum(each.busy for each in judgement.rounds)
    if busy and judgement.code != 1:
        what = f"other programs took the CPUs in {counted(busy, 'round')}: slow ones may hide"
        rows.append(("next", f"{what}; stop them and run busbw fleet again"))
    if judgement.apart is not None and judgement.apart.is_open:
        rows.append(("next", "measure all pairs again and give both logs of each, or run busbw fleet on these nodes"))
    if undecided:
        names = ["–".join(_partner(judged, node) for node in pair) for pair in undecided[:_MOST_NAMED]]
        rows.append(("measure next", "; ".join(names)))
    partners = judgement.partners
    usual = int(np.median(partners)) if len(partners) else 0
    few = [node for node in np.flatnonzero(2 * partners < usual).tolist() if node not in judgement.bad_nodes]
    if few:
        which = listed([judgement.fleet.names[node] for node in few[:_MOST_NAMED]])
        rows.append(("names", f"half of the {noun}s have {usual} partners or more, but {which} far fewer: misspelt?"))
    unplaced = np.flatnonzero(judgement.fleet.leaf < 0)
    if judgement.fleet.switches and len(unplaced):
        which = f"{counted(len(unplaced), noun)}, such as {judgement.fleet.names[unplaced[0]]}"
        rows.append(("topology", f"no switch is known of {which}"))
    if not judgement.fleet.are_hosts:
        rows.append(("cluster", "busbw submit fleet --nodes N, or srun busbw fleet, measures hosts instead of ranks"))
    return rows


def _partner(judged: Judged, node: int | None) -> str:
    return "any good node" if node is None else judged.judgement.fleet.names[node]


def exclude(judged: Judged) -> str:
    """The bad nodes as ``--exclude`` takes them; empty if nodes are ranks of one host."""
    fleet = judged.judgement.fleet
    return compressed(fleet.names[node] for node in judged.judgement.bad_nodes if fleet.are_hosts)


def drain(judged: Judged) -> Iterator[str]:
    """Commands that drain the bad nodes; they are printed and never run."""
    bad = set(judged.judgement.bad_nodes) if judged.judgement.fleet.are_hosts else set()
    for verdict in judged.judgement.accused:
        nodes = [judged.judgement.fleet.names[node] for node in verdict.nodes if node in bad]
        bad -= set(verdict.nodes)
        if nodes:
            reason = shlex.quote(f"busbw: {sentence(judged, verdict)}")
            yield f"scontrol update NodeName={shlex.quote(compressed(nodes))} State=DRAIN Reason={reason}"


def verdict_table(judged: Judged) -> Table:
    """All verdicts with their numbers."""

    def first(verdict: Verdict, name: str) -> float | None:
        return getattr(verdict.evidence[0], name) if verdict.evidence else None

    def of_case(verdict: Verdict) -> str:
        place = verdict.evidence[0].case if verdict.evidence else verdict.case
        return _missing(verdict) if place is None else case_words(judged, place)

    verdicts = judged.judgement.verdicts
    nouns = {_counted(judged, each) for verdict in verdicts for each in verdict.evidence[:1]} or {"round"}
    columns: tuple[Column[Verdict], ...] = (
        Column("Verdict", lambda row: _KINDS[row.kind]),
        Column("Where", lambda row: row.switch or compressed(_names(judged, row))),
        Column("Direction", lambda row: _WAYS[row.way] if row.kind in {"node", "link", "switch", "trunk"} else None),
        Column("Case", of_case),
        Column("Elsewhere", lambda row: first(row, "usual_seconds"), format_seconds),
        Column("Measured", lambda row: first(row, "measured_seconds"), format_seconds),
        Column("Ratio", lambda row: first(row, "ratio"), three_digits),
        Column(nouns.pop().capitalize() + "s" if len(nouns) == 1 else "Times", lambda row: first(row, "rounds"), str),
        Column("Probability", lambda row: row.probability if row.error not in {None, 1} else None, _percent),
    )
    notes = (
        "Probability: of this kind and direction, if 1 % of nodes and 0.1 % of links and switches are bad"
        if any(row.probability and row.error not in {None, 1} for row in verdicts)
        else "",
        f"Less than {100 * ERROR_RATE:.0f} % of healthy fleets are accused of anything (--json: error_rate)"
        if judged.judgement.accused
        else "",
    )
    return table("", columns, verdicts, *filter(None, notes), row_headers=2)


def heat_nodes(judged: Judged, most: int) -> list[int]:
    """The nodes of a heat map, ordered by switch: all, or if they are too many those of verdicts."""
    judgement = judged.judgement
    order = [int(node) for node in np.argsort(judgement.fleet.leaf, kind="stable")]
    if len(order) > most:
        named = list(dict.fromkeys(node for verdict in judgement.verdicts for node in verdict.nodes))[:most]
        order = [node for node in order if node in named]
    return order


def heat_lines(judged: Judged) -> Iterator[str]:
    """A heat map of blocks: from rows to columns, time over the usual."""
    judgement = judged.judgement
    nodes = heat_nodes(judged, _MOST_IN_A_MAP)
    if not judgement.fleet.pairs or len(nodes) < 2:
        return
    shown = fullest(judgement)
    matrix = ratios(judgement, shown)[np.ix_(nodes, nodes)]
    names = [f"{number:2} {judgement.fleet.names[node]}" for number, node in enumerate(nodes, 1)]
    width = max(map(len, names))
    limits = "  ".join(f"{2 * shade} to {limit:g}" for limit, shade in zip(_STEPS, _SHADES[1:], strict=False))
    directed = judged.cases[shown].op in MESSAGES
    how = "from row to column" if directed else "between row and column, once for each pair"
    yield f"Time of {case_words(judged, shown)} {how} (columns have the numbers of rows), divided by the usual:"
    yield f"{limits}  {2 * _SHADES[-1]} above {_STEPS[-1]:g}  blank: not measured"
    yield f"{''.ljust(width)} {''.join(f'{number:3}' for number in range(1, len(nodes) + 1))}"
    for name, row in zip(names, matrix, strict=True):
        cells = "".join(f" {2 * (_SHADES[0] if math.isnan(value) else _shade(value))}" for value in row.tolist())
        yield plain_text(f"{name.ljust(width)} {cells}").rstrip()


def _shade(value: float) -> str:
    return _SHADES[1 + sum(value > limit for limit in _STEPS)]


def cost_sentence(cost: Cost) -> str:
    """What a step loses, and to what it refers."""
    factors = {"compute": cost.compute, "traffic between hosts": cost.network}
    slower = listed(f"{what} takes {three_digits(by)} times as long" for what, by in factors.items() if by > 1)
    longer = f"{cost.share:.1%} longer" if cost.share >= _LEAST_COST else "no longer"
    return (
        f"a training step takes {longer} with it: {format_seconds(cost.slow_seconds)} instead of "
        f"{format_seconds(cost.usual_seconds)} by the planner's model: all ranks wait for the slowest, and {slower}"
    )


def document(judged: Judged, options: Options, runs: list[str], cost: Cost | None) -> dict[str, JSON]:
    """The judgement as JSON, with an object for each bad node as ``busbw gate --json`` has."""
    judgement = judged.judgement
    return {
        **_head(judged, options, runs),
        "nodes": list(judgement.fleet.names),
        "rounds": len(judgement.rounds),
        "tests": judgement.tests,
        "error_rate": ERROR_RATE,
        "within": _lower_rate(options),
        "exclude": exclude(judged),
        "drain": list(drain(judged)),
        "cost": plain(cost),
        "found": [_found(judged, found) for found in judgement.found],
        "verdicts": [_verdict(judged, verdict) for verdict in judgement.verdicts],
    }


def _head(judged: Judged, options: Options, runs: list[str]) -> dict[str, JSON]:
    code = judged.judgement.code
    return {
        "check": CHECK,
        "healthy": {0: True, 1: False}.get(code),
        "message": headline(judged, options),
        "exit_code": code,
        "runs": runs,
    }


def _found(judged: Judged, found: Found) -> dict[str, JSON]:
    ratio = found.ratio if math.isfinite(found.ratio) else None
    return {"kind": found.kind, "case": plain(judged.cases[found.case]), "ratio": ratio}


def _verdict(judged: Judged, verdict: Verdict) -> dict[str, JSON]:
    names = judged.judgement.fleet.names
    return {
        **plain(verdict),
        "nodes": _names(judged, verdict),
        "evidence": [{**plain(each), "case": plain(judged.cases[each.case])} for each in verdict.evidence],
        "next_pairs": [[None if node is None else names[node] for node in pair] for pair in verdict.next_pairs],
        "message": sentence(judged, verdict),
    }


def node_documents(
    judged: Judged, runs: list[str], cost_of: Callable[[FleetJudgement], Cost | None] | None
) -> Iterator[dict[str, JSON]]:
    """One object for every node, for controllers: ``healthy`` is null if that cannot be told.

    cost_of: what a node with its verdicts alone would cost
    """
    judgement = judged.judgement
    bad = set(judgement.bad_nodes)
    busy = sum(each.busy for each in judgement.rounds)
    fine = (
        f"not found slow; other programs took the CPUs in {counted(busy, 'round')}" if busy else "as fast as the others"
    )
    open_pairs = judgement.apart if judgement.is_comparable and not judgement.is_decided else None
    unaccused = fine if judgement.is_decided else _too_few(judged) if open_pairs is None else _apart(judged, open_pairs)
    for node, name in enumerate(judgement.fleet.names):
        own = [verdict for verdict in judgement.verdicts if node in verdict.nodes]
        accused = [verdict for verdict in own if verdict.accuses and node in bad]
        state = False if accused else None if own or not judgement.is_decided else True
        chosen = (accused or own)[:1]
        yield {
            "check": CHECK,
            "healthy": state,
            "node": name,
            "message": sentence(judged, chosen[0]) if chosen else unaccused,
            "exit_code": {True: 0, False: 1, None: 3}[state],
            "runs": runs,
            "cost": plain(None if cost_of is None else cost_of(replace(judgement, verdicts=tuple(accused)))),
            "verdicts": [_verdict(judged, verdict) for verdict in own],
        }
