"""``busbw simulate``: algorithms on a network that is described, or that a run has measured."""

from pathlib import Path
from typing import Final

import click

from busbw.errors import AnalysisError, UsageError
from busbw.escape import echo
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS
from busbw.units import parse_rate, parse_sizes, parse_time
from busbw_analysis.cli.options import (
    as_json_option,
    choice_option,
    print_json,
    read_runs,
    results_dir_option,
    run_option,
)
from busbw_analysis.models import simulate as flows
from busbw_analysis.models.network_specs import NETWORKS, change_links, in_words, read_network
from busbw_analysis.models.networks import Flat, Network, Order, Placement, SharedHost
from busbw_analysis.models.textbook import SWITCHED, textbook
from busbw_analysis.report.tables.simulate import Simulated, simulate_tables, simulated
from busbw_analysis.report.to_terminal import render

MOST_RANKS = 2048
"""A ring of so many is 8 million messages, a gigabyte and a half of them."""

MOST_SIMULATED: Final = 1000
"""Sizes × algorithms."""

MOST_MESSAGES: Final = 20_000_000
"""Of all sizes and algorithms; of rounds that are alike those of one, but where ranks run freely. Half a minute."""

_UNSIZED: Final = "barrier"
"""The one operation with algorithms whose messages carry no data."""


@click.command("simulate")
@click.option("--op", required=True, help="An operation that there are algorithms of (busbw list algorithms).")
@click.option("--algorithm", default=ALL_ALGORITHMS, show_default=True, help="By commas, or all.")
@click.option("--ranks", type=int, help="How many.  [default with --from: as many as the run had]")
@click.option("--ranks-per-host", type=int, help="As many on each host.  [default: 1; of a shared host all]")
@choice_option("--order", Order, "block", "Neighbouring ranks on one host, or dealt out over the hosts.")
@click.option("--size", "sizes", help="S: a size, a list (8,1KiB) or a range (8..64MiB*2); a barrier has none.")
@click.option(
    "--network",
    "specification",
    metavar="KIND:KEY=VALUE,…",
    help=f"One of {', '.join(NETWORKS)} and its rates in one direction: such as rail:nic=50GB/s,inner=450GB/s.",
)
@run_option("--from", "In place of --network: α, β and R of a run's messages.")
@click.option(
    "--link",
    "changes",
    metavar="NAME=SHARE",
    multiple=True,
    help="Other rates of some links: 'host 3 out=10%', 'host 3 *=1GB/s'; may be repeated.",
)
@click.option(
    "--overhead", default="0us", show_default=True, help="What each message costs beside the network's delay."
)
@click.option("--sums", help="Rate at which a rank adds up, such as 20GB/s.  [default: it takes no time]")
@click.option("--free-running", is_flag=True, help="Ranks do not wait for the whole round, but for their own messages.")
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
    specification: str | None,
    run: str | None,
    changes: tuple[str, ...],
    overhead: str,
    sums: str | None,
    free_running: bool,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Say how long algorithms take on a network where messages share links, and which link they wait for.

    Networks are flat (rate, delay), shared (one host: rate, memory, delay), two-level (nic, inner, delay, inner_delay),
    rail (also spine) and fat-tree (also leaf, spines, oversubscription, routing, seed); docs/models.md describes them.
    """
    names = _algorithms(op, algorithm)
    wanted = _sizes(op, sizes)
    if len(names) * len(wanted) > MOST_SIMULATED:
        message = f"{len(wanted)} sizes by {len(names)} algorithms: want at most {MOST_SIMULATED} of them together"
        raise UsageError(message)
    costs = flows.Costs(parse_time(overhead), 0.0 if sums is None else 1 / parse_rate(sums))
    if (specification is None) == (run is None):
        raise UsageError("want a network: either --network (such as flat:rate=12.5GB/s,delay=5us) or --from RUN")
    if specification is None:
        if order != "block":
            message = f"--order {order} changes nothing with --from: every rank of such a network is like the others"
            raise UsageError(message)
        network, origin = _of_run(run or "", results_dir, op, ranks, ranks_per_host)
        echo(f"network: {origin}", err=True)
    else:
        network = read_network(specification, _placement(specification, ranks, ranks_per_host, order))
    changed = change_links(network, changes)
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
        messages += len(wanted) * traffic.messages(free_running=free_running)
        if messages > MOST_MESSAGES:
            message = f"{messages} messages of all sizes and algorithms until {name}: want at most {MOST_MESSAGES}"
            raise UsageError(message)
        formula = textbook(op, name)
        for size in wanted:
            done = flows.simulate(traffic, size, changed, costs, free_running=free_running)
            said = None if formula is None else flows.formula_seconds(formula, traffic, size, network, costs)
            rows.append(simulated(op, name, size, place.ranks, done, said))
    if not rows or (refused and algorithm != ALL_ALGORITHMS):
        raise UsageError("; ".join(f"{op} by {name}: {why}" for name, why in refused.items()))
    _print(rows, f"{op}, {in_words(changed)}", refused, as_json=as_json)


def _print(rows: list[Simulated], what: str, refused: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({"simulated": what, "cases": rows, "left_out": refused})
        return
    for name, why in refused.items():
        echo(f"left out: {name}: {why}", err=True)
    echo(render(simulate_tables(what, rows)))


def _algorithms(op: str, algorithm: str) -> list[str]:
    there = ALGORITHMS.get(op)
    if there is None:
        raise UsageError(f"op {op!r} has no algorithm that could be simulated; want one of {', '.join(ALGORITHMS)}")
    if algorithm == ALL_ALGORITHMS:
        return list(there)
    names = list(dict.fromkeys(name.strip() for name in algorithm.split(",")))
    added = next((row.algorithm for row in SWITCHED if row.op == op and row.algorithm in names), None)
    if added is not None:
        raise UsageError(
            f"{op} by {added} cannot be simulated: its switch adds up and hands out while bytes still come in, and "
            f"here a message is there as a whole before anything is made of it, which would take up to twice as long; "
            f"its formula is known to busbw predict --algorithm {added}; docs/drawings/{op}-{added}.svg has its rounds"
        )
    unknown = [name for name in names if name not in there]
    if unknown:
        raise UsageError(f"{op} has no algorithm {unknown[0]!r}; want all or some of {', '.join(there)}")
    return names


def _sizes(op: str, text: str | None) -> tuple[int, ...]:
    """The sizes of ``text``; (0,) for an op that has none."""
    wanted = () if text is None else parse_sizes(text)
    if op == _UNSIZED:
        if wanted:
            raise UsageError(f"{op} has no size; leave out --size")
        return (0,)
    if not wanted or not all(wanted):
        given = "--size has 0" if wanted else "no size was given"
        raise UsageError(f"{given}; {op} takes --size with one or several above 0: 1GiB, or 8..1GiB*2")
    return wanted


def _placement(specification: str, ranks: int | None, per_host: int | None, order: Order) -> Placement:
    if ranks is None:
        raise UsageError("how many ranks? --network says nothing of them; give --ranks")
    if ranks > MOST_RANKS:
        raise UsageError(f"--ranks {ranks}: want at most {MOST_RANKS}; every message of an algorithm is kept")
    shared = specification.strip().startswith("shared")
    if shared and per_host not in {None, ranks}:
        raise UsageError(f"--ranks-per-host {per_host}: a shared host has all {ranks} ranks; leave it out")
    on_each = ranks if shared else 1 if per_host is None else per_host
    if order != "block" and on_each in {1, ranks}:
        raise UsageError(f"--order {order} changes nothing for {on_each} of {ranks} ranks on a host; leave it out")
    return Placement(ranks, on_each, order)


def _refusal(op: str, name: str, place: Placement) -> str | None:
    algorithm = ALGORITHMS[op][name]
    if algorithm.levels and place.hosts == 1:
        return f"it takes {algorithm.takes}; all {place.ranks} are on one host (--ranks-per-host)"
    return algorithm.refuse(place.ranks)


def _of_run(run: str, results_dir: Path, op: str, ranks: int | None, per_host: int | None) -> tuple[Network, str]:
    """A network with the α, β and, of one host, R of the messages of a run, and where they are from, in words."""
    # scipy takes longer to load than most simulations.
    from busbw_analysis.data.load import pool  # noqa: PLC0415
    from busbw_analysis.data.series import series_of  # noqa: PLC0415
    from busbw_analysis.data.unavailable import Unavailable  # noqa: PLC0415
    from busbw_analysis.models.parameters import parameters_for  # noqa: PLC0415

    dataset = pool(read_runs(results_dir, [run]))
    series = series_of(dataset)
    like = next((one for one in series if one.key.op == op), None)
    if like is None:
        measured = ", ".join(dict.fromkeys(one.key.op for one in series))
        message = f"--from {run}: it has no {op} whose α and β could be taken; it has {measured or 'nothing'}"
        raise AnalysisError(message)
    found = parameters_for(dataset, like)
    if isinstance(found, Unavailable):
        raise AnalysisError(f"--from {run}: {found.reason}")
    count = len(like.key.ranks) if ranks is None else ranks
    if per_host is None and ranks is None and like.key.hosts > 1 and count % like.key.hosts == 0:
        per_host = count // like.key.hosts
    rate, memory = 1 / found.beta_seconds_per_byte, found.host_bytes_per_second
    if memory is not None:
        place = _placement("shared", count, per_host, "block")
        return SharedHost(place, rate, memory, found.alpha_seconds), found.origin
    return Flat(_placement("flat", count, per_host, "block"), rate, found.alpha_seconds), found.origin
