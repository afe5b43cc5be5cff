"""The layout of a training command: ``--layout tp=8,pp=4,dp=16``, or a TOML file with the same keys."""

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, get_args

import click

from busbw.errors import UsageError
from busbw.key_values import Key, choice, number, read_key_values, split_name, whole, yes_or_no
from busbw.ops import limits
from busbw.ops.base import Context, Schedule
from busbw.runs.records import DTYPE_BYTES
from busbw.workloads.model_rows import Model
from busbw_analysis.cli.options import Command, Option, choice_option, parsed, with_options
from busbw_analysis.cli.training_models import given_model, model_option
from busbw_analysis.training.layout import (
    AS_FRAMEWORKS,
    MOST_GPUS,
    Layout,
    Recompute,
    Step,
    Sync,
    default_gradients,
    divisors,
)
from busbw_analysis.training.memory import Kernels

LAYOUT_KEYS: Final[dict[str, Key]] = {
    "dp": Key(whole(1), "Ranks that divide the batch: replicas.", "1"),
    "tp": Key(whole(1), "Ranks that divide each layer.", "1"),
    "pp": Key(whole(1), "Ranks that divide the layers: pipeline stages.", "1"),
    "cp": Key(whole(1), "Ranks that divide each sequence.", "1"),
    "ep": Key(whole(1), "Ranks of dp · cp that divide the experts.", "1"),
    "zero": Key(whole(0, 3), "dp ranks divide 1: optimizer states, 2: and gradients, 3: and weights.", "0, nothing"),
    "shard": Key(whole(1), "With zero=3: only groups of this many ranks divide (HSDP).", "dp · cp"),
    "micro_batch": Key(whole(1), "Sequences in a micro-batch.", "1"),
    "interleave": Key(whole(1), "Parts of the model per pipeline stage.", "1"),
    "uneven": Key(yes_or_no, "First and last stage may be one layer shorter.", "no"),
    "schedule": Key(choice(get_args(Schedule)), "Pipeline schedule: gpipe or 1f1b.", "1f1b"),
    "sequence_parallel": Key(yes_or_no, "tp ranks divide norms and dropout, too.", "no"),
    "scatter_gather": Key(yes_or_no, "tp ranks each send a part to the next stage.", "no"),
    "recompute": Key(choice(get_args(Recompute)), "Recomputed activations: none, selective, full.", "none"),
    "context": Key(choice(get_args(Context)), "Attention across cp: ring or ulysses.", "ring"),
    "sync": Key(choice(get_args(Sync)), "Gradients are reduced in: every or last micro-batch.", "last, zero=3: every"),
    "reshard": Key(yes_or_no, "zero=3 gathers weights in each pass of each micro-batch; no: once.", "yes"),
    "gradients": Key(
        choice(tuple(DTYPE_BYTES)), "Type of gradients, such as bfloat16.", "float32, or as wider weights"
    ),
    "imbalance": Key(number, "Load of the busiest experts over the mean.", "1"),
}
_SEARCHED: Final = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "interleave")
PLAN_KEYS: Final[dict[str, Key]] = {
    **{name: replace(LAYOUT_KEYS[name], default="searched") for name in _SEARCHED},
    "sequence_parallel": replace(LAYOUT_KEYS["sequence_parallel"], default="yes where possible"),
    "recompute": replace(LAYOUT_KEYS["recompute"], default="none, or full where memory needs it"),
    **{name: LAYOUT_KEYS[name] for name in ("schedule", "context", "gradients")},
    "uneven": replace(LAYOUT_KEYS["uneven"], read=choice(("yes",)), default="yes"),
}
"""Settings that a plan can be given; it derives all others."""

MANY: Final = click.IntRange(1, MOST_GPUS)
batch_option = click.option("--batch", type=MANY, help="Sequences per step.  [default: the model's]")
sequence_option = click.option("--seq", type=MANY, help="Tokens per sequence.  [default: the model's]")
kernels_option = choice_option(
    "--kernels", Kernels, None, "Attention that stores its scores, or not (flash); eager: unfused operations."
)


def per_host_option(words: str) -> Option:
    """``--ranks-per-host``."""
    return click.option("--ranks-per-host", type=MANY, help=f"GPUs per node{words}")


def layout_option(keys: Mapping[str, Key], words: str) -> Option:
    """``--layout``; the command receives the given values by key, as ``settings``."""
    return click.option(
        "--layout",
        "settings",
        metavar="KEY=VALUE,…",
        default="",
        callback=parsed(lambda text: layout_settings(text, keys)),
        help=f"{words} (keys below), or a TOML file of them, or FILE.toml,KEY=VALUE,…",
    )


def layout_settings(text: str, keys: Mapping[str, Key]) -> dict[str, Any]:
    """The values by key of ``tp=8,pp=4``, ``FILE.toml`` or ``FILE.toml,pp=4``. Raises UsageError."""
    name, changes = split_name(text)
    of_file = _read_keys(Path(name)) if name.endswith(".toml") else name
    parts = (read_key_values("layout", part, keys, code="layout") for part in (of_file, changes))
    return {name: value for values in parts for name, value in values.items()}


def _read_keys(path: Path) -> str:
    """The keys of a TOML file as a list of KEY=VALUE."""
    rows = limits.read_toml(limits.read_text(path, limits.MOST_TOML_BYTES), str(path))
    texts = {True: "yes", False: "no"}
    for key, value in rows.items():
        if not isinstance(value, bool | int | float | str):
            raise UsageError(f"{path}, key {key!r}: expected a number, a word, true or false", code="layout")
    return ",".join(f"{key}={texts[value] if isinstance(value, bool) else value}" for key, value in rows.items())


def step_option(command: Command) -> Command:
    """Options of a model, its layout and its batch.

    The command receives them as one Step, and as ``assumed`` the defaults that it took, by key.
    """

    @wraps(command)
    def wrapped(
        *,
        model: Model | None,
        settings: Mapping[str, Any],
        batch: int | None,
        seq: int | None,
        **others: Any,  # noqa: ANN401
    ) -> None:
        row = given_model(model)
        step, assumed = step_of(row, settings, batch or row.batch, seq or row.sequence)
        command(step=step, assumed=assumed, **others)

    words = "Layout, such as tp=8,pp=4,dp=16,zero=1"
    return with_options(wrapped, [model_option(), layout_option(LAYOUT_KEYS, words), batch_option, sequence_option])


def step_of(model: Model, settings: Mapping[str, Any], batch: int, sequence: int) -> tuple[Step, dict[str, str]]:
    """The step of a layout that is given by ``settings``, keys of ``LAYOUT_KEYS``, and the defaults that were taken.

    Raises UsageError for what does not fit the model.
    """
    of_layout = {name: value for name, value in settings.items() if name not in {"gradients", "imbalance"}}
    gradients, assumed = gradients_of(model, settings)
    if "micro_batch" not in settings:
        assumed["micro_batch"] = f"1 sequence, {AS_FRAMEWORKS}"
    replicas, sequences = of_layout.get("dp", 1), of_layout.pop("micro_batch", 1)
    micro_batches, left = divmod(batch, replicas * sequences)
    if left:
        several = f"a multiple of {replicas * sequences} sequences"
        fitting = (
            "" if batch % replicas else f"micro-batch of {', '.join(map(str, divisors(batch // replicas)[:24]))}, or "
        )
        raise UsageError(
            f"batch {batch} is not a multiple of dp · micro-batch = {replicas * sequences}; use {fitting}{several}",
            code="divides",
        )
    layout = Layout(**of_layout, micro_batches=micro_batches)
    return Step(model, layout, batch, sequence, gradients, settings.get("imbalance", 1.0)), assumed


def gradients_of(model: Model, settings: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The type of gradients in ``settings``, or the default, which is then named as assumed."""
    if "gradients" in settings:
        return settings["gradients"], {}
    gradients = default_gradients(model)
    return gradients, {"gradients": f"{gradients}, {AS_FRAMEWORKS}"}
