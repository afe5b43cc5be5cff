"""Counters that moved, in findings, causes and gates."""

from collections.abc import Mapping

import msgspec
import pytest
from testing.synthetic import Machine, World, case, synthetic_run, with_blocks

from busbw.runs.facts import GpuFacts, HostFacts, PciFacts
from busbw.runs.records import CounterDelta, HostConditions, Measurement, Window
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.counters import moved_in
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.gate.metrics import Evidence
from busbw_analysis.gate.rules import Rule
from busbw_analysis.gate.verdicts import Gate, gate_of

HOSTS = ("n0", "n1", "n2", "n3", "n4", "n5")
MATRIX = case("pair_matrix", 1 << 20, ranks=6, nodes=6)
Counts = Mapping[str, Mapping[tuple[str, str, int | None], int]]
"""Host → (name, device, port) → how far it moves in every block."""


def moved(counts: Counts, host: str) -> tuple[CounterDelta, ...]:
    return tuple(
        CounterDelta(name=name, device=device, port=port, delta=delta)
        for (name, device, port), delta in counts.get(host, {}).items()
    )


def run_with(counts: Counts, slow_ranks: tuple[int, ...] = (), hosts: tuple[str, ...] = HOSTS) -> StoredRun:
    """Two launches with one block each, whose counters moved so far."""
    world = World(slow_ranks=slow_ranks, slow_factor=4.0)
    matrix = case("pair_matrix", 1 << 20, ranks=6, nodes=len(set(hosts)))
    stored = synthetic_run([matrix], world, launches=2, machine=Machine(hosts=hosts))

    def change(block: Measurement) -> Measurement:
        conditions = tuple(
            HostConditions(
                host=host,
                load_before=0.0,
                load_after=0.0,
                switches=(0,),
                busy_share=None,
                foreign_share=None,
                steal_share=None,
                counters=moved(counts, host),
            )
            for host in dict.fromkeys(hosts)
        )
        return msgspec.structs.replace(block, conditions=conditions)

    return with_blocks(stored, change)


LINK = ("link_downed", "mlx5_0", 1)
CRC = ("rx_crc_errors", "eth0", None)
TCP = ("RetransSegs", "tcp", None)


@pytest.mark.parametrize(
    ("counts", "slow_ranks", "codes", "cause"),
    [
        ({}, (2,), [], False),
        ({"n2": {LINK: 1}}, (2,), ["counters-slow-host"], True),
        ({"n4": {LINK: 1}}, (2,), ["counters"], False),
        ({"n2": {CRC: 3}, "n4": {LINK: 1}}, (2,), ["counters-slow-host", "counters"], True),
        ({"n2": {TCP: 30}, "n4": {TCP: 2}}, (2,), ["counters-slow-host"], True),
        ({"n2": {TCP: 30}, "n4": {TCP: 20}}, (2,), [], False),  # others send as much again
        ({"n4": {TCP: 30}}, (), [], False),
        ({host: {LINK: 1} for host in HOSTS}, (), ["counters"] * 4, False),  # three hosts, and the rest in one
        ({"n4": {("a_newer_counter", "eth0", None): 5}}, (4,), [], False),
    ],
)
def test_errors_are_findings_and_on_a_slow_host_the_cause(
    counts: Counts, slow_ranks: tuple[int, ...], codes: list[str], *, cause: bool
) -> None:
    judgement = judge(pool((run_with(counts, slow_ranks),)))
    found = [finding for finding in judgement.findings if finding.code.startswith("counters")]
    assert [finding.code for finding in found] == codes
    assert ("counters-slow-host" in {row.code for row in answer_of(judgement).causes}) == cause
    if cause:
        (name, device, _), *_ = counts["n2"]
        assert all(word in found[0].claim for word in ("n2", name, device))


@pytest.mark.parametrize(("counter", "codes"), [(TCP, []), (LINK, ["counters-slow-host"])])
def test_retransmissions_of_the_only_host_are_compared_with_none(
    counter: tuple[str, str, int | None], codes: list[str]
) -> None:
    judgement = judge(pool((run_with({"n0": {counter: 30}}, (2,), ("n0",) * 6),)))
    assert [finding.code for finding in judgement.findings if finding.code.startswith("counters")] == codes


def test_deltas_add_up_over_blocks_and_windows_hold_those_of_their_blocks() -> None:
    stored = run_with({"n1": {LINK: 1, TCP: 5}})
    (two,) = {row.delta for row in moved_in((stored,)) if row.name == "link_downed"}
    assert two == 2
    window = Window(
        case=MATRIX,
        launch=0,
        begin_ns=0,
        end_ns=9,
        started="",
        blocks=3,
        count=9,
        min_ns=1.0,
        mean_ns=1.0,
        max_ns=1.0,
        quantiles_ns=(1.0,) * 7,
        counters={"n1": moved({"n1": {LINK: 7}}, "n1")},
    )
    longer = StoredRun(stored.path, stored.run, (*stored.rows, window), stored.warnings)
    both = moved_in((longer,))
    assert [(row.name, row.kind, row.delta) for row in both] == [
        ("link_downed", "error", 7 + 1),
        ("RetransSegs", "repair", 5),
    ]


def gate(rule: Rule, stored: StoredRun) -> Gate:
    dataset = pool((stored,))
    return gate_of([rule], Evidence(judge(dataset), dataset, None))


@pytest.mark.parametrize(
    ("counts", "code", "value"), [({"n2": {LINK: 1, CRC: 2}}, 1, 2), ({"n2": {TCP: 9}}, 0, 0), ({}, 0, 0)]
)
def test_a_gate_can_forbid_errors(counts: Counts, code: int, value: int) -> None:
    result = gate(Rule(metric="counters", at_most="0"), run_with(counts))
    assert (result.code, result.verdicts[0].tests[0].value) == (code, value)


@pytest.mark.parametrize(("counts", "code"), [({}, 3), ({"n1": {LINK: 1}}, 1)])
def test_a_gate_cannot_tell_of_counters_that_nobody_read_but_of_others(counts: Counts, code: int) -> None:
    stored = run_with(counts)
    stored = with_blocks(stored, lambda block: msgspec.structs.replace(block, conditions=block.conditions[:-1]))
    result = gate(Rule(metric="counters", at_most="0"), stored)
    assert (result.code, [gap.code for gap in result.verdicts[0].gaps]) == (code, ["no-counters"])


@pytest.mark.parametrize(("wanted", "code"), [("7", 0), ("8", 1)])
def test_a_gate_can_ask_for_a_number_of_gpus_that_work(wanted: str, code: int) -> None:
    gpus = tuple(GpuFacts(address=f"0000:{bus:02x}:00.0", broken=bus == 3) for bus in range(8))
    stored = run_with({})
    hosts = {
        host: msgspec.structs.replace(facts, pci=PciFacts(gpus=gpus)) for host, facts in stored.run.environments.items()
    }
    assert all(isinstance(facts, HostFacts) for facts in hosts.values())
    changed = msgspec.structs.replace(stored.run, environments=hosts)
    result = gate(Rule(metric="gpus", at_least=wanted), StoredRun(stored.path, changed, stored.rows, ()))
    assert (result.code, result.verdicts[0].tests[0].value) == (code, 7)
