"""PCI Express link of a device: as trained, its maximum, and the narrowest link on the way to the host.

The kernel reports the link above a card and the link below a port in sysfs. Virtual machines report nothing, or zero
lanes; both count as unknown.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from busbw.runs.facts import Lanes, LinkFacts, Narrowest
from busbw.system.sysfs import text_of

_SPEED = re.compile(r"([0-9.]+) GT/s")  # "16 GT/s" up to Linux 5.6, "16.0 GT/s PCIe" since


def link_facts(steps: Sequence[Path]) -> LinkFacts | None:
    """The link of the last of ``steps``: sysfs devices from the port below the host down to the card. None if the
    kernel does not report how the card's link was trained.
    """
    if not steps:
        return None
    trained = _read(steps[-1], "current")
    if trained is None:
        return None
    above = [(link, step.name) for step in steps[:-1] if (link := _read(step, "current")) is not None]
    least, address = min(above, key=lambda entry: _raw_rate(entry[0]), default=(trained, None))
    slower = _raw_rate(least) < _raw_rate(trained)
    return LinkFacts(
        trained=trained,
        card=_read(steps[-1], "max"),
        port=_read(steps[-2], "max") if len(steps) > 1 else None,
        narrowest=Narrowest(gigatransfers=least.gigatransfers, lanes=least.lanes, address=address) if slower else None,
    )


def _raw_rate(link: Lanes) -> float:
    """Raw rate for comparing links, without the encoding, which is equal or better on faster links."""
    return link.gigatransfers * link.lanes


def _read(device: Path, which: str) -> Lanes | None:
    """The ``current`` or ``max`` link of ``device``: GT/s of a lane, and lanes; None: unknown."""
    speed = _SPEED.match(text_of(device / f"{which}_link_speed") or "")
    lanes = text_of(device / f"{which}_link_width") or ""
    # A device that no longer answers reports 255 lanes.
    if speed is None or not lanes.isdigit() or not 0 < int(lanes) <= 32:
        return None
    return Lanes(gigatransfers=float(speed[1]), lanes=int(lanes))
