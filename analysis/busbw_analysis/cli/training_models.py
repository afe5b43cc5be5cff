"""The model that a command of training is about: a row, a row with some keys changed, or one's own by options."""

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
    "layers": "Of one's own model, or in place of --model's.",
    "hidden": "Its width.",
    "heads": "Of its attention; 0: none.  [default: of 128 each]",
    "kv_heads": "Fewer than heads: grouped-query attention.  [default: as heads]",
    "head_dim": "Width of a head.  [default: hidden / heads]",
    "ffn": "Width of its dense feed-forward network.  [default: 4 hidden, none with experts]",
    "vocabulary": "Rows of its embedding.  [default: 0, none]",
    "experts": "Of a layer.  [default: 0]",
    "top_k": "Experts of a token.",
    "expert_ffn": "Width of an expert.",
    "shared_experts": "Those that every token goes to.",
}
_HEAD: Final = 128
_SEQUENCE, _BATCH = 4096, 512


def model_options(command: Command) -> Command:
    """``--model`` of the shipped rows or of ``--models``, and its keys one by one; the command is given the file and a
    Model, or None where nothing is named.
    """

    @wraps(command)
    def wrapped(**given: Any) -> None:  # noqa: ANN401 - click hands every option over by name
        keys = {name: value for name in (*_KEYS, "gated", "dtype") if (value := given.pop(name)) is not None}
        rows, name = model_rows.models(given["own"]), given.pop("model")
        command(model=_model(None if name is None else model_rows.named(rows, name), keys), **given)

    options = [
        click.option("--model", help="One of busbw training models, such as 'Llama 3 70B'."),
        click.option("--models", "own", type=FILE, help="A TOML file of your own rows."),
        *(click.option(f"--{name.replace('_', '-')}", type=int, help=words) for name, words in _KEYS.items()),
        click.option("--gated/--not-gated", default=None, help="Three matrices in a network, or two.  [default: two]"),
        click.option("--dtype", type=click.Choice(list(DTYPE_BYTES)), help="Of weights.  [default: bfloat16]"),
    ]
    return with_options(wrapped, options)


def named_one(model: Model | None) -> Model:
    """``model``. Raises UsageError where none is named."""
    if model is None:
        message = "want --model (busbw training models lists them), or --layers and --hidden of your own"
        raise UsageError(message, code="model")
    return model


def _model(row: Model | None, keys: Mapping[str, Any]) -> Model | None:
    """The row with these keys; without a row a transformer as by Kaplan et al. 2020, section 2.1: 12 L h² parameters
    unless keys say otherwise. Raises UsageError for keys that do not go together.
    """
    if row is not None:
        changed = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in keys.items())
        return msgspec.structs.replace(row, name=f"{row.name}, {changed}", **keys) if keys else row
    if not keys:
        return None
    if missing := [f"--{key}" for key in ("layers", "hidden") if key not in keys]:
        message = f"a model of one's own wants {' and '.join(missing)} too; or name a row with --model"
        raise UsageError(message, code="model")
    return Model(**_defaults(keys))


def _defaults(keys: Mapping[str, Any]) -> dict[str, Any]:
    hidden = keys["hidden"]
    heads = keys.get("heads", max(1, hidden // _HEAD))
    if heads > 0 and "head_dim" not in keys and hidden % heads:
        message = f"heads {heads} do not divide hidden {hidden}; want --heads that do, or --head-dim"
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
