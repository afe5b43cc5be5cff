"""Reader of the file that nccl-tests writes with ``-J``, versions 1 to 4.

Source: ``src/util.cu`` of NVIDIA/nccl-tests (``JSON_FILE_VERSION``). Booleans and NaN are text, the root is padded, and
infinity is invalid JSON. The operation is only in ``args``. The environment is not read: it may contain secrets.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw.ops import limits
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import Document, document, items, mapping, real, reals, text
from busbw_analysis.data.readers.lines import scaled, verdict, whole
from busbw_analysis.data.readers.log import Place

SIGN: Final = re.compile(rb'"(?:out_of_place|average_bus_bandwidth|aggregated_iterations)"\s*:')
_PLACES: Final = (("out_of_place", False), ("in_place", True))
_DEVICE: Final = {"host": "hostname", "bus_id": "device_hex", "name": "device_info"}
"""Field of ``Place`` → key in the file, if they differ."""


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The results. Raises LogError if the file is cut off."""
    parsed = document(draft.source, lines)
    config, args = mapping(parsed.get("config")), [str(word) for word in items(parsed.get("args"))]
    _head(draft, parsed, config, args)
    tool_op = args[0].rpartition("/")[2].partition("_perf")[0] if args else None
    results = [mapping(result) for result in items(parsed.get("results"))]
    for row, line in zip(results, parsed.lines_of("size", len(results)), strict=True):
        for key, in_place in _PLACES:
            _add(draft, row, key, line=line, tool_op=tool_op, in_place=in_place)
    errors = [error for error in map(text, items(parsed.get("errors"))) if error is not None]
    if errors:
        draft.fail(errors[-1])
    wrong = whole(mapping(parsed.get("out_of_bounds")).get("count"))
    if wrong:
        draft.note("wrong-results", None, f"the tool found {wrong} results out of bounds")
    draft.end(out_of_bounds=wrong, complete="end_time" in parsed)


def _head(draft: Draft, parsed: Document, config: dict[str, Any], args: list[str]) -> None:
    """Record ranks and command. Up to version 3, one device is listed per process, however many it drives."""
    for device in map(mapping, items(config.get("devices"))):
        draft.place(**{name: device.get(_DEVICE.get(name, name)) for name in Place.__struct_fields__})
    numbers = [place.rank for place in draft.places if place.rank is not None]
    groups = len({place.group for place in draft.places})
    drives = (whole(config.get("nthreads")) or 1) * (whole(config.get("ngpus")) or 1)
    if numbers:
        processes = len({(place.host, place.pid) for place in draft.places}) == len(numbers)
        ranks = max(numbers) + (drives if processes else 1)
        for place in draft.places[:] if processes and len(numbers) * drives <= limits.MOST_RANKS else ():
            others = range((place.rank or 0) + 1, (place.rank or 0) + drives)
            draft.places += [Place(rank=rank, group=place.group, pid=place.pid, host=place.host) for rank in others]
        draft.facts["ranks"] = ranks if groups == 1 else None
        draft.facts["groups"] = groups if groups > 1 else None
    draft.facts["library_version"] = text(parsed.get("nccl_version"))
    draft.facts["command"] = " ".join(args)[:1000] or None


def _add(draft: Draft, row: dict[str, Any], key: str, *, line: int, tool_op: str | None, in_place: bool) -> None:
    cell, each = mapping(row.get(key)), mapping(row.get(f"{key}_per_iter"))
    if not cell:
        return
    values = {name: real(value) for name, value in (row | cell | each).items() if not isinstance(value, list)}
    labels: dict[str, float | str | None] = {
        f"tuning {name}": text(value) for name, value in mapping(row.get("tuning")).items()
    }
    skipped = whole(each.get("skipped_iterations")) or 0
    labels["experiment_name"] = text(row.get("experiment_name"))
    labels["cputime"] = cpu_time = values.get("cpu_time")
    draft.collective(
        line,
        tool_op,
        row | {"dtype": row.get("type"), "iterations": row.get("actual_iterations")},
        time_seconds=scaled(values.get("time"), 1e-6),
        algbw=scaled(values.get("alg_bw"), 1e9),
        cpu_time=cpu_time is not None,
        busbw=scaled(values.get("bus_bw"), 1e9),
        in_place=in_place,
        statistic="mean",
        samples_seconds=reals(each.get("times_us"), 1e-6)[skipped:],
        process_seconds=tuple(reals(times, 1e-6)[skipped:] for times in items(each.get("per_process_max_times_us"))),
        others={name: value for name, value in labels.items() if value is not None},
        **verdict(values.get("nwrong")),
    )
