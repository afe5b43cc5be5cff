"""Plans: what is refused and how it is said, what a plan means on a world, and what options do to it."""

import itertools
import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from busbw import units
from busbw.backends.local import LOCAL
from busbw.errors import UsageError
from busbw.ops import OPS, traffic
from busbw.ops.groups import split_world
from busbw.ops.settings import Pairs, PairSettings, TrafficSettings, explicit_algorithm, host_settings
from busbw.runs import cases as planned
from busbw.runs import plan
from busbw.runs.plan import CommunicationKeys, HostKeys, Plan, Sweep, Timing, TrainingKeys, plan_of_json
from busbw.runs.records import DTYPE_BYTES, Case, settings_in_words
from busbw.workloads.shapes import step_seconds

HERE = Path()
COMPUTE = {"matmul", "attention", "attention_unfused"}
GOOD_SWEEP = '[[sweep]]\nops = ["all_reduce"]\nsizes = "8"\n'


def refused(text: str, folder: Path = HERE) -> str:
    with pytest.raises(UsageError) as caught:
        plan.parse_plan(text, "my.toml", folder)
    return str(caught.value)


def cases_of(sweep: Sweep, ranks: int = 4) -> tuple[Case, ...]:
    return planned.expand(Plan(sweep=(sweep,)), ranks, 1).cases


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "names"),
    [
        ("launches = 2\nlanches = 3\n" + GOOD_SWEEP, 2, ["'lanches'", "launches", "sweep", "timing"]),
        ("launches = 'two'\n" + GOOD_SWEEP, 1, ["'launches'", "int", "str"]),
        ("[timing]\nblocks = 1\nblox = 2\n" + GOOD_SWEEP, 3, ["'blox'", "blocks", "max_seconds"]),
        ("[timing]\nblocks = 'many'\n" + GOOD_SWEEP, 2, ["'blocks'", "int", "str"]),
        ("[timing]\nblocks = 1\n\nmax_seconds = inf\n" + GOOD_SWEEP, 4, ["'max_seconds'", "given inf"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nsises = '8'\n", 7, ["'sises'", "sizes", "in_place"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nroot = 'first'\n", 7, ["'root'", "int", "str"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nin_place = 'q'\n", 7, ["'in_place'", "native, yes, no, both"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['pair_matrix']\npairs = 'q'\n", 7, ["'pairs'", "together, alone"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['all_reduse']\n", 6, ["'ops'", "'all_reduse'", "all_reduce?"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nsizes = '1MB'\n", 7, ["'sizes'", "1MiB"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\ndtypes = ['f4']\n", 7, ["'dtypes'", *DTYPE_BYTES]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nredops = []\n", 7, ["'redops'", "sum", "empty"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nimbalance = 2.0\n", 7, ["'imbalance'", "0", "1"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\ntraffic = [[1, 2]]\n", 7, ["'traffic'", "square"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nmodes = ['fast']\n", 7, ["'modes'", "'fast'", "isolated, "]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nmodes = []\n", 7, ["'modes'", "empty", "pipelined"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nmodes = 'isolated'\n", 7, ["'modes'", "array", "str"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\nsync = 'clock'\n", 7, ["'sync'", "'clock'", "none, barrier"]),
        (GOOD_SWEEP + "\n[[sweep]]\nops = ['barrier']\npre_enqueue = 'yes'\n", 7, ["'pre_enqueue'", "bool", "str"]),
        (GOOD_SWEEP + "\n[[sweep]]\nsizes = '8'\n", 5, ["ops"]),
        ("launches = 1\nsweep = 3\n", 2, ["'sweep'", "[[sweep]]"]),
        ("launches = 1\n[sweep]\nops = ['barrier']\n", 2, ["'sweep'", "[[sweep]]"]),
        ("launches = 0\n" + GOOD_SWEEP, 1, ["launches"]),
        ("[timing]\nblocks = 0\n" + GOOD_SWEEP, 2, ["blocks"]),
        ("[timing]\nmin_seconds = 2.0\nmax_seconds = 1.0\n" + GOOD_SWEEP, 1, ["min_seconds", "max_seconds"]),
        ("[timing]\nmin_samples = 10\n" + GOOD_SWEEP, 1, ["least_samples ≤ min_samples"]),
    ],
)
def test_an_error_names_the_file_the_line_the_key_and_what_is_allowed(text: str, line: int, names: list[str]) -> None:
    message = refused(text)
    assert message.startswith(f"my.toml, line {line}: "), message
    for name in names:
        assert name in message, message


def test_what_is_not_toml_is_said_with_its_line() -> None:
    message = refused("launches = \n")
    assert message.startswith("my.toml: not TOML")
    assert "line 1" in message


def test_a_sweep_given_twice_as_a_table_is_told_how_several_are_written() -> None:
    twice = "[sweep]\nops = ['barrier']\n"
    assert "[[sweep]]" in refused(twice + twice)
    assert "[[" not in refused("[timing]\n[timing]\n" + GOOD_SWEEP)


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        plan.read_plan(tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError):
        plan.read_plan(tmp_path / "binary.toml")


@pytest.mark.parametrize("label", ["", " a", "a ", "a\nb", "a\x1b[31m", "a\u2028b", "x" * 61])
def test_a_label_that_would_break_a_list_is_refused(label: str) -> None:
    with pytest.raises(UsageError, match="label"):
        plan.override(Plan(sweep=(Sweep(ops=("barrier",)),)), label=label)


@pytest.mark.parametrize("label", ["before", "OMP 2, again", "vorher: größer", "x" * 60])
def test_a_label_is_kept_with_the_plan(label: str) -> None:
    labelled = plan.override(plan.parse_plan(GOOD_SWEEP, "my.toml", HERE), label=label)
    assert labelled.as_json()["label"] == label
    assert plan.parse_plan(f"label = '{label}'\n{GOOD_SWEEP}", "my.toml", HERE).label == label
    assert plan.parse_plan(GOOD_SWEEP, "my.toml", HERE).label is None


# --- what a plan means -----------------------------------------------------------------------------------------


def test_the_suite_of_memory_goes_from_4_kib_to_several_times_the_caches_of_large_servers() -> None:
    cases = planned.expand(plan.read_suite("memory"), 1, 1, cores=64).cases
    for op, largest in (("stream_triad", 3 << 30), ("memory_copy", 2 << 30)):
        factor = int(OPS[op].memory_traffic or 0)
        sets = sorted({factor * case.size_bytes for case in cases if case.op == op})
        assert (round(sets[0] / 4096, 2), sets[-1]) == (1.0, largest)
        assert all(after / before <= 2 for before, after in itertools.pairwise(sets))
        assert {
            host_settings(case.settings).threads
            for case in cases
            if case.op == op and factor * case.size_bytes == largest
        } == {64}


def estimated(of: Plan, cases: Sequence[Case], cores: int = 2) -> float:
    return planned.estimated_seconds(of, cases, partial(step_seconds, cores=cores))


@pytest.mark.parametrize("name", sorted(plan.suites()))
@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_every_suite_expands_on_every_world(name: str, ranks: int) -> None:
    suite = plan.read_suite(name)
    assert suite.name == name
    cases = planned.expand(suite, ranks, 1).cases
    assert cases
    assert len(set(cases)) == len(cases)
    assert all(case.ranks == ranks for case in cases)
    assert estimated(suite, cases) > 0


@pytest.mark.parametrize(
    ("sweep", "ranks", "took"),
    [
        (Sweep(ops=("train_ddp",)), 2, 13),
        (Sweep(ops=("train_exchange",), training=TrainingKeys(exchanges=("exact",))), 2, 21),
        (Sweep(ops=("train_fsdp",)), 4, 30),
    ],
)
def test_an_estimate_counts_the_steps_beside_the_samples(sweep: Sweep, ranks: int, took: float) -> None:
    """Took: seconds of the launch on 2 idle cores, or a third of what other load made of it."""
    one = Plan(sweep=(sweep,))
    cases = planned.expand(one, ranks, 1).cases
    assert took / 2 < estimated(one, cases) < took * 2
    slept = msgspec.structs.replace(one, sweep=(sweep.with_keys({"compute": "wait=2s"}),))
    # Each of 2 blocks warms up with 5 steps, takes 10 samples and 15 other steps.
    assert estimated(slept, planned.expand(slept, ranks, 1).cases) > 2 * 30 * 2


def test_the_suite_of_training_is_estimated_in_minutes() -> None:
    """It took 469 s on 2 cores with other load."""
    suite = plan.read_suite("training")
    assert 469 / 2 < estimated(suite, planned.expand(suite, 4, 1).cases) < 469 * 2


def test_an_estimate_counts_what_is_done_with_files_besides_the_samples() -> None:
    """Of the suite, 2 ranks on 2 cores took 98 s on a disk of 1.3 GB/s, where budgets and warm-up come to 46 s."""
    suite = msgspec.structs.replace(plan.read_suite("storage"), launches=1)
    seconds = estimated(suite, planned.expand(suite, 2, 1).cases)
    assert 80 < seconds < 130

    def of(op: str, size: str, ranks: int = 2, nodes: int = 1, mode: str = "isolated") -> float:
        one = Plan(sweep=(Sweep(ops=(op,), sizes=size, modes=(mode,)),))
        return estimated(one, planned.expand(one, ranks, nodes).cases)

    assert of("storage_write", "1GiB") > of("storage_write", "1MiB") + 2 * 10  # two blocks with two checks each
    assert of("storage_write", "1GiB", ranks=8) > of("storage_write", "1GiB"), "ranks of a host share its storage"
    assert of("storage_write", "1GiB", ranks=8, nodes=4) == of("storage_write", "1GiB"), "hosts have one each"
    assert of("all_reduce", "1GiB") == of("all_reduce", "1MiB")
    assert of("checkpoint_save", "8MiB", mode="overlap") > of("checkpoint_save", "8MiB") + 1, "computing is balanced"


def test_an_estimate_of_many_ranks_makes_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2^20 ranks there are 10^12."""

    def make(*_: object, **__: object) -> None:
        pytest.fail("pairs were made")

    monkeypatch.setattr("busbw.ops.groups.pair_rounds", make)
    monkeypatch.setattr("busbw.runs.cases.pair_rounds", make, raising=False)

    def of(pairs: Pairs) -> float:
        one = Plan(sweep=(Sweep(ops=("pair_matrix",), sizes="8", communication=CommunicationKeys(pairs=pairs)),))
        return estimated(one, planned.expand(one, 64, 8).cases)

    assert of("alone") > 10 * of("together"), "4032 rounds, and 126"


@given(
    op=st.sampled_from(sorted(name for name, op in OPS.items() if op.sized)),
    ranks=st.integers(1, 17),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    size=st.integers(0, 1 << 20),
    split=st.sampled_from(["all", "div:2", "mod:2", "div:3", "mod:4"]),
)
@hypothesis_settings(deadline=None)
def test_sizes_become_whole_blocks_for_every_group(op: str, ranks: int, dtype: str, size: int, split: str) -> None:
    sweep = Sweep(ops=(op,), sizes=str(size), dtypes=(dtype,), groups=split, host=HostKeys(pinning=("pinned",)))
    expanded = planned.expand(Plan(sweep=(sweep,)), ranks, 1)
    (case,) = expanded.cases
    assert case.size_bytes % DTYPE_BYTES[dtype] == 0
    blocks = [OPS[op].multiple(len(group)) for group in split_world(split, ranks)]
    assert all(case.count % parts == 0 for parts in blocks)
    assert case.count >= max(blocks)
    shape = OPS[op].shape
    assert case.size_bytes <= size or case.count == (math.lcm(*blocks) if shape is None else shape.down(0))
    assert bool(expanded.adjusted) == (case.size_bytes != size)


def test_a_rounded_size_is_said_in_words() -> None:
    expanded = planned.expand(Plan(sweep=(Sweep(ops=("all_gather",), sizes="1KiB,1"),)), 3, 1)
    assert [case.size_bytes for case in expanded.cases] == [12, 1020]


def test_sizes_that_round_to_the_same_are_one_case() -> None:
    assert len(cases_of(Sweep(ops=("all_reduce",), sizes="8,9,10"))) == 1


def test_an_op_gets_only_what_it_has() -> None:
    sweep = Sweep(
        ops=("all_reduce", "broadcast", "barrier", "pair_matrix", "memory_copy"), sizes="8", redops=("sum", "max")
    )
    found = {(case.op, case.dtype, case.redop, case.root, case.settings, case.in_place) for case in cases_of(sweep)}
    assert found == {
        ("all_reduce", "float32", "sum", None, None, True),
        ("all_reduce", "float32", "max", None, None, True),
        ("broadcast", "float32", None, 0, None, True),
        ("barrier", None, None, None, None, False),
        ("pair_matrix", "float32", None, None, PairSettings("together"), False),
        ("memory_copy", "float32", None, None, None, False),
    }


def test_a_copy_with_the_host_is_a_case_for_each_kind_of_memory_and_one_between_gpus_for_each_way_to_play() -> None:
    sweep = Sweep(
        ops=("host_to_device", "peer_copy", "memory_copy"), sizes="8", communication=CommunicationKeys(pairs="alone")
    )
    found = [(case.op, settings_in_words(case)) for case in cases_of(sweep)]
    assert found[:3] == [
        ("host_to_device", ["pinned"]),
        ("host_to_device", ["pageable"]),
        ("peer_copy", ["pairs alone"]),
    ]
    pageable = Sweep(ops=("device_to_host",), sizes="8", host=HostKeys(pinning=("pageable",)))
    assert [host_settings(case.settings).pinning for case in cases_of(pageable)] == ["pageable"]
    with pytest.raises(UsageError, match="key 'pinning': pinning 'locked' is unknown; known: pinned, pageable"):
        Sweep(ops=("device_to_host",), host=HostKeys(pinning=("locked",)))


def test_a_mode_is_a_case_of_its_own_and_the_rest_of_the_timing_goes_with_it() -> None:
    sweep = Sweep(
        ops=("all_reduce", "barrier"),
        sizes="8,16",
        modes=("isolated", "pipelined", "overlap"),
        sync="window",
        cache="rotating",
        pre_enqueue=True,
    )
    found = [(case.op, case.mode, case.size_bytes) for case in cases_of(sweep)]
    sizes = {"all_reduce": (8, 16), "barrier": (0,)}
    assert found == [(op, mode, size) for op in sizes for mode in sweep.modes for size in sizes[op]]
    assert {(case.sync, case.cache, case.pre_enqueue) for case in cases_of(sweep)} == {("window", "rotating", True)}


@pytest.mark.parametrize(
    ("choice", "all_gather", "broadcast"),
    [
        ("native", [False], [True]),
        ("yes", [True], [True]),
        ("no", [False], [False]),
        ("both", [False, True], [True, False]),
    ],
)
def test_a_way_of_buffers_that_was_named_is_always_a_case(
    choice: plan.InPlace, all_gather: list[bool], broadcast: list[bool]
) -> None:
    for op, expected in (("all_gather", all_gather), ("broadcast", broadcast)):
        assert [case.in_place for case in cases_of(Sweep(ops=(op,), sizes="16", in_place=choice))] == expected


def test_sweeps_of_one_imbalance_over_different_groups_keep_their_own_traffic() -> None:
    sweeps = tuple(Sweep(ops=("all_to_all_v",), sizes="1KiB", groups=groups) for groups in ("all", "div:2"))
    expanded = planned.expand(Plan(sweep=sweeps), 4, 1)
    assert [len(planned.shares(case, expanded.weights)) for case in expanded.cases] == [4, 2]


def test_each_is_every_rank_alone_one_after_the_other() -> None:
    cases = cases_of(Sweep(ops=("memory_copy",), sizes="1KiB,1MiB", groups=" each "), ranks=3)
    assert [case.group for case in cases] == ["0", "0", "1", "1", "2", "2"]
    assert all(len(split_world(case.group, 3)) == 1 for case in cases)


@pytest.mark.parametrize("name", ["memory-gpu", "roofline-gpu"])
def test_no_case_of_the_suites_for_gpus_is_refused_by_its_kernel(name: str) -> None:
    cases = planned.expand(plan.read_suite(name), 2, 1, "cuda").cases
    refused = {
        (case.op, case.dtype): reason
        for case in cases
        if OPS[case.op].local and (reason := LOCAL[case.op].refuse(case)) is not None
    }
    # The driver works at pageable copies on the host: both directions cannot be under way together.
    assert {op for op, _ in refused} <= {"host_and_device"}
    assert all("pageable" in reason for reason in refused.values())


def test_the_suites_for_gpus_copy_what_no_earlier_call_left_in_a_cache() -> None:
    """But for the sweep over working sets, which looks for caches, and pairs, whose buffers are on two GPUs."""
    for name in ("memory-gpu", "roofline-gpu"):
        for sweep in plan.read_suite(name).sweep:
            sweeps_caches = (
                not {"stream_triad", "memory_latency"}.isdisjoint(sweep.ops) and len(units.parse_sizes(sweep.sizes)) > 1
            )
            copies = all(OPS[op].local for op in sweep.ops) and not any(op in COMPUTE for op in sweep.ops)
            if copies and not sweeps_caches and not any(op.startswith("peer") for op in sweep.ops):
                assert sweep.cache == "rotating", sweep.ops


def test_traffic_comes_from_a_csv_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "moe.csv").write_text("0,3\n1,0\n", encoding="utf-8")
    text = '[[sweep]]\nops = ["all_to_all_v"]\nsizes = "300"\ndtypes = ["int8"]\ntraffic = "moe.csv"\n'
    expanded = planned.expand(plan.parse_plan(text, "my.toml", tmp_path), 2, 1)
    (case,) = expanded.cases
    assert case.settings == TrafficSettings(traffic=traffic.fingerprint(((0.0, 3.0), (1.0, 0.0))))
    assert planned.shares(case, expanded.weights) == ((0, 300), (100, 0))


def test_traffic_for_another_number_of_ranks_is_refused() -> None:
    sweep = Sweep(ops=("all_to_all_v",), communication=CommunicationKeys(traffic=((1.0, 2.0), (3.0, 4.0))))
    with pytest.raises(UsageError, match=r"2 ranks.*4"):
        cases_of(sweep)


def test_an_even_case_has_no_traffic() -> None:
    (case,) = cases_of(Sweep(ops=("all_reduce",), sizes="8"))
    assert planned.shares(case, {}) == ()


# --- options on top of a plan ----------------------------------------------------------------------------------

BASE = Plan(
    name="base",
    timing=Timing(min_seconds=0.1, max_seconds=0.5),
    sweep=(Sweep(ops=("all_reduce", "barrier"), sizes="8"), Sweep(ops=("barrier", "all_gather"), sizes="1KiB")),
)


def test_nothing_given_changes_nothing() -> None:
    assert plan.override(BASE, ops=(), sizes=None, ranks=None, max_seconds=None) == BASE


def test_ops_select_among_the_sweeps() -> None:
    narrowed = plan.override(BASE, ops=("all_gather", "barrier"))
    assert [sweep.ops for sweep in narrowed.sweep] == [("barrier",), ("barrier", "all_gather")]
    assert [sweep.ops for sweep in plan.override(BASE, ops=("all_gather",)).sweep] == [("all_gather",)]


def test_an_op_that_the_plan_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(UsageError, match="base"):
        plan.override(BASE, ops=("reduce",))
    with pytest.raises(UsageError, match="unknown"):
        plan.override(BASE, ops=("redcue",))


def test_settings_reach_the_plan_the_timing_and_every_sweep() -> None:
    changed = plan.override(BASE, ranks=3, seed=7, launches=2, precision=0.01, sizes="64", dtypes=("int8",))
    assert (changed.ranks, changed.seed, changed.launches, changed.timing.precision) == (3, 7, 2, 0.01)
    assert {sweep.sizes for sweep in changed.sweep} == {"64"}
    assert {sweep.dtypes for sweep in changed.sweep} == {("int8",)}


def test_a_small_budget_lowers_the_minimum_too() -> None:
    timing = plan.override(BASE, max_seconds=0.02).timing
    assert (timing.min_seconds, timing.max_seconds) == (0.02, 0.02)
    assert plan.override(BASE, max_seconds=2.0).timing.min_seconds == 0.1


@pytest.mark.parametrize(
    ("keys", "least"), [("max_seconds = 0.05", 0.05), ("max_seconds = 0", 0.0), ("max_seconds = 2.0", 0.1)]
)
def test_a_small_budget_of_a_plan_lowers_the_minimum_unless_it_is_given(keys: str, least: float) -> None:
    assert plan.parse_plan(f"[timing]\n{keys}\n{GOOD_SWEEP}", "my.toml", HERE).timing.min_seconds == least
    assert "min_seconds" in refused(f"[timing]\nmin_seconds = 0.1\nmax_seconds = 0.05\n{GOOD_SWEEP}")


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("modes", ("fast",), "isolated, barriers, pipelined, persistent, graph, overlap"),
        ("sync", "clock", "none, barrier, dissemination, window"),
        ("cache", "cold", "warm, rotating, flushed"),
        ("precision", 0.0, "precision"),
        ("max_seconds", float("nan"), "max_seconds"),
        ("timeout_seconds", float("inf"), "timeout_seconds"),
    ],
)
def test_an_option_is_checked_as_a_plan_is(setting: str, value: object, allowed: str) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(UsageError, match=allowed):
        plan.override(BASE, **settings)


@pytest.mark.parametrize(
    ("ops", "setting", "value", "named"),
    [
        (("all_reduce",), "threads", "1,4", "it applies to memory_copy, stream_copy, "),
        (("all_reduce",), "path", "/scratch", "it applies to storage_write, storage_read, checkpoint_save"),
        (("pair_matrix",), "algorithms", ("all",), "it applies to all_reduce, "),
        (("barrier",), "in_place", "yes", "it applies to all but barrier"),
        (("matmul",), "in_place", "both", "it applies to all_reduce, all_gather, "),
        (("barrier",), "sizes", "8", "it applies to all but barrier"),
        (("barrier",), "dtypes", ("int8",), "it applies to all but barrier"),
        (("all_gather",), "redops", ("max",), "it applies to all_reduce, "),
        (("all_gather",), "root", 1, "it applies to broadcast, "),
        (("all_to_all",), "imbalance", 0.9, "it applies to all_to_all_v"),
        (("all_to_all",), "traffic", ((0.0, 1.0), (1.0, 0.0)), "it applies to all_to_all_v"),
        (("ping_pong", "all_reduce"), "pairs", "alone", "it applies to pair_matrix, "),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(
    ops: tuple[str, ...], setting: str, value: object, named: str
) -> None:
    settings: dict[str, Any] = {setting: value}
    here = Plan(sweep=(Sweep(ops=ops),))
    with pytest.raises(UsageError) as caught:
        plan.override(here, **settings)
    assert str(caught.value).startswith(f"key {setting!r}: has no effect on ")
    assert all(op in str(caught.value) for op in ops)
    assert named in str(caught.value)
    taker = named.removeprefix("it applies to ").partition(",")[0].replace("all but barrier", "all_reduce")
    with_a_taker = Plan(sweep=(Sweep(ops=ops), Sweep(ops=(taker,))))
    assert plan.override(with_a_taker, **settings) != with_a_taker
    with pytest.raises(UsageError):
        plan.override(with_a_taker, ops=ops, **settings)


def test_a_setting_that_is_as_it_would_be_anyway_is_no_mistake() -> None:
    here = Plan(sweep=(Sweep(ops=("barrier",)),))
    assert plan.override(here, in_place="native", algorithms=("library",), root=0, pairs="together") == here


def test_a_plan_is_stored_as_plain_values() -> None:
    stored = BASE.as_json()
    assert stored["name"] == "base"
    assert plan_of_json(stored) == BASE
    assert stored["sweep"][0].keys() == plan.SWEEP_KEYS.keys()


def test_a_family_of_keys_is_no_key_of_a_plan_file() -> None:
    with pytest.raises(UsageError, match="host"):
        plan.parse_plan('[[sweep]]\nops = ["stream_copy"]\nhost = {threads = "1"}\n', "a plan", Path())


@pytest.mark.parametrize("value", ["3", "{}", "{imbalance = 0.3}"])
@pytest.mark.parametrize("family", ["communication", "files", "host", "training"])
def test_the_table_of_a_family_is_not_given_from_outside(family: str, value: str) -> None:
    name = f"keys of {family}"
    text = refused(f'[[sweep]]\nops = ["all_to_all_v"]\n"{name}" = {value}\n')
    assert text.startswith(f"my.toml, line 3: unknown key {name!r}")
    stored = BASE.as_json()
    stored["sweep"][0][name] = {}
    with pytest.raises(msgspec.ValidationError, match=name):
        plan_of_json(stored)


def test_sizes_leave_the_roof_of_a_plan_alone_unless_it_is_all_there_is() -> None:
    suite = plan.read_suite("quick")
    narrowed = plan.override(suite, sizes="4KiB")
    assert {sweep.sizes for sweep in narrowed.sweep} == {"4KiB", "4MiB,64MiB", "4MiB,16MiB", "1MiB,64MiB"}
    assert [sweep.sizes for sweep in plan.override(suite, ops=["memory_copy"], sizes="4KiB").sweep] == ["4KiB"]


# --- threads ---------------------------------------------------------------------------------------------------


def test_threads_are_for_kernels_in_memory_and_of_nothing_else() -> None:
    sweep = Sweep(
        ops=("stream_triad", "memory_copy", "all_reduce"), sizes="1KiB", host=HostKeys(threads="1..cores*2,cores")
    )
    found = planned.expand(Plan(sweep=(sweep,)), 2, 1, cores=6).cases
    over = [1, 2, 4, 6]
    assert [host_settings(one.settings).threads for one in found if one.op == "stream_triad"] == over
    assert [host_settings(one.settings).threads for one in found if one.op == "memory_copy"] == over
    assert [host_settings(one.settings).threads for one in found if one.op == "all_reduce"] == [None]


@pytest.mark.parametrize(
    ("threads", "said"),
    [
        ("0", "use 1 to 65536"),
        ("99999", "use 1 to 65536"),
        ("1KiB", "is not a number; allowed: 1, cores, 1..cores*2"),
        ("", "is not a number"),
        ("1..cores", "is not a number"),
        ("1..8*1", "have a factor above 1"),
        ("1..8+0", "the step must be above 0"),
        ("8..2*2", "8 is larger than 2; write it ascending"),
    ],
)
def test_threads_that_are_none_are_refused_with_the_key(threads: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        Sweep(ops=("stream_triad",), host=HostKeys(threads=threads))
    assert str(caught.value).startswith("key 'threads': ")


def test_a_range_without_a_number_on_a_small_host_says_so() -> None:
    sweep = Sweep(ops=("stream_triad",), host=HostKeys(threads="2..cores*2"))
    with pytest.raises(UsageError, match=r"'2..cores\*2' gives no number, because a rank has 1 core"):
        planned.expand(Plan(sweep=(sweep,)), 2, 1, cores=1)


class TestAlgorithms:
    """Those by hand: known by name, and of an op of the plan."""

    def test_a_stranger_is_refused_with_those_that_there_are(self) -> None:
        with pytest.raises(UsageError, match="algorithm 'nonsense' is unknown; known: library, all, ring, "):
            Plan(sweep=(Sweep(ops=("all_reduce",), communication=CommunicationKeys(algorithms=("nonsense",))),))

    def test_one_that_no_op_of_the_plan_has_is_refused(self) -> None:
        with pytest.raises(UsageError, match="ring is not an algorithm of ping_pong, gather"):
            Plan(
                sweep=(
                    Sweep(ops=("ping_pong", "gather"), communication=CommunicationKeys(algorithms=("library", "ring"))),
                )
            )

    def test_ops_that_know_of_none_are_measured_as_ever(self) -> None:
        wanted = plan.override(plan.read_suite("quick"), algorithms=("ring",))
        found = {(case.op, explicit_algorithm(case.settings)) for case in planned.expand(wanted, 4, 1).cases}
        assert ("all_reduce", "ring") in found
        assert ("all_reduce", None) not in found
        assert ("ping_pong", None) in found
        assert ("memory_copy", None) in found
