"""For tests that hold times against the truth: what to do where the truth is not what was set.

The network of a bed is a program. It stands still while the hypervisor takes the processors away, and on a slow day it
is late by itself, as plain programs find that do nothing else: a failure then says nothing of busbw. Nothing is made of
a test that holds: no disturbance brings out the right answer.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ParamSpec

import pytest
from bed import Bed, Network

MOST_STOLEN = 0.005
"""The share of the processors' time that may be stolen: undisturbed machines were seen at 0.001 to 0.005."""

MOST_LATE_MS = 0.15
"""What a plain message may take beyond its delay: tests allow busbw a tenth of the delay and 0.2 ms."""

LEAST_CARRIED = 0.97
"""What plain programs on all hosts, each of which sends and receives at once, have to get of a cable: tests want 0.9 of
busbw, which does more than that.
"""

MOST_CARRIED_MBIT = 4000
"""What the switch is asked to carry then, all cables together: 1000 for each of four hosts, less for each of more."""

TRIES = 3

_PLAIN_RING = Path(__file__).parent / "programs" / "plain_ring.py"
_EXCHANGED_BYTES = 64 << 20
_PAYLOAD = 8948 / 9038
"""Of a frame, what it holds of data."""

_STEAL = 7
"""Place of the stolen time among the numbers of the first line of /proc/stat (proc(5))."""

P = ParamSpec("P")


def processor_ticks() -> tuple[int, int]:
    """What all processors have counted since the machine began: all of their time, and that which was stolen."""
    numbers = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return sum(numbers), numbers[_STEAL]


def plainly(bed: Bed) -> tuple[float, float]:
    """What plain programs find between all hosts of ``bed``, on cables of 1000 Mbit/s or less and 1 ms: how late a
    message is, in ms, and the share of the cables that all have at once. The network is then as it was.
    """
    before = bed.network
    rate_mbit = min(1000, MOST_CARRIED_MBIT / len(bed.names))
    bed.set_network(Network(rate_mbit=rate_mbit, delay_ms=1))
    addresses = [bed.address(host) for host in bed.names]
    try:
        with ExitStack() as stack:
            programs = [
                stack.enter_context(
                    bed.running_on(host, [sys.executable, _PLAIN_RING, str(rank), str(_EXCHANGED_BYTES), *addresses])
                )
                for rank, host in enumerate(bed.names)
            ]
            reports = [json.loads(program.communicate(timeout=60)[0]) for program in programs]
    finally:
        bed.set_network(before)
    slowest = max(seconds for _, seconds in reports)
    return reports[0][0] - 1, _EXCHANGED_BYTES * 8e-6 / slowest / (rate_mbit * _PAYLOAD)


def out_of_true(bed: Bed | None) -> str | None:
    """In words, when plain programs do not find what is set on ``bed`` either; None when they do."""
    if bed is None:
        return None
    late_ms, carried = plainly(bed)
    if late_ms <= MOST_LATE_MS and carried >= LEAST_CARRIED:
        return None
    return f"a plain message was {late_ms:.2f} ms late, plain programs had {carried:.0%} of the cables"


def bed_of(given: tuple[object, ...]) -> Bed | None:
    """The bed among the arguments of a test, or of one of them."""
    beds = (argument if isinstance(argument, Bed) else getattr(argument, "bed", None) for argument in given)
    return next((bed for bed in beds if isinstance(bed, Bed)), None)


def measured(test: Callable[P, None]) -> Callable[P, None]:
    """``test``, which measures all that it looks at itself: begun anew when it fails and more than ``MOST_STOLEN`` of
    the processors' time was stolen meanwhile, or its bed is out of true, and skipped after ``TRIES`` such failures.

    A first failure that neither explains is begun anew, too, with a warning in the summary: a disturbance of a second
    is over when the plain programs look. No other test runs beside it.
    """

    @functools.wraps(test)
    def undisturbed(*args: P.args, **kwargs: P.kwargs) -> None:
        failed: AssertionError | None = None
        why: str | None = None
        for number in range(TRIES):
            total, stolen = processor_ticks()
            try:
                return test(*args, **kwargs)
            except AssertionError as error:
                failed = error
            now_total, now_stolen = processor_ticks()
            if (now_stolen - stolen) / max(now_total - total, 1) > MOST_STOLEN:
                why = f"the hypervisor took more than {MOST_STOLEN:.1%} of the processors"
            elif (why := out_of_true(bed_of((*args, *kwargs.values())))) is None:
                if number:
                    raise failed
                warnings.warn(f"measured once more, because without a disturbance {failed}", stacklevel=2)
        pytest.skip(f"disturbed {TRIES} times, at last because {why}; then: {failed}")

    return pytest.mark.alone(undisturbed)
