"""Pipelines of training, played pass by pass."""

from collections.abc import Mapping


def order(p: int, v: int, m: int, stage: int, schedule: str) -> list[tuple[str, int, int]]:
    """What a stage does in a row: forward or backward, part, micro-batch (Megatron's order)."""
    groups = range(0, m, p) if v > 1 else range(m)
    size = p if v > 1 else 1
    ahead = [("f", part, g + i) for g in groups for part in range(v) for i in range(size)]
    back = [("b", v - 1 - part, g + i) for g in groups for part in range(v) for i in range(size)]
    first = len(ahead) if schedule == "gpipe" else (p - stage - 1) * 2 + (v - 1) * p if v > 1 else p - stage - 1
    first = min(first, len(ahead))
    steps = ahead[:first]
    for number, forward in enumerate(ahead[first:]):
        steps += [forward, back[number]]
    return steps + back[len(ahead) - first :]


def play(
    p: int,
    v: int,
    m: int,
    schedule: str = "1f1b",
    lengths: list[int] | None = None,
    late: Mapping[int, float] | None = None,
    seconds: tuple[float, float] = (1, 2),
    hop: float = 0.0,
) -> tuple[float, list[float]]:
    """The time of a step, whose stages take ``seconds`` forward and backward, 1/v of it for each part or as ``lengths``
    says, and how many parts each stage kept at most. ``late``: stage → when it begins, if not at once. ``hop``: from
    the end of a pass to the start of the next one on another stage.
    """
    queues = [order(p, v, m, stage, schedule) for stage in range(p)]
    ended: dict[tuple[str, int, int], float] = {}
    clock, kept, most = [(late or {}).get(stage, 0.0) for stage in range(p)], [0] * p, [0] * p
    while any(queues):
        for stage, queue in enumerate(queues):
            if not queue:
                continue
            kind, part, number = queue[0]
            here = part * p + stage
            needs = ("f", here - 1, number) if kind == "f" else ("b", here + 1, number)
            last = here == p * v - 1
            if (kind == "f" and here) or (kind == "b" and not last):
                if needs not in ended:
                    continue
                clock[stage] = max(clock[stage], ended[needs] + hop)
            clock[stage] += seconds[kind == "b"] * (lengths[here] if lengths else 1 / v)
            ended[kind, here, number] = clock[stage]
            kept[stage] += 1 if kind == "f" else -1
            most[stage] = max(most[stage], kept[stage])
            queue.pop(0)
    return max(clock), [held / v for held in most]
