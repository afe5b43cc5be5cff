"""The roofline of communication: the FLOP per byte sent that a rank needs so that it does not wait for the network.

A step takes at least max(FLOP / π, bytes / W) if computation and communication overlap. Above π / W FLOP per byte on
the wire, arithmetic limits; below it, the network does (Austin et al. 2025, How to Scale Your Model, chapter "All About
Rooflines", https://jax-ml.github.io/scaling-book/roofline/).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busbw.runs.records import DTYPE_BYTES
from busbw.system.catalog import Catalogue
from busbw.units import format_size
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.results import Results
from busbw_analysis.node.roofline import Roofline
from busbw_analysis.peaks.paths import gpu_links, host_network

_LEAST_BYTES = 1 << 20
"""Smaller all-reduces are latency-bound."""

_BACKWARD_FLOP = 4
"""FLOP per parameter and token: two products in the backward pass of a dense layer (Kaplan et al. 2020,
https://arxiv.org/abs/2001.08361, section 2.1).
"""

_Network = tuple[float, str, bool]
"""The rate of one rank (B/s), its source, and whether it was measured."""


@dataclass(frozen=True, slots=True)
class NetworkRoofline:
    """The network roofline of one rank.

    flop_per_second, bytes_per_second: π and W.
    flop_per_byte: π / W.
    tokens: tokens per rank and step from which on the all-reduce of a dense layer's gradients, in the same type, takes
        no longer than its backward pass.
    """

    holder: str
    dtype: str
    ranks: int
    flop_per_second: float
    compute: str
    compute_measured: bool
    bytes_per_second: float
    network: str
    network_measured: bool
    flop_per_byte: float
    tokens: float


def network_rooflines(results: Results, rooflines: Sequence[Roofline], rows: Catalogue) -> tuple[NetworkRoofline, ...]:
    """One per known arithmetic peak; none for a single rank, which sends nothing."""
    return tuple(network for roofline in rooflines for network in _of_network(results, roofline, rows))


def _of_network(results: Results, roofline: Roofline, rows: Catalogue) -> Iterator[NetworkRoofline]:
    """Tokens are those of a data-parallel step: gradients of P parameters are 2 (n − 1) / n · w · P bytes on the wire
    of each rank, and their backward pass takes 4 · P FLOP per token.
    """
    ranks = len(results.facts.hosts)
    network = _network(results, roofline, rows) if ranks > 1 else None
    if network is None:
        return
    rate, what, measured = network
    for compute in roofline.compute:
        flop_per_second = compute.flop_per_second / roofline.workers
        sent = 2 * (ranks - 1) / ranks * DTYPE_BYTES[compute.dtype]
        yield NetworkRoofline(
            holder=roofline.holder,
            dtype=compute.dtype,
            ranks=ranks,
            flop_per_second=flop_per_second,
            compute=compute.what,
            compute_measured=compute.measured,
            bytes_per_second=rate,
            network=what,
            network_measured=measured,
            flop_per_byte=flop_per_second / rate,
            tokens=flop_per_second / rate * sent / _BACKWARD_FLOP,
        )


def _network(results: Results, roofline: Roofline, rows: Catalogue) -> _Network | None:
    """The rate of a rank: by the best large all-reduce of this run, else by the link that the system or a datasheet
    states.
    """
    reductions = [
        (group.busbw, summary.case)
        for summary in results.cases
        if summary.case.op == "all_reduce"
        and summary.case.device == roofline.device
        and summary.case.size_bytes >= _LEAST_BYTES
        and (group := summary.only) is not None
        and len(group.ranks) == len(results.facts.hosts)
        and group.busbw is not None
    ]
    if reductions:
        rate, case = max(reductions, key=lambda entry: entry[0])
        what = f"busbw of the best all_reduce of this run ({format_size(case.size_bytes)} of {case.dtype})"
        return rate, what, True
    return _nominal(results.facts, roofline, rows)


def _nominal(facts: Facts, roofline: Roofline, rows: Catalogue) -> _Network | None:
    """The share of one rank in the link that the system or a datasheet states; None if unknown."""
    host_of_rank = facts.hosts
    hosts = list(dict.fromkeys(host_of_rank))
    if len(hosts) == 1:
        links = None if roofline.device == "cpu" else gpu_links(facts.gpus_of(range(len(host_of_rank))), rows)
        if links is None or isinstance(links, Unavailable):
            return None
        return links.peak.nominal, links.in_words, False
    shares: list[_Network] = []
    for host in hosts:
        network = host_network(facts.environment(host), facts.backend.transport, rows)
        if isinstance(network, Unavailable):
            return None
        sharing = host_of_rank.count(host)
        shared = f", shared by its {sharing} ranks" if sharing > 1 else ""
        shares.append((network.peak.nominal / sharing, f"{network.name} of {host}, nominal{shared}", False))
    return min(shares, key=lambda share: share[0])
