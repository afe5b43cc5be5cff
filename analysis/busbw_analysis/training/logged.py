"""The model, layout and batch that a training program's log states, in the keys that options take."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, prod
from typing import Any, Final

import msgspec

from busbw_analysis.data.readers.training import TrainingLog
from busbw_analysis.training.log import step_times

_WHOLE: Final = ("layers", "hidden", "heads", "head_dim", "ffn", "vocabulary", "experts", "top_k", "expert_ffn")
_DEGREES: Final = ("tp", "pp", "cp", "ep", "vpp")
_SHARDED: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` of Megatron-LM as stages of zero."""


@dataclass(frozen=True, slots=True)
class Logged:
    """The step of a log. None: the log does not say it.

    source: name of the file
    unit, typical: as in ``StepTimes``
    model, settings: by key of a model and of a layout (without ``dp``)
    gpu: its name by the driver
    """

    source: str
    unit: str
    typical: float
    model: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    gpus: int | None
    batch: int | None
    sequence: int | None
    gpu: str | None

    def seconds(self, batch: int, sequence: int, gpus: int) -> float:
        """Seconds of a step of ``batch`` sequences."""
        rates = {"tokens/s": batch * sequence / gpus, "samples/s": float(batch)}
        return rates[self.unit] / self.typical if self.unit in rates else self.typical

    def lacks(
        self, settings: Mapping[str, Any], model: object, gpus: int | None, batch: int | None, sequence: int | None
    ) -> list[str]:
        """What neither the log nor these say, each with the option that says it."""
        needed = (
            (self.model or model, "the model (--model 'Llama 3 8B', or layers=24,hidden=2048)"),
            (gpus or settings.get("dp"), "the number of GPUs (--gpus)"),
            (self.settings or settings, "the layout (--measured 'tp=8,pp=4,dp=2: LOG' instead of --from LOG)"),
            (batch, "the sequences of a step (--batch)"),
            (sequence, "the tokens of a sequence (--seq)"),
        )
        return [words for value, words in needed if not value]


def logged(log: TrainingLog) -> Logged:
    """The step of a log: of the lines with the batch of the last one, because a batch may grow.

    Raises LogError (``too-few-steps``).
    """
    stated, batch = log.stated, log.steps[-1].batch
    times = step_times(msgspec.structs.replace(log, steps=tuple(step for step in log.steps if step.batch == batch)))
    gpus = _gpus(stated, log.mesh)
    return Logged(
        log.source,
        times.unit,
        times.typical,
        _model(stated),
        _settings(stated, log.mesh),
        gpus,
        batch or _whole(stated, "batch"),
        _whole(stated, "sequence"),
        stated.get("gpu"),
    )


def _real(stated: Mapping[str, str], key: str) -> float | None:
    """A number; None if it is not stated, or is none above 0."""
    try:
        value = float(stated[key])
    except (KeyError, ValueError):
        return None
    return value if 0 < value < inf else None


def _whole(stated: Mapping[str, str], key: str) -> int | None:
    value = _real(stated, key)
    return None if value is None or value < 1 else int(value)


def _yes(stated: Mapping[str, str], key: str) -> bool:
    return stated.get(key, "").lower() == "true"


def _gpus(stated: Mapping[str, str], mesh: Mapping[str, int]) -> int | None:
    if mesh:
        return prod(degree for name, degree in mesh.items() if name not in {"ep", "etp"})  # which divide the others
    nodes, devices = _whole(stated, "nodes"), _whole(stated, "devices")
    on_nodes = None if nodes is None or devices is None else nodes * devices
    return _whole(stated, "gpus") or on_nodes


def _model(stated: Mapping[str, str]) -> dict[str, Any] | None:
    keys: dict[str, Any] = {key: value for key in _WHOLE if (value := _whole(stated, key)) is not None}
    if not {"layers", "hidden"} <= keys.keys() or _yes(stated, "latent"):
        return None
    if (padded := _whole(stated, "padded")) is not None:
        keys["vocabulary"] = padded
    if stated.get("groups") != "False" and (groups := _whole(stated, "kv_heads")) is not None:
        keys["kv_heads"] = groups
    activation = stated.get("activation", "").lower()
    keys["gated"] = activation in {"true", "fast"} or activation.endswith("glu") or "ffn_multiple" in stated
    # https://github.com/pytorch/torchtitan/blob/main/torchtitan/models/llama3/model.py
    if (multiple := _whole(stated, "ffn_multiple")) is not None:
        wide = int((_real(stated, "ffn_multiplier") or 1) * (8 * keys["hidden"] // 3))
        keys["ffn"] = -(-wide // multiple) * multiple
    if "experts" not in keys:
        keys = {key: value for key, value in keys.items() if key not in {"top_k", "expert_ffn"}}
    elif (shared := _whole(stated, "shared_ffn")) is not None and keys.get("expert_ffn"):
        keys |= {"shared_experts": shared // keys["expert_ffn"], "ffn": 0}
    else:
        keys["ffn"] = 0
    if "norm" in stated:
        keys["norm"] = "rms" if "rms" in stated["norm"].lower() else "layer"
    if stated.get("position", "").startswith("learned"):
        keys["positions"] = _whole(stated, "positions") or 0
    fused = stated.get("attention", "") in {"True", "transformer_engine"}
    keys["dropout"] = not fused and _real(stated, "dropout") is not None
    keys |= {"biases": _yes(stated, "biases"), "tied": stated.get("untied") == "False"}
    return keys | ({"dtype": stated["dtype"]} if "dtype" in stated else {})


def _settings(stated: Mapping[str, str], mesh: Mapping[str, int]) -> dict[str, Any] | None:
    degrees = {key: value for key in _DEGREES if (value := mesh.get(key) or _whole(stated, key)) is not None}
    if not degrees and not mesh and "zero" not in stated:
        return None
    split, stages = degrees.get("tp", 1) > 1, degrees.get("pp", 1)
    settings: dict[str, Any] = {**degrees, "zero": _zero(stated, mesh)}
    if mesh.get("dp_replicate", 1) > 1 and mesh.get("dp_shard", 1) > 1:
        settings["shard"] = mesh["dp_shard"] * mesh.get("cp", 1)
    if (sequences := _whole(stated, "micro_batch")) is not None:
        settings["micro_batch"] = sequences
    settings["sequence_parallel"] = split and (_yes(stated, "sequence_parallel") or bool(mesh))
    if _yes(stated, "scatter_gather") and split and stages > 1 and not settings["sequence_parallel"]:
        settings["scatter_gather"] = True
    if (again := stated.get("recompute")) in {"selective", "full"}:
        settings["recompute"] = again
        count = _whole(stated, "recompute_layers")
        if again == "full" and stated.get("recompute_method") == "block" and count:
            settings["recompute_layers"] = count
    if "gradients" in stated and "dtype" in stated:
        settings["gradients"] = "float32" if _yes(stated, "gradients") else stated["dtype"]
    parts = stages * degrees.get("vpp", 1)
    settings["uneven"] = (_whole(stated, "layers") or parts) % parts > 0
    return settings | ({"fp8": True} if stated.get("fp8", "False") not in {"False", "false"} else {})


def _zero(stated: Mapping[str, str], mesh: Mapping[str, int]) -> int:
    if mesh.get("dp_shard", 1) > 1 or any(name.startswith("dp_shard_") for name in mesh):
        return 3
    stage = _whole(stated, "zero") or _SHARDED.get(stated.get("sharding", ""))
    return stage or int("distributed" in stated and stated["distributed"] != "False")
