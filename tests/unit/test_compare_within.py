"""Values of one setting compared within runs: in the same launches, as one family of tests, and what is refused."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result
from testing.synthetic import Piece, SyntheticEnd, World, case, synthetic_run, with_blocks, write_synthetic

from busbw.cli.main import main
from busbw.runs.records import Case, GroupSamples, Measurement
from busbw.runs.store import StoredRun
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.diagnosis import hypothesis_tests
from busbw_analysis.diagnosis.compare import Comparison
from busbw_analysis.diagnosis.compare_answer import decides, gist, trust_in_comparison
from busbw_analysis.diagnosis.compare_within import COMPARABLE, compare_within, settings_varied
from busbw_analysis.report import compare as compare_tables
from busbw_analysis.report.to_terminal import render

SIZES = (64, 64 << 10, 1 << 20)
RINGS = [case("all_reduce", size, 2, algorithm=name) for size in SIZES for name in (None, "ring")]
USUAL = World().pieces[0]


def slower(ratio: float, setting: Any = "ring", launch_noise: float = 0.02) -> World:  # noqa: ANN401 - of any family
    """A world in which cases with a setting take ``ratio`` times as long."""
    piece = Piece(USUAL.alpha_seconds * ratio, USUAL.beta_seconds_per_byte * ratio)
    return World(launch_noise=launch_noise, by_setting={setting: (piece,)})


def a_run(cases: Sequence[Case], world: World, launches: int = 10, **how: Any) -> StoredRun:  # noqa: ANN401 - its own
    return synthetic_run(cases, world, launches=launches, samples=5, **how)


def within(
    cases: Sequence[Case], world: World | None = None, setting: str = "algorithm", base: str | None = None
) -> Comparison:
    return compare_within(pool([a_run(cases, world or World(launch_noise=0.02))]), setting, base)


def words_of(compared: Comparison) -> list[str]:
    return [band.verdict.word for band in compared.bands]


def test_a_planted_ratio_is_seen_in_every_band_by_the_exact_test_on_pairs() -> None:
    compared = within(RINGS, slower(1.3))
    assert [band.band for band in compared.bands] == ["small", "middle", "large"]
    assert words_of(compared) == ["slower"] * 3
    estimates = [band.estimate for band in compared.bands]
    assert [one.ratio for one in estimates] == pytest.approx([1.3] * 3, rel=0.05)
    assert [(one.paired, one.launches, one.p_value) for one in estimates] == [(True, (10, 10), 2 / 2**10)] * 3
    assert [band.verdict.adjusted_p for band in compared.bands] == pytest.approx([3 * 2 / 2**10] * 3)
    (answer,) = gist(compared)
    assert answer.startswith("algorithm ring against library: slower in all 3 bands")
    back = within(RINGS, slower(1.3), base="ring")
    assert words_of(back) == ["faster"] * 3
    assert [band.estimate.ratio * one.ratio for band, one in zip(back.bands, estimates, strict=True)] == [
        *(pytest.approx(1) for _ in SIZES)
    ]


def test_values_of_which_nothing_is_known_are_one_sentence() -> None:
    names = (None, "ring", "double-ring", "direct")
    cases = [case("all_reduce", size, 2, algorithm=name) for size in SIZES for name in names]
    compared = compare_within(pool([a_run(cases, World(launch_noise=0.02), launches=2)]), "algorithm", None)
    assert {*words_of(compared)} == {"cannot tell"}
    assert len(gist(compared)) == 1
    slow = compare_within(pool([a_run(cases, slower(1.5))]), "algorithm", None)
    assert len(gist(slow)) == 3


def test_a_single_band_is_not_one_of_many() -> None:
    compared = compare_within(
        pool([a_run([each for each in RINGS if each.size_bytes == 64], World(), launches=2)]), "algorithm", None
    )
    assert [band.verdict.word for band in compared.bands] == ["cannot tell"]
    assert compared.bands[0].verdict.fewest
    assert "bands" not in decides(compared)
    assert "bands" not in " ".join(gist(compared))


def test_what_changes_from_launch_to_launch_hides_no_difference() -> None:
    """Launches differ by a factor of 9, a ring from the library by 10 %."""

    def change(block: Measurement) -> Measurement:
        def scaled(group: GroupSamples) -> GroupSamples:
            times = tuple(time * (1 + block.launch * block.launch) for time in group.slowest_ns)
            return msgspec.structs.replace(group, slowest_ns=times)

        return msgspec.structs.replace(block, groups=tuple(map(scaled, block.groups)))

    run = with_blocks(a_run(RINGS, slower(1.1, launch_noise=0.01)), change)
    assert words_of(compare_within(pool([run]), "algorithm")) == ["slower"] * 3


def _redrawn(dataset: Dataset, random: np.random.Generator) -> Dataset:
    """``dataset`` with the time of each case in each launch drawn anew, alike for all cases of a launch."""
    launches = 1 + random.random(10)
    summaries = []
    for summary in dataset.summaries:
        times = 1e5 * launches * np.exp(random.normal(0, 0.1, 10))
        rows = replace(summary.groups.rows, median_ns=times, mean_ns=times)
        summaries.append(replace(summary, groups=replace(summary.groups, rows=rows)))
    return replace(dataset, summaries=tuple(summaries))


def test_where_nothing_differs_a_verdict_is_false_in_five_of_a_hundred_runs_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hypothesis_tests, "_needed", lambda *_: None)  # the advice takes most of the time
    monkeypatch.setattr(hypothesis_tests, "smallest_difference", lambda *_, **__: None)
    dataset, random, runs = pool([a_run(RINGS, World())]), np.random.default_rng(32), 400
    false = sum(
        bool({"slower", "faster"} & set(words_of(compare_within(_redrawn(dataset, random), "algorithm"))))
        for _ in range(runs)
    )
    assert 0 < false <= runs * (0.05 + 3 * math.sqrt(0.05 * 0.95 / runs))


@pytest.mark.parametrize(
    ("setting", "op", "base", "value", "words"),
    [
        ("dtype", "all_reduce", "float32", "float64", ("float32", "float64")),
        ("redop", "all_reduce", "sum", "max", ("sum", "max")),
        ("cache", "all_reduce", "warm", "flushed", ("warm", "flushed")),
        ("sync", "all_reduce", "barrier", "window", ("barrier", "window")),
        ("in_place", "all_gather", False, True, ("no", "yes")),
        ("registered", "all_reduce", False, True, ("no", "yes")),
        ("threads", "memory_copy", None, 4, ("default", "4")),
        ("numa-node", "memory_copy", 0, 1, ("0", "1")),
        ("pairs", "pair_matrix", "together", "alone", ("together", "alone")),
    ],
)
def test_every_setting_of_a_case_can_be_compared(
    setting: str, op: str, base: object, value: object, words: tuple[str, str]
) -> None:
    name = setting.replace("-", "_")
    cases = [case(op, 1 << 10, 2, **{name: one}) for one in (base, value)]
    compared = within([*cases, case("barrier", 0, 2)], setting=setting)
    assert compared.by is not None
    assert (compared.by.setting, compared.by.base, compared.by.values) == (name, words[0], words[1:])
    assert [band.case for band in compared.bands] == cases[1:]
    assert compared.left_out == ()
    assert settings_varied(cases) == (name,)
    assert name in COMPARABLE


def test_each_value_has_its_bands_and_all_are_one_family() -> None:
    names = (None, "ring", "recursive_doubling")
    cases = [case("all_reduce", size, 4, algorithm=name) for size in SIZES for name in names]
    compared = within(cases, slower(1.3))
    by = compared.by
    assert by is not None
    assert {by.value(band.case): band.verdict.word for band in compared.bands if by.value(band.case) == "ring"} == {
        "ring": "slower"
    }
    least = min(band.verdict.adjusted_p or 1 for band in compared.bands)
    assert least == pytest.approx(6 * 2 / 2**10)
    assert [answer.partition(":")[0] for answer in gist(compared)] == [
        f"algorithm {name} against library" for name in names[1:]
    ]


def test_what_only_one_value_has_is_named_and_modes_are_kept_apart() -> None:
    rings = [*RINGS, case("all_reduce", 8, 2), case("all_reduce", 64, 2, mode="pipelined", algorithm="ring")]
    compared = within([*rings, case("broadcast", 64, 2)])
    assert [(left.case.size_bytes, left.case.mode, left.missing) for left in compared.left_out] == [
        *((8, "isolated", "B"), (64, "pipelined", "A"))
    ]
    assert {band.case.mode for band in compared.bands} == {"isolated"}
    failing = a_run(RINGS, World(), end=SyntheticEnd(failed={RINGS[1]: "wrong data in element 7"}))
    lost = compare_within(pool([failing]), "algorithm")
    assert [(left.case, left.missing, left.b) for left in lost.left_out] == [(RINGS[0], "B", "failed")]
    assert len(lost.bands) == 2


def test_launches_of_several_runs_are_pairs_of_their_own() -> None:
    runs = [a_run(RINGS, slower(1.3), launches=4, seed=seed) for seed in (1, 2)]
    compared = compare_within(pool(runs), "algorithm")
    assert [band.estimate.launches for band in compared.bands] == [(8, 8)] * 3
    assert words_of(compared) == ["slower"] * 3
    assert trust_in_comparison(compared)[1][0].startswith("8 launches with each of the values")


def test_the_tables_fit_80_columns_and_name_both_values_once() -> None:
    text = render(compare_tables.compare_blocks(within(RINGS, slower(1.3)), cases=True))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("algorithm library") == text.count("algorithm ring") == 1
    assert text.count("synthetic-0") == 1


# --- the command --------------------------------------------------------------------------------------------------


def busbw(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments])


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(write_synthetic(tmp_path, a_run(RINGS, slower(1.3), launches=8)))


def test_json_has_the_setting_and_the_value_of_every_band(run: str) -> None:
    document: dict[str, Any] = json.loads(busbw(run, "--by", "algorithm", "--json").stdout)
    assert document["by"] == {"setting": "algorithm", "base": "library", "values": ["ring"]}
    assert [(band["value"], band["verdict"], band["launches"]) for band in document["bands"]] == [
        ("ring", "slower", [8, 8])
    ] * 3
    assert document["a"] == document["b"]
    assert document["in_turns"]


def test_a_run_alone_is_told_what_it_can_be_compared_by(run: str, tmp_path: Path) -> None:
    result = busbw(run)
    assert result.exit_code == 2
    assert f"busbw compare {run} --by algorithm" in result.stderr
    assert "slower in all 3 bands" in " ".join(busbw(run, "--by", "algorithm").stdout.split())
    alike = str(write_synthetic(tmp_path, a_run(RINGS[::2], World(), launches=1)))
    assert "--by" not in busbw(alike).stderr
