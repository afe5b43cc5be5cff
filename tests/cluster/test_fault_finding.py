"""A network with one fault, and a report that names it; a healthy one, and a report that accuses nobody.

The pair matrix is taken with ``--sync none``: each pair paces itself, message and answer. After a barrier of all ranks
the far ones start later, and the time of every pair has some of another pair's delay in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from bed import Bed, Cable, Network, Ranks, both_ways
from bed.network import Path as Way
from click.testing import CliRunner
from exhaustive import thinned, trials
from measured import measured
from testing.plans import STEADY, plan_text, sweep

from busbw.cli.main import main
from busbw.runs import store
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import load
from busbw_analysis.diagnosis.pairs import LAUNCHES_FOR_A_PAIR

pytestmark = pytest.mark.timeout(400)

_PACE = {"min_samples": 20, "least_samples": 20, "max_seconds": 0.4, "launch_warmup_seconds": 0.1, "warmup_calls": 2}
_PLAN = plan_text(sweep("pair_matrix", "8,256KiB", sync="none"), timing={**STEADY, **_PACE})


SLOW = {f"slow-{kind}" for kind in ("host", "rank", "sender", "receiver", "pair")}
"""What a pair matrix warns of."""


@dataclass(frozen=True, slots=True)
class Report:
    """What ``busbw report`` wrote: its facts."""

    facts: Any

    @property
    def warned_of(self) -> set[str]:
        """The codes of who is slow."""
        return {warning["code"] for warning in self.facts["warnings"]} & SLOW

    @property
    def flagged(self) -> dict[int, list[tuple[str, str]]]:
        """What the pair matrices call slow: kind and name, by size in bytes."""
        return {
            matrix["size_bytes"]: [(odd["kind"], odd["name"]) for odd in matrix["outliers"]]
            for matrix in self.facts["pair_matrices"]
        }


@dataclass(frozen=True, slots=True)
class Matrices:
    """Takes pair matrices of the four hosts of a bed."""

    bed: Bed
    ranks: Ranks
    results: Path

    def run(self, network: Network) -> Path:
        """The folder of a run of as many launches as it takes to judge single pairs."""
        self.bed.set_network(network)
        results = Path(mkdtemp(dir=self.results))
        plan = results / "plan.toml"
        plan.write_text(_PLAN)
        for launch in range(LAUNCHES_FOR_A_PAIR):
            what = ("--plan", plan) if launch == 0 else ("--resume", "latest", "--launches", str(launch + 1))
            ends = self.ranks.run(*what, "--quiet", "--results-dir", results)
            assert [end.code for end in ends] == [0, 0, 0, 0], ends
        (folder,) = store.folders(results)
        return folder

    def report(self, network: Network) -> Report:
        """What ``busbw report`` says of such a run."""
        folder = self.run(network)
        # In this process: a fresh one takes longer to load scipy than to judge.
        printed = CliRunner().invoke(main, ["report", str(folder)])
        assert printed.exit_code == 0, printed.output
        return Report(json.loads((folder / "report.json").read_text()))


@pytest.fixture(scope="module")
def matrices(network_of_module: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrices]:
    results = tmp_path_factory.mktemp("matrices")
    with Ranks(network_of_module, results) as ranks:
        yield Matrices(network_of_module, ranks, results)


def one_fault(cables: dict[str, Cable] | None = None, paths: tuple[Way, ...] = ()) -> Network:
    """A healthy network but for these."""
    return Network(1000, 0.2, cables or {}, paths)


SLOW_HOST = one_fault({"n3": Cable(up_mbit=200, down_mbit=200)})
SLOW_UP = one_fault({"n3": Cable(up_mbit=200)})
SLOW_DOWN = one_fault({"n2": Cable(down_mbit=200)})
SLOW_PAIR = one_fault(paths=both_ways("n1", "n4", rate_mbit=200))
SLOW_PATH = one_fault(paths=(Way("n2", "n3", rate_mbit=200),))
FAR_PAIR = one_fault(paths=both_ways("n2", "n4", delay_ms=1.5))
FAR_HOST = one_fault({"n4": Cable(delay_ms=1.5)})


FAULTS = [
    pytest.param(SLOW_HOST, [], [("host", "host n3")], id="slow cable"),
    pytest.param(SLOW_UP, [], [("sender", "host n3")], id="slow in one direction: up"),
    pytest.param(SLOW_DOWN, [], [("receiver", "host n2")], id="slow in one direction: down"),
    pytest.param(SLOW_PAIR, [], [("pair", "0 ↔ 3")], id="slow pair"),
    pytest.param(SLOW_PATH, [], [("pair", "1 → 2")], id="slow pair in one direction"),
    pytest.param(FAR_PAIR, [("pair", "1 ↔ 3")], [("pair", "1 ↔ 3")], id="far pair"),
    pytest.param(FAR_HOST, [("host", "host n4")], [("host", "host n4")], id="far host"),
]


@pytest.mark.parametrize(("network", "small", "large"), thinned(FAULTS, 3))
@measured
def test_the_fault_is_named_and_nothing_else(
    matrices: Matrices, network: Network, small: list[tuple[str, str]], large: list[tuple[str, str]]
) -> None:
    report = matrices.report(network)
    assert report.warned_of == {f"slow-{kind}" for kind, _ in (*small, *large)}
    assert report.flagged == {8: small, 256 * 1024: large}


HEALTHY = thinned([Network(1000, 0.2), Network(1000, 0.5), Network(300, 0.2), Network(500, 0.5)], 4)


@pytest.mark.parametrize("trial", range(trials(1, 5)))
@pytest.mark.parametrize("network", HEALTHY, ids=lambda network: f"{network.rate_mbit} Mbit/s, {network.delay_ms} ms")
@measured
def test_a_healthy_network_accuses_nobody(matrices: Matrices, network: Network, trial: int) -> None:
    del trial
    judgement = judge(load([matrices.run(network)]))
    assert [matrix.outliers for matrix in judgement.matrices] == [(), ()]
    assert not {finding.code for finding in judgement.findings} & SLOW
