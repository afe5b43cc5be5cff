"""Hostile plans and options: every command that reads some has to refuse or print them, whatever they are.

The commands run inside a process of their own, whose death is a failure, too. An input has its own seed, so it can be
repeated alone. Options never hold NUL, because no shell can pass one; files do.
"""

import contextlib
import faulthandler
import json
import math
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import click
import msgspec
from click.testing import CliRunner
from fuzz_outcome import Outcome
from testing.synthetic import case, synthetic_run, write_synthetic

import busbw.workloads
from busbw.cli.main import main
from busbw.key_values import Key
from busbw.ops import OPS
from busbw.ops.algorithms import ALGORITHMS
from busbw.runs.plan import SWEEP_KEYS, Plan, Sweep, Timing, suites
from busbw_analysis.cli.training import CONSTANTS, training
from busbw_analysis.cli.training_options import LAYOUT_KEYS, MODEL_KEYS

MOST_SECONDS: Final = 20.0
"""Of the processor, not of the clock on the wall: a busy machine must not look like a slow program."""
MOST_BYTES: Final = 500 * 10**6
_STUCK_SECONDS: Final = 120
_SHOWN: Final = 240

_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Input:
    """What is typed, and the files that it names: they lie in the folder where it is typed."""

    arguments: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)


# --- the grammar: mostly sound, with a few hostile values, so that they get behind the first check -----------------

_INTEGERS: Final = (
    *("1", "2", "3", "4", "0", "8", "-1", "-0", "1000", "4096", "65536", "1000000", "1000000000", "010", "0x10"),
    *("1_000", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" + "0" * 30, "9" * 5000),
    *("\u0663", "", " 2 "),
)
_TOML_NUMBERS: Final = (
    *("1", "2", "4", "0", "-1", "1000000", "1000000000", "9223372036854775807", "9" * 5000, "0x" + "f" * 5000),
    *("0b" + "1" * 2000, "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "0.5", "0.05", "1e999", "3.0", "true"),
)
_FLOATS: Final = (
    *("0.5", "0.05", "0", "1", "2", "60", "1e6", "1e-320", "1e308", "-1e308", "1e999", "nan", "inf", "-inf", "-0.0"),
    *("", "1e-9", "9" * 400, "\u0660.\u0665", "1_0", "5%", "100%", "1e-300%", "0x1p3", "x"),
)
_SIZES: Final = (
    *("8", "1MiB", "8..1MiB*2", "1MiB..4MiB+1MiB", "8..64*1e308", "0..9223372036854775807+1", "8..64MiB*1.0000001"),
    *("1..9223372036854775807*2", "0", "7", "9223372036854775807", "9" * 40, "1e6", "8..4*2", "8..64", "8..64*nan"),
    *("8..64*inf", "8..64+0", "", ",", "8,,8", "1.5", "1.5KiB", "\u0668", "8..8*2", "0..10*2", "1TiB..8000000TiB*3"),
    *("4MB", ",".join(["1..9999+1"] * 9)),
    *(",".join(f"{first}..{first + 9999}+1" for first in range(1, 500_000, 10_000)), "1B" * 999),
)
_GROUPS: Final = (
    *("all", "each", "div:2", "mod:2", "and:0x1", "or:0x3", "0,1;2,3", "0;1", "div:010", "div:0", "mod:-1", "div:1"),
    *("mod:" + "9" * 5000, "and:0x" + "f" * 5000, "or:" + "1" * 40, "0,1;1,2", "0,99999999999", "\u0660,\u0661"),
    *("div:\u0662", "", ";", "0," * 3, " all ", "ALL", "DIV:2", ";".join(map(str, range(3000)))),
    *(",".join(map(str, range(9000))), "0\n1", ",".join(["1"] * 20_000), "0" * 5000, ",".join(["9" * 5000] * 3)),
)
_TEXTS: Final = (
    *("x", "quick", "", " ", "\x1b[31mred", "\x1b]0;title\x07", "a\nb", "a\rb", "\x9b2J", "\u202egnp.exe", "\u2028"),
    *("\x7f", "é" * 300, "a" * 20_000, "../../..", "/dev/null", "/proc/self/mem", "%s%n", "{0}", "${HOME}"),
    *("'\"`$(id)", "-", "--", "[red]x[/red]", "\ufeff", "0" * 300, "a/" * 3000, "\U000e0001"),
)
_THREADS: Final = (
    *("1", "1,4", "1..cores*2", "2..8+2", "cores", "0", "1..65536+1", "65537", "9" * 5000, "8..1*2", "1..9*1"),
    *("\u0662", ""),
)
_LISTS: Final = (
    "0",
    "0,1",
    "1023",
    "1024",
    "9" * 5000,
    "\u0663",
    "-1",
    "",
    "0,,1",
    ",".join(map(str, range(1024))),
    "0," * 9999,
)
_WORDS: Final = {
    "--dtype": ("float32", "float32,bfloat16", "float31", "int8", ",".join(["float32"] * 5000)),
    "--redop": ("sum", "sum,avg,min,max,product", "plus"),
    "--mode": ("isolated", "isolated,pipelined,persistent,graph,overlap", "overlap", "none"),
    "--algorithm": ("library", "all", "ring", "rabenseifner", "nvls", "x"),
    "--sync": ("barrier", "none", "window", "clock"),
    "--cache": ("warm", "rotating", "flushed", "hot"),
    "--in-place": ("native", "yes", "no", "both", "up"),
    "--pairs": ("together", "alone", "all"),
    "--backend": ("gloo", "mpi", "nccl", "local", "mpj"),
}
_STEPS: Final = {
    "--model": ("MLP 1024", "Llama 3 8B", "Mixtral 8x7B", "DeepSeek-V3", *_TEXTS),
    "--scale": ("0.01", "1", "0.001", "1e-6", *_FLOATS),
    "--micro-batches": ("1", "2", "4,8", "8", *_INTEGERS, ",".join(["1"] * 1024)),
    "--replicas": ("1", "2", "1,2,4", "4", *_INTEGERS),
    "--expert-imbalance": ("1", "1.5", "2", "4", *_FLOATS),
    "--capacity": ("1", "1.5", "2", "4", *_FLOATS),
    "--compute": ("real", "wait=20ms", "wait=1us", "wait=600s", "wait=601s", "wait=0us", "wait=" + "9" * 5000, *_TEXTS),
    "--slow-rank": ("1=20ms", "0=1us", "1=600s", "0=5ms,1=5ms", "2=1ms", "-1=1ms", "1=0us", "1=nans", *_TEXTS),
}
_STEP_LISTS: Final = {
    "models": "--model",
    "micro_batches": "--micro-batches",
    "replicas": "--replicas",
    "slow_ranks": "--slow-rank",
}
_SWEEP_LISTS: Final = {"dtypes": "--dtype", "redops": "--redop", "modes": "--mode", "algorithms": "--algorithm"}


def _of(random: Random, values: Sequence[str]) -> str:
    """Mostly one of the first, which are sound."""
    return random.choice(values[:4] if random.random() < 0.5 else values)


def _op(random: Random) -> str:
    return random.choice((*OPS, "all_reduce", "all_reduce", "pair_matrix", "all_to_all_v", "train_ddp", "train_3d"))


def _text(random: Random) -> str:
    return _of(random, _TEXTS)


_RUN_OPTIONS: Final[dict[str, Callable[[Random], str]]] = {
    "--sizes": lambda random: _of(random, _SIZES),
    "--groups": lambda random: _of(random, _GROUPS),
    "--root": lambda random: _of(random, _INTEGERS),
    "--imbalance": lambda random: _of(random, _FLOATS),
    "--threads": lambda random: _of(random, _THREADS),
    "--numa-node": lambda random: _of(random, _LISTS),
    "--path": _text,
    "--ranks": lambda random: _of(random, ("2", "4", "8", "131072", "262144", *_INTEGERS)),
    "--launches": lambda random: _of(random, _INTEGERS),
    "--seed": lambda random: _of(random, _INTEGERS),
    "--max-seconds": lambda random: _of(random, _FLOATS),
    "--precision": lambda random: _of(random, _FLOATS),
    "--timeout": lambda random: _of(random, _FLOATS),
    "--port": lambda random: _of(random, _INTEGERS),
    "--results-dir": _text,
    **{option: lambda random, of=values: _of(random, of) for option, values in _STEPS.items()},  # type: ignore[misc]
    **{option: lambda random, of=words: _of(random, (*of, _text(random))) for option, words in _WORDS.items()},  # type: ignore[misc]
}


def _options(random: Random, of: dict[str, Callable[[Random], str]], most: int) -> Iterator[str]:
    for option in random.sample(sorted(of), random.randint(0, min(most, len(of)))):
        yield f"{option}={of[option](random)}"


_ESCAPED: Final = re.compile('[\x00-\x1f\x7f"\\\\]')


def _quoted(text: str) -> str:
    """A basic string of TOML; what it may not hold as it is stands as an escape."""
    escaped = _ESCAPED.sub(lambda found: f"\\U{ord(found[0]):08x}", text)
    return f'"{escaped}"'


def _anything(random: Random) -> str:
    """Some value of TOML, of any type."""
    return random.choice(_VALUES)(random)


_VALUES: Final[tuple[Callable[[Random], str], ...]] = (
    lambda random: _of(random, _TOML_NUMBERS),
    lambda random: _of(random, _TOML_NUMBERS),
    lambda random: _quoted(_text(random)),
    lambda _: _quoted("nul \x00 nul"),
    lambda random: "[" * (deep := random.choice((3, 30, 300, 3000, 30_000))) + "]" * deep,
    lambda random: "{a=" * (deep := random.choice((3, 300))) + "1" + "}" * deep,
    lambda _: "[]",
    lambda random: f"[{_quoted(_text(random))}]",
    lambda random: f"[{_of(random, _TOML_NUMBERS)}]",
    lambda _: "1979-05-27T07:32:00Z",
    lambda _: "[[1.0, 2.0], [3.0, 1e308]]",
    lambda random: f"[{','.join(['[1.0]'] * random.choice((1, 3, 3000)))}]",
    lambda random: f"[{','.join(['1'] * random.choice((1, 3, 30_000)))}]",
)


def _field(random: Random, key: str) -> str:  # noqa: C901, PLR0911 - a table by key, with chances in it
    """A value that belongs to ``key``, mostly: it may be far outside of what is allowed."""
    if random.random() < 0.15:
        return _anything(random)
    if key == "sizes":
        return _quoted(_of(random, _SIZES))
    if key == "groups":
        return _quoted(_of(random, _GROUPS))
    if key == "threads":
        return _quoted(_of(random, _THREADS))
    if key == "traffic":
        return random.choice(('"traffic.csv"', "[[1.0, 2.0], [3.0, 4.0]]", '"a\\u0000b"', _anything(random)))
    if key in _SWEEP_LISTS:
        words = _of(random, _WORDS[_SWEEP_LISTS[key]]).split(",")
        return f"[{', '.join(map(_quoted, words))}]"
    if key == "blocks" and random.random() < 0.5:
        return f"[{', '.join(_quoted(_of(random, _SIZES)) for _ in range(random.choice((1, 2, 500))))}]"
    if key in _STEP_LISTS:
        values = [_of(random, _STEPS[_STEP_LISTS[key]]) for _ in range(random.choice((1, 2, 1024)))]
        numbers = key in {"micro_batches", "replicas"}
        return f"[{', '.join(one if numbers and one.isdecimal() else _quoted(one) for one in values)}]"
    if key in {"depths", "numa_nodes"}:
        return f"[{', '.join(_of(random, _TOML_NUMBERS) for _ in range(random.choice((1, 2, 500))))}]"
    if key in {"name", "label", "path", "backend"}:
        return _quoted(random.choice((*_TEXTS, "gloo", "nul\x00")))
    if key in {"pre_enqueue", "registered", "direct"}:
        return random.choice(("true", "false", "1"))
    if f"--{key}" in _WORDS:
        return _quoted(_of(random, _WORDS[f"--{key}"]))
    return _of(random, _TOML_NUMBERS)


def _plan_text(random: Random) -> str:
    if random.random() < 0.2:
        return _mangled(random, random.choice(list(suites().values())))
    lines = [f"{key} = {_field(random, key)}" for key in _some(random, Plan.__struct_fields__[:7])]
    if random.random() < 0.3:
        lines += ["[timing]", *(f"{key} = {_field(random, key)}" for key in _some(random, Timing.__struct_fields__))]
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        ops = ", ".join(_quoted(_op(random)) for _ in range(random.choice((1, 1, 2))))
        sweep = ["[[sweep]]", f"ops = [{ops}]"]
        sweep += [f"{key} = {_field(random, key)}" for key in _some(random, tuple(SWEEP_KEYS)[1:])]
        lines += sweep * random.choice((1,) * 20 + (200, 2000))
    if random.random() < 0.1:
        lines.insert(
            random.randint(0, len(lines)), random.choice((f"x = {_anything(random)}", "[sweep]", "a." * 9999 + "a = 1"))
        )
    return "\n".join(lines) + "\n"


def _some(random: Random, keys: tuple[str, ...]) -> list[str]:
    return random.sample(keys, random.choice((0, 1, 1, 2, 3)))


def _mangled(random: Random, text: str) -> str:
    for _ in range(random.choice((1, 1, 3, 30))):
        place, length = random.randint(0, len(text)), random.choice((0, 1, 1, 8, 80))
        new = random.choice(("", "[", "]", "=", '"', "\n", "\x00", "9" * 20, "é", "#", text[place : place + 60] * 3))
        text = text[:place] + new + text[place + length :]
    return text


def _csv(random: Random) -> bytes:
    side = random.choice((1, 2, 2, 3, 4, 300))
    cells = [[random.choice(("1", "2", "0.5", "1")) for _ in range(side)] for _ in range(side)]
    if random.random() < 0.7:
        hostile = (
            *("", "nan", "inf", "-1", "1e308", "1e999", "x", "\u0663", "\x00", '"', "9" * 200_000, '"1\n2"'),
            *("\x1b[31m", "0"),
        )
        cells[random.randrange(side)][random.randrange(side)] = random.choice(hostile)
    text = "\n".join(",".join(row) for row in cells) + random.choice(("", "\n", ",", "\r\n\r\n"))
    return random.choice((text.encode(), text.encode(), text.encode("utf-16"), b"\xff" + text.encode(), b""))


def _run(random: Random) -> Input:
    chosen = list(_options(random, _RUN_OPTIONS, 3))
    if random.random() < 0.4:
        begin = ["--plan=plan.toml"]
    elif random.random() < 0.2:
        begin = [f"--suite={random.choice((*suites(), _text(random)))}"]
    else:
        begin = [f"--op={','.join(_op(random) for _ in range(random.choice((1, 1, 2))))}"]
    if random.random() < 0.1:
        chosen.append("--traffic=traffic.csv")
    flags = random.choice(([], [], [], ["--json"], ["--pre-enqueue"]))
    files = {"plan.toml": _plan_text(random).encode(errors="surrogatepass"), "traffic.csv": _csv(random)}
    return Input(("run", "--dry-run", *begin, *chosen, *flags), files)


def _submit(random: Random) -> Input:
    of: dict[str, Callable[[Random], str]] = {
        "--launches": _RUN_OPTIONS["--launches"],
        "--timeout": _RUN_OPTIONS["--timeout"],
        "--backend": _RUN_OPTIONS["--backend"],
        **dict.fromkeys(
            ("--path", "--mpi", "--partition", "--time", "--setup", "--srun-arg", "--busbw", "--comment"), _text
        ),
        **dict.fromkeys(("--gpus-per-node", "--cpus-per-task", "--signal-seconds"), _RUN_OPTIONS["--port"]),
    }
    nodes = random.choice((*_INTEGERS, "1,2,4", "2,2", ",".join(map(str, range(1, 3000)))))
    world = (f"--nodes={nodes}", f"--ranks-per-node={_of(random, _INTEGERS)}")
    what = random.choice(("plan.toml", "plan.toml", *suites()))
    arguments = ("submit", "--dry-run", what, *world, *_options(random, of, 3), *random.choice(((), ("--json",))))
    return Input(
        arguments, {"plan.toml": _plan_text(random).encode(errors="surrogatepass"), "traffic.csv": _csv(random)}
    )


def _resume(random: Random) -> Input:
    of = {name: _RUN_OPTIONS[name] for name in ("--launches", "--timeout", "--port")}
    return Input(("run", "--dry-run", "--resume", random.choice(("latest", "run")), *_options(random, of, 2)))


def _network(random: Random) -> str:
    rate = (
        *("1GB/s", "12.5GB/s", "0GB/s", "400Gb/s", "9" * 30 + "TB/s", "0." + "0" * 29 + "1B/s", "nanGB/s", "", "1"),
        "\u0663GB/s",
    )
    delay = ("0us", "5us", "9" * 30 + "s", "-1us", "1e9s", "nan", "")
    count = ("1", "2", "4", "0", "-1", "1000000000", "9" * 5000, "x", "", "\u0663")
    keys = {
        **dict.fromkeys(("rate", "nic", "inner", "spine", "leaf", "memory"), rate),
        **dict.fromkeys(("delay", "inner_delay"), delay),
        **dict.fromkeys(("spines", "seed", "oversubscription"), count),
        "routing": ("hash", "spread", "x"),
    }
    usual = {
        "flat": "rate=12.5GB/s,delay=5us",
        "shared": "rate=10GB/s,memory=20GB/s",
        "two-level": "nic=10GB/s,inner=100GB/s",
        "rail": "nic=50GB/s,inner=450GB/s",
        "fat-tree": "nic=10GB/s,inner=100GB/s,leaf=4,spines=2",
    }
    kind = random.choice(sorted(usual))
    added = [f"{key}={random.choice(keys[key])}" for key in random.sample(sorted(keys), random.choice((0, 0, 1, 2)))]
    return random.choice((f"{kind}:{','.join([usual[kind], *added])}", f"{kind}:{','.join(added)}", _text(random)))


def _simulate(random: Random) -> Input:
    of: dict[str, Callable[[Random], str]] = {
        "--algorithm": lambda random: random.choice(_WORDS["--algorithm"]),
        "--ranks-per-host": lambda random: _of(random, _INTEGERS),
        "--order": lambda random: random.choice(("block", "cyclic")),
        "--link": lambda random: random.choice(
            ("host 0 out=10%", "host *=1GB/s", "*=1e308%", "*=0%", "x", "host 0 *=nan%")
        ),
        "--overhead": lambda random: random.choice(("0us", "1us", "9" * 30 + "s", "-1s", "", "nan us")),
        "--sums": lambda random: random.choice(("20GB/s", "0GB/s", "9" * 30 + "TB/s", "0." + "0" * 29 + "1B/s", "")),
    }
    # Ring and pairwise exchange keep the square of the ranks in messages: up to 2048 that may take longer, by request.
    ranks = random.choice(("2", "3", "4", "4", "8", *(one for one in _INTEGERS if one not in {"1000", "1_000"})))
    size = random.choice(("8", "1MiB", "8..1MiB*8", *_SIZES))
    arguments = ("simulate", f"--op={random.choice((*ALGORITHMS, 'x'))}", f"--ranks={ranks}", f"--size={size}")
    flags = random.choice(((), ("--json",)))
    return Input((*arguments, f"--network={_network(random)}", *_options(random, of, 2), *flags))


def _predict(random: Random) -> Input:
    of: dict[str, Callable[[Random], str]] = {
        "--hosts": lambda random: _of(random, _INTEGERS),
        "--ranks-per-host": lambda random: _of(random, _INTEGERS),
        **{name: _RUN_OPTIONS[name] for name in ("--algorithm", "--dtype", "--mode")},
    }
    ranks, size = random.choice(("4", "8", *_INTEGERS)), random.choice(("1MiB", "1GiB", *_SIZES))
    begin = ("predict", f"--from={random.choice(('latest', 'run', _text(random)))}", "--op=all_reduce")
    return Input((*begin, f"--ranks={ranks}", f"--size={size}", *_options(random, of, 2)))


def _training(random: Random) -> Input:
    # limits and plan may take seconds, by request: of these what is refused.
    command = random.choice(list(training.commands.values()))
    if command.name in {"limits", "plan"}:
        return Input(("training", str(command.name), *_refused(random, command)))
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in {"help", "plot"}]
    chosen = random.sample(options, min(random.randint(0, 5), len(options)))
    values = (
        _typed(random, one, hostile=one in chosen)
        for one in options
        if one in chosen or one.required or one.name in {"gpu", "read_rate", "model", "settings"}
    )
    return Input(("training", str(command.name), *values), {"own.toml": _models(random).encode(errors="surrogatepass")})


def _refused(random: Random, command: click.Command) -> Iterator[str]:
    """Options of which one at least cannot be."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.is_flag]
    numbers = [one for one in options if isinstance(one.type, click.types.FloatParamType | click.types.IntParamType)]
    never = random.choice(("nan", "-1", "1e999", "x", "9" * 400 + ".5", ""))
    yield from ("--model=Llama 3 8B", "--gpus=8", "--network=4X NDR") if command.name == "plan" else ()
    yield f"{random.choice(numbers).opts[0]}={never}" if numbers else f"--constants=days={never}"


def _typed(random: Random, option: click.Option, *, hostile: bool) -> str:
    """One option with a value that it is made for, or now and then with any."""
    name = option.opts[0]
    if option.is_flag:
        return name
    usual = {
        "model": (
            *("Llama 3 8B", "Llama 3 70B", "Mixtral 8x7B", "DeepSeek-V3", "MLP 1024", "own.toml", "own.toml:Own", "x"),
            *(f"Llama 3 8B,{_keys(random, MODEL_KEYS)}", _keys(random, MODEL_KEYS)),
        ),
        "settings": (*(_keys(random, LAYOUT_KEYS) for _ in range(3)), "own.toml", ""),
        "changed": (_keys(random, CONSTANTS),),
        "run": ("latest", "run", "nothing"),
        "results_dir": (".", "run", "nothing"),
        "network": (_network(random),),
        "gpu": ("H100 SXM5",),
        "gpu_memory": ("80GiB", "1", "0"),
        "gpus": ("1", "16384"),
        "sample": ("ImageNet", "x", "own.toml"),
        "achieved": ("60%", "400e12", "nan%", "1e999", "101%"),
        **dict.fromkeys(("read_rate", "write_rate", "writer_rate"), ("1TB/s", "0GB/s", "9" * 30 + "TB/s")),
    }
    if isinstance(option.type, click.Choice):
        values: Sequence[str] = (*map(str, option.type.choices), _text(random))
    elif isinstance(option.type, click.types.FloatParamType):
        values = _FLOATS if hostile else ("400e12", "1")
    elif isinstance(option.type, click.types.IntParamType) and option.name not in usual:
        values = random.choice((_INTEGERS, ("1", "2", "4", "8")))
    else:
        values = usual[str(option.name)]
    if hostile and random.random() < 0.2:
        values = (_text(random), *_INTEGERS, *_FLOATS)
    return f"{name}={random.choice(values)}"


def _keys(random: Random, keys: Mapping[str, Key]) -> str:
    """Some keys of an option, with values that most of them take, or with any."""
    values = ("1", "2", "4", "8", "yes", "no", "full", "bfloat16", "ring", *_INTEGERS, *_FLOATS)
    return ",".join(f"{key}={random.choice(values)}" for key in random.sample(sorted(keys), random.randint(0, 4)))


def _models(random: Random) -> str:
    """Rows of models, changed in places."""
    folder = Path(busbw.workloads.__file__).parent / "models"
    shipped = random.choice(sorted(folder.glob("*.toml"))).read_text(encoding="utf-8")
    return random.choice((shipped, _mangled(random, shipped)))


def _others(random: Random) -> Input:
    lists = ("ops", "algorithms", "backends", "suites", "launchers", "runs", _text(random))
    return random.choice(
        (
            Input(
                ("compare", "run", random.choice(("run", "latest", _text(random))), f"--within={_of(random, _FLOATS)}")
            ),
            Input(("list", random.choice(lists), f"--results-dir={random.choice(('results', _text(random)))}")),
            Input((random.choice(("show", "fit")), _text(random), f"--results-dir={_text(random)}")),
            Input(("status", f"--results-dir={_text(random)}")),
            Input(("peaks", "--peaks=peaks.toml"), {"peaks.toml": _peaks(random).encode(errors="surrogatepass")}),
        )
    )


def _peaks(random: Random) -> str:
    sound = {
        "kind": '"nvlink"',
        "name": '"NVLink 9"',
        "bytes_per_second": "100e9",
        "per": '"link"',
        "direction": '"one direction"',
        "source": '"https://example.org/x"',
        "looked_up": '"2026-11"',
    }
    for key in random.sample(sorted(sound), random.choice((0, 1, 1, 2))):
        sound[key] = _anything(random)
    lines = [
        random.choice(("[[rate]]", "[[rate]]", "[[gpu]]", "[rate]")),
        *(f"{key} = {value}" for key, value in sound.items()),
    ]
    return "\n".join([*lines, *([f"x = {_anything(random)}"] if random.random() < 0.2 else [])])


_KINDS: Final[tuple[tuple[Callable[[Random], Input], int], ...]] = (
    (_run, 70),
    (_submit, 12),
    (_resume, 3),
    (_simulate, 10),
    (_training, 6),
    (_others, 4),
    (_predict, 1),
)


def make(seed: int) -> Input:
    """The input of ``seed``, always the same."""
    random = Random(seed)
    kinds, weights = zip(*_KINDS, strict=True)
    made: Input = random.choices(kinds, weights)[0](random)
    return made


# --- the campaign ------------------------------------------------------------------------------------------------


def campaign(seed: int, seconds: float | None, count: int | None) -> Outcome:
    """The inputs of ``seed``, ``seed`` + 1 and so on, until ``seconds`` are over or ``count`` of them were tried."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    last = math.inf if count is None else seed + count
    failures: list[str] = []
    slowest, now = 0.0, seed
    with contextlib.suppress(KeyboardInterrupt):  # it says what was tried until then
        while now < last and time.monotonic() < until:
            left = [str(now), str(last - now if last < math.inf else -1), str(until - time.monotonic())]
            with subprocess.Popen(
                [sys.executable, __file__, *left],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            ) as worker:
                assert worker.stdout is not None
                assert worker.stderr is not None
                begun = now
                for line in worker.stdout:
                    said = json.loads(line)
                    begun, now = said["seed"], said["seed"] + said["done"]
                    slowest = max(slowest, said["seconds"])
                    failures += [_line(begun, said["failure"])] if said["failure"] else []
                code = worker.wait()
                if code and begun == now:
                    failures.append(_line(now, f"the process died with {code}: {worker.stderr.read()[-_SHOWN:]!r}"))
                    now += 1
                elif code:
                    raise RuntimeError(worker.stderr.read())
                elif not begun < now:
                    break
    return Outcome(now - seed, tuple(failures), slowest)


def _line(seed: int, what: str) -> str:
    typed = shlex.join(("busbw", *make(seed).arguments))
    shown = typed if len(typed) <= _SHOWN else f"{typed[:_SHOWN]}…"
    return f"--seed {seed} --count 1: {what}: {shown!r}"


class _Slow(BaseException):
    """Nobody who catches an Exception may go on."""


def _work(seed: int, count: int, seconds: float) -> None:
    """Try inputs one after another; say which one begins, and what came of it."""
    until, number = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        _furnish(Path(scratch))
        for warm in _WARM_UP:  # what is loaded only once is not held against the first
            CliRunner().invoke(main, list(warm))
        while (count < 0 or number < count) and time.monotonic() < until:
            _say(seed + number, 0, 0.0, None)
            faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True)
            one = make(seed + number)
            for name, content in one.files.items():
                Path(name).write_bytes(content)
            begun = time.process_time()
            failure = attempt(one.arguments)
            taken = time.process_time() - begun
            if failure is None and taken > MOST_SECONDS:
                failure = f"took {taken:.1f} s"
            _say(seed + number, 1, taken, failure)
            number += 1
    faulthandler.cancel_dump_traceback_later()


_WARM_UP: Final = (
    ("run", "--dry-run", "--op", "all_reduce"),
    ("submit", "--dry-run", "quick", "--nodes", "1", "--ranks-per-node", "2"),
    ("submit", "--dry-run", "quick", "--nodes", "1", "--ranks-per-node", "2", "--backend", "mpi"),
    ("predict", "--from", "run", "--op", "all_reduce", "--ranks", "8", "--size", "1MiB"),
    ("compare", "run", "run"),
    ("simulate", "--op", "all_reduce", "--ranks", "4", "--size", "8", "--network", "flat:rate=1GB/s"),
    *(("list", what) for what in ("backends", "suites", "launchers")),
    ("peaks",),
)


def _furnish(folder: Path) -> None:
    """A run that lacks a launch."""
    cases = tuple(case(op="all_reduce", size_bytes=1 << power) for power in range(3, 24, 4))
    stored = synthetic_run(cases, launches=2, seed=1)
    plan = Plan(sweep=(Sweep(ops=("all_reduce",)),), launches=3, timing=Timing(blocks=1))
    stored = replace(stored, run=msgspec.structs.replace(stored.run, plan=plan))
    Path("run").symlink_to(write_synthetic(folder / "results", stored))


def attempt(arguments: tuple[str, ...]) -> str | None:
    """What was wrong with how the command ended; None: it ended as it should."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGPROF, _too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        result = CliRunner().invoke(main, list(arguments))
    except _Slow:
        return f"took more than {MOST_SECONDS:g} s"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [one for one in traceback.extract_tb(error.__traceback__) if "/busbw" in one.filename]
        inside = ours[-1] if ours else place
        return f"{type(error).__name__} at {Path(inside.filename).name}:{inside.lineno}: {str(error)[:80]}"
    if result.exit_code not in {0, 1, 2}:
        return f"exit status {result.exit_code}"
    if found := _CONTROL.search(result.stdout + result.stderr):
        return f"printed {found[0]!r}"
    return None


def _too_slow(*_: object) -> None:
    raise _Slow


def _say(seed: int, done: int, seconds: float, failure: str | None) -> None:
    said: dict[str, Any] = {"seed": seed, "done": done, "seconds": seconds, "failure": failure}
    os.write(1, json.dumps(said).encode() + b"\n")  # CliRunner has its own sys.stdout


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
