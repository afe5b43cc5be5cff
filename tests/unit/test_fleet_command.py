"""``busbw fleet`` on stored runs and logs, the controller that asks for their rounds, and lists of hosts."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, cycle, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace as replace_struct
from testing.fleets import scatter
from testing.logs import LOGS
from testing.synthetic import Machine, case, planned, synthetic_run, write_synthetic

from busbw.cli.main import main as busbw
from busbw.errors import Interrupted, UsageError
from busbw.launch.run_session import refuse_impossible
from busbw.ops import OPS
from busbw.ops.groups import ASKED
from busbw.runs.facts import GpuFacts, HostFacts, NodeFacts, PciFacts
from busbw.runs.plan import read_suite
from busbw.runs.records import (
    QUANTILES,
    Case,
    Check,
    CounterDelta,
    Ended,
    Failed,
    GpuConditions,
    GroupSamples,
    HostConditions,
    Measurement,
    RankSamples,
    Row,
    Skipped,
)
from busbw.runs.store import RUN_FILE, StoredRun, folders
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import read_all
from busbw_analysis.diagnosis.causes import _fewer_ranks
from busbw_analysis.fleet.controller import FleetController, fleet_of, hosts_named, missing_devices
from busbw_analysis.fleet.cost import cost_of
from busbw_analysis.fleet.topology import compressed, expand, read_topology
from busbw_analysis.fleet.verdicts import Device
from busbw_analysis.training.layout import Layout, Step
from busbw_analysis.training.machine import machine_of

HOSTS = tuple(f"n{number:02}" for number in range(8))
ALONE = case("memory_copy", 1 << 20, 16, group=ASKED, nodes=8)
PAIR = case("pair_uni", 1 << 22, 16, group=ASKED, nodes=8)
SIGNATURE = case("signature", 1 << 20, 8, group=ASKED, nodes=8)
GPU = case("host_to_device", 1 << 20, 16, group=ASKED, nodes=8)
TWICE = 2.0
FLEET = ("controller", "sweep")


def block(
    of: Case, number: int, times: Mapping[tuple[int, ...], float], conditions: tuple[HostConditions, ...] = ()
) -> Measurement:
    """A row with the time of a call, in seconds, of each group."""
    groups = []
    for ranks, seconds in times.items():
        samples = (round(1e9 * seconds),) * 5
        per_rank = tuple(
            RankSamples(rank=rank, quantiles_ns=(samples[0],) * len(QUANTILES), samples_ns=samples) for rank in ranks
        )
        groups.append(
            GroupSamples(
                ranks=ranks,
                bus_factor=OPS[of.op].factor(len(ranks)),
                wire_bytes=float(OPS[of.op].wire_bytes(len(ranks), of.size_bytes)),
                slowest_ns=samples,
                fastest_ns=samples,
                fastest_rank=(ranks[0],) * 5,
                arrival_skew_ns=None,
                exit_span_ns=None,
                per_rank=per_rank,
            )
        )
    return Measurement(
        case=of,
        launch=0,
        block=number,
        calls=OPS[of.op].trips,
        first_call_ns=1,
        warmup_calls=0,
        stop_reason="sample_limit",
        check=Check(state="verified"),
        started="2026-01-02T03:04:05.000Z",
        elapsed_ns=1,
        groups=tuple(groups),
        conditions=conditions,
    )


def fleet_run(
    slow: Mapping[str, float],
    seed: int = 1,
    conditions: tuple[HostConditions, ...] = (),
    later: tuple[HostConditions, ...] | None = None,
    dead: frozenset[str] = frozenset(),
) -> tuple[StoredRun, FleetController]:
    """A run of two ranks on each host, of which some are slow in all of their pairs, and its controller.

    conditions: in the first round, and in every later one, unless ``later`` differ
    dead: two hosts, rounds of whose pair fail
    """
    template = synthetic_run([ALONE, GPU, PAIR], machine=Machine(hosts=HOSTS), launches=1, samples=5)
    run, launch = template.run, template.rows[0]
    controller = FleetController()
    controller.begin(run.cases, run.hosts, run.environments)
    generator = np.random.default_rng(seed)
    errors = scatter(0.3)
    rows: list[Row] = [launch, Skipped(case=GPU, reason="no GPU")]
    ask = controller.next(None)
    while ask is not None:
        of = run.cases[ask.case]
        if of == GPU:
            ask = controller.next(Skipped(case=of, reason="no GPU"))
            continue
        times = {}
        for ranks in ask.groups:
            factor = math.prod(slow.get(run.hosts[rank], 1.0) for rank in ranks) if of == PAIR else 1.0
            times[ranks] = 0.01 * factor * math.exp(generator.choice(errors))
        if dead and any({run.hosts[rank] for rank in ranks} == dead for ranks in ask.groups):
            failed = Failed(case=of, launch=0, block=len(rows), error="gone", cause="backend", ranks=())
            rows.append(failed)
            ask = controller.next(failed)
            continue
        rows.append(block(of, len(rows), times, conditions))
        conditions = conditions if later is None else later
        ask = controller.next(rows[-1])  # type: ignore[arg-type]
    rows.append(Ended(status="complete", reason=None, ended="2026-01-02T03:05:05.000Z"))
    return replace(template, rows=tuple(rows)), controller


def invoke(*words: str) -> Result:
    return CliRunner().invoke(busbw, ["fleet", *words], catch_exceptions=False)


def test_a_stored_run_is_judged_as_its_controller_did(tmp_path: Path) -> None:
    stored, controller = fleet_run({"n03": TWICE})
    folder = write_synthetic(tmp_path, stored)
    result = invoke(str(folder), "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["healthy"], document["exclude"]) == (1, False, "n03")
    (verdict,) = document["verdicts"]
    assert (verdict["kind"], verdict["nodes"], verdict["way"]) == ("node", ["n03"], "both")
    (own,) = controller.judgement.verdicts
    assert own.probability == pytest.approx(verdict["probability"])
    assert own.error == pytest.approx(verdict["error"])
    assert own.ratio == pytest.approx(verdict["evidence"][0]["ratio"])
    assert document["rounds"] == len(controller.judgement.rounds)
    assert document["drain"][0].startswith("scontrol update NodeName=n03 State=DRAIN Reason=")


def without(rows: Sequence[Row], of: Case, place: int) -> Iterable[Row]:
    """``rows`` without the row at ``place`` among those of a case."""
    own = [row for row in rows if isinstance(row, Measurement) and row.case == of]
    return (row for row in rows if row is not own[place])


@pytest.mark.parametrize(
    "changed",
    [
        lambda rows: without(rows, ALONE, 1),
        lambda rows: [*rows[:4], *rows[2:]],
        lambda rows: without(rows, PAIR, 3),
        lambda rows: [row for row in rows if not (isinstance(row, Measurement) and row.case == ALONE)],
    ],
    ids=["a round alone less", "two more", "a round of pairs less", "none alone"],
)
@pytest.mark.parametrize("slow", [{"n03": TWICE}, {}], ids=["slow", "healthy"])
def test_rounds_that_would_not_be_asked_for_today_are_judged_as_rounds(
    slow: dict[str, float], changed: Callable[[Sequence[Row]], Iterable[Row]], tmp_path: Path
) -> None:
    stored, _ = fleet_run(slow)
    rows = [
        replace_struct(row, block=number) if isinstance(row, Measurement) else row
        for number, row in enumerate(changed(stored.rows))
    ]
    folder = write_synthetic(tmp_path, replace(stored, rows=tuple(rows)))
    result = invoke(str(folder), "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exclude"]) == (len(slow), ",".join(slow))
    assert document["rounds"] >= sum(isinstance(row, Measurement) for row in rows), "and those without a GPU"


@pytest.mark.parametrize("within", ["2%", "5%", "15%", "30%"])
def test_a_pair_that_failed_is_named_whatever_counts_as_equal(within: str, tmp_path: Path) -> None:
    """Rounds are replayed as they were measured: others would pin the failure on other pairs, or lose it."""
    folder = write_synthetic(tmp_path, fleet_run({}, dead=frozenset({"n02", "n05"}))[0])
    document = json.loads(invoke(str(folder), "--json", "--within", within).stdout)
    assert [(verdict["kind"], verdict["nodes"]) for verdict in document["verdicts"]] == [("failed", ["n02", "n05"])]


def test_a_healthy_run_passes_and_each_node_has_a_line(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({})[0])
    result = invoke(str(folder), "--json-lines")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [(row["node"], row["healthy"], row["exit_code"]) for row in rows] == [(host, True, 0) for host in HOSTS]


def test_the_latest_fleet_is_judged_not_the_latest_run(tmp_path: Path) -> None:
    others = [fleet_run({})[0], synthetic_run([case("all_reduce", 1 << 10, 8)], launches=1, samples=5)]
    write_synthetic(tmp_path, others[0])
    asked = ("latest", "--json", "--results-dir", str(tmp_path))
    assert invoke(*asked).exit_code == 2, "no run has the controller"
    stored, _ = fleet_run({"n03": TWICE})
    stored = replace(stored, run=planned(stored.run, **{key: getattr(read_suite("fleet"), key) for key in FLEET}))
    write_synthetic(tmp_path, stored)
    write_synthetic(tmp_path, others[1])
    assert json.loads(invoke(*asked).stdout)["exclude"] == "n03"
    *_, newest = folders(tmp_path)
    (newest / RUN_FILE).write_text("{")
    damaged = invoke(*asked)
    assert (damaged.exit_code, newest.name in damaged.stderr) == (2, True), "it may have been a fleet"


def test_a_report_of_a_fleet_is_written(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({"n03": TWICE})[0])
    result = CliRunner().invoke(busbw, ["report", str(folder)], catch_exceptions=False)
    document = json.loads((folder / "report.json").read_text())["fleet"]
    assert (result.exit_code, document["exclude"]) == (0, "n03")
    assert "not-reached" not in (folder / "report.json").read_text()
    shown = CliRunner().invoke(busbw, ["show", str(folder)], catch_exceptions=False).stdout
    assert document["message"].split(";")[0] in " ".join(shown.replace("#", "").split())
    assert len(shown.splitlines()) < 40


def state(host: str, foreign: float = 0.0, reasons: tuple[str, ...] = ()) -> HostConditions:
    gpus = tuple(GpuConditions(index=gpu, mhz_before=1, mhz_after=1, throttled=reasons) for gpu in range(2))
    return HostConditions(
        host=host,
        load_before=0,
        load_after=0,
        busy_share=foreign,
        foreign_share=foreign,
        steal_share=0,
        switches=(0, 0),
        gpus=gpus,
    )


def test_a_throttled_gpu_is_named_as_the_reason_of_its_node() -> None:
    conditions = tuple(state(host, reasons=("thermal",) if host == "n03" else ()) for host in HOSTS)
    (verdict,) = fleet_run({"n03": TWICE}, conditions=conditions)[1].judgement.accused
    assert (verdict.nodes, verdict.throttled) == ((3,), ("thermal",))


def test_a_host_whose_cpus_others_take_is_not_accused_but_undecided() -> None:
    conditions = tuple(state(host, 0.5 if host == "n03" else 0.0) for host in HOSTS)
    judgement = fleet_run({"n03": TWICE}, conditions=conditions)[1].judgement
    assert (judgement.accused, judgement.code) == ((), 3)
    assert [(verdict.nodes, verdict.busy) for verdict in judgement.verdicts] == [((3,), True)]


def test_shares_of_cpus_in_different_rounds_are_not_compared() -> None:
    first = tuple(state(host, 0.3) for host in HOSTS)
    # Most rounds are too short to know the share; with its slow partner, this host's block is just long enough.
    unknown = {"foreign_share": None, "steal_share": None}
    later = tuple(state(host, 0.5) if host == "n03" else replace_struct(state(host), **unknown) for host in HOSTS)
    (verdict,) = fleet_run({"n03": TWICE}, conditions=first, later=later)[1].judgement.verdicts
    assert (verdict.kind, verdict.nodes) == ("node", (3,))


def test_a_healthy_fleet_says_from_where_on_a_fault_is_found(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({})[0])
    document = json.loads(invoke(str(folder), "--json").stdout)
    assert [(found["kind"], found["case"]["op"]) for found in document["found"]] == [
        ("alone", ALONE.op),
        ("node", PAIR.op),
        ("link", PAIR.op),
    ]
    assert all(1 < found["ratio"] < 1.5 for found in document["found"])
    shown = " ".join(invoke(str(folder)).stdout.split())
    assert all(f"{found['ratio']:.2f}× the usual" in shown for found in document["found"])


def test_a_host_that_sends_packets_again_loses_messages_though_no_sample_is_late() -> None:
    again = CounterDelta(name="RetransSegs", device="tcp", port=None, delta=5)
    conditions = tuple(replace_struct(state(host), counters=(again,) * (host == "n03")) for host in HOSTS)
    (verdict,) = fleet_run({}, conditions=conditions)[1].judgement.accused
    assert (verdict.kind, verdict.nodes) == ("node", (3,))
    assert verdict.evidence[0].late == verdict.evidence[0].rounds > 0


def test_a_controller_asks_the_first_rank_of_a_host_for_pairs_and_all_for_the_rest() -> None:
    controller = FleetController()
    hosts = [host for host in HOSTS for _ in range(2)]
    controller.begin([ALONE, PAIR, case("all_reduce", 1 << 20, 16, group=ASKED, nodes=8)], hosts, {})
    assert controller.search.fleet.alone == (0, 2)
    ask = controller.next(None)
    assert ask is not None
    assert (ask.case, ask.groups) == (0, tuple((rank,) for rank in range(16)))
    controller.next(block(ALONE, 0, {(rank,): 0.01 for rank in range(16)}))
    collective = controller.asked
    assert collective is not None
    assert (collective.case, collective.groups) == (2, tuple((rank, rank + 1) for rank in range(0, 16, 2)))


def test_a_node_that_computes_other_results_is_named_and_left_out() -> None:
    controller = FleetController()
    controller.begin([SIGNATURE, PAIR], HOSTS, {})
    ask = controller.next(None)
    for number in range(200):
        if ask is None:
            break
        of = (SIGNATURE, PAIR)[ask.case]
        wrong = tuple(rank for group in ask.groups for rank in group if of == SIGNATURE and rank == 3)
        failed = Failed(case=of, launch=0, block=number, error="wrong", cause="wrong_data", ranks=wrong)
        measured = block(of, number, dict.fromkeys(ask.groups, 0.01))
        ask = controller.next(failed if wrong else measured)
    (verdict,) = controller.judgement.verdicts
    assert (verdict.kind, verdict.nodes, verdict.case) == ("wrong", (3,), 0)
    asked = controller.search.rounds
    assert [3 in each.sender for each in asked[:2]] == [True, False]  # all others are measured again, without it
    assert not any(3 in side for each in asked[1:] for side in (each.sender, each.receiver))


@pytest.mark.parametrize("case_", [ALONE, PAIR])
def test_a_node_alone_is_as_slow_as_its_fastest_sample_and_a_pair_as_its_median(case_: Case) -> None:
    controller = FleetController()
    controller.begin([case_], HOSTS, {})
    ask = controller.next(None)
    assert ask is not None
    row = block(case_, 0, dict.fromkeys(ask.groups, 0.01))
    samples = tuple(round(1e9 * seconds) for seconds in (0.05, 0.04, 0.02, 0.03, 0.06))
    controller.next(replace_struct(row, groups=tuple(replace_struct(each, slowest_ns=samples) for each in row.groups)))
    seconds = controller.search.rounds[0].seconds * row.calls
    assert seconds == pytest.approx(np.full(len(ask.groups), 0.02 if case_ == ALONE else 0.04))


def test_ranks_of_a_single_host_are_the_nodes() -> None:
    controller = FleetController()
    controller.begin([ALONE, PAIR], ["here"] * 4, {})
    assert controller.search.fleet.names == tuple(f"rank {rank}" for rank in range(4))


def test_a_node_with_fewer_gpus_than_the_others_is_named() -> None:
    def host(gpus: int) -> HostFacts:
        return HostFacts(pci=PciFacts(gpus=tuple(GpuFacts(address=str(number)) for number in range(gpus))))

    facts = {name: host(7 if name == "n05" else 8) for name in HOSTS}
    controller = FleetController()
    controller.begin([PAIR], HOSTS, facts)
    (verdict,) = controller.judgement.verdicts
    assert (verdict.kind, verdict.nodes, verdict.device) == ("device", (5,), Device("GPUs", 7, 8))
    assert not missing_devices(HOSTS[:2], {"n00": host(7), "n01": host(8)})


def test_switches_come_from_slurm_or_from_a_file(tmp_path: Path) -> None:
    facts = {
        host: HostFacts(node=NodeFacts(name=host, switches=("top", f"leaf{number // 4}")))
        for number, host in enumerate(HOSTS)
    }
    fleet = fleet_of(HOSTS, (), facts)
    assert (fleet.switches, fleet.leaf.tolist()) == (("leaf0", "leaf1"), [0] * 4 + [1] * 4)
    file = tmp_path / "topology.conf"
    file.write_text(
        "# two\nSwitchName=a Nodes=n[00-01]\nSwitchName=b Nodes=n[02-07] LinkSpeed=1\nSwitchName=t Switches=[a-b]"
    )
    with pytest.raises(UsageError):
        read_topology(file)
    file.write_text("SwitchName=s1 Nodes=n[00-01]\nSwitchName=s2 Nodes=n[02-07]\nSwitchName=t Switches=s[1-2]\n")
    paths = read_topology(file)
    assert (paths["n01"], paths["n07"]) == (("t", "s1"), ("t", "s2"))
    assert fleet_of(HOSTS, (), facts, paths).leaf.tolist() == [0] * 2 + [1] * 6
    file.write_text("n[00-03] s1\nn[04-07] s2\n")
    assert read_topology(file)["n04"] == ("s2",)


@pytest.mark.parametrize("text", ["SwitchName=s1 Nodes=n[3-1]", "Nodes=n1", "a b c", "n1 \xff", ""])
def test_a_topology_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "topology.conf"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError):
        read_topology(file)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("n1", "n2", "n3", "n7"), "n[1-3,7]"),
        (("n01", "n02", "m5"), "m5,n[01-02]"),
        (("n9", "n10"), "n[9-10]"),
        (("login", "n09", "n10"), "n[09-10],login"),
    ],
)
def test_host_lists_are_compressed_and_expanded(names: tuple[str, ...], text: str) -> None:
    assert compressed(names) == text
    assert sorted(expand(compressed(names))) == sorted(names)


def test_a_list_of_hosts_may_have_several_brackets() -> None:
    assert expand("r[1-2]n[08-09],x") == ("r1n08", "r1n09", "r2n08", "r2n09", "x")


@pytest.mark.parametrize(
    ("name", "hosts"), [("logs/n1_n2.txt", ("n1", "n2")), ("a-1--b-2.log", ("a-1", "b-2")), ("all.log", ())]
)
def test_names_of_logs_name_their_hosts(name: str, hosts: tuple[str, ...]) -> None:
    assert hosts_named([name]) == [hosts]


@pytest.mark.parametrize("name", ["{}_{}.log", "ib_{}-{}.log", "ib_write_bw_{}_{}.txt", "{}-{}.log", "bw-{}--{}.log"])
def test_names_of_many_logs_are_read_so_that_they_name_few_hosts(name: str) -> None:
    pairs = list(combinations(["gpu01", "gpu02", "gpu11", "gpu12"], 2))
    assert hosts_named([name.format(*pair) for pair in pairs]) == pairs


def test_names_of_many_logs_with_a_dash_in_each_host_are_not_cut() -> None:
    pairs = list(combinations(["gpu-a01", "gpu-a02", "gpu-b01"], 2))
    assert hosts_named([f"{first}_{second}.log" for first, second in pairs]) == pairs
    assert hosts_named(["gpu-1.log", "gpu-2.log", "gpu-3.log"]) == [(), (), ()]


def pair_logs(folder: Path, slow: str, repeats: int = 1) -> list[str]:
    """A log of OSU's bandwidth test for each pair of hosts; those of one host are slow."""
    generator = np.random.default_rng(2)
    paths = []
    for again in range(repeats):
        for place, first in enumerate(HOSTS):
            for second in HOSTS[place + 1 :]:
                rate = 10_000 * math.exp(generator.normal(0, 0.02)) / (TWICE if slow in {first, second} else 1)
                path = folder / f"{first}_{second}.{again}.txt"
                path.write_text(f"# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n4194304   {rate:.2f}\n")
                paths.append(str(path))
    return paths


@pytest.mark.parametrize("repeats", [1, 3])
def test_logs_of_pairs_name_the_slow_node(tmp_path: Path, repeats: int) -> None:
    result = invoke(*pair_logs(tmp_path, "n03", repeats), "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exclude"]) == (1, "n03")
    assert document["verdicts"][0]["kind"] == "node"


def test_a_log_of_a_training_beside_logs_of_pairs_is_left_out(tmp_path: Path) -> None:
    pair_logs(tmp_path, "n03")
    steps = (f" iteration {step:8}/ 100 | elapsed time per iteration (ms): 1000.{step} |\n" for step in range(1, 9))
    (tmp_path / "megatron.log").write_text("".join(steps))
    document = json.loads(invoke(str(tmp_path), "--json").stdout)
    assert (document["exit_code"], document["exclude"]) == (1, "n03")


@pytest.mark.parametrize("slow", ["n00", "n05"])
@pytest.mark.parametrize("rounds", [3, 4])
def test_a_slow_node_is_named_whatever_order_the_pairs_were_scheduled_in(
    tmp_path: Path, slow: str, rounds: int
) -> None:
    """By the circle method, all partners of a node have even numbers in its first rounds, or all odd ones."""
    hosts = [f"n{number:02}" for number in range(16)]
    turns = [[hosts[0], *hosts[turn + 1 :], *hosts[1 : turn + 1]] for turn in range(rounds)]
    pairs = [(turn[place], turn[15 - place]) for turn in turns for place in range(8)]
    document = json.loads(invoke(*rate_logs(tmp_path, pairs, slow, TWICE), "--json").stdout)
    assert (document["exit_code"], [verdict["nodes"] for verdict in document["verdicts"]]) == (1, [[slow]])


def test_of_a_slow_pair_of_nodes_that_met_no_others_each_meets_a_good_one_next(tmp_path: Path) -> None:
    pairs = zip(HOSTS[::2], HOSTS[1::2], strict=True)
    (verdict,) = json.loads(invoke(*rate_logs(tmp_path, pairs, "n02", TWICE), "--json").stdout)["verdicts"]
    assert verdict["nodes"] == ["n02", "n03"]
    assert verdict["next_pairs"] == [["n02", "n04"], ["n03", "n04"]]


def host_logs(folder: Path, gpus: Mapping[str, str], slow: Mapping[str, float]) -> list[str]:
    """Three logs of nccl-tests for each host alone, with its kind of GPU."""
    generator = np.random.default_rng(4)
    paths = []
    for host, gpu in gpus.items():
        for again in range(3):
            places = "".join(
                f"#  Rank {rank} Group 0 Pid 1 on {host} device {rank} [0x0{rank}] {gpu}\n" for rank in (0, 1)
            )
            time = 3000 * slow.get(host, 1.0) * math.exp(generator.normal(0, 0.01))
            rate = (1 << 30) / time / 1e3
            cells = f"{time:.1f} {rate:.2f} {rate:.2f} 0"
            path = folder / f"{host}.{again}.log"
            path.write_text(
                f"{places}# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
                f"# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)\n"
                f"1073741824 268435456 float sum -1 {cells} {cells}\n"
            )
            paths.append(str(path))
    return paths


@pytest.mark.parametrize(("gpu", "code"), [("NVIDIA H100 80GB HBM3", 1), ("NVIDIA A100-SXM4-80GB", 0)])
def test_logs_of_hosts_alone_name_the_slow_one_of_those_with_like_gpus(tmp_path: Path, gpu: str, code: int) -> None:
    gpus = dict.fromkeys(HOSTS, "NVIDIA H100 80GB HBM3") | {"n02": gpu}
    document = json.loads(invoke(*host_logs(tmp_path, gpus, {"n02": TWICE}), "--json").stdout)
    assert (document["exit_code"], document["exclude"]) == (code, "n02" * code)
    assert sorted(document["nodes"]) == sorted(HOSTS)


def test_the_map_is_of_the_case_that_has_all_pairs() -> None:
    """It was of ping_pong at 16 MiB, of which a run of the suite quick measures one pair."""
    (folder,) = folders(LOGS.parents[2] / "results/samples")
    shown = invoke(str(folder)).stdout
    assert sum(shown.partition("not measured")[2].count(shade) for shade in ("··", "░░", "▒▒", "▓▓", "██")) == 12


def test_the_map_of_logs_is_of_their_largest_messages(tmp_path: Path) -> None:
    """It was of the smallest, in which the node that the verdict names was as fast as the others."""
    paths = pair_logs(tmp_path, "n03")
    for path in map(Path, paths):
        path.write_text(path.read_text().replace("4194304", "8         4.0\n4194304"))
    assert "at 4 MiB from row to column" in invoke(*paths).stdout


def rate_logs(folder: Path, pairs: Iterable[tuple[str, str]], slow: str, factor: float) -> list[str]:
    """A log of OSU's bandwidth test for each of ``pairs``, at one of a few rates; those of a host are slower."""
    paths = []
    for place, (first, second) in enumerate(pairs):
        rate = (10_000 + 100 * (7 * place % 5)) / (factor if slow in {first, second} else 1)
        path = folder / f"{first}_{second}.txt"
        path.write_text(f"# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n4194304   {rate:.2f}\n")
        paths.append(str(path))
    return paths


@pytest.mark.parametrize(("count", "factor"), [(4, 2.0), (4, 10.0), (5, 2.0)])
@pytest.mark.parametrize("pairs", [combinations, permutations])
def test_a_slow_node_in_few_logs_is_not_healthy(
    tmp_path: Path, count: int, factor: float, pairs: Callable[[Iterable[str], int], Iterable[tuple[str, str]]]
) -> None:
    paths = rate_logs(tmp_path, pairs(HOSTS[:count], 2), "n02", factor)
    rows = [json.loads(line) for line in invoke(*paths, "--json-lines").stdout.splitlines()]
    healthy = {row["node"]: row["healthy"] for row in rows}
    assert healthy.pop("n02") is not True
    assert list(healthy.values()) == [True] * (count - 1)


def test_two_nodes_are_not_as_fast_as_others(tmp_path: Path) -> None:
    result = invoke(*rate_logs(tmp_path, combinations(HOSTS[:2], 2), "none", 1.0), "--json-lines")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["healthy"] for row in rows] == [None, None]
    assert all(row["message"].startswith("cannot tell") for row in rows)


def test_every_time_of_a_verdict_was_measured(tmp_path: Path) -> None:
    paths = rate_logs(tmp_path, combinations(HOSTS[:6], 2), "n02", TWICE)
    document = json.loads(invoke(*paths, "--json").stdout)
    assert [verdict["nodes"] for verdict in document["verdicts"]] == [["n02"]]
    rates = [(10_000 + 100 * step) / factor for step in range(5) for factor in (1, TWICE)]
    (evidence,) = document["verdicts"][0]["evidence"]
    for name in ("measured_seconds", "usual_seconds"):
        assert min(abs(evidence[name] * 1e6 * rate / 4194304 - 1) for rate in rates) < 0.006


def test_pairs_of_hosts_of_superbench_name_the_slow_node(tmp_path: Path) -> None:
    """Names as ``ib_validation_performance.py`` of SuperBench 0.12 writes them, a pair of which failed."""
    generator, record = np.random.default_rng(3), {"node": "n00", "ib-traffic/return_code:0": 0.0}
    for first, second in combinations(HOSTS, 2):
        rate = 46.2 * math.exp(generator.normal(0, 0.02)) / (TWICE if "n03" in {first, second} else 1)
        name = f"ib-traffic/ib_write_bw_8388608_gpu-to-gpu_{len(record) // 4}_{len(record) % 4}:{first}_{second}:0"
        record[name] = -1.0 if (first, second) == ("n01", "n06") else rate
    path = tmp_path / "results-summary.jsonl"
    path.write_text(json.dumps(record) + "\n")
    document = json.loads(invoke(str(path), "--json").stdout)
    (verdict,) = document["verdicts"]
    assert (document["exit_code"], sorted(document["nodes"])) == (1, sorted(HOSTS))
    assert (verdict["kind"], verdict["nodes"]) == ("node", ["n03"])
    assert verdict["evidence"][0]["case"]["size_bytes"] == 8 << 20
    assert verdict["evidence"][0]["usual_seconds"] == pytest.approx((8 << 20) / 46.2e9, rel=0.05)
    (summary,) = pool(read_all(tmp_path, [str(path)], None)).summaries
    assert summary.total is None  # every node is in several pairs, which cannot have run together


def test_a_link_that_was_measured_once_is_undecided_and_the_next_pair_is_named(tmp_path: Path) -> None:
    paths = pair_logs(tmp_path, "none")
    slow = tmp_path / "n01_n06.0.txt"
    slow.write_text("# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n4194304   3000.00\n")
    document = json.loads(invoke(*paths, "--json").stdout)
    assert document["exit_code"] == 3
    assert [verdict["next_pairs"] for verdict in document["verdicts"]] == [[["n01", "n06"]]]


def test_pairs_of_two_rates_are_not_called_equal() -> None:
    """Tables of one log are of different ranks of its world, and more pairs are slow than fast."""
    document = json.loads(invoke(str(LOGS / "nccl-tests-host-pairs.txt"), "--json").stdout)
    assert document["exit_code"] == 3
    assert [verdict["nodes"] for verdict in document["verdicts"]] == [["gn644"], ["gn284", "gn678"]]


def test_the_pair_that_would_decide_has_two_nodes(tmp_path: Path) -> None:
    """Both nodes of the slow pair are in fast pairs, so the pair itself is measured next."""
    pairs = list(combinations(HOSTS[:3], 2))
    document = of_pairs(tmp_path, dict(zip(pairs, (2.0, 1.0, 1.02), strict=True)))
    assert [verdict["next_pairs"] for verdict in document["verdicts"]] == [[[HOSTS[0], HOSTS[1]]]]


def test_times_that_scatter_point_at_no_node(tmp_path: Path) -> None:
    document = of_pairs(tmp_path, dict(zip(DIRECTED, (1, 20, 6, 18, 1, 4, 1, 15, 4, 1, 9, 3), strict=True)))
    assert (document["verdicts"], document["exit_code"]) == ([], 3), "and clear none"


DIRECTED = list(permutations(HOSTS[:4], 2))


def of_pairs(folder: Path, slowdowns: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    """What is said of one log of OSU for every pair."""
    for (first, second), slowdown in slowdowns.items():
        text = f"# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n4194304   {10_000 / slowdown:.2f}\n"
        (folder / f"{first}_{second}.txt").write_text(text)
    document: dict[str, Any] = json.loads(invoke(str(folder), "--json").stdout)
    return document


@pytest.mark.parametrize(("slowdown", "code"), [(1.0, 0), (1.1, 0), (1.2, 3), (1.3, 3), (3.0, 3)])
def test_a_node_of_few_pairs_that_is_a_fifth_slower_may_be_slow(tmp_path: Path, slowdown: float, code: int) -> None:
    pairs = list(combinations(HOSTS[:4], 2))
    document = of_pairs(tmp_path, {pair: slowdown if HOSTS[2] in pair else 1.0 for pair in pairs})
    assert document["exit_code"] == code
    assert [verdict["nodes"] for verdict in document["verdicts"]] == ([[HOSTS[2]]] if code else [])


@pytest.mark.parametrize(("slowdowns", "code"), [((1, 1.16, 1.32, 1.5), 3), ((1, 1.02, 1.04, 1.06), 0)])
def test_pairs_of_more_than_two_rates_are_decided_only_where_all_are_alike(
    tmp_path: Path, slowdowns: Sequence[float], code: int
) -> None:
    document = of_pairs(tmp_path, dict(zip(DIRECTED, cycle(slowdowns), strict=False)))
    assert (document["verdicts"], document["exit_code"]) == ([], code)
    assert ("1.50×" in document["message"]) == (code == 3)
    (node, *_) = map(json.loads, invoke(str(tmp_path), "--json-lines").stdout.splitlines())
    assert node["healthy"] is (None if code else True)


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "3"],
        ["--ranks", "4", "--model", "Llama 3 8B"],
        ["--ranks", "4", "--model", "Llama 3 8B", "--network", "4X NDR", "--layout", "tp=7"],
        ["--ranks", "4", "--json", "--json-lines"],
        ["--ranks", "4", "--topology", "/no/such/file"],
    ],
)
def test_what_does_not_fit_is_refused_before_the_measurement(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr("busbw_analysis.cli.fleet.measured", lambda *_: pytest.fail("measured"))
    assert invoke(*words).exit_code == 2


def test_an_interrupted_fleet_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted(tmp_path)

    monkeypatch.setattr("busbw.launch.session", interrupted)
    assert invoke("--ranks", "4").exit_code == 2  # 1: something is slow


@pytest.mark.parametrize("hosts", [["a", "b", "c"], ["a", "b"] * 4])
def test_too_few_nodes_are_refused_before_the_measurement(hosts: list[str]) -> None:
    with pytest.raises(UsageError):
        FleetController(read_suite("fleet")).begin([ALONE, PAIR], hosts, {})
    if len(hosts) == 3:
        with pytest.raises(UsageError):
            refuse_impossible(read_suite("fleet"), len(hosts), on_one_host=False)


@pytest.mark.parametrize(("of", "fewer"), [(PAIR, False), (case("all_reduce", 8, 16), True)])
def test_no_fleet_is_to_be_rerun_with_fewer_ranks_than_it_takes(of: Case, *, fewer: bool) -> None:
    facts = SimpleNamespace(oversubscribed_hosts={"here": (4, 2)})
    judgement: Any = SimpleNamespace(facts=facts, cases=[SimpleNamespace(case=of)])
    assert ("--ranks 2" in _fewer_ranks(judgement)) == fewer


def test_each_line_has_the_cost_of_its_node_in_a_batch_that_fits(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({"n03": TWICE})[0])
    words = ["--model", "Llama 3 8B", "--layout", "dp=6", "--network", "4X NDR", "--json-lines"]
    rows = {row["node"]: row for row in map(json.loads, invoke(str(folder), *words).stdout.splitlines())}
    assert rows["n03"]["cost"]["network"] == pytest.approx(TWICE, rel=0.1)
    assert {rows[host]["cost"] for host in HOSTS if host != "n03"} == {None}


def test_a_file_that_is_no_log_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing\n")
    assert invoke(str(tmp_path / "note.txt")).exit_code == 2


def test_a_run_of_groups_of_many_nodes_cannot_tell(tmp_path: Path) -> None:
    run = synthetic_run([case("all_reduce", 1 << 20, 16)], machine=Machine(hosts=HOSTS), launches=1, samples=5)
    assert invoke(str(write_synthetic(tmp_path, run))).exit_code == 3


def test_a_misspelt_node_is_one_with_few_partners(tmp_path: Path) -> None:
    pair_logs(tmp_path, "n03")
    (tmp_path / "n02_n05.0.txt").rename(tmp_path / "n02_n5.0.txt")
    labels = [line.partition(":") for line in invoke(str(tmp_path)).stdout.splitlines()]
    assert [line for label, _, line in labels if label == "names" and "n5" in line.split()]


def test_a_topology_names_nodes_of_the_fleet(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({})[0])
    topology = tmp_path / "topology"
    topology.write_text("m[00-07] s1\n")
    assert invoke(str(folder), "--topology", str(topology)).exit_code == 2
    topology.write_text("n[00-03] s1\nn[04-06] s2\n")
    assert "n07" in invoke(str(folder), "--topology", str(topology)).stdout.partition("topology:")[2].splitlines()[0]


@pytest.mark.parametrize("names", [(), ("n1_n2.txt", "n1_n3.txt")])
def test_a_folder_without_logs_is_refused_with_the_first_file(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("nothing\n")
    result = invoke(str(tmp_path))
    assert result.exit_code == 2
    assert all(name in result.stderr for name in ("n1_n2.txt", *names[:1]))
    assert "run.json" not in result.stderr


def test_the_margin_is_the_share_of_a_rate_that_was_given(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({})[0])
    document = json.loads(invoke(str(folder), "--within", "20%", "--json").stdout)
    assert document["within"] == pytest.approx(0.2)
    assert "20%" in document["message"]


def test_options_of_measuring_are_refused_with_a_run(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, fleet_run({})[0])
    assert invoke(str(folder), "--ranks", "4").exit_code == 2
    assert invoke(str(folder), "--layout", "dp=8").exit_code == 2


def test_a_slow_node_costs_what_the_planner_computes_with_its_rates(tmp_path: Path) -> None:
    from busbw.workloads import model_rows  # noqa: PLC0415 - reads all models
    from busbw_analysis.cli.training_options import network_named  # noqa: PLC0415 - reads the catalogue

    model = model_rows.named(model_rows.models(), "Llama 3 8B")
    step = Step(model, Layout(dp=16, tp=8), 128, 8192, "float32")
    machine = machine_of(model.dtype, 128, None, network=network_named("4X NDR")).machine
    cost = cost_of(fleet_run({"n03": TWICE})[1].judgement, step, machine)
    assert cost is not None
    assert cost.network == pytest.approx(TWICE, rel=0.1)
    assert cost.compute == 1
    assert 0 < cost.share < TWICE - 1
    assert cost_of(fleet_run({})[1].judgement, step, machine) is None
    folder = write_synthetic(tmp_path, fleet_run({"n03": TWICE})[0])
    words = ["--model", "Llama 3 8B,layers=32", "--layout", "dp=16,tp=8", "--network", "4X NDR", "--json"]
    assert json.loads(invoke(str(folder), *words).stdout)["cost"]["network"] == pytest.approx(cost.network)


def test_of_logs_the_pairs_are_counted_and_not_the_rounds(tmp_path: Path) -> None:
    assert f"{len(HOSTS) * (len(HOSTS) - 1) // 2} pairs" in " ".join(invoke(*pair_logs(tmp_path, "n03")).stdout.split())


def test_a_slow_node_of_six_is_named(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(6)]
    document = json.loads(invoke(*rate_logs(tmp_path, combinations(hosts, 2), "n3", 1.8), "--json").stdout)
    assert (document["exit_code"], document["exclude"]) == (1, "n3")


def test_a_log_that_names_no_host_is_no_node_beside_others(tmp_path: Path) -> None:
    heading = "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 2\n"
    row = "1048576 262144 float sum -1 120.0 8.74 8.74 0 121.0 8.67 8.67 0\n"
    logs = host_logs(tmp_path, dict.fromkeys(("n1", "n2", "n3", "n4"), "NVIDIA H100"), {})
    bare = tmp_path / "bare.log"
    columns = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    bare.write_text(f"{heading}{columns}{row}")
    document = json.loads(invoke(*logs, str(bare), "--json").stdout)
    assert "unknown" not in document["nodes"]
