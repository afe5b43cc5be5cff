"""Where measured algorithms cross: what is sure is found where it is, noise is no crossing, and S* stands beside it."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from exhaustive import trials
from hypothesis import given
from hypothesis import strategies as st
from testing.narrow import require, require_type
from testing.synthetic import Machine, Piece, World, case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.runs.records import Case
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import Interval, interval_of
from busbw_analysis.data.load import pool
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import (
    AlgorithmComparison,
    Crossing,
    Pair,
    crossings,
    faster,
    gain,
)
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.select import alternatives
from busbw_analysis.models.textbook import ROWS
from busbw_analysis.report.document import Table
from busbw_analysis.report.fits import (
    agreement_words,
    crossing_table,
    formula_words,
    gain_words,
    measured_words,
    origin_words,
    shown,
)
from busbw_analysis.report.models import theory
from busbw_analysis.report.to_terminal import render

SIZES = tuple(4**exponent for exponent in range(4, 12))
"""256 B to 4 MiB."""
ALPHA, BETA = 20e-6, 1e-9
RANKS = 8
ROUNDS = {"ring": 14, "binomial-tree": 6, "recursive-doubling": 3, "rabenseifner": 6}
SENT = {"ring": 14 / 8, "binomial-tree": 6, "recursive-doubling": 3, "rabenseifner": 14 / 8}
"""Of 8 ranks."""
NAMES = ("tree", "ring")


def point(size_bytes: int, time_ns: float, spread: float | None = 0.01) -> GroupSummary:
    interval = Interval(None, None, "none")
    if spread is not None:
        interval = Interval(time_ns / (1 + spread), time_ns * (1 + spread), "95 % over launches")
    return GroupSummary(
        0, size_bytes, (0, 1), time_ns, interval, None, None, None, 0.0, (time_ns,), (time_ns,), ((0, 0),)
    )


def timed(
    tree: Iterable[float], ring: Iterable[float], spread: float | None = 0.01
) -> Mapping[int, tuple[GroupSummary, GroupSummary]]:
    """Two algorithms with these times at the first of SIZES."""
    both = zip(SIZES, tree, ring, strict=False)
    return {size: (point(size, first, spread), point(size, second, spread)) for size, first, second in both}


def lines(alpha: float, beta: float) -> list[float]:
    return [alpha + beta * size for size in SIZES]


class TestCrossings:
    """Of two curves alone."""

    def test_one_is_found_between_the_sizes_by_straight_lines(self) -> None:
        (crossing,) = crossings(NAMES, timed([1.0, 1.0], [4.0, 0.25]))
        assert (crossing.below, crossing.above) == ("tree", "ring")
        # Three below at 256 B, three quarters above at 1 KiB; the ends are 1 % from each.
        assert crossing.at_bytes == pytest.approx(256 + 768 * 3 / 3.75)
        assert crossing.low_bytes == pytest.approx(256 + 768 * (4 / 1.01 - 1.01) / (4 / 1.01 - 0.25 / 1.01))
        assert crossing.high_bytes == pytest.approx(256 + 768 * (4.04 - 1 / 1.01) / (4.04 - 0.2525))

    @given(
        st.floats(2e3, 1e6),
        st.floats(1.5, 30),
        st.floats(1.5, 30),
        st.floats(0.001, 0.03),
        st.sampled_from([NAMES, NAMES[::-1]]),
    )
    def test_lines_that_cross_are_found_near_their_crossing(
        self, at: float, rounds: float, factor: float, spread: float, names: tuple[str, str]
    ) -> None:
        """Just there, for lines that are as straight as those of formulas."""
        few, many = lines(1.0, factor / at), lines(rounds, 0.0)
        truth = at * (rounds - 1) / factor
        both = timed(few, many, spread) if names == NAMES else timed(many, few, spread)
        crossed = crossings(names, both)
        if not SIZES[0] < truth < SIZES[-1]:
            assert not crossed
            return
        if not crossed:
            # Too near to an end for the intervals of that end to be apart.
            assert truth < SIZES[1] or truth > SIZES[-2] or rounds < 2
            return
        (crossing,) = crossed
        assert crossing.below == "tree"
        assert require(crossing.low_bytes) <= crossing.at_bytes <= require(crossing.high_bytes)
        assert crossing.at_bytes == pytest.approx(truth)

    def test_medians_that_change_places_within_the_intervals_are_no_crossing(self) -> None:
        both = timed([1.0, 1.02, 1.0, 1.02], [1.02, 1.0, 1.02, 1.0], spread=0.05)
        assert crossings(NAMES, both) == ()
        assert [faster(NAMES, points) for points in both.values()] == [None] * 4

    def test_on_the_way_from_one_to_the_other_they_are_one_crossing_with_a_wide_range(self) -> None:
        both = timed([1.0, 1.02, 1.0, 1.02, 3.0], [3.0, 1.0, 1.02, 1.0, 1.0], spread=0.05)
        (crossing,) = crossings(NAMES, both)
        assert crossing.low_bytes is not None
        assert crossing.high_bytes is not None
        assert SIZES[0] < crossing.low_bytes < SIZES[1]
        assert SIZES[3] < crossing.high_bytes < SIZES[4]
        assert crossing.low_bytes < crossing.at_bytes < crossing.high_bytes

    def test_two_crossings_are_two(self) -> None:
        crossed = crossings(NAMES, timed([1.0, 9.0, 1.0], [3.0, 3.0, 3.0]))
        assert [(crossing.below, crossing.above) for crossing in crossed] == [("tree", "ring"), ("ring", "tree")]
        assert crossed[0].at_bytes == pytest.approx(SIZES[0] + (SIZES[1] - SIZES[0]) * 2 / 8)
        assert crossed[1].at_bytes == pytest.approx(SIZES[1] + (SIZES[2] - SIZES[1]) * 6 / 8)

    def test_without_intervals_there_is_a_place_and_no_range(self) -> None:
        (crossing,) = crossings(NAMES, timed([1.0, 1.0], [2.0, 0.0], spread=None))
        assert crossing == Crossing("tree", "ring", crossing.at_bytes)
        assert crossing.at_bytes == pytest.approx((SIZES[0] + SIZES[1]) / 2)

    def test_the_gain_is_that_of_the_faster_one(self) -> None:
        won = gain(NAMES, 256, (point(256, 300.0), point(256, 100.0)))
        assert (won.faster, won.sure) == ("ring", True)
        assert won.times == pytest.approx(3.0)
        drawn = gain(NAMES, 256, (point(256, 100.0), point(256, 101.0)))
        assert (drawn.faster, drawn.sure) == ("tree", False)
        assert gain_words(drawn) == "undecided"


def piece(name: str, alpha: float = ALPHA, beta: float = BETA) -> tuple[Piece, ...]:
    return (Piece(ROUNDS[name] * alpha, SENT[name] * beta),)


def sweep(op: str, algorithm: str | None = None) -> list[Case]:
    return [case(op, size, RANKS, algorithm=algorithm) for size in SIZES]


def judged(
    names: Iterable[str],
    *,
    messages: bool = True,
    library: tuple[Piece, ...] | None = None,
    noise: float = 0.02,
    truth: Mapping[str, tuple[Piece, ...]] | None = None,
    launches: int = 6,
) -> Judgement:
    """All-reduces of 8 ranks by these algorithms, which take what their formulas say, or what ``truth`` says."""
    return _judged(tuple(names), messages, library, noise, tuple((truth or {}).items()), launches)


@cache
def _judged(
    names: tuple[str, ...],
    messages: bool,  # noqa: FBT001 - a key of the cache
    library: tuple[Piece, ...] | None,
    noise: float,
    truth: tuple[tuple[str, tuple[Piece, ...]], ...],
    launches: int,
) -> Judgement:
    by_setting = {name: dict(truth).get(name) or piece(name) for name in names}
    cases = [case for name in names for case in sweep("all_reduce", name)]
    cases += sweep("all_reduce") if library else []
    cases += [case("ping_pong", size, RANKS) for size in SIZES] if messages else []
    world = World(
        (Piece(ALPHA, BETA),),
        by_op={"all_reduce": library or ()},
        by_setting=by_setting,
        sample_noise=noise,
        launch_noise=noise / 2,
    )
    return judge(pool((synthetic_run(cases, world, launches=launches),)))


def race_of(judgement: Judgement) -> AlgorithmComparison:
    (race,) = judgement.comparisons
    return race


def pair_of(race: AlgorithmComparison, *names: str) -> Pair:
    (pair,) = [pair for pair in race.pairs if set(pair.names) == set(names)]
    return pair


def s_star(one: str, other: str) -> float:
    """From the numbers above, and not by the code that is tested."""
    return (ROUNDS[one] - ROUNDS[other]) * ALPHA / ((SENT[other] - SENT[one]) * BETA)


def two_levels(hosts: int, each: int) -> Judgement:
    """All-reduces over hosts with several ranks each, inside of which rounds and bytes take a fifth of their time."""
    ranks = hosts * each
    levels = (ranks - 1).bit_length()
    truth = {
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "binomial-tree": (2 * levels, 2 * levels),
        "hierarchical": (
            2 * (hosts - 1) + 2 * (each - 1) / 5,
            2 * (hosts - 1) / ranks + 2 * (each - 1) / each / 5,
        ),
    }
    cases = [case("all_reduce", size, ranks, nodes=hosts, algorithm=name) for name in truth for size in SIZES]
    cases += [case("pair_matrix", size, ranks, nodes=hosts) for size in SIZES]
    world = World(
        (Piece(ALPHA, BETA),),
        by_setting={name: (Piece(rounds * ALPHA, sent * BETA),) for name, (rounds, sent) in truth.items()},
        sample_noise=0.01,
    )
    machine = Machine(hosts=tuple(f"node{number}" for number in range(hosts)))
    return judge(pool((synthetic_run(cases, world, machine=machine, launches=2, samples=7, seed=ranks),)))


class TestRaces:
    """Of a run, by hand beside each other and beside the library."""

    def test_where_the_formulas_hold_the_measured_crossing_is_their_s_star(self) -> None:
        race = race_of(judged(["ring", "binomial-tree", "recursive-doubling"]))
        assert len(race.pairs) == 3
        for name in ("binomial-tree", "recursive-doubling"):
            pair = pair_of(race, "ring", name)
            (crossing,) = pair.measured
            truth = s_star("ring", name)
            assert (crossing.below, crossing.above) == (name, "ring")
            assert pair.expected_bytes(crossing) == pytest.approx(truth, rel=0.05)
            ratio = pair.ratio(crossing)
            assert ratio == pytest.approx(1.0, rel=0.05)
            assert require(crossing.low_bytes) < crossing.at_bytes < require(crossing.high_bytes)
            assert agreement_words(pair) == f"{ratio:#.2g}"
            assert re.match(rf"{name} up to .* \(.* … .*\), then ring", measured_words(pair))

    @pytest.mark.parametrize(
        ("other", "truth", "agreement", "gained"),
        [
            ("recursive-doubling", {}, "as predicted", r"recursive-doubling (1\.9\d|2(\.0\d)?) ×"),
            ("ring", {"binomial-tree": piece("ring")}, "undecided", "undecided"),
            ("ring", {"ring": piece("ring", ALPHA / 10, BETA / 10)}, "contradicts the model", "ring .* ×"),
        ],
    )
    def test_without_a_crossing_every_sure_size_is_held_against_the_formulas(
        self, other: str, truth: Mapping[str, tuple[Piece, ...]], agreement: str, gained: str
    ) -> None:
        pair = pair_of(race_of(judged([other, "binomial-tree"], truth=truth)), other, "binomial-tree")
        assert pair.measured == ()
        assert (len(pair.undecided) == len(SIZES)) == (agreement == "undecided")
        assert agreement_words(pair) == agreement
        assert re.fullmatch(gained, gain_words(pair.smallest))

    @pytest.mark.parametrize(
        ("by_formula", "sure", "agreement"),
        [
            ("tttttttt", "tttttttt", "as predicted"),  # S* lies beyond the sizes
            ("tttttttt", "rrrrrrrr", "contradicts the model"),
            ("tttttttt", "........", "undecided"),
            ("rrrttttr", "r......r", "as predicted"),  # only the ends are sure
            ("rrrttttr", "r...r..r", "contradicts the model"),
            ("    tttt", "tttttttt", "as predicted"),  # a cost is not known at every size
            ("    tttt", "t.......", "undecided"),
        ],
    )
    def test_every_sure_size_is_held_against_the_formulas_at_that_size(
        self, by_formula: str, sure: str, agreement: str
    ) -> None:
        """``t``, ``r``: the tree or the ring is faster; a dot: neither surely; a space: it is not known."""
        pair = pair_of(race_of(judged(["ring", "binomial-tree"])), "ring", "binomial-tree")
        assert not isinstance(pair.expected, Unavailable)
        names = {"t": "binomial-tree", "r": "ring"}
        expected = {size: names[sign] for size, sign in zip(SIZES, by_formula, strict=True) if sign in names}
        changed = replace(
            pair,
            expected=replace(pair.expected, faster=expected),
            measured=(),
            faster=tuple(names.get(sign) for sign in sure),
        )
        assert agreement_words(changed) == agreement

    def test_the_library_takes_part_by_its_own_model(self) -> None:
        """Gloo's ring waits twice a round: by hand it is faster at all sizes, and the tree at the small ones."""
        race = race_of(judged(["ring", "binomial-tree"], library=(Piece(28 * ALPHA, SENT["ring"] * BETA),)))
        assert set(race.curves) == {"ring", "binomial-tree", "library"}
        against_ring = pair_of(race, "ring", "library")
        assert not isinstance(against_ring.expected, Unavailable)
        assert against_ring.expected.faster == dict.fromkeys(SIZES, "ring")
        assert against_ring.expected.crossings == ()
        against_tree = pair_of(race, "binomial-tree", "library")
        (crossing,) = against_tree.measured
        truth = (28 - ROUNDS["binomial-tree"]) * ALPHA / ((SENT["binomial-tree"] - SENT["ring"]) * BETA)
        assert against_tree.expected_bytes(crossing) == pytest.approx(truth, rel=0.05)
        assert against_tree.ratio(crossing) == pytest.approx(1.0, rel=0.05)

    def test_what_all_ranks_of_a_host_share_moves_s_star(self) -> None:
        """At S* both models, which know of R, take the same time; a ring moves less in all."""
        host = 2e9
        rows = [ROWS.get(("all_reduce", name)) for name in ("ring", "recursive-doubling")]
        crossing = require(
            Parameters(ALPHA, BETA, host, "").crossover_bytes(require(rows[0]), require(rows[1]), RANKS, 1)
        )
        given = Parameters(ALPHA, BETA, host, "")
        models = {alternative.label: alternative for alternative in alternatives("all_reduce", RANKS, 1, "textbook")}
        ring, doubling = (given.seconds(models[name], RANKS, 1, crossing) for name in ("ring", "recursive doubling"))
        assert ring == pytest.approx(doubling)
        assert crossing < s_star("ring", "recursive-doubling")

    def test_one_algorithm_alone_and_curves_measured_in_different_ways_are_no_race(self) -> None:
        other = [case("all_reduce", size, RANKS, algorithm="binomial-tree", mode="pipelined") for size in SIZES]
        for cases in (sweep("all_reduce"), sweep("all_reduce", "ring"), [*sweep("all_reduce", "ring"), *other]):
            assert judge(pool((synthetic_run(cases, launches=1),))).comparisons == ()

    def test_the_fastest_of_all_changes_at_the_turns(self) -> None:
        race = race_of(judged(["ring", "binomial-tree", "recursive-doubling"]))
        assert race.leaders == ("recursive-doubling", "ring")
        ((turn, expected),) = race.turns
        assert (turn.below, turn.above) == ("recursive-doubling", "ring")
        assert expected == pytest.approx(s_star("ring", "recursive-doubling"), rel=0.05)

    def test_without_messages_there_is_no_s_star(self) -> None:
        pair = pair_of(race_of(judged(["ring", "binomial-tree"], messages=False)), "ring", "binomial-tree")
        assert require_type(Unavailable, pair.expected).code == "no-messages"
        assert pair.measured
        assert formula_words(pair) == agreement_words(pair) == "–"
        assert origin_words(pair) == f"no S*: {require_type(Unavailable, pair.expected).reason}"

    def test_messages_between_hosts_say_no_crossing_of_two_levels(self) -> None:
        (race,) = two_levels(2, 4).comparisons
        for pair in race.pairs:
            assert isinstance(pair.expected, Unavailable) == ("hierarchical" in pair.names), pair.names
            if isinstance(pair.expected, Unavailable):
                assert pair.expected.code == "one-level"


class TestShown:
    """In `busbw fit`, in the report, and as JSON."""

    def test_of_many_pairs_those_that_matter_are_shown(self) -> None:
        race = race_of(judged(ROUNDS, library=(Piece(28 * ALPHA, SENT["ring"] * BETA),), launches=2))
        assert len(race.pairs) == 10
        assert race.leaders[0] == "recursive-doubling"
        assert shown(race) == tuple(pair for pair in race.pairs if any(name in race.leaders for name in pair.names))
        assert 0 < len(shown(race)) < 10
        text = render([crossing_table(race)])
        assert f"{10 - len(shown(race))} more pairs" in text

    def test_one_that_is_the_fastest_everywhere_stands_beside_all_others(self) -> None:
        """As the library does, which waits once, and of those by hand alone one that does."""
        quick = (Piece(ALPHA, 0.1 * BETA),)
        for judgement in (
            judged(ROUNDS, library=quick, launches=1, messages=False),
            judged([*ROUNDS, "direct"], truth={"direct": quick}, launches=1, messages=False),
        ):
            race = race_of(judgement)
            (leader,) = race.leaders
            assert len(race.pairs) == 10
            assert [pair for pair in race.pairs if leader in pair.names] == list(shown(race))

    def test_the_report_has_a_table_of_all_pairs(self) -> None:
        section = require(theory(judged(["ring", "binomial-tree", "recursive-doubling"])))
        (part,) = section.parts
        assert part.heading == "all_reduce"
        table = next(block for block in part.blocks if isinstance(block, Table) and "every two" in block.caption)
        assert len(table.rows) == 3


def test_on_noisy_launches_crossings_are_seldom_made_up_and_their_range_holds_the_truth() -> None:
    """Of two curves that are one, and of two that cross, in six launches that differ by 5 %."""
    generator = np.random.default_rng(7)

    def noisy(time_ns: float, size_bytes: int) -> GroupSummary:
        launches = time_ns * np.exp(generator.normal(0, 0.05, 6))
        return replace(point(size_bytes, float(np.median(launches))), interval=interval_of(launches))

    truth, held, made_up = 60e3, 0, 0
    count = trials(60, 200)
    for _ in range(count):
        alike = {size: (noisy(1e4 + size, size), noisy(1e4 + size, size)) for size in SIZES}
        made_up += bool(crossings(NAMES, alike))
        few = {size: (noisy(1e4 + size, size), noisy(1e4 + truth, size)) for size in SIZES}
        (crossing,) = crossings(NAMES, few)
        assert crossing.low_bytes is not None
        assert crossing.high_bytes is not None
        held += crossing.low_bytes <= truth <= crossing.high_bytes
    assert made_up <= 2
    assert held >= 0.95 * count


def test_fit_prints_them_and_has_them_as_json(tmp_path: Path) -> None:
    for messages in (False, True):
        judgement = judged(["ring", "binomial-tree", "recursive-doubling"], messages=messages)
        folder = str(write_synthetic(tmp_path, judgement.samples.runs[0]))
        assert ("no S*" in CliRunner().invoke(main, ["fit", folder]).stdout) != messages
        rows = json.loads(CliRunner().invoke(main, ["fit", folder, "--json"]).stdout)["crossings"]
        assert [row["algorithms"][0] for row in rows] == ["ring", "ring", "binomial-tree"]
        (crossing,) = rows[1]["crossings"]
        assert crossing["low_bytes"] < crossing["at_bytes"] < crossing["high_bytes"]
        assert crossing["at_bytes"] == pytest.approx(s_star("ring", "recursive-doubling"), rel=0.05)
        assert rows[0]["runs"] == [judgement.runs[0].run.id]
        if messages:
            assert crossing["ratio"] == pytest.approx(crossing["at_bytes"] / crossing["expected_bytes"])
        else:
            assert (crossing["ratio"], rows[1]["expected"]["code"]) == (None, "no-messages")
