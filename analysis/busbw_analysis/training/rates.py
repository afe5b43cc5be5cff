"""The rates of one GPU on a network that is described as for ``busbw simulate``."""

from dataclasses import dataclass

from busbw_analysis.models.network_specs import read_network
from busbw_analysis.models.networks import FatTree, Flat, Placement, Rails, SharedHost, TwoLevel


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second of one GPU in one direction, and seconds of delay, inside a node and between nodes, with
    everything on its way at once.
    """

    inner: float
    outer: float
    inner_delay: float
    outer_delay: float
    per_host: int


def rates_of(specification: str, ranks: int, per_host: int) -> Rates:
    """What a GPU has when all of its node send: of a card that they share, a part; below an oversubscribed leaf, less;
    from one memory that all messages take, a part of it.
    """
    shared = specification.strip().startswith("shared")
    on_each = ranks if shared else min(per_host, ranks)
    network = read_network(specification, Placement(ranks, on_each))
    match network:
        case SharedHost():
            rate = min(network.rate, network.memory / ranks)
            return Rates(rate, rate, network.delay, network.delay, ranks)
        case Flat():
            return Rates(network.rate, network.rate, network.delay, network.delay, on_each)
        case Rails():
            return Rates(network.inner, network.nic, network.inner_delay, network.delay, on_each)
        case TwoLevel() | FatTree():
            over = max(1.0, network.oversubscription) if isinstance(network, FatTree) else 1.0
            inner = network.nic if network.inner is None else network.inner
            return Rates(inner, network.nic / on_each / over, network.inner_delay, network.delay, on_each)
    raise AssertionError(specification)
