"""Reader of the lines that training programs print about their steps.

Sources: ``training_log`` in ``megatron/training/training.py`` of NVIDIA/Megatron-LM; ``MetricsProcessor.log`` of
pytorch/torchtitan; the progress printer and ``TimingCallback`` of NVIDIA/NeMo; ``ThroughputTimer.stop`` of
deepspeedai/DeepSpeed; ``metric_logger.py`` of AI-Hypercomputer/maxtext, which called TFLOP/s of
a device TFLOP/s in 2023, and of MaxDiffusion; ``train.py`` of karpathy/nanoGPT, ``train_gpt2.cu`` of karpathy/llm.c and
``train_gpt2.py`` of karpathy/build-nanogpt; ``train_batch`` in ``pipe/engine.py`` of DeepSpeed, which GPT-NeoX uses;
``learning.py`` of TensorFlow's slim; ``imagenet/main.py`` of pytorch/examples; ``MetricLogger`` in ``references`` of
pytorch/vision and of facebookresearch/maskrcnn-benchmark; ``TextLoggerHook`` of open-mmlab/mmcv; ``LocalLogger`` of
verl-project/verl; ``CommonMetricPrinter`` of facebookresearch/detectron2. DeepSpeed's average since the start is not
read: no step can be seen in it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, Self

import msgspec

from busbw.errors import LogError
from busbw_analysis.data.readers import step_clock
from busbw_analysis.data.readers.lines import clean, number
from busbw_analysis.data.readers.watchdog import TIMEOUT

Unit = Literal["s", "tokens/s", "samples/s"]
"""What a program prints of a step: its time, or a rate of a GPU (tokens) or of all (samples)."""

_REAL: Final = r"([\d.,]+(?:e[+-]?\d+)?)(?!\w*\d|\.| \.\d|[OlI]\b)"
_STEP: Final = r"(?i:\b(?:step|iter|iteration)\b)[:= ]{1,3}(\d+)"
_STEP_TIME: Final = r"(?i:\b(?:step|iter)[ _-]time\b)[:= ]{1,3}"
_TIME: Final = r"(?i:(?<!data )\b(?:time|dt)\b)[:= ]{1,3}"
"""What other programs print of a step: ``step: 12, loss: 2.1, time: 345.6 ms``. The time of a part may precede it."""
_FIRST: Final = re.compile(r"^\s*([Ss]teps?|[Ii]ter(?:ation)?):")
"""Which looks like the prefix of a launcher before a step."""
_FORMATS: Final[tuple[tuple[str, str, str, Unit, float], ...]] = (
    ("Megatron-LM", r"\biteration\s+(\d+)/", rf"elapsed time per iteration \(ms\): *{_REAL}", "s", 1e-3),
    ("Megatron-LM", r"\biteration\s+(\d+)/", rf"elapsed time per iteration \(s\): *{_REAL}", "s", 1.0),
    ("NeMo", r"\bglobal_step[:=] *(\d+)", rf"train_step_timing in s[:=] *{_REAL}", "s", 1.0),
    ("MaxText", r"\bcompleted step: *(\d+)", rf"\bseconds: *{_REAL}", "s", 1.0),
    ("torchtitan", r"\bstep[:=] *(\d+)", rf"\b[tw]ps: *{_REAL}", "tokens/s", 1.0),
    ("DeepSpeed", r"(?:\bglobal_step=|\b\d+/)(\d+),", rf"\bCurrSamplesPerSec={_REAL}(?<=\d)(?!\w)", "samples/s", 1.0),
    ("nanoGPT", r"\biter (\d+):", rf"\btime {_REAL}ms", "s", 1e-3),
    ("llm.c", r"\bstep +(\d+)/\d+ \|", rf"\| *{_REAL} ms \|", "s", 1e-3),
    ("build-nanogpt", r"\bstep +(\d+) *\|", rf"\bdt: *{_REAL}ms", "s", 1e-3),
    ("DeepSpeed-pipeline", r"\bsteps[:=] *(\d+)\b", rf"\biter time \(s\): *{_REAL}", "s", 1.0),
    ("TensorFlow", r"\bglobal step *(\d+):", rf"\({_REAL} sec/step\)", "s", 1.0),
    ("verl", r"\bstep:(\d+) - ", rf"\btiming_s/step:{_REAL}", "s", 1.0),
    ("PyTorch-ImageNet", step_clock.IN_EPOCH, rf"\bTime +{_REAL} \(.*\bData +[\d.]+ \(", "s", 1.0),
    ("mmcv", step_clock.IN_EPOCH, rf"\btime: *{_REAL}[ ,(].*\bdata_time: *\d", "s", 1.0),
    ("torchvision", step_clock.IN_EPOCH, rf"\btime: *{_REAL}[ ,(].*\bdata: *\d", "s", 1.0),
    ("detectron2", r"\biter: *(\d+)", rf"\btime: *{_REAL}[ ,(].*\bdata_time: *\d", "s", 1.0),
    ("maskrcnn-benchmark", r"\biter: *(\d+)", rf"\btime: *{_REAL}[ ,(].*\bdata: *\d", "s", 1.0),
    ("script", _STEP, rf"{_STEP_TIME}{_REAL} ?ms\b", "s", 1e-3),
    ("script", _STEP, rf"{_STEP_TIME}{_REAL} ?s(?:ec)?\b", "s", 1.0),
    ("script", _STEP, rf"{_TIME}{_REAL} ?ms\b", "s", 1e-3),
    ("script", _STEP, rf"{_TIME}{_REAL} ?s\b", "s", 1.0),
)
"""Program, patterns of the step's number and of what it prints of the step, its unit, and the factor to the unit."""
PROGRAMS: Final = tuple(dict.fromkeys(name for name, *_ in _FORMATS if name != "script"))
_COMPILED: Final = tuple(
    (name, re.compile(step), re.compile(value), unit, factor) for name, step, value, unit, factor in _FORMATS
)
_POINTED: Final = re.compile(r"\d\.\d")
_DECIMALS: Final = re.compile(r"\d,(?:\d{1,2}|\d{4,})(?![\d,])")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_FLOPS: Final = re.compile(
    r"(?:throughput per GPU \(TFLOP/s/GPU\)|\btflops|TFLOP/s/device|\bseconds: [\d.]+, TFLOP/s|approx flops per GPU):"
    rf" *{_REAL}"
)
_UTILISED: Final = re.compile(rf"\bmfu:? *{_REAL} *%|\b{_REAL}% (?:\w+ )?MFU")
_PEAK: Final = re.compile(rf"Peak FLOPS used for computing MFU: *{_REAL}")
_TOKENS: Final = re.compile(rf"(?:\b[tw]ps|Tokens/s/device): *{_REAL}")
_DATA: Final = re.compile(r"(?i:\bdata)(?:[ _](?:time|load))?'?:? *'?([\d.]+)( ?ms\b)?")
_LIKELY: Final = re.compile(r"iter|step|PerSec|epoch", re.IGNORECASE)
_BATCH: Final = re.compile(r"\bglobal batch size: *(\d+)")
_STATED: Final[dict[str, tuple[str, ...]]] = {
    "layers": ("num_layers", "n_layers"),
    "hidden": ("hidden_size",),
    "heads": ("num_attention_heads", "n_heads"),
    "kv_heads": ("num_query_groups", "n_kv_heads", "num_kv_heads"),
    "groups": ("group_query_attention",),
    "head_dim": ("kv_channels",),
    "ffn": ("ffn_hidden_size",),
    "ffn_multiplier": ("ffn_dim_multiplier",),
    "ffn_multiple": ("multiple_of",),
    "activation": ("swiglu", "activation"),
    "norm": ("normalization",),
    "biases": ("add_bias_linear",),
    "untied": ("untie_embeddings_and_output_weights", "no_weight_tying"),
    "vocabulary": ("vocab_size",),
    "padded": ("padded_vocab_size",),
    "position": ("position_embedding_type",),
    "positions": ("max_position_embeddings",),
    "dropout": ("hidden_dropout",),
    "attention": ("transformer_impl", "use_flash_attn"),
    "latent": ("multi_latent_attention",),
    "experts": ("num_experts", "num_moe_experts"),
    "top_k": ("moe_router_topk",),
    "expert_ffn": ("moe_ffn_hidden_size",),
    "shared_ffn": ("moe_shared_expert_intermediate_size",),
    "dtype": ("params_dtype",),
    "gpus": ("world_size", "global_num_gpus"),
    "nodes": ("num_nodes",),
    "devices": ("devices",),
    "tp": ("tensor_model_parallel_size", "model_parallel_size"),
    "pp": ("pipeline_model_parallel_size", "pipe_parallel_size"),
    "cp": ("context_parallel_size",),
    "ep": ("expert_model_parallel_size",),
    "vpp": ("virtual_pipeline_model_parallel_size",),
    "batch": ("global_batch_size", "train_batch_size"),
    "micro_batch": ("micro_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"),
    "sequence": ("seq_length", "encoder_seq_length", "sequence_length"),
    "sequence_parallel": ("sequence_parallel",),
    "recompute": ("recompute_granularity", "activations_checkpoint_granularity"),
    "recompute_method": ("recompute_method", "activations_checkpoint_method"),
    "recompute_layers": ("recompute_num_layers", "activations_checkpoint_num_layers"),
    "zero": ("zero_optimization_stage", "zero_stage"),
    "distributed": ("use_distributed_optimizer",),
    "sharding": ("data_parallel_sharding_strategy",),
    "scatter_gather": ("scatter_gather_tensors_in_pipeline",),
    "gradients": ("accumulate_allreduce_grads_in_fp32",),
    "fp8": ("fp8",),
}
"""What programs print of the model and its layout before the first step, by our key: in Megatron-LM's list of
arguments, which GPT-NeoX has, too, in DeepSpeed's configuration, in NeMo's YAML and in torchtitan's sentences.
"""
_KEYS: Final = {name: key for key, names in _STATED.items() for name in names}
_WORD: Final = re.compile(r"(?<!\w)[A-Za-z]\w*")
_IN_WORDS: Final = re.compile(r"(?:global batch|local batch|world) size|sequence length")
_SENTENCES: Final = (
    ("hidden", re.compile(r"\bdim=(\d+)")),
    ("padded", re.compile(r"dummy tokens \(new size: (\d+)")),
    ("recompute", re.compile(r"Applied (\w+) activation checkpointing")),
    ("distributed", re.compile(r"\bname: (distributed_fused_adam)")),
    ("gpu", re.compile(r"CUDA capacity: (.+) with ")),
)
_OF_NAME: Final = re.compile(r"['\"]? *(?:\.{2,}|[:=])? *['\"]?(?:torch\.)?(\w+(?:\.\d+(?:e[+-]?\d+)?)?)")
_ABSENT: Final = frozenset({"None", "null", "none"})
_MESH: Final = re.compile(r"device mesh with (?:parallelism: )?(.+)")
_OF_MESH: Final = re.compile(r"(\w+)=(\d+)")
_NAME, _DEGREE = re.compile(r"'(\w+)'"), re.compile(r"\b(\d+)\b")
_PRINTED: Final = re.compile(
    rb"elapsed time per iteration \(m?s\):|train_step_timing in s|completed step: *\d+, seconds:|\bCurrSamplesPerSec="
    rb"|\bstep: *\d+ .*\b[tw]ps: *\d|\biter \d+: loss .*\btime [\d.]+ms|\bstep +\d+/\d+ \|.* ms \|"
    rb"|\bstep +\d+ *\|.*\bdt: *[\d.]+ms|\bsteps: *\d+ .*\biter time \(s\): *\d|global step *\d+: .*sec/step\)"
    rb"|\bstep:\d+ - .*\btiming_s/step:|\bTime +[\d.]+ \(.*\bData +[\d.]+ \("
    rb"|\btime: *[\d.]+[ ,(].*\bdata(?:_time)?: *\d"
    rb"|(?i:\b(?:step|iter|iteration)[:= ]{1,3}\d+\b[^\n]{1,199}\bloss\b[^\n]{1,199}"
    rb"\b(?:step[ _]time|iter[ _]time|time|dt)[:= ]{1,3}[\d.]+ ?m?s\b)"
)


class _Sign:
    """Finds a line about a step, or steps by their clock."""

    def search(self, text: bytes) -> object | None:
        """What is found; None if it is not there."""
        return _PRINTED.search(text) or step_clock.seen(text) or None


SIGN: Final = _Sign()


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a program printed about a step, or about the mean of several.

    line: line number in the log, from 1
    step: its number
    value: time or rate, in the log's unit
    flops: FLOP/s of a GPU as the program counts them
    utilised: share of the peak as the program states it, 0 to 1
    tokens: tokens per second of a GPU
    batch: sequences of the step
    data: seconds in which the step waited for its data
    """

    line: int
    step: int
    value: float
    flops: float | None = None
    utilised: float | None = None
    tokens: float | None = None
    batch: int | None = None
    data: float | None = None


class TrainingLog(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a training program printed.

    program: whose format the lines have
    source: name of the file
    unit: of the steps' values
    steps: in the order of the log; of lines of several ranks about a step, the slowest
    peak: FLOP/s that the program divides by for its utilisation
    timed_out: whether torch's watchdog of NCCL ended the job
    by_clock: whether the program prints no time of a step, so that it is that between lines
    stated: what it printed of the model and its layout before the first step, by key of ``_STATED``
    mesh: degrees of torchtitan's mesh, by its names
    """

    program: str
    source: str
    unit: Unit
    steps: tuple[StepLine, ...]
    peak: float | None = None
    timed_out: bool = False
    by_clock: bool = False
    stated: dict[str, str] = msgspec.field(default_factory=dict)
    mesh: dict[str, int] = msgspec.field(default_factory=dict)


class OfTraining(LogError):
    """A log whose only results are the steps of a training program: ``steps``."""

    code = "training-log"

    def __init__(self, steps: TrainingLog) -> None:
        does = "busbw training log or show reads it alone, training plan --from uses it"
        super().__init__(f"{steps.source}: a log of a training program; {does}")
        self.steps = steps

    def __reduce__(self) -> tuple[type[Self], tuple[TrainingLog]]:
        """For other processes: an exception is otherwise made again from its message."""
        return type(self), (self.steps,)


class FailedTraining(LogError):
    """How the job of a training program failed; ``steps``: those that it printed before."""

    def __init__(self, failure: LogError, steps: TrainingLog) -> None:
        super().__init__(failure.said, failure.lines, code=failure.code, log=failure.log)
        self.steps, self.follows = steps, failure.follows

    def __reduce__(self) -> tuple[type[Self], tuple[LogError, TrainingLog], dict[str, Any]]:
        """For other processes: an exception is otherwise made again from its message."""
        return type(self), (LogError(self.said, self.lines, code=self.code, log=self.log), self.steps), self.__dict__


def read(source: str, lines: Iterable[str]) -> TrainingLog | None:
    """The steps of a log by the program that most lines are of; None if no line is about a step."""
    read_of: dict[str, list[StepLine]] = {}
    peak, timed_out = None, False
    stated: dict[str, str] = {}
    mesh: dict[str, int] = {}
    clock, source_line = step_clock.StepClock(), _Source()
    for line in clean(source_line.parts(lines)):
        text = line.text
        clock.take(source_line.number, text, source_line.text)
        timed_out = timed_out or TIMEOUT in text
        if (match := _PEAK.search(text)) is not None:
            peak = number(match[1])
        if not read_of:
            _state(text, stated, mesh)
        if _LIKELY.search(text) is None:
            continue
        for name, step, value, _, factor in _COMPILED:
            numbered, printed = step.search(text), value.search(text)
            if numbered is not None and printed is not None and (amount := _real(printed)):
                entry = _step(source_line.number, step_clock.step_of(numbered), amount * factor, text)
                read_of.setdefault(name, []).append(entry)
                break
    if not read_of:
        program, intervals = clock.steps()
        timed = tuple(StepLine(line=each.line, step=each.step, value=each.seconds) for each in intervals)
        return (
            TrainingLog(
                program=program, source=source, unit="s", steps=timed, timed_out=timed_out, by_clock=True, stated=stated
            )
            if timed
            else None
        )
    program = Counter({name: len(steps) for name, steps in read_of.items()}).most_common(1)[0][0]
    unit = next(unit for name, _, _, unit, _ in _FORMATS if name == program)
    return TrainingLog(
        program=program,
        source=source,
        unit=unit,
        steps=tuple(_of_ranks(read_of[program], unit)),
        peak=peak,
        timed_out=timed_out,
        stated=stated,
        mesh=mesh,
    )


class _Source:
    """The lines of a log, in parts where a bar was drawn again; ``number`` and ``text`` are of the last one."""

    number, text = 0, ""

    def parts(self, lines: Iterable[str]) -> Iterator[str]:
        """What stood on the screen, one after the other."""
        for self.number, line in enumerate(lines, 1):
            for self.text in line.rstrip("\r\n").split("\r"):
                yield _FIRST.sub(r"\1=", self.text)


def _state(text: str, stated: dict[str, str], mesh: dict[str, int]) -> None:
    """Add what a line states to ``stated``, unless it is there, and the degrees of a mesh to ``mesh``."""
    text = _IN_WORDS.sub(lambda words: words[0].replace(" ", "_"), text)
    for word in _WORD.finditer(text):
        key = _KEYS.get(word[0])
        value = None if key is None else _OF_NAME.match(text, word.end())
        if key is not None and value is not None and value[1] not in _ABSENT:
            stated.setdefault(key, value[1])
    for key, sentence in _SENTENCES:
        if (said := sentence.search(text)) is not None:
            stated.setdefault(key, said[1])
    if (said := _MESH.search(text)) is not None:
        degrees = _OF_MESH.findall(said[1]) or zip(_NAME.findall(said[1]), _DEGREE.findall(said[1]), strict=False)
        mesh.update((name, int(degree)) for name, degree in degrees)


def _step(line: int, step: int, value: float, text: str) -> StepLine:
    utilised = _real(_UTILISED.search(text))
    flops = _real(_FLOPS.search(text))
    batch, data = _BATCH.search(text), _DATA.search(text)
    waited = None if data is None else _real(data)
    return StepLine(
        line=line,
        step=step,
        value=value,
        flops=None if flops is None else flops * 1e12,
        utilised=None if utilised is None else utilised / 100,
        tokens=_real(_TOKENS.search(text)),
        batch=None if batch is None else int(batch[1]),
        data=waited if waited is None or data is None or not data[2] else waited / 1e3,
    )


def _real(match: re.Match[str] | None) -> float | None:
    """The number in the first group that has one. A comma stands between thousands or, in a line without points in
    numbers, before decimals; None where it may be either.
    """
    digits = "" if match is None else next(filter(None, match.groups())).rstrip(".,")
    if match is not None and "," in digits:
        pointed = _POINTED.search(match.string) is not None
        decimal = not pointed and _DECIMALS.search(match.string) is not None
        if not decimal and (not pointed or _THOUSANDS.fullmatch(digits) is None):
            return None
        digits = digits.replace(",", "." if decimal else "")
    return number(digits)


def _of_ranks(steps: Iterable[StepLine], unit: Unit) -> list[StepLine]:
    """One entry for neighbouring lines about the same step, that of the slowest rank."""
    kept: list[StepLine] = []
    for entry in steps:
        if not kept or kept[-1].step != entry.step:
            kept.append(entry)
        elif (entry.value > kept[-1].value) == (unit == "s"):
            kept[-1] = entry
    return kept
