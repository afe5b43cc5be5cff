"""Plans and options that ask for too much are refused in words, before anything of them is built."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import fuzz_plans
import msgspec
import pytest
from click.testing import CliRunner
from exhaustive import trials

from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.ops import limits, traffic, training
from busbw.ops.groups import split_world
from busbw.ops.settings import parse_threads
from busbw.ops.training import Workload
from busbw.runs import cases
from busbw.runs.plan import FileKeys, HostKeys, Plan, Sweep, Timing, TrainingKeys, parse_plan, read_plan
from busbw.runs.records import Case
from busbw.slurm.job_plan import shape_of
from busbw.units import MOST_SIZES, parse_sizes
from busbw.workloads.shapes import step_seconds

OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
SWEEP = '[[sweep]]\nops = ["all_reduce"]\n'


@pytest.mark.parametrize(
    "text",
    [
        f"seed = {'9' * 5000}\n{SWEEP}",
        f"seed = 0x{'f' * 5000}\n{SWEEP}",
        f"[timing]\ntimeout_seconds = 0x{'f' * 5000}\n{SWEEP}",
        f"x = {'[' * 30_000}{']' * 30_000}\n{SWEEP}",
        f"{'a.' * 5000}a = 1\n{SWEEP}",
        f"[{'a.' * 5000}a]\n",
        f'path = "a\\u0000b"\n{SWEEP}',
        f'{SWEEP}traffic = "a\\u0000b"\n',
        f"launches = {limits.MOST_LAUNCHES + 1}\n{SWEEP}",
        f"ranks = {limits.MOST_RANKS + 1}\n{SWEEP}",
        f"[timing]\nmax_seconds = 1e308\n{SWEEP}",
        f"[timing]\nblocks = {limits.MOST_BLOCKS + 1}\n{SWEEP}",
        f"[timing]\nmax_samples = {limits.MOST_SAMPLES + 1}\n{SWEEP}",
        f"[timing]\nwarmup_seconds = -1.0\n{SWEEP}",
        f"[timing]\nlaunch_warmup_seconds = nan\n{SWEEP}",
        SWEEP * (limits.MOST_SWEEPS + 1),
        f"{SWEEP}depths = [{'1,' * (limits.MOST_VALUES + 1)}]\n",
    ],
)
def test_a_plan_beyond_a_limit_is_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse_plan(text, "plan.toml", tmp_path)
    assert "plan.toml" in str(caught.value) or "a\\x00b" in str(caught.value) or "a\0b" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_plan_as_large_as_allowed_is_one(tmp_path: Path) -> None:
    head = f"launches = {limits.MOST_LAUNCHES}\nranks = {limits.MOST_RANKS}\n"
    text = f"{head}[timing]\nmax_seconds = {limits.LONGEST_SECONDS}\n"
    plan = parse_plan(text + SWEEP * limits.MOST_SWEEPS, "plan.toml", tmp_path)
    assert plan.launches == limits.MOST_LAUNCHES


def test_a_file_as_an_editor_of_another_system_writes_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(b"\xef\xbb\xbf" + SWEEP.replace("\n", "\r\n").encode())
    (tmp_path / "traffic.csv").write_bytes(b"\xef\xbb\xbf0,1\r\n1,0\r\n")
    assert read_plan(tmp_path / "plan.toml").sweep[0].ops == ("all_reduce",)
    assert traffic.read_weights(tmp_path / "traffic.csv") == ((0, 1), (1, 0))


@pytest.mark.parametrize("name", ["large", "/dev/zero"])
def test_a_file_is_read_within_its_limit(name: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"#" * (limits.MOST_TOML_BYTES + 1))
    with pytest.raises(UsageError, match=str(limits.MOST_TOML_BYTES)):
        read_plan(tmp_path / name)


@pytest.mark.parametrize(
    "sizes",
    [
        "8..64MiB*1.0000001",
        "0..9223372036854775807+1",
        ",".join(f"{first}..{first + 9999}+1" for first in range(0, 50_000, 10_000)),
        ",".join(["8"] * (MOST_SIZES + 2)),
    ],
)
def test_more_sizes_than_allowed_are_refused(sizes: str) -> None:
    with pytest.raises(UsageError, match=str(MOST_SIZES)):
        parse_sizes(sizes)


def test_a_factor_that_makes_a_size_infinite_ends_the_range() -> None:
    assert parse_sizes("8..64*1e308") == (8,)


@pytest.mark.parametrize("spec", ["div:010", "mod:" + "9" * 5000, "and:0x" + "f" * 9, "div:٢", "٠,١", "0" * 5000])  # noqa: RUF001 - digits of another script
def test_a_split_with_a_number_that_nobody_means_is_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        split_world(spec, 4)


def test_a_long_list_of_groups_is_read_in_time_that_grows_with_it() -> None:
    ranks = limits.MOST_RANKS
    assert len(split_world(";".join(map(str, range(ranks))), ranks)) == ranks


@pytest.mark.parametrize("text", ["9" * 5000, "1..65536+1", ",".join(["1..1000+1"] * 100), "٢"])
def test_threads_beyond_what_is_allowed_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_threads(text, 4)


@pytest.mark.parametrize("content", ["1," + "9" * 200_000, "1,\0\n1,2"])
def test_a_matrix_that_csv_cannot_read_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "traffic.csv").write_text(content)
    with pytest.raises(UsageError, match=r"traffic\.csv"):
        traffic.read_weights(tmp_path / "traffic.csv")


@pytest.mark.parametrize(
    ("sweep", "ranks"),
    [
        (Sweep(ops=("all_reduce",), sizes="1..9000+1", dtypes=("float32",) * 3), 4),
        (Sweep(ops=("storage_read",), files=FileKeys(blocks=("4KiB",) * 1000, depths=(1,) * 1000)), 4),
        (Sweep(ops=("memory_read",), host=HostKeys(threads="1..1000+1", numa_nodes=tuple(range(1000)))), 4),
        (
            Sweep(
                ops=("train_ddp",),
                training=TrainingKeys(models=("MLP 1024",) * 30, micro_batches=(1,) * 30, slow_ranks=("0=1ms",) * 30),
            ),
            2,
        ),
        (Sweep(ops=("all_reduce",), groups="each"), limits.MOST_RANKS),
        (Sweep(ops=("all_reduce",)), limits.MOST_RANKS + 1),
        (Sweep(ops=("pair_matrix",), sizes="8"), limits.MOST_MATRIX_RANKS + 1),
        (Sweep(ops=("all_to_all_v",), sizes="8"), limits.MOST_MATRIX_RANKS + 1),
    ],
)
def test_a_plan_of_too_many_cases_or_ranks_is_refused_before_more_are_made_than_allowed(
    sweep: Sweep, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()

    def counted(record: type[msgspec.Struct], **fields: object) -> msgspec.Struct:
        made[record.__name__] += 1
        return record(**fields)

    for module, record in ((cases, Case), (training, Workload)):
        monkeypatch.setattr(module, record.__name__, partial(counted, record))
    with pytest.raises(UsageError, match=r"allowed|too large"):
        cases.expand(Plan(sweep=(sweep,)), ranks, 1)
    most = limits.MOST_CASES + 1 if ranks <= limits.MOST_MATRIX_RANKS else 0
    assert all(number <= most for number in made.values()), made


def test_the_most_ranks_in_groups_of_one_are_expanded() -> None:
    plan = Plan(sweep=(Sweep(ops=("all_reduce",), groups="div:1"),))
    expanded = cases.expand(plan, limits.MOST_RANKS, 1).cases
    assert cases.estimated_seconds(plan, expanded, partial(step_seconds, cores=2)) > 0


@pytest.mark.parametrize("nodes", ["9" * 5000, "٣", "1,9999999999"])
def test_nodes_that_are_no_number_here_are_refused(nodes: str) -> None:
    with pytest.raises(UsageError):
        shape_of(nodes, 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--numa-node", "9" * 5000),
        ("--launches", str(limits.MOST_LAUNCHES + 1)),
        ("--max-seconds", "1e308"),
        ("--ranks", "1000000000"),
        ("--ranks", "10000000", "--groups", "div:1"),
        ("--results-dir", "a" * 5000, "--resume", "x"),
    ],
)
def test_options_beyond_a_limit_exit_in_words(options: tuple[str, ...]) -> None:
    op = () if "--resume" in options else ("--op", "memory_read" if "--numa-node" in options else "all_reduce")
    result = CliRunner().invoke(main, ["run", "--dry-run", *op, *options])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in {1, 2}
    assert result.stderr.startswith("busbw: ")


def test_every_limit_in_the_documentation_is_one() -> None:
    section = OPERATIONS.partition("\n## Limits\n")[2].partition("\n## ")[0]
    numbers = {f"{value:,}" for name, value in vars(limits).items() if name.startswith("MOST_")}
    documented = set(re.findall(r"\d[\d,]{3,}", section))
    assert len(documented) > 4
    assert documented <= numbers


def test_the_longest_timeout_is_allowed() -> None:
    assert Timing(timeout_seconds=limits.LONGEST_TIMEOUT_SECONDS).timeout_seconds == limits.LONGEST_TIMEOUT_SECONDS


def test_hostile_plans_end_in_words_soon_and_in_little_room() -> None:
    outcome = fuzz_plans.campaign(seed=1, seconds=60, count=(count := trials(40, 150)))
    assert outcome.failures == ()
    assert outcome.tried == count or outcome.slowest_seconds < fuzz_plans.MOST_SECONDS


def test_more_blocks_than_a_day_has_time_for_are_refused() -> None:
    sweep = (Sweep(ops=("all_reduce",), sizes="4..1000+4"),)
    most = limits.MOST_LAUNCH_BLOCKS // 250
    assert len(cases.expand(Plan(sweep=sweep, timing=Timing(blocks=most)), 2, 1).cases) == 250
    with pytest.raises(UsageError, match=str(limits.MOST_LAUNCH_BLOCKS)):
        cases.expand(Plan(sweep=sweep, timing=Timing(blocks=most + 1)), 2, 1)
