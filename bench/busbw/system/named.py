"""Hardware as people name it: a name that ``busbw peaks`` prints, the product name of NVML, or a usual short form."""

import re
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from busbw.errors import UsageError, alike, what_is_known
from busbw.system.catalog import NETWORKS, Catalogue, Gpu, HardwarePeak
from busbw.units import format_rate, listed, parse_rate

_VENDORS: Final = frozenset(("nvidia", "geforce", "tesla", "amd", "instinct", "intel", "aws"))
_BITS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([GTgt])(?:b|bps|bit|bit/s)?")
"""A rate of a network card in bits, without the ``/s`` of ``parse_rate``: ``400G``, ``400Gbps``."""
_SEVERAL: Final = re.compile(r"(\d{1,4})\s*[x×*]\s*(.+)")
_CARDS: Final = "--nics"
_MEANT: Final = 3
"""Most names that are offered for an unknown one."""
_WORD: Final = 3
"""Fewest letters of a word that its number may be left off: ``SXM`` of ``SXM5``."""


@dataclass(frozen=True, slots=True)
class Cards:
    """``count`` equal network cards; ``card`` is the peak of one, whose ``kind`` is None if only its rate is known."""

    count: int
    card: HardwarePeak

    def __str__(self) -> str:
        return f"{self.count}x{self.card.what}"


def gpu_named(rows: Catalogue, given: str, option: str = "--gpu") -> Gpu:
    """The GPU that ``given`` names. Raises UsageError (``gpu``) with the names that are meant or known."""
    names = {row.name: (row.name, *row.names) for row in rows.gpus}
    name = _only(option, given, names, [row.name for row in gpus_meant(rows, given)], "gpu")
    return next(row for row in rows.gpus if row.name == name)


def gpus_meant(rows: Catalogue, given: str) -> list[Gpu]:
    """The GPUs that ``given`` may be a short name of."""
    asked = _words(given)

    def fits(gpu: Gpu) -> bool:
        # The model comes first and is never shortened: L40 is no short form of L40S.
        words = {word for text in (gpu.name, *gpu.names, gpu.memory) for word in _words(text)}
        return _words(gpu.name)[:1] == asked[:1] and all(_is_in(word, words) for word in asked)

    return [gpu for gpu in rows.gpus if asked and fits(gpu)]


def rows_named(rows: Catalogue, given: str) -> Catalogue:
    """The GPUs and rates that have the words of ``given`` in their name. Raises UsageError (``hardware``)."""
    asked = set(_words(given))
    named = ((rate, (rate.name, *rate.names)) for rate in rows.rates if asked)
    rates = [rate for rate, names in named if any(asked <= {*_words(name)} for name in names)]
    gpus = gpus_meant(rows, given)
    if not (gpus or rates):
        likely = _likely(given, [row.name for row in (*rows.gpus, *rows.rates)])
        hint = "busbw peaks lists all, busbw peaks --here those of this machine"
        hint = hint if likely is None else f"did you mean {likely}?"
        raise UsageError(f"no GPU or rate has the name {given!r}; {hint}", code="hardware")
    return replace(rows, gpus=tuple(gpus), rates=tuple(rates))


def card_named(rows: Catalogue, given: str, option: str = "--nic") -> HardwarePeak:
    """The network card that ``given`` names, or that has only a rate: ``4X NDR``, ``100GbE``, ``400Gb/s``, ``400G``.

    Raises UsageError (``network``) with the names that are meant or known.
    """
    # A user's row comes first, as with GPUs.
    by_origin = sorted(rows.rates, key=lambda row: rows.origin(row) is None)
    cards = {row.name: row for row in by_origin if row.kind in NETWORKS}
    names = {row.name: (row.name, *row.names) for row in cards.values()}
    bits = _BITS.fullmatch(given.strip())
    rate = f"{bits[1]}{bits[2].upper()}b/s" if bits else given if "/" in given else None
    if rate is not None:
        bytes_per_second = parse_rate(rate)
        return HardwarePeak(bytes_per_second, None, format_rate(bytes_per_second), "one direction", "as given")
    if re.fullmatch(r"[0-9.]+(?:GB|MB)?", given.strip()):
        raise UsageError(f"{option} {given!r}: a rate needs its unit, such as 400Gb/s", code="network")
    asked = _words(re.sub(r"(\d+)\s*(?:GbE|GigE)\b", r"\1G Ethernet", given, flags=re.IGNORECASE))
    fitting = [row for row in cards if asked and any(set(asked) <= set(_words(name)) for name in names[row])]
    return cards[_only(option, given, names, fitting, "network")].peak


def cards_named(rows: Catalogue, given: str) -> Cards:
    """The network cards that ``given`` names, with their number if there are several: ``8x400Gb/s``, ``8x4X NDR``."""
    several = _SEVERAL.fullmatch(given.strip())
    names = {_squeezed(name) for row in rows.rates for name in (row.name, *row.names)}
    is_name = _squeezed(given) in names  # 4X NDR is one card
    if several is None or is_name:
        return Cards(1, card_named(rows, given, _CARDS))
    if int(several[1]) < 1:
        raise UsageError(f"{_CARDS} {given!r}: expected at least one card, such as 8x400Gb/s", code="network")
    return Cards(int(several[1]), card_named(rows, several[2], _CARDS))


def links_named(rows: Catalogue, given: str, option: str) -> HardwarePeak:
    """All links of the GPU that ``given`` names to other GPUs, together. Raises UsageError (``gpu``) if it has none."""
    gpu = gpu_named(rows, given, option)
    link = rows.link(gpu.link)
    if link is None or gpu.links is None:
        raise UsageError(f"{option} {gpu.name}: busbw peaks lists no links of it to other GPUs", code="gpu")
    return link.peak.times(gpu.links, f"{gpu.links} × {link.name}")


def _only(option: str, given: str, names: Mapping[str, Sequence[str]], fitting: Sequence[str], code: str) -> str:
    """The row of ``names`` that has the name ``given``, else the only one that is ``fitting``."""
    for form in (str.casefold, _squeezed):
        if equal := [row for row, aliases in names.items() if form(given.strip()) in set(map(form, aliases))]:
            return equal[0]
    if not fitting:
        rate = "give a rate such as 400Gb/s, or a name: " if code == "network" else ""
        hint = what_is_known(names, _likely(given, names))
        raise UsageError(f"{option} {given!r} is unknown; {rate}{hint}", code=code)
    if len(fitting) > 1:
        raise UsageError(f"{option} {given!r} may be {listed(fitting, word='or')}; give one of these names", code=code)
    return fitting[0]


def _likely(given: str, names: Collection[str]) -> str | None:
    """The names, or models as their first words (``H100``), that are most similar to ``given``; first those that begin
    like it.
    """
    similar = alike(given, [*(name.partition(" ")[0] for name in names), *names])
    similar.sort(key=lambda name: name[0].casefold() != given[0].casefold())
    return listed(similar[:_MEANT], word="or") or None


def _words(name: str) -> tuple[str, ...]:
    """The words of a name in small letters, without the vendor; ``80 GB`` and ``2080 Ti`` are one word each."""
    joined = re.sub(r"(\d+)\s+(gb|ti)\b", r"\1\2", name.casefold())
    return tuple(word for word in re.findall("[a-z0-9]+", joined) if word not in _VENDORS)


def _squeezed(name: str) -> str:
    return "".join(_words(name))


def _is_in(word: str, words: AbstractSet[str]) -> bool:
    """Whether ``word`` is one of ``words``, or one of them without its number."""
    short = word.isalpha() and len(word) >= _WORD
    return word in words or (short and any(re.fullmatch(rf"{word}\d+", other) for other in words))
