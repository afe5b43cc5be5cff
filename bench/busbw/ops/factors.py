"""What algbw times is busbw, operation by operation: the one definition that reading and theory share."""

_TWICE = frozenset({"all_reduce"})
_SHARED = frozenset({"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"})
_WHOLE = frozenset(
    {
        *("broadcast", "reduce", "send_recv", "ping_pong", "pair_uni", "pair_bidir", "pair_matrix"),
        *("peer_copy", "peer_copy_both", "peer_copy_driver", "peer_copy_staged"),
    }
)


def bus_factor(op: str, ranks: int) -> float | None:
    """What algbw times is busbw, as nccl-tests has it; None where there is no wire."""
    if ranks < 2:
        return None
    share = (ranks - 1) / ranks
    if op in _TWICE:
        return 2 * share
    return share if op in _SHARED else 1.0 if op in _WHOLE else None
