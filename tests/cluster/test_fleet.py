"""A fleet with one fault, whose node or link is named, and a healthy one, of which nobody is accused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bed import Bed, Ranks
from exhaustive import EXHAUSTIVE
from faulty_fleets import HOSTS, KINDS, Fleets, fleet_of
from measured import measured

pytestmark = pytest.mark.timeout(400)

_FOR_A_COMMIT = ("slow pair", "halves pass")
_HOSTS = HOSTS if EXHAUSTIVE else 8


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleets]:
    results = tmp_path_factory.mktemp("fleets")
    with Bed(hosts=_HOSTS, shared=[tmp_path_factory.getbasetemp()]) as bed, Ranks(bed, results) as ranks:
        yield Fleets(bed, ranks, results)


@pytest.mark.parametrize("kind", KINDS if EXHAUSTIVE else _FOR_A_COMMIT)
@measured
def test_what_is_wrong_with_a_fleet_is_named_and_nothing_else(fleets: Fleets, kind: str) -> None:
    truth = fleet_of(kind, 1, fleets.bed.names)
    outcome = fleets.outcome(truth)
    assert outcome.right, (outcome, truth.right)
