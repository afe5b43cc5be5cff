"""How a device hangs on PCI Express: the link as trained, what it could be, and the narrowest step up to the host.

The kernel tells all of it in sysfs, for the link above a card and for the one below a port. Virtual machines tell none
of it, or lanes of zero; both read as not told.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from busbw.runs.records import JSON
from busbw.system.sysfs import text_of

_SPEED = re.compile(r"([0-9.]+) GT/s")  # "16 GT/s" up to Linux 5.6, "16.0 GT/s PCIe" since


@dataclass(frozen=True, slots=True)
class Link:
    """Gigatransfers a second on each of so many lanes. By the product one link is compared with another."""

    gigatransfers: float
    lanes: int

    @property
    def product(self) -> float:
        """What the link carries, up to the encoding, which is the same or better the faster it is."""
        return self.gigatransfers * self.lanes


def link_facts(steps: Sequence[Path]) -> dict[str, JSON] | None:
    """The link of the last of ``steps``, which are the devices of sysfs from the port below the host down to the card.

    ``trained``; ``card``, what the card could; ``port``, what the port above it could (None: not told);
    ``narrowest``, the step that carries least where that is less than the card's link is now, with its address. None
    where the kernel does not tell how the card's link was trained.
    """
    if not steps:
        return None
    trained = _read(steps[-1], "current")
    if trained is None:
        return None
    port = _read(steps[-2], "max") if len(steps) > 1 else None
    above = [(step.name, link) for step in steps[:-1] if (link := _read(step, "current")) is not None]
    least = min(above, key=lambda found: found[1].product, default=None)
    slower = least is not None and least[1].product < trained.product
    return {
        "trained": _as_json(trained),
        "card": _as_json(_read(steps[-1], "max")),
        "port": _as_json(port),
        "narrowest": {"address": least[0], **_as_json(least[1])} if least is not None and slower else None,
    }


def _read(device: Path, which: str) -> Link | None:
    """``current`` or ``max`` of the link of ``device``; None: not told."""
    speed = _SPEED.match(text_of(device / f"{which}_link_speed") or "")
    lanes = text_of(device / f"{which}_link_width") or ""
    # 255 lanes are what a device says that does not answer any more.
    if speed is None or not lanes.isdigit() or not 0 < int(lanes) <= 32:
        return None
    return Link(float(speed[1]), int(lanes))


def _as_json(link: Link | None) -> JSON:
    return None if link is None else {"gigatransfers": link.gigatransfers, "lanes": link.lanes}
