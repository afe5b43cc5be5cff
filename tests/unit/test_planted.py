"""The table of planted faults fits the sources."""

from dataclasses import replace

from faults import FAULTS
from planted import misfits


def test_every_fault_can_be_planted() -> None:
    assert misfits(FAULTS) == []
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_row_that_no_longer_fits_is_told() -> None:
    gone = replace(FAULTS[0], old="nowhere to be found")
    often = replace(FAULTS[0], old="ranks")
    same = replace(FAULTS[0], new=FAULTS[0].old)
    lost = replace(FAULTS[0], tests=("unit/test_nothing.py",))
    assert [len(misfits([one])) for one in (gone, often, same, lost)] == [1, 1, 1, 1]
