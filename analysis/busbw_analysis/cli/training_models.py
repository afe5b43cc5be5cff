"""The model of a training command: a row by name or of a file, a row with changed keys, or keys alone."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

from busbw.errors import UsageError
from busbw.key_values import Key, choice, read_key_values, split_name, whole, yes_or_no
from busbw.runs.records import DTYPE_BYTES
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model, Sample
from busbw_analysis.cli.options import Option, parsed

MODEL_KEYS: Final[dict[str, Key]] = {
    "layers": Key(whole(), "Number of layers."),
    "hidden": Key(whole(), "Width between layers."),
    "heads": Key(whole(), "Attention heads; 0: no attention.", "hidden / 128"),
    "kv_heads": Key(whole(), "Heads of keys and values; fewer than heads: grouped-query attention.", "heads"),
    "head_dim": Key(whole(), "Width of a head.", "hidden / heads"),
    "ffn": Key(whole(), "Width of the dense feed-forward network.", "4 hidden, none with experts"),
    "gated": Key(yes_or_no, "yes: three feed-forward matrices, no: two.", "no"),
    "vocabulary": Key(whole(), "Rows of the embedding.", "0, none"),
    "experts": Key(whole(), "Experts per layer.", "0, none"),
    "top_k": Key(whole(), "Experts per token."),
    "expert_ffn": Key(whole(), "Width of an expert."),
    "shared_experts": Key(whole(), "Experts that every token uses.", "0"),
    "nodes_per_token": Key(whole(), "Most nodes that the experts of a token are on.", "0, any"),
    "dtype": Key(choice(tuple(DTYPE_BYTES)), "Type of weights, such as float32.", "bfloat16"),
}
_FILE: Final = re.compile(r"(?P<path>.+\.toml)(:(?P<name>.+))?", re.DOTALL)
_HEAD: Final = 128
_SEQUENCE, _BATCH = 4096, 512
_Row = TypeVar("_Row", Model, Sample)


def model_option(parse: Callable[[str], Any] | None = None) -> Option:
    """``--model``; the command receives what ``parse`` makes of it (by default a Model), or None."""
    return click.option(
        "--model",
        metavar="NAME[,KEY=VALUE,…]",
        callback=parsed(parse or model_of),
        help="Model: a name ('Llama 3 70B'), a TOML file with one (my.toml or my.toml:NAME), a name or file with "
        "changed keys ('Llama 3 8B,layers=16'), or keys alone (layers=24,hidden=2048). busbw training models lists "
        "names, its --help keys.",
    )


def given_model(model: Model | None) -> Model:
    """``model``. Raises UsageError if it is None."""
    if model is None:
        raise UsageError("give --model: a name (see busbw training models), or layers=24,hidden=2048", code="model")
    return model


def model_of(text: str) -> Model:
    """The model that ``--model`` describes. Raises UsageError."""
    name, changes = split_name(text)
    keys = read_key_values("model", changes, MODEL_KEYS, code="model")
    if not name:
        return _build_model(keys)
    row = _row(name, model_rows.models, "model")
    return msgspec.structs.replace(row, name=f"{row.name},{changes}", **keys) if keys else row


def models_of(text: str) -> list[Model]:
    """As ``model_of``, or all models of a file."""
    file = _FILE.fullmatch(text)
    if file is not None and file["name"] is None:
        return list(model_rows.models(Path(file["path"])).values())
    return [model_of(text)]


def sample_of(text: str) -> Sample:
    """The samples that ``--sample`` names: a shipped row, or one of a file. Raises UsageError."""
    return _row(text, model_rows.samples, "sample")


def _row(text: str, rows_of: Callable[[Path | None], dict[str, _Row]], what: str) -> _Row:
    """The row that is called ``text``, or ``FILE:NAME``, or the only one of ``FILE``."""
    file = _FILE.fullmatch(text)
    rows = rows_of(None if file is None else Path(file["path"]))
    name = text if file is None else file["name"]
    if name is not None:
        return model_rows.named(rows, name, what)
    if len(rows) != 1:
        names = ", ".join(rows) or "none"
        raise UsageError(f"{text} has {len(rows)} {what}s: {names}; write {text}:NAME with one of them", code="model")
    return next(iter(rows.values()))


def _build_model(keys: Mapping[str, Any]) -> Model:
    """A transformer as in Kaplan et al. 2020, section 2.1, which has 12 L h² parameters unless ``keys`` change that.

    Raises UsageError for inconsistent keys.
    """
    if missing := [key for key in ("layers", "hidden") if key not in keys]:
        raise UsageError(f"a model without a name needs {' and '.join(missing)} too", code="model")
    hidden = keys["hidden"]
    heads = keys.get("heads", max(1, hidden // _HEAD))
    if heads > 0 and "head_dim" not in keys and hidden % heads:
        raise UsageError(f"heads {heads} do not divide hidden {hidden}; give heads that do, or head-dim", code="model")
    return Model(
        **{
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
    )
