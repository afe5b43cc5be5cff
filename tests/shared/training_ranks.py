"""One of two ranks that take every step of training, whole and with faults: what it found, as JSON on its last line."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from busbw.backends.parts import Parts
from busbw.backends.pytorch.training import WORKLOADS
from busbw.backends.pytorch.training.observer import Observer, Waits
from busbw.backends.pytorch.training.step import BoundStep, Reference, Step
from busbw.ops import OPS
from busbw.ops.training import INTERLEAVED, OTHER_MODELS, Workload
from busbw.workloads.shapes import StepShape
from busbw_analysis.training import traffic
from busbw_analysis.training.steps import step_of

RANKS: Final = 2
REPLICATED: Final = (
    "train_hsdp",
    "train_tensor",
    "train_sequence",
    "train_ring",
    "train_ulysses",
    "train_experts",
    "train_1f1b",
    "train_3d",
)
"""Steps of which four ranks train two replicas, or of :data:`WIDE` ones a single one."""
WIDE: Final = ("train_ring", "train_3d")
SCALES: Final = {
    "MLP 1024": 1 / 16,
    "Llama 3 8B": 1 / 128,
    "Mixtral 8x7B": 1 / 128,
    "DeepSeek-V3": 1 / 256,
    "GPT-3 175B": 1 / 256,
}
"""What is trained → its scale."""
ACCUMULATED: Final = ("train_ddp", "train_zero1", "train_fsdp", "train_fsdp_kept", "train_ulysses")
"""Steps whose ranks add up the gradients of two micro-batches."""
MODELS: Final = {
    **{op: (OTHER_MODELS[op],) if op in OTHER_MODELS else ("MLP 1024", "Llama 3 8B") for op in WORKLOADS},
    **dict.fromkeys(("train_tensor", "train_columns", "train_1f1b"), ("MLP 1024", "GPT-3 175B", "Llama 3 8B")),
    "train_experts": ("Mixtral 8x7B", "DeepSeek-V3"),
}
"""Step → what it trains here."""
PAIRED: Final = tuple(op for op in WORKLOADS if op != "train_3d")
"""Steps that two ranks train."""
WAIT_SECONDS = 0.02


def workload(op: str, model: str, ranks: int = RANKS) -> Workload:
    """What two ranks, or two replicas of two, train with ``op``."""
    splits, sharing = OPS[op].splits, ranks if op in WIDE else RANKS
    degrees: dict[Any, Any] = {**dict.fromkeys(splits, sharing), "dp": ranks if "dp" in splits else ranks // sharing}
    degrees |= {"pp": RANKS, "tp": RANKS} if splits == ("pp", "tp") else {}
    return Workload(
        model=model,
        scale=SCALES[model],
        **{"tp": 1, "pp": 1, **degrees},
        micro_batches=4 if "pp" in splits else 2 if op in ACCUMULATED else 1,
        expert_imbalance=1.5 if "ep" in splits else 1.0,
        capacity=1.25 if "ep" in splits else None,
        interleave=2 if op == INTERLEAVED else 1,
    )


def formula(op: str, settings: Workload, rank: int) -> dict[str, int]:
    """Op → bytes of all its calls by this rank in a step."""
    expected: dict[str, int] = {}
    for row in traffic.traffic(step_of(op, settings), rank // settings.tp % settings.pp):
        expected[row.op] = expected.get(row.op, 0) + row.size_bytes * row.messages
    return expected


def whole(op: str, model: str, rank: int, ranks: int = RANKS) -> dict[str, Any]:
    shape = StepShape(workload(op, model, ranks))
    # Two ranks are a single group of train_hsdp, which plans refuse, for it replicates nothing.
    assert op == "train_hsdp" or shape.refuse(op) is None
    bound = BoundStep(WORKLOADS[op](shape, rank, ranks, None))
    for _ in range(2 if ranks == RANKS else 1):  # libraries settle in the first
        bound.step.reset()
        bound.call()
    record: dict[str, Any] = {"wrong": bound.wrong()}
    parts = bound.parts()
    assert parts.memory is not None
    record["sent"] = [(*kind, calls) for kind, calls in parts.sent.items()]
    if ranks > RANKS:
        return record
    bound.step.reset()
    with Observer() as seen:
        bound.step.run()
    record |= {"flop": seen.flop, "whole_flop": parts.flop, "peak_bytes": parts.memory[0]}
    return record | (_parts(op, bound, parts, seen.flop) if model == MODELS[op][0] else {})


def _parts(op: str, bound: BoundStep, parts: Parts, flop: int) -> dict[str, Any]:
    """What a step that is taken apart says, of ``flop`` products on this rank, and whether it is right behind that."""
    record: dict[str, Any] = {}
    parts.compute()
    parts.communicate()
    parts.prepare()
    record["spans"] = parts.timeline(time.perf_counter_ns)
    if op == "train_ddp":
        parts.prepare()
        record["profiled"] = "gloo:all_reduce" in parts.profile()
    parts.prepare()
    bound.call()
    record["wrong_after_parts"] = bound.wrong()
    # Of what this rank multiplies, so that the whole wait is its own.
    bound.waits = Waits(WAIT_SECONDS / flop)
    bound.step.reset()
    began = time.perf_counter()
    bound.call()
    record["waited"] = (time.perf_counter() - began) / WAIT_SECONDS
    return record


def _first(step: Step) -> torch.nn.Parameter:
    return next(iter(step.network.parameters()))


@contextmanager
def _silent(step: Step) -> Iterator[None]:
    with Observer(silent=True), step.silence():
        yield


@contextmanager
def _scaled(step: Step) -> Iterator[None]:
    update = step.update

    def twice() -> None:
        with torch.no_grad():
            for parameter in step.network.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(2)
            for share in (getattr(step, "_share", None),):
                if share is not None:
                    share.mul_(2)
        update()

    step.update = twice  # type: ignore[method-assign]
    yield


@contextmanager
def _stale(step: Step) -> Iterator[None]:
    update = step.update

    def but_one() -> None:
        before = _first(step).detach().clone()
        update()
        with torch.no_grad():
            _first(step).copy_(before)

    step.update = but_one  # type: ignore[method-assign]
    yield


@contextmanager
def _shifted(step: Step) -> Iterator[None]:
    step.given, step.wanted = step.given.roll(1, 0), step.wanted
    yield


@contextmanager
def _misrouted(step: Step) -> Iterator[None]:
    """A token goes to the experts of the one before it."""
    network: Any = step.network
    for layer in network.layers.values():
        if hasattr(layer.ffn, "_choice"):
            layer.ffn._choice = layer.ffn._choice.roll(1, 0)
    yield


@contextmanager
def _displaced(step: Step) -> Iterator[None]:
    """All ranks take their tokens for the first ones."""
    network: Any = step.network
    for layer in network.layers.values():
        layer.attention.places = None
    yield


@contextmanager
def _unsettled(step: Step) -> Iterator[None]:
    """Gradients of norms stay those of this rank's tokens."""
    step.synchronise = lambda: None  # type: ignore[method-assign]
    yield


FAULTS: dict[str, dict[str, Callable[[Step], Any]]] = {
    "train_all_reduce": {
        "missing all_reduce": _silent,
        "wrong scale": _scaled,
        "stale parameter": _stale,
        "wrong slice": _shifted,
    },
    "train_ddp": {"missing all_reduce": _silent},
    "train_zero1": {"wrong slice": _shifted, "wrong scale": _scaled, "stale parameter": _stale},
    "train_fsdp": {"missing reduce_scatter": _silent, "stale parameter": _stale},
    "train_fsdp_kept": {"wrong slice": _shifted},
    "train_fsdp_prefetch": {"missing reduce_scatter": _silent},
    "train_hsdp": {"wrong slice": _shifted},
    "train_tensor": {"missing all_reduce": _silent, "stale parameter": _stale},
    "train_columns": {"missing all_gather": _silent},
    "train_sequence": {"missing all_gather": _silent, "norms of some tokens": _unsettled},
    "train_ring": {"missing send": _silent, "wrong slice": _shifted},
    "train_ulysses": {"missing all_to_all": _silent, "places of the first rank": _displaced},
    "train_experts": {"missing all_to_all": _silent, "tokens of other experts": _misrouted},
    "train_gpipe": {"wrong scale": _scaled},
    "train_1f1b": {"wrong slice": _shifted, "stale parameter": _stale},
    "train_interleaved": {"wrong slice": _shifted},
}


@contextmanager
def _unreplicated(step: Step) -> Iterator[None]:
    step.__dict__["replicas"] = None
    network: Any = step.network
    if hasattr(network, "set_requires_all_reduce"):
        network.set_requires_all_reduce(False)
    yield


def faulty(op: str, plant: Callable[[Step], Any], rank: int, ranks: int = RANKS) -> int:
    step = WORKLOADS[op](StepShape(workload(op, MODELS[op][0], ranks)), rank, ranks, None)
    with plant(step):
        step.run()
    dist.barrier()
    return Reference(step).wrong()


def main() -> None:
    rank, ranks = int(sys.argv[1]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=ranks)
    ops, most = (PAIRED, len(MODELS)) if ranks == RANKS else (REPLICATED, 1)
    record: dict[str, Any] = {op: {model: whole(op, model, rank, ranks) for model in MODELS[op][-most:]} for op in ops}
    if ranks == RANKS:
        record["faults"] = {
            op: {name: faulty(op, plant, rank) for name, plant in planted.items()} for op, planted in FAULTS.items()
        }
    else:
        plants = {"train_3d": _shifted}
        record["faults"] = {op: faulty(op, plants.get(op, _unreplicated), rank, ranks) for op in ops}
    sys.stdout.write(json.dumps(record))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
