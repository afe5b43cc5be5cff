"""Expert of every token, chosen in advance so that load and dropped tokens are as specified.

Megatron-LM forces balanced load in benchmarks likewise (``--moe-router-force-load-balancing``). A router still
computes the weights of the chosen experts.
"""

from math import ceil

DROPPED = -1


def routed(tokens: int, experts: int, top_k: int, ranks: int, imbalance: float, capacity: float | None) -> list[int]:
    """The expert of choice j of token i, at index j · tokens + i; the same on every rank with this many tokens.

    imbalance: load of the experts on the first of ``ranks`` ranks, over an even share; the others share the rest evenly
    capacity: most tokens of an expert, over its even share of a rank's tokens; excess tokens are ``DROPPED``
        (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668, section 2.2)
    The choices of a token differ as long as imbalance · top_k ≤ experts.
    """
    pairs, busy = tokens * top_k, experts // ranks
    each = pairs / experts
    rest = (pairs - imbalance * each * busy) / max(1, experts - busy)
    ends = [round(imbalance * each * min(count, busy) + rest * max(0, count - busy)) for count in range(experts + 1)]
    most = pairs if capacity is None else ceil(capacity * each)
    return [
        expert if place < most else DROPPED
        for expert in range(experts)
        for place in range(ends[expert + 1] - ends[expert])
    ]
