"""The model of a training command: a catalogue row, a row with changed keys, or your own model given by options."""

from collections.abc import Mapping
from functools import wraps
from typing import Any, Final

import click
import msgspec

from busbw.errors import UsageError
from busbw.runs.records import DTYPE_BYTES
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model
from busbw_analysis.cli.options import FILE, Command, with_options

_KEYS: Final = {
    "layers": "Number of layers, of your own model or instead of --model's.",
    "hidden": "Hidden size.",
    "heads": "Attention heads; 0 for none.  [default: hidden / 128]",
    "kv_heads": "Key/value heads; fewer than heads for grouped-query attention.  [default: heads]",
    "head_dim": "Width of a head.  [default: hidden / heads]",
    "ffn": "Width of the dense feed-forward network.  [default: 4 hidden, none with experts]",
    "vocabulary": "Vocabulary size (rows of the embedding).  [default: 0, none]",
    "experts": "Experts per layer.  [default: 0]",
    "top_k": "Experts per token.",
    "expert_ffn": "Width of an expert.",
    "shared_experts": "Experts that every token uses.",
}
_HEAD: Final = 128
_SEQUENCE, _BATCH = 4096, 512


def model_options(command: Command) -> Command:
    """Options ``--model`` (a shipped row or one of ``--models``) and one per key.

    The command receives ``own``, the file, and ``model``, a Model or None if no option names one.
    """

    @wraps(command)
    def wrapped(**given: Any) -> None:  # noqa: ANN401 - click hands every option over by name
        keys = {name: value for name in (*_KEYS, "gated", "dtype") if (value := given.pop(name)) is not None}
        command(model=_model(given.pop("model"), keys), **given)

    options = [
        click.option(
            "--model", callback=_named, help="Model (busbw training models lists them), such as 'Llama 3 70B'."
        ),
        click.option("--models", "own", type=FILE, is_eager=True, help="TOML file with your own models."),
        *(click.option(f"--{name.replace('_', '-')}", type=int, help=words) for name, words in _KEYS.items()),
        click.option("--gated/--not-gated", default=None, help="Three or two feed-forward matrices.  [default: two]"),
        click.option("--dtype", type=click.Choice(list(DTYPE_BYTES)), help="Type of weights.  [default: bfloat16]"),
    ]
    return with_options(wrapped, options)


def _named(context: click.Context, _parameter: click.Parameter, name: str | None) -> Model | None:
    """Find the row of ``--model`` before click asks for options that are missing; ``--models`` is read before."""
    rows = model_rows.models(context.params.get("own"))
    return None if name is None else model_rows.named(rows, name)


def named_one(model: Model | None) -> Model:
    """``model``. Raises UsageError if it is None."""
    if model is None:
        raise UsageError("give --model (see busbw training models), or --layers and --hidden of your own", code="model")
    return model


def _model(row: Model | None, keys: Mapping[str, Any]) -> Model | None:
    """``row`` with ``keys`` changed; without a row, a transformer as in Kaplan et al. 2020, section 2.1, which has
    12 L h² parameters unless ``keys`` change that. Raises UsageError for inconsistent keys.
    """
    if row is not None:
        changed = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in keys.items())
        return msgspec.structs.replace(row, name=f"{row.name}, {changed}", **keys) if keys else row
    if not keys:
        return None
    if missing := [f"--{key}" for key in ("layers", "hidden") if key not in keys]:
        raise UsageError(f"your own model needs {' and '.join(missing)} too; or choose one with --model", code="model")
    return Model(**_defaults(keys))


def _defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    hidden = keys["hidden"]
    heads = keys.get("heads", max(1, hidden // _HEAD))
    if heads > 0 and "head_dim" not in keys and hidden % heads:
        message = f"heads {heads} do not divide hidden {hidden}; give --heads that do, or --head-dim"
        raise UsageError(message, code="model")
    return {
        "name": "own model",
        "source": "https://arxiv.org/abs/2001.08361",
        "looked_up": "2026-11",
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads if heads > 0 else 0,
        "ffn": 0 if keys.get("experts") else 4 * hidden,
        "gated": False,
        "sequence": _SEQUENCE,
        "batch": _BATCH,
        **keys,
    }
