"""What a run says of where its ranks sit, and what is odd about it: doubled hosts, shared cores, far switches."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.synthetic import as_facts

from busbw.runs.facts import CpuFacts, HostFacts
from busbw.runs.placement import (
    RankPlacement,
    binding,
    cautions,
    distance,
    distance_in_words,
    oversubscribed_hosts,
    rank_placements,
    shared_resources,
)
from busbw.runs.records import JSON


def host_of(*ranks: dict[str, JSON], machines: int | None = 1, **more: JSON) -> HostFacts:
    return as_facts({"ranks": list(ranks), "machines": machines, **more})


def seats(*cores: str) -> tuple[RankPlacement, ...]:
    ranks = [{"rank": rank, "cores": text} for rank, text in enumerate(cores)]
    return rank_placements(("a",) * len(cores), {"a": host_of(*ranks)})


def test_a_seat_has_what_was_recorded() -> None:
    facts = {"rank": 1, "local_rank": 0, "cores": "0-3,8", "numa_nodes": [0, 1], "gpu": 2}
    node = {"name": "b", "number": 1, "switches": ["spine", "leaf1"]}
    unknown, known = rank_placements(("a", "b"), {"b": host_of(facts, node=node)})
    assert known == RankPlacement(1, "b", 0, frozenset({0, 1, 2, 3, 8}), (0, 1), 2, ("spine", "leaf1"))
    assert unknown == RankPlacement(0, "a"), "an older run has none of it"


@pytest.mark.parametrize(
    "facts",
    [
        {"ranks": [], "node": None},
        {"ranks": [{"rank": 1}, {"rank": 0, "cores": None}], "node": {"name": "a", "switches": None}},
        {"ranks": [{"rank": 0, "cores": "9-1", "numa_nodes": None, "local_rank": None, "gpu": None}]},
        {"ranks": [{"rank": 0, "cores": "0-999999999"}]},
    ],
)
def test_what_is_no_fact_is_not_recorded(facts: dict[str, JSON]) -> None:
    assert rank_placements(("a",), {"a": as_facts(facts)}) == (RankPlacement(0, "a"),)


@pytest.mark.parametrize(
    "facts",
    [
        {"ranks": "none"},
        {"ranks": None},
        {"node": []},
        {"ranks": [1]},
        {"ranks": [{"rank": "0"}]},
        {"ranks": [{"rank": 0, "cores": 5}]},
        {"ranks": [{"rank": 0, "numa_nodes": ["x"]}]},
        {"node": {"name": "a", "switches": [1]}},
        {"cpu": 4},
        {"machines": "1"},
        {"variables": {"A": 1}},
        {"resumed": [{"launch": -1}]},
        {"pci": {"gpus": [{"address": "a", "link": {"trained": {"lanes": 16}}}]}},
    ],
)
def test_facts_of_another_shape_are_refused_before_anybody_reads_them(facts: dict[str, JSON]) -> None:
    with pytest.raises(msgspec.ValidationError):
        as_facts(facts)


@pytest.mark.parametrize(
    ("cores", "words"),
    [
        (("0-7",), "the only rank, on 8 cores"),
        (("0-1", "0-1"), "not bound: every rank may use the same 2 cores"),
        (("0", "1", "2"), "bound: each rank has 1 core of its own"),
        (("0-3", "4-7"), "bound: each rank has 4 cores of its own"),
        (("0", "1-2"), "bound: each rank has 1 to 2 cores of its own"),
        (("0-1", "1-2", "3"), "bound, but some share cores: ranks 0 and 1"),
        (
            ("0", "0-1", "0-2", "0-3"),
            "bound, but some share cores: ranks 0 and 1, 0 and 2, 0 and 3, 1 and 2 and 2 more",
        ),
        ((), None),
    ],
)
def test_a_binding_in_words(cores: tuple[str, ...], words: str | None) -> None:
    assert binding(seats(*cores)) == words


def test_a_binding_that_was_recorded_of_some_ranks_only_is_not_told() -> None:
    assert binding((*seats("0"), RankPlacement(1, "a"))) is None


PCI = "0000:c1:00.0"


@pytest.mark.parametrize(
    ("ranks", "machines", "shared"),
    [
        ([{"local_rank": rank % 2} for rank in range(4)], 1, [["0,2", "0", "1,3", "1"]]),
        ([{"local_rank": 0}] * 2, 2, [["2"]]),
        ([{"local_rank": rank, "gpu": 0} for rank in range(2)], 1, [["0-1", "0"]]),
        ([{"local_rank": rank, "gpu": None, "gpu_address": PCI} for rank in range(2)], 1, [["0-1", PCI]]),
        ([{"local_rank": rank, "gpu": None, "gpu_address": f"0000:c{rank}:00.0"} for rank in range(2)], 1, []),
    ],
    ids=["a host twice", "two machines of one name", "one GPU", "one GPU without a number", "two of them"],
)
def test_what_ranks_of_a_host_share_is_named_with_them(
    ranks: list[dict[str, JSON]], machines: int, shared: list[list[str]]
) -> None:
    environments = {"a": host_of(*({"rank": rank, **facts} for rank, facts in enumerate(ranks)), machines=machines)}
    said = shared_resources(rank_placements(("a",) * len(ranks), environments), environments)
    assert [re.findall(r"0000:\S+|\b\d(?:[,-]?\d)*", text.partition(";")[0]) for text in said] == shared


def test_ranks_with_numbers_and_gpus_of_their_own_are_nothing_to_speak_of() -> None:
    ranks = [{"rank": rank, "local_rank": rank % 2, "gpu": rank % 2} for rank in range(4)]
    environments = {"a": host_of(*ranks[:2]), "b": host_of(*ranks[2:])}
    hosts = ("a", "a", "b", "b")
    assert shared_resources(rank_placements(hosts, environments), environments) == ()
    assert cautions("srun", hosts, environments) == ()


def test_a_host_with_more_ranks_than_cores_is_crowded() -> None:
    cpus = {"a": CpuFacts(usable_cores=2), "b": CpuFacts(logical_cores=2)}
    environments = {host: HostFacts(cpu=cpu) for host, cpu in cpus.items()}
    assert oversubscribed_hosts(("a", "b", "b", "b"), environments) == {"b": (3, 2)}


_JOB = {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("launcher", "ranks", "variables", "said"),
    [
        ("local", 2, _JOB, "Slurm"),
        ("local", 1, {"SLURM_JOB_NUM_NODES": "2"}, "nodes"),
        ("local", 2, {"SLURM_NTASKS": "4"}, "ranks"),
        ("local", 4, _JOB, "nodes"),
        ("local", 4, {"SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}, None),
        ("local", 2, {"SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1"}, None),  # one task with many cores
        ("local", 2, {**_JOB, "SLURM_STEP_NODELIST": "a"}, None),  # srun --ntasks=1 …
        ("local", 2, {}, None),
        ("mpirun", 2, _JOB, None),
    ],
)
def test_tasks_of_a_job_that_a_plain_run_leaves_out_are_told_of(
    launcher: str, ranks: int, variables: dict[str, str], said: str | None
) -> None:
    notes = cautions(launcher, ("a",) * ranks, {"a": HostFacts(variables=variables)})
    assert notes == () if said is None else len(notes) == 1 and said in notes[0]


# --- distances -------------------------------------------------------------------------------------------------


def at(host: str, *switches: str) -> RankPlacement:
    return RankPlacement(0, host, switches=switches)


@pytest.mark.parametrize(
    ("one", "other", "steps", "words"),
    [
        (at("a"), at("a"), 0, "within a host"),
        (at("a", "s", "l1"), at("b", "s", "l1"), 1, "below one leaf switch"),
        (at("a", "s", "l1"), at("b", "s", "l2"), 2, "between leaf switches"),
        (at("a", "c", "s1", "l1"), at("b", "c", "s2", "l2"), 3, "between leaf switches, 2 levels up"),
        (at("a", "l1"), at("b", "l2"), 2, "between leaf switches"),
        (at("a"), at("b"), None, "between hosts"),
        (at("a", "l1"), at("b", "s", "l2"), None, "between hosts"),
        (RankPlacement(0, "a"), at("b", "l1"), None, "between hosts"),
    ],
)
def test_a_distance_is_by_the_switches_between(
    one: RankPlacement, other: RankPlacement, steps: int | None, words: str
) -> None:
    assert distance(one, other) == distance(other, one) == steps
    assert distance_in_words(steps) == words


TREES = st.lists(st.tuples(*[st.sampled_from("ab")] * 3, st.sampled_from("xyz")), min_size=3, max_size=3)


@given(TREES)
def test_distances_in_a_tree_are_ultrametric(places: list[tuple[str, str, str, str]]) -> None:
    """Of three ranks no distance is larger than the larger of the other two, which is what makes a tree a tree."""
    one, two, three = (RankPlacement(0, "".join(place), switches=_ways(place[:3])) for place in places)
    far, near, other = (distance(*pair) for pair in ((one, three), (one, two), (two, three)))
    assert far is not None
    assert near is not None
    assert other is not None
    assert far <= max(near, other)


def _ways(place: tuple[str, ...]) -> tuple[str, ...]:
    """Switches by their whole way from the top, as names in one cluster are."""
    return tuple("".join(place[: level + 1]) for level in range(len(place)))
