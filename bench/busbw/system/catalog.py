"""Catalogue of hardware peaks: datasheet rates and practical rates, each row with its source.

The rows are TOML files in ``peaks/``; a user's own file adds rows and replaces shipped rows of the same name. Rates are
B/s of payload, decimal, in one direction unless a row says otherwise; FLOP/s are dense (docs/formats.md#peaks).
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from busbw.errors import UsageError
from busbw.ops import limits
from busbw.ops.limits import URL, SourcedRow, refuse
from busbw.runs.facts import GpuFacts, PciDevice
from busbw.runs.records import Record
from busbw.units import format_rate

VARIABLE = "BUSBW_PEAKS"
"""Environment variable with the path of the user's peaks file."""

Kind = Literal["nvlink", "nvswitch", "xgmi", "c2c", "pcie", "ddr", "infiniband", "ethernet", "efa", "slingshot", "nvme"]
Direction = Literal["one direction", "reads and writes together"]
Over = Literal["rdma", "tcp"]

PLAUSIBLE: dict[str, tuple[float, float]] = {
    "nvlink": (10e9, 200e9),
    "nvswitch": (100e9, 20e12),
    "xgmi": (10e9, 200e9),
    "c2c": (50e9, 2e12),
    "pcie": (0.2e9, 20e9),
    "ddr": (5e9, 150e9),
    "infiniband": (0.2e9, 500e9),
    "ethernet": (1e6, 500e9),
    "efa": (1e9, 5e12),
    "slingshot": (5e9, 200e9),
    "nvme": (0.1e9, 100e9),
}
"""Kind → plausible range of one unit in B/s. Catches slips: bits for bytes, GB for B, a whole card for one lane."""
NETWORKS: tuple[Kind, ...] = ("infiniband", "ethernet", "efa", "slingshot")
"""Kinds of network cards."""
_BETWEEN_GPUS: tuple[Kind, ...] = ("nvlink", "xgmi")
_PLAUSIBLE_MEMORY = (50e9, 100e12)
_PLAUSIBLE_CAPACITY = (1e9, 10e12)
_PLAUSIBLE_FLOPS = (1e12, 1e18)

DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8", "float4", "int8")
LANES = (1, 2, 4, 8, 12, 16, 32)
"""Possible numbers of lanes of a PCI Express link (PCI Express Base Specification, Max Link Width)."""
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
"""GT/s per lane → PCI Express generation."""


class Rate(SourcedRow, frozen=True, kw_only=True):
    """Rate of one unit (lane, link, channel, port, …) of a link, memory or drive.

    names: other names that people give
    per: the unit
    bytes_per_second: nominal, B/s
    practical_bytes_per_second, practical_source: what good measurements reach, and their source; None: unknown
    over: protocol of the practical rate of a network; None: RDMA, or not a network
    ports: number of ports of one unit, for a row about several ports together
    """

    kind: Kind
    names: tuple[str, ...] = ()
    per: str
    bytes_per_second: float
    direction: Direction = "one direction"
    practical_bytes_per_second: float | None = None
    practical_source: str | None = None
    over: Over | None = None
    ports: int | None = None

    def __post_init__(self) -> None:
        self.check_source()
        if self.over is not None and (self.kind not in NETWORKS or self.practical_bytes_per_second is None):
            refuse("over", self.over, f"over only with a practical value of {', '.join(NETWORKS)}")
        if self.ports is not None and (self.kind != "efa" or self.ports < 1):
            refuse("ports", self.ports, "1 or more ports, only in rows of kind efa")
        _check_rate(self, "bytes_per_second", PLAUSIBLE[self.kind])

    @property
    def peak(self) -> "HardwarePeak":
        """The peak of one unit."""
        return HardwarePeak(
            nominal=self.bytes_per_second,
            practical=self.practical_bytes_per_second,
            what=self.name,
            direction=self.direction,
            source=self.source,
            practical_source=self.practical_source,
            kind=self.kind,
        )


class Products(Record, frozen=True, kw_only=True):
    """What a GPU reaches in the kernels of training: 16-bit matrix products, and those that only move bytes.

    processors: parts of a product that it computes at once
    share: of the datasheet's FLOP/s, in large and deep products
    depth: multiplications that take as long as to begin and end a part
    memory: of the datasheet's memory rate, in reads and writes of norms, sums and activations
    source: measurements by shape that ``share`` and ``depth`` are fitted to
    attention: of the datasheet's FLOP/s in fused causal attention, forward and backward (by SimuMax's tables, of the
    longest sequences if they are slower: their kernels take as long as those of a step, at its clock)
    """

    processors: int
    share: float
    depth: float
    memory: float
    source: str
    attention: tuple[float, float] = (0.56, 0.37)

    def __post_init__(self) -> None:
        if not URL.fullmatch(self.source):
            refuse("products.source", self.source, "a URL")
        for key, most in (("processors", 10_000), ("share", 1), ("memory", 1), ("depth", 10_000)):
            if not 0 < getattr(self, key) <= most:
                refuse(f"products.{key}", getattr(self, key), f"above 0 and at most {most}")
        if not all(0 < share <= 1 for share in self.attention):
            refuse("products.attention", self.attention, "two shares above 0 and at most 1")


class Gpu(SourcedRow, frozen=True, kw_only=True):
    """One GPU, as a device of the system.

    names: names used by NVML and drivers
    pci: PCI identities (``10de:2335``)
    memory_bytes: what the driver reports, of the smallest variant (None: unknown)
    memory_source: source of that report; None: memory_bytes is the datasheet's
    memory_bytes_per_second: reads plus writes
    flops: dense FLOP/s by data type
    products: what it reaches of them; None: unknown
    link, links: row of its links to other GPUs, and number of them (None: those of a bridge that not every card has)
    links_known: false if it has links to other GPUs whose rate no source gives; PCI Express is not its path to them
    host_link: row of its link to the host, if that is not PCI Express
    pcie, lanes: its PCI Express link
    """

    names: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    memory: str
    memory_bytes: float | None = None
    memory_source: str | None = None
    memory_bytes_per_second: float
    practical_memory_bytes_per_second: float | None = None
    practical_source: str | None = None
    flops: dict[str, float] = msgspec.field(default_factory=dict)
    products: Products | None = None
    link: str | None = None
    links: int | None = None
    links_known: bool = True
    host_link: str | None = None
    pcie: str | None = None
    lanes: int = 16

    def __post_init__(self) -> None:
        self.check_source()
        if not self.names and not self.pci:
            refuse("names", self.names, "at least one name or PCI identity; otherwise the row can never match")
        if strange := [identity for identity in self.pci if not re.fullmatch("[0-9a-f]{4}:[0-9a-f]{4}", identity)]:
            refuse("pci", strange, "vendor:device in lower case, such as 10de:2335")
        if self.memory_bytes is not None:
            _believe("memory_bytes", self.memory_bytes, _PLAUSIBLE_CAPACITY, "B")
        if self.memory_source is not None and (self.memory_bytes is None or not URL.fullmatch(self.memory_source)):
            refuse("memory_source", self.memory_source, "a URL, and only with memory_bytes")
        _check_rate(self, "memory_bytes_per_second", _PLAUSIBLE_MEMORY)
        if unknown := sorted(set(self.flops) - set(DTYPES)):
            refuse("flops", ", ".join(unknown), f"the data types {', '.join(DTYPES)}")
        for dtype, value in self.flops.items():
            _believe(f"flops.{dtype}", value, _PLAUSIBLE_FLOPS, "FLOP/s")
        if self.link is None and self.links is not None:
            refuse("links", self.links, "links only together with link")
        if self.links is not None and self.links < 1:
            refuse("links", self.links, "1 or more links")
        if self.lanes not in LANES:
            refuse("lanes", self.lanes, f"one of {', '.join(map(str, LANES))}")


def _believe(key: str, value: float, limits: tuple[float, float], unit: str) -> None:
    if not (math.isfinite(value) and limits[0] <= value <= limits[1]):
        refuse(key, value, f"{limits[0]:g} to {limits[1]:g} {unit} (plain {unit}, no prefix; one direction)")


def _check_rate(row: Rate | Gpu, key: str, limits: tuple[float, float]) -> None:
    """Check the nominal rate ``key`` of a row, and its practical rate with its own source."""
    nominal, practical, source = getattr(row, key), getattr(row, f"practical_{key}"), row.practical_source
    _believe(key, nominal, limits, "B/s")
    if practical is None:
        if source is not None:
            refuse("practical_source", source, f"practical_source only with practical_{key}")
        return
    if not (math.isfinite(practical) and 0 < practical <= nominal):
        refuse(f"practical_{key}", practical, f"above 0 and at most the nominal {nominal:g}")
    if source is None or not URL.fullmatch(source):
        refuse("practical_source", source, "a URL, because there is a practical value")


class _File(Record, frozen=True, kw_only=True):
    rate: tuple[Rate, ...] = ()
    gpu: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class HardwarePeak:
    """A hardware peak in B/s.

    nominal: by the datasheet
    practical, practical_source: measured in practice (None: unknown), and its source
    what: what the peak is of
    direction: direction of the rates
    source: source of the nominal value: a URL, or who states it
    kind: kind of the catalogue row, if there is one
    """

    nominal: float
    practical: float | None
    what: str
    direction: str
    source: str
    practical_source: str | None = None
    kind: Kind | None = None

    @property
    def practical_of(self) -> str | None:
        """Direction of the practical rate if it is not both: drives write more slowly, and by different amounts."""
        return "reads" if self.kind == "nvme" and self.practical is not None else None

    def times(self, count: float, what: str) -> "HardwarePeak":
        """``count`` of these units together."""
        practical = None if self.practical is None else count * self.practical
        return replace(self, nominal=count * self.nominal, practical=practical, what=what)

    @property
    def in_words(self) -> str:
        """``nominal (source: …), 392 GB/s in practice (source: …)``, to follow the nominal rate."""
        by = f"source: {self.source}" if URL.fullmatch(self.source) else self.source
        if self.practical is None:
            return f"nominal ({by})"
        source = "" if self.practical_source is None else f" (source: {self.practical_source})"
        of = f" of {self.practical_of}" if self.practical_of else ""
        return f"nominal ({by}), {format_rate(self.practical)}{of} in practice{source}"


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU with the rows that describe it, each None if there is none.

    no_row: why it has no row
    link: one of its links to other GPUs: ``link_name`` by NVML, otherwise that of its row
    host_link: its link to the host, if that is not PCI Express, which then serves only for configuration
    pcie: its PCI Express link as trained, of a GPU known only by name the widest of its kind; or why it is unknown
    """

    facts: GpuFacts
    row: Gpu | None
    no_row: str
    link: Rate | None
    link_name: str | None
    host_link: Rate | None
    pcie: HardwarePeak | str

    @property
    def to_host(self) -> HardwarePeak | str:
        """Its link to the host in one direction, or why it is unknown."""
        return self.pcie if self.host_link is None else self.host_link.peak


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All rows. ``origins``: (kind or ``gpu``, name) of a row → the user's file; shipped rows are absent."""

    rates: tuple[Rate, ...]
    gpus: tuple[Gpu, ...]
    origins: Mapping[tuple[str, str], str]

    def rate(self, kind: Kind, name: str) -> Rate | None:
        """The row of this kind and name, or None."""
        return next((row for row in self.rates if row.kind == kind and row.name == name), None)

    def link(self, name: str | None) -> Rate | None:
        """The row of a link between GPUs, of this name, or None."""
        return next((row for row in self.rates if row.kind in _BETWEEN_GPUS and row.name == name), None)

    def gpu(self, name: str | None, pci: str | None = None) -> Gpu | None:
        """The GPU that NVML or a driver calls ``name``; without a name, the only GPU with this PCI identity. Names must
        match exactly: those of slower siblings (H800, H20) are similar.
        """
        if name is None:
            alike = self.identified(pci)
            return alike[0] if len(alike) == 1 else None
        called = name.casefold()
        return next((row for row in self.gpus if called in {alias.casefold() for alias in row.names}), None)

    def identified(self, pci: str | None) -> tuple[Gpu, ...]:
        """The GPUs with this PCI identity, which siblings share; if the user's file has one, only its first."""
        alike = tuple(row for row in self.gpus if pci in row.pci)
        return tuple(row for row in alike if self.origin(row) is not None)[:1] or alike

    def known(self, gpu: GpuFacts) -> KnownGpu:
        """The rows of ``gpu``. If NVML knows it, its name decides. Otherwise the kernel gives the vendor's name, and
        the PCI identity is used if no row has that name. For a log, the user may have named the row.
        """
        row = next((row for row in self.gpus if row.name == gpu.name), None) if gpu.source is not None else None
        row = row or self.gpu(gpu.name, gpu.id) or (self.gpu(None, gpu.id) if gpu.index is None else None)
        name, no_row = _link_name(gpu, row), self._no_row(gpu)
        return KnownGpu(
            facts=gpu,
            row=row,
            no_row=no_row,
            link=self.link(name),
            link_name=name,
            host_link=None if row is None else self.rate("c2c", row.host_link or ""),
            pcie=self.pcie_of(gpu) if gpu.source is None else self._widest(row) or no_row,
        )

    def _no_row(self, gpu: GpuFacts) -> str:
        unnamed = f"the GPU with PCI identity {gpu.id}" if gpu.id else "a GPU of unknown kind"
        label = f"{gpu.name!r}" if gpu.name else unnamed
        alike = [row.name for row in self.identified(gpu.id)] if gpu.index is None else []
        either = f", which could be {' or '.join(alike)}" if len(alike) > 1 else ""
        return f"no row for {label}{either}; add one to your peaks file"

    def _widest(self, gpu: Gpu | None) -> HardwarePeak | None:
        row = None if gpu is None else self.rate("pcie", gpu.pcie or "")
        if gpu is None or row is None:
            return None
        return row.peak.times(gpu.lanes, f"{row.name} x{gpu.lanes}, the maximum of {gpu.name}")

    def pcie_of(self, device: PciDevice) -> HardwarePeak | str:
        """The link of a device to the host in one direction, as trained, or why it is unknown."""
        bus = self.bus_of(device)
        return bus if isinstance(bus, str) else replace(bus, what=f"{bus.what} as trained")

    def bus_of(self, device: PciDevice) -> HardwarePeak | str:
        """The same by generation and lanes: ``PCIe 5 x16``."""
        if device.link is None:
            return "the kernel does not report how its link was trained"
        trained = device.link.trained
        row = self.rate("pcie", f"PCIe {GENERATIONS.get(trained.gigatransfers)}")
        if row is None:
            return f"no row for PCIe at {trained.gigatransfers:g} GT/s; add one to your peaks file"
        return row.peak.times(trained.lanes, f"{row.name} x{trained.lanes}")

    def origin(self, row: Rate | Gpu) -> str | None:
        """The user's file that ``row`` comes from; None for a shipped row."""
        return self.origins.get(_key(row))


def _link_name(gpu: GpuFacts, row: Gpu | None) -> str | None:
    """The name of the links of a GPU to others. The driver takes precedence: installed links count, not those of the
    datasheet.
    """
    generation = None if gpu.nvlink is None else gpu.nvlink.generation
    # NVML has one generation for NVLinks of two rates: bridges of GA102 are slower than those of A100.
    bridge = row.link if row is not None and row.links is None else None
    return bridge or (f"NVLink {generation}" if generation else None if row is None else row.link)


def _key(row: SourcedRow) -> tuple[str, str]:
    return (row.kind if isinstance(row, Rate) else "gpu", row.name)


# --- reading ---------------------------------------------------------------------------------------------------


def own_file(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The user's peaks file: ``given``, else $BUSBW_PEAKS, else peaks.toml in the configuration folder if it exists."""
    if given is not None:
        return given
    if named := environment.get(VARIABLE):
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME") or environment.get("HOME", "") + "/.config"
    path = Path(folder) / "busbw" / "peaks.toml"
    return path if os.path.isfile(path) else None  # noqa: PTH113 - Path's raises for the home folder of somebody else


def catalogue(given: Path | None = None, environment: Mapping[str, str] = os.environ) -> Catalogue:
    """The shipped rows and those of ``own_file``. Raises UsageError with file, line, row and key."""
    rows: dict[tuple[str, str], Rate | Gpu] = {}
    for name, text in limits.shipped("busbw.system", "peaks").items():
        rows.update(parse(text, f"peaks/{name}.toml"))
    added: Mapping[tuple[str, str], Rate | Gpu] = {}
    own = own_file(given, environment)
    if own is not None:
        added = parse(limits.read_text(own, limits.MOST_TOML_BYTES, "peaks "), str(own))
    rows.update(added)
    rates = tuple(row for row in rows.values() if isinstance(row, Rate))
    gpus = [row for row in rows.values() if isinstance(row, Gpu)]
    origins = dict.fromkeys(added, str(own))
    ways: tuple[tuple[str, tuple[Kind, ...]], ...] = (
        ("link", _BETWEEN_GPUS),
        ("host_link", ("c2c",)),
        ("pcie", ("pcie",)),
    )
    for gpu in gpus:
        for field, kinds in ways:
            named = getattr(gpu, field)
            there = {row.name for row in rates if row.kind in kinds}
            if named is not None and named not in there:
                raise UsageError(
                    f"{own or 'peaks'}: gpu {gpu.name!r}, key '{field}': no row of kind {' or '.join(kinds)} is named "
                    f"{named!r}; known: {', '.join(sorted(there))}"
                )
    # A user's row comes first: it may give a shipped GPU's driver name to a row with another name.
    gpus.sort(key=lambda row: _key(row) not in origins)
    return Catalogue(rates, tuple(gpus), origins)


@lru_cache(maxsize=16)  # 13 ms for the shipped rows, which every judgement of many runs wants
def parse(text: str, origin: str) -> Mapping[tuple[str, str], Rate | Gpu]:
    """The rows of one file by kind (or ``gpu``) and name. Raises UsageError with line, row, key and allowed values."""
    rate_keys, gpu_keys = limits.fields_of(Rate), limits.fields_of(Gpu)
    parsed = limits.converted(limits.read_toml(text, origin), text, origin, _File, rate=rate_keys, gpu=gpu_keys)
    tables: dict[str, Sequence[Rate | Gpu]] = {"rate": parsed.rate, "gpu": parsed.gpu}
    by_name: dict[tuple[str, str], Rate | Gpu] = {}
    for table, rows in tables.items():
        for number, row in enumerate(rows):
            if _key(row) in by_name:
                where = f"{origin}, line {limits.line_of(text, table, number, 'name')}: [[{table}]] {row.name!r}"
                raise UsageError(f"{where}: this row occurs twice in the file")
            by_name[_key(row)] = row
    return by_name
