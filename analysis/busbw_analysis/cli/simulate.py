"""``busbw simulate``: algorithms on a network that the user describes or a run has measured."""

from pathlib import Path
from typing import Final

import click

from busbw.errors import AnalysisError, UsageError
from busbw.escape import echo
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS
from busbw.shared_options import as_json_option, results_dir_option
from busbw.units import parse_rate, parse_sizes, parse_time
from busbw_analysis.cli.options import choice_option, parsed, print_json, read_runs, run_option
from busbw_analysis.models import simulate as flows
from busbw_analysis.models.networks import (
    NETWORKS,
    Flat,
    Network,
    Order,
    Placement,
    SharedHost,
    Specification,
    cautions,
    change_links,
    in_words,
    parse_network,
)
from busbw_analysis.models.textbook import ROWS, SWITCHED
from busbw_analysis.report.simulate import Simulated, simulate_tables, simulated
from busbw_analysis.report.to_terminal import render

MOST_RANKS = 2048
"""A ring of 2048 ranks has 8 million messages, which take 1.5 GB of memory."""

MOST_MESSAGES: Final = 20_000_000
"""Limit on the messages of all sizes and algorithms, about half a minute. Identical rounds count once."""

_UNSIZED: Final = "barrier"
"""The only op with algorithms whose messages carry no data."""


@click.command("simulate")
@click.option("--op", required=True, help="Operation with explicit algorithms (busbw list algorithms).")
@click.option("--algorithm", default=ALL_ALGORITHMS, show_default=True, help="Algorithms, comma-separated, or all.")
@click.option("--ranks", type=int, help="Number of ranks.  [default with --from: as in the run]")
@click.option("--ranks-per-host", type=int, help="Ranks per host.  [default: 1; all on a shared host]")
@choice_option("--order", Order, "block", "Put neighbouring ranks on one host, or distribute them round-robin.")
@click.option("--size", "sizes", help="S: a size, a list (8,1KiB) or a range (8..64MiB*2); none for a barrier.")
@click.option(
    "--network",
    "specification",
    metavar="KIND:KEY=VALUE,…",
    callback=parsed(parse_network),
    help=f"One of {', '.join(NETWORKS)} with its rates per direction, such as rail:nic=50GB/s,inner=450GB/s.",
)
@run_option("--from", "Instead of --network: use α, β and R of this run's messages.")
@click.option(
    "--link",
    "changes",
    metavar="NAME=SHARE",
    multiple=True,
    help="Change the rate of some links: 'host 3 out=10%', 'host 3 *=1GB/s'; repeatable.",
)
@click.option(
    "--overhead", default="0us", show_default=True, help="Time per message in addition to the network's delay."
)
@click.option("--sums", help="Rate at which a rank reduces data, such as 20GB/s.  [default: infinite]")
@results_dir_option
@as_json_option
def simulate(  # noqa: PLR0913 - click hands every option over by name
    *,
    op: str,
    algorithm: str,
    ranks: int | None,
    ranks_per_host: int | None,
    order: Order,
    sizes: str | None,
    specification: Specification | None,
    run: str | None,
    changes: tuple[str, ...],
    overhead: str,
    sums: str | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Simulate algorithms on a network where messages share links: their time, and the link that limits them.

    Networks are flat (rate, delay), shared (one host: rate, memory, delay), two-level (nic, inner, delay, inner_delay),
    rail (also spine) and fat-tree (also leaf, spines, oversubscription, routing, seed); docs/models.md describes them.
    """
    names = _algorithms(op, algorithm)
    costs = flows.Costs(parse_time(overhead), 0.0 if sums is None else 1 / parse_rate(sums))
    if (specification is None) == (run is None):
        raise UsageError("give one network: either --network (such as flat:rate=12.5GB/s,delay=5us) or --from RUN")
    if specification is None:
        if order != "block":
            raise UsageError(f"--order {order} changes nothing with --from: all ranks of such a network are equivalent")
        network, origin = _of_run(run or "", results_dir, op, ranks, ranks_per_host)
        echo(f"network: {origin}", err=True)
    else:
        network = specification.on(_placement(specification.kind, ranks, ranks_per_host, order))
    changed = change_links(network, changes)
    sizes_bytes = _sizes(op, sizes)
    rows: list[Simulated] = []
    refused: dict[str, str] = {}
    messages = 0
    for name in names:
        place = network.placement
        why = _refusal(op, name, place)
        if why is not None:
            refused[name] = why
            continue
        traffic = flows.Traffic.of(ALGORITHMS[op][name].on(place.ranks, place.hosts))
        messages += len(sizes_bytes) * traffic.messages
        if messages > MOST_MESSAGES:
            message = (
                f"all sizes and algorithms up to {name} have {messages} messages: at most {MOST_MESSAGES} are allowed"
            )
            raise UsageError(message)
        formula = ROWS.get((op, name))
        for size in sizes_bytes:
            done = flows.simulate(traffic, size, changed, costs)
            predicted = None if formula is None else flows.formula_seconds(formula, traffic, size, network, costs)
            rows.append(simulated(op, name, size, place.ranks, done, predicted))
    if not rows or (refused and algorithm != ALL_ALGORITHMS):
        raise UsageError("; ".join(f"{op} by {name}: {why}" for name, why in refused.items()))
    doubts = [] if costs.overhead else cautions(changed)
    _print(rows, f"{op}, {in_words(changed)}", refused, doubts, as_json=as_json)


def _print(rows: list[Simulated], what: str, refused: dict[str, str], doubts: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"simulated": what, "cautions": doubts, "cases": rows, "left_out": refused})
        return
    for name, why in refused.items():
        echo(f"left out: {name}: {why}", err=True)
    echo(render(simulate_tables(what, rows, doubts)))


def _algorithms(op: str, algorithm: str) -> list[str]:
    algorithms = ALGORITHMS.get(op)
    if algorithms is None:
        raise UsageError(f"op {op!r} has no algorithm to simulate; use one of {', '.join(ALGORITHMS)}")
    if algorithm == ALL_ALGORITHMS:
        return list(algorithms)
    names = list(dict.fromkeys(name.strip() for name in algorithm.split(",")))
    added = next((row.algorithm for row in SWITCHED if row.op == op and row.algorithm in names), None)
    if added is not None:
        raise UsageError(
            f"{op} by {added} cannot be simulated: its switch reduces and forwards data while it still arrives, but "
            f"the simulation waits for whole messages and would take up to twice as long; use its formula with "
            f"busbw predict --algorithm {added}; docs/drawings/{op}-{added}.svg shows its rounds"
        )
    unknown = [name for name in names if name not in algorithms]
    if unknown:
        raise UsageError(f"{op} has no algorithm {unknown[0]!r}; use all or some of {', '.join(algorithms)}")
    return names


def _sizes(op: str, text: str | None) -> tuple[int, ...]:
    """The sizes in ``text``; (0,) for an op without a size."""
    sizes = () if text is None else parse_sizes(text)
    if op == _UNSIZED:
        if sizes:
            raise UsageError(f"{op} has no size; omit --size")
        return (0,)
    if not sizes or not all(sizes):
        given = "--size contains 0" if sizes else "--size is missing"
        raise UsageError(f"{given}; {op} needs sizes above 0, such as --size 1GiB or --size 8..1GiB*2")
    return sizes


def _placement(kind: str, ranks: int | None, per_host: int | None, order: Order) -> Placement:
    if ranks is None:
        raise UsageError("--ranks is missing: --network does not set the number of ranks")
    if ranks > MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: at most {MOST_RANKS} are allowed, because all messages are kept in memory")
    shared = kind == "shared"
    if shared and per_host not in {None, ranks}:
        raise UsageError(f"--ranks-per-host {per_host}: a shared host has all {ranks} ranks; omit the option")
    on_each = ranks if shared else 1 if per_host is None else per_host
    if order != "block" and on_each in {1, ranks}:
        raise UsageError(f"--order {order} changes nothing with {on_each} of {ranks} ranks per host; omit the option")
    return Placement(ranks, on_each, order)


def _refusal(op: str, name: str, place: Placement) -> str | None:
    algorithm = ALGORITHMS[op][name]
    if algorithm.levels and place.hosts == 1:
        return f"it needs {algorithm.needs}; all {place.ranks} ranks are on one host (--ranks-per-host)"
    return algorithm.refuse(place.ranks)


def _of_run(run: str, results_dir: Path, op: str, ranks: int | None, per_host: int | None) -> tuple[Network, str]:
    """A network with the α, β and, on one host, R of a run's messages, and a description of their origin."""
    # Loading scipy takes longer than most simulations.
    from busbw_analysis.data.load import pool  # noqa: PLC0415
    from busbw_analysis.data.unavailable import Unavailable  # noqa: PLC0415
    from busbw_analysis.models.results import results_of  # noqa: PLC0415

    results = results_of(pool(read_runs(results_dir, [run])))
    series = results.series
    like = next((curve for curve in series if curve.key.op == op), None)
    if like is None:
        measured = ", ".join(dict.fromkeys(curve.key.op for curve in series))
        raise AnalysisError(f"--from {run}: α and β need a measured {op}; the run has {measured or 'nothing'}")
    parameters = results.messages.parameters_for(like)
    if isinstance(parameters, Unavailable):
        raise AnalysisError(f"--from {run}: {parameters.reason}")
    count = len(like.key.ranks) if ranks is None else ranks
    if per_host is None and ranks is None and like.key.hosts > 1 and count % like.key.hosts == 0:
        per_host = count // like.key.hosts
    rate, memory = 1 / parameters.beta_seconds_per_byte, parameters.host_bytes_per_second
    if memory is not None:
        place = _placement("shared", count, per_host, "block")
        return SharedHost(place, rate, memory, parameters.alpha_seconds), parameters.origin
    return Flat(_placement("flat", count, per_host, "block"), rate, parameters.alpha_seconds), parameters.origin
