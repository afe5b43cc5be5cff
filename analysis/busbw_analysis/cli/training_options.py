"""Options of training commands: the model, its layout, and the machine."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from math import prod
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import click
import msgspec

from busbw.errors import LogError, UsageError
from busbw.key_values import Key, choice, number, read_key_values, split_name, whole, yes_or_no
from busbw.ops import limits
from busbw.ops.base import Context, Schedule
from busbw.runs.records import DTYPE_BYTES
from busbw.system.catalog import catalogue
from busbw.system.named import card_named, gpu_named
from busbw.units import format_time, listed, parse_size, parse_time
from busbw.workloads import model_rows
from busbw.workloads.model_rows import Model, Sample, flop_per_token
from busbw_analysis.cli.options import Command, Option, choice_option, parsed, run_option, several, with_options
from busbw_analysis.data.kept import Summarised
from busbw_analysis.data.readers.logs import read_steps
from busbw_analysis.data.sources import find, opened_log
from busbw_analysis.models.networks import NETWORKS, kind_of_network, parse_network
from busbw_analysis.predict import Questions
from busbw_analysis.training.layout import (
    AS_FRAMEWORKS,
    DEFAULT_SETTINGS,
    MOST_GPUS,
    Layout,
    Recompute,
    Step,
    Sync,
    default_gradients,
    divisors,
    setting_text,
)
from busbw_analysis.training.logged import Logged, logged
from busbw_analysis.training.machine import Cards, GivenNetwork, Share
from busbw_analysis.training.memory import Kernels
from busbw_analysis.training.plan import OF_SEQUENCE
from busbw_analysis.training.prices import OVERLAP

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
_FLOAT8_SPEED: Final = 2
"""Products in float8 per product in 16 bits, of every GPU that has both."""
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


_KEYS_OF_LAYOUT: Final = {
    "dp": Key(whole(1), "Ranks that divide the batch: replicas."),
    "tp": Key(whole(1), "Ranks that divide each layer."),
    "pp": Key(whole(1), "Ranks that divide the layers: pipeline stages."),
    "cp": Key(whole(1), "Ranks that divide each sequence."),
    "ep": Key(whole(1), "Ranks of dp · cp that divide the experts."),
    "zero": Key(whole(0, 3), "dp ranks divide 1: optimizer states, 2: and gradients, 3: and weights.", "0, nothing"),
    "shard": Key(whole(1), "With zero=3: only groups of this many ranks divide (HSDP).", "dp · cp"),
    "micro_batch": Key(whole(1), "Sequences in a micro-batch."),
    "vpp": Key(whole(1), "Parts of the model per pipeline stage: virtual stages."),
    "uneven": Key(yes_or_no, "Stages may differ by one layer, of which the first and last have fewer."),
    "schedule": Key(choice(get_args(Schedule)), "Pipeline schedule: gpipe or 1f1b."),
    "sequence_parallel": Key(yes_or_no, "tp ranks divide norms and dropout, too."),
    "scatter_gather": Key(yes_or_no, "tp ranks each send a part to the next stage."),
    "recompute": Key(choice(get_args(Recompute)), "Recomputed activations: none, selective, full."),
    "recompute_layers": Key(whole(1), "With recompute=full: only of so many layers of each stage.", "all"),
    "context": Key(choice(get_args(Context)), "Attention across cp: ring or ulysses."),
    "sync": Key(choice(get_args(Sync)), "Gradients are reduced in: every or last micro-batch.", "last, zero=3: every"),
    "reshard": Key(yes_or_no, "zero=3 gathers weights in each pass of each micro-batch; no: once."),
    "fp8": Key(yes_or_no, "Products of layers, and tokens on their way to experts, in float8."),
    "hide_experts": Key(yes_or_no, "Traffic of experts can overlap with computation."),
    "zero_bubble": Key(yes_or_no, "Gradients of weights fill the pipeline's bubble."),
    "gradients": Key(
        choice(tuple(DTYPE_BYTES)), "Type of gradients, such as bfloat16.", "float32, or as wider weights"
    ),
    "imbalance": Key(number, "Load of the busiest experts over the mean.", "1"),
}
LAYOUT_KEYS: Final[dict[str, Key]] = {
    name: key if key.default else replace(key, default=setting_text(value))
    for name, key in _KEYS_OF_LAYOUT.items()
    for value in (DEFAULT_SETTINGS[name],)
}
_SEARCHED: Final = ("dp", "tp", "pp", "cp", "ep", "zero", "micro_batch", "vpp")
PLAN_KEYS: Final[dict[str, Key]] = {
    **LAYOUT_KEYS,
    **{name: replace(LAYOUT_KEYS[name], default="searched") for name in _SEARCHED},
    **{
        name: replace(LAYOUT_KEYS[name], default=default)
        for name, default in {
            "cp": f"searched; below {OF_SEQUENCE} tokens a rank only if others wait for the network",
            "sequence_parallel": "yes where possible",
            "recompute": "none, or where memory needs it selective, then full",
            "uneven": "where parts do not divide the layers",
            "sync": "last, zero=2 and 3: every",
        }.items()
    },
}
"""The same keys; a plan chooses the values that are not given."""

MANY: Final = click.IntRange(1, MOST_GPUS)
batch_option = click.option("--batch", type=MANY, help="Sequences per step.  [default: the model's]")
sequence_option = click.option("--seq", type=MANY, help="Tokens per sequence.  [default: the model's]")
kernels_option = choice_option(
    "--kernels", Kernels, None, "Attention that stores its scores, or not (flash); eager: unfused operations."
)


def per_host_option(words: str) -> Option:
    """``--ranks-per-host``."""
    return click.option("--ranks-per-host", type=MANY, help=f"GPUs per node{words}")


def layout_option(keys: Mapping[str, Key], words: str, listed: str = "keys below") -> Option:
    """``--layout``; the command receives the given values by key, as ``settings``.

    listed: where help has the keys.
    """
    return click.option(
        "--layout",
        "settings",
        metavar="KEY=VALUE,…",
        default="",
        callback=parsed(lambda text: layout_settings(text, keys)),
        help=f"{words} ({listed}), or a TOML file of them, or FILE.toml,KEY=VALUE,…",
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
    for key, value in rows.items():
        if not isinstance(value, bool | int | float | str):
            raise UsageError(f"{path}, key {key!r}: expected a number, a word, true or false", code="layout")
    return ",".join(f"{key}={setting_text(value)}" for key, value in rows.items())


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
    of_layout = {**DEFAULT_SETTINGS, **settings}
    gradients, assumed = gradients_of(model, settings)
    if "micro_batch" not in settings:
        assumed["micro_batch"] = f"1 sequence, {AS_FRAMEWORKS}"
    sequences, imbalance, _ = (of_layout.pop(name) for name in ("micro_batch", "imbalance", "gradients"))
    replicas = of_layout["dp"]
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
    return Step(model, layout, batch, sequence, gradients, imbalance), assumed


def measured_step(text: str, model: Model, batch: int, sequence: int) -> tuple[Step, float]:
    """The step and the seconds of ``tp=8,pp=8,dp=16: 31.5s``, or of a training log in place of the time, whose median
    step is meant, with what it states of its model and its layout beside the given keys.

    Raises UsageError, and LogError for a log that cannot be read.
    """
    layout, colon, seconds = (part.strip() for part in text.rpartition(":"))
    if not colon:
        raise UsageError(f"measured {text!r}: expected LAYOUT:TIME, such as 'tp=8,pp=8,dp=16: 31.5s'", code="layout")
    settings = layout_settings(layout.removeprefix("--layout="), LAYOUT_KEYS)
    if Path(seconds).is_file():
        return logged_step(read_logged(Path(seconds)), settings, model, (None, batch, sequence))
    step, _ = step_of(model, settings, batch, sequence)
    return step, parse_time(seconds.replace(" ", ""))


def read_logged(path: Path) -> Logged:
    """What the training log at ``path`` says. Raises LogError."""
    return logged(opened_log(path, lambda name, source, _: read_steps(name, source)))


def logged_step(
    log: Logged, settings: Mapping[str, Any], model: Model | None, sizes: tuple[int | None, int | None, int | None]
) -> tuple[Step, float]:
    """The step and the seconds of a log, with ``settings`` before what it says, and ``model`` and ``sizes`` (GPUs,
    sequences of a step, tokens of a sequence) where it says nothing. Raises UsageError for what nobody says.
    """
    said = (log.gpus, log.batch, log.sequence)
    gpus, batch, sequence = (of_log or given for of_log, given in zip(said, sizes, strict=True))
    lacking = log.lacks(settings, model, gpus, batch, sequence)
    if lacking or batch is None or sequence is None:
        raise UsageError(f"{log.source} does not say {listed(lacking)}", code="measured")
    settings = {**(log.settings or {}), **settings}
    if "dp" not in settings and gpus is not None:
        others = prod(settings.get(name, 1) for name in ("tp", "pp", "cp"))
        if gpus % others:
            raise UsageError(f"{log.source}: {gpus} GPUs are no multiple of tp · pp · cp = {others}", code="measured")
        settings["dp"] = gpus // others
    step, _ = step_of(given_model(logged_model(log) or model), settings, batch, sequence)
    return step, log.seconds(batch, sequence, step.layout.gpus)


def logged_model(log: Logged) -> Model | None:
    """The model that a log states; None if it states none."""
    if log.model is None:
        return None
    of_log = {"name": f"the model of {log.source}", "sequence": log.sequence or _SEQUENCE, "batch": log.batch or _BATCH}
    return _build_model({**of_log, **log.model})


def runs_and_logs(names: Sequence[str], results_dir: Path) -> tuple[list[Summarised], list[Logged]]:
    """The runs among the inputs that ``--from`` names, and the logs of trainings. Raises BusbwError."""
    runs, logs = [], []
    context = click.get_current_context()
    for run in (run for name in names for run in several(context, name)):
        found = find(results_dir, run)
        try:
            runs.append(found.read())
        except LogError as error:
            if error.code != "training-log":
                raise
            logs.append(read_logged(found.path))
    return runs, logs


def given_gpus(gpus: int | None) -> int:
    """``gpus``. Raises UsageError if it is None."""
    if gpus is None:
        raise UsageError("give --gpus, the number of GPUs to plan for", code="usage")
    return gpus


LIKELY_NETWORK: Final = "4X NDR"
"""The card of each GPU if a log of a training is all that is known: that of a DGX H100."""


def machine_of_logs(logs: Sequence[Logged], given: dict[str, Any], measured: Questions | None) -> Iterator[str]:
    """Add to ``given`` options of a machine what the logs say of it. Yields what they do not say and is assumed."""
    if given["gpu"] is None and measured is None:
        named = next((log.gpu for log in logs if log.gpu is not None), None)
        given["gpu"] = catalogue().gpu(named)
        if given["gpu"] is None:
            what = "the GPU" if named is None else f"which GPU {named} is"
            yield f"{logs[0].source} does not say {what}: H100 SXM5 is assumed; give --gpu"
    if given["network"] is None and measured is None:
        given["network"] = card_named(catalogue(), LIKELY_NETWORK, "--network")
        yield f"{logs[0].source} does not say the network: {LIKELY_NETWORK} for each GPU is assumed; give --network"


def refuse_impossible(
    steps: Sequence[tuple[Step, float]], given: Sequence[str], peak: float | None, *, causal: bool
) -> None:
    """Raise UsageError for a measured step that is faster than its GPUs can compute by their datasheet.

    peak: FLOP/s of a GPU by its datasheet; None: unknown, so nothing is refused
    """
    for (step, seconds), text in zip(steps, given, strict=True):
        flop = flop_per_token(step.model, step.sequence, causal=causal) * step.batch * step.sequence
        rate = None if peak is None else peak * (_FLOAT8_SPEED if step.layout.fp8 else 1)
        if rate is not None and seconds * step.layout.gpus * rate < flop:
            least = format_time(flop / (step.layout.gpus * rate) * 1e9)
            raise UsageError(
                f"--measured {text!r}: {step.layout.gpus} GPUs need at least {least} for it by their datasheet; give "
                "the seconds of a whole step, and the layout in which they were measured",
                code="measured",
            )


def gradients_of(model: Model, settings: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The type of gradients in ``settings``, or the default, which is then named as assumed."""
    if "gradients" in settings:
        return settings["gradients"], {}
    gradients = default_gradients(model)
    return gradients, {"gradients": f"{gradients}, {AS_FRAMEWORKS}"}


def network_named(text: str) -> GivenNetwork:
    """``rail:nic=50GB/s,inner=450GB/s``, or a card such as ``4X NDR``. Raises UsageError."""
    if ":" in text or kind_of_network(text) in NETWORKS:
        return parse_network(text)
    return card_named(catalogue(), text, "--network")


def network_option(words: str = "") -> Option:
    """``--network``; the command receives what ``network_named`` makes of it."""
    return click.option(
        "--network",
        metavar="KIND:KEY=VALUE,…",
        callback=parsed(network_named),
        help=f"Network as in busbw simulate, or the NIC of each GPU (busbw peaks), such as '4X NDR'{words}.",
    )


def gpu_option(default: str | None, words: str = "") -> Option:
    """``--gpu``; the command receives its row of the catalogue."""
    return click.option(
        "--gpu",
        default=default,
        show_default=True,
        callback=parsed(lambda text: gpu_named(catalogue(), text)),
        help=f"GPU (busbw peaks lists them), such as 'H100 SXM5'.{words}",
    )


LEAST_MEMORY: Final = 1 << 20
LEAST_RATE, MOST_RATE = 1e6, 1e30
"""Least bytes and FLOP/s of a GPU: a number below lacks its unit, or is meant as a share."""


def memory_size(text: str) -> int:
    """A size such as ``80GiB``. Raises UsageError, also for one that lacks its unit."""
    size_bytes = parse_size(text)
    if size_bytes < LEAST_MEMORY:
        raise UsageError(f"--gpu-memory {text}: this is {size_bytes} B; give its unit, such as 80GiB", code="memory")
    return size_bytes


gpu_memory_option = click.option(
    "--gpu-memory", callback=parsed(memory_size), help="GPU memory, such as 80GiB.  [default: that of the GPU]"
)
causal_option = click.option(
    "--causal/--full", default=True, show_default=True, help="Attention to earlier tokens only, or to all."
)


def achieved_of(text: str) -> float:
    """FLOP/s (``600e12``), or a Share (``60%``). Raises UsageError."""
    share = text.strip().endswith("%")
    value = number(text.strip().removesuffix("%"))
    if share and not 0 < value <= 100:
        raise UsageError(f"--achieved {text}: must be above 0 and at most 100%", code="compute")
    if not share and not LEAST_RATE <= value <= MOST_RATE:
        raise UsageError(
            f"--achieved {text}: give FLOP/s from {LEAST_RATE:g} to {MOST_RATE:g}, such as 600e12, or a share such as "
            "60%",
            code="compute",
        )
    return Share(value / 100) if share else value


def machine_options(command: Command) -> Command:
    """Options of a machine; the command receives the names of runs as ``runs``, the others as ``machine_of`` does."""
    rate = "FLOP/s of a GPU in matrix products, such as 600e12, or a share, such as 60%."
    return with_options(
        command,
        [
            run_option(
                "--from",
                "Measured run, or the log of a training, which also gives model, layout and batch; repeat for more.",
                "runs",
                multiple=True,
            ),
            network_option("; with --from, for what the run lacks"),
            gpu_option(None, "  [default: the run's; without --from, H100 SXM5]"),
            gpu_memory_option,
            click.option(
                "--achieved",
                callback=parsed(achieved_of),
                help=f"{rate}  [default: the measured rate, or that of --gpu by shape of a product]",
            ),
            click.option(
                "--overlap",
                type=float,
                callback=parsed(_share),
                help=f"Fraction of a call that is hidden.  [default: as measured, else {OVERLAP}]",
            ),
            choice_option("--cards", Cards, None, "Ranks of a host share its NIC.  [default: shared on CPUs]"),
            per_host_option(".  [default: the run's, else 8]"),
            causal_option,
        ],
    )


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise UsageError(f"--overlap {value:g}: must be between 0 and 1", code="overlap")
    return value
