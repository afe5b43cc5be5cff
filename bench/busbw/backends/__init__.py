"""The table of backends. Their libraries are loaded only when one is opened."""

import importlib.util
from importlib import metadata

from busbw.backends.base import Backend, BackendRow, World
from busbw.errors import UsageError


def _open_gloo(world: World) -> Backend:
    from busbw.backends.torch_dist import GlooBackend  # noqa: PLC0415 - torch costs a second; load it when it is used

    return GlooBackend(world)


def _torch_missing() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def _torch_versions() -> dict[str, str]:
    return {"torch": metadata.version("torch")}


BACKENDS: dict[str, BackendRow] = {
    row.name: row
    for row in (
        BackendRow(
            name="gloo",
            device="cpu",
            summary="torch.distributed over Gloo: CPU ranks, TCP",
            missing=_torch_missing,
            open=_open_gloo,
            versions=_torch_versions,
        ),
    )
}


def backend_named(name: str) -> BackendRow:
    """The row of one backend. Raises UsageError that lists the known ones."""
    try:
        return BACKENDS[name]
    except KeyError:
        message = f"backend {name!r} is unknown; known: {', '.join(BACKENDS)}"
        raise UsageError(message) from None
