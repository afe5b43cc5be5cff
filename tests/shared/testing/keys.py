"""Keys of curves for tests."""

from typing import Any

from msgspec import structs

from busbw_analysis.data.series import SeriesKey

_KEY = SeriesKey(
    op="all_reduce",
    backend="gloo",
    cost_models="gloo",
    device="cpu",
    dtype="float32",
    redop="sum",
    ranks=(0, 1, 2, 3),
    group="all",
    hosts=1,
    mode="isolated",
    sync="barrier",
    cache="warm",
    pre_enqueue=False,
    registered=False,
    in_place=False,
    root=None,
)


def series_key(backend: str = "gloo", **changes: Any) -> SeriesKey:  # noqa: ANN401 - fields of a key
    """An all_reduce of four ranks of one host, with these changes."""
    return structs.replace(_KEY, backend=backend, cost_models=backend, **changes)
