"""Which experts tokens go to: chosen in advance, so that load and dropped tokens are as stated.

Megatron-LM forces the load of a benchmark likewise (``--moe-router-force-load-balancing``). A router still weighs what
the experts of a token find.
"""

from math import ceil

DROPPED = -1


def routed(tokens: int, experts: int, top_k: int, ranks: int, imbalance: float, capacity: float | None) -> list[int]:
    """The expert of choice j of token i, at j · tokens + i; every rank with so many tokens chooses like this.

    imbalance: what the experts of the first of ``ranks`` ranks get over what an even share is; the other experts share
    the rest evenly. capacity: an expert takes so many times an even share of a rank's tokens, others are ``DROPPED``
    (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668, section 2.2). Choices of a token differ as long as
    imbalance · top_k ≤ experts.
    """
    pairs, busy = tokens * top_k, experts // ranks
    each = pairs / experts
    rest = (pairs - imbalance * each * busy) / max(1, experts - busy)
    ends = [round(imbalance * each * min(one, busy) + rest * max(0, one - busy)) for one in range(experts + 1)]
    most = pairs if capacity is None else ceil(capacity * each)
    return [
        expert if place < most else DROPPED
        for expert in range(experts)
        for place in range(ends[expert + 1] - ends[expert])
    ]
