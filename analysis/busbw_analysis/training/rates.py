"""The rates of one GPU on a network described as for ``busbw simulate``."""

from dataclasses import dataclass

from busbw_analysis.models.networks import FatTree, Flat, Placement, Rails, SharedHost, Specification, TwoLevel


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a GPU in one direction while all GPUs send: B/s and seconds of delay, inside and between nodes."""

    inner: float
    outer: float
    inner_delay: float
    outer_delay: float
    per_host: int


def rates_of(specification: Specification, ranks: int, per_host: int) -> Rates:
    """The rates of a GPU when all GPUs of its node send.

    It has a part of a shared card or of a shared memory, and less below an oversubscribed leaf.
    """
    on_each = ranks if specification.kind == "shared" else min(per_host, ranks)
    network = specification.on(Placement(ranks, on_each))
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
    raise AssertionError(network)
