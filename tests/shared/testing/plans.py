"""Plans as text, for tests that hand a file to the command."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

QUICK: Final = MappingProxyType(
    dict.fromkeys(("min_seconds", "launch_warmup_seconds", "warmup_seconds"), 0.0)
    | {"blocks": 1, "min_samples": 4, "least_samples": 2, "max_seconds": 0.05, "warmup_calls": 1}
)
"""The timing of runs whose times nobody looks at."""

STEADY: Final = MappingProxyType(
    {"blocks": 1, "least_samples": 5, "min_seconds": 0.0, "launch_warmup_seconds": 0.2, "warmup_calls": 1}
)
"""The timing of runs whose medians are looked at; how long they go on is added."""


def sweep(ops: str, sizes: str | None = None, /, **keys: object) -> str:
    """A sweep of ``ops``, separated by commas; ``keys`` as a plan names them."""
    given = {"ops": ops.split(","), **({} if sizes is None else {"sizes": sizes}), **keys}
    return "\n".join(["", "[[sweep]]", *(f"{key} = {json.dumps(value)}" for key, value in given.items()), ""])


def plan_text(
    *sweeps: str, timing: Mapping[str, float] = QUICK, name: str = "test", controller: str | None = None
) -> str:
    """A plan of these sweeps."""
    chosen = [] if controller is None else [f"controller = {json.dumps(controller)}"]
    lines = [
        f"name = {json.dumps(name)}",
        *chosen,
        "",
        "[timing]",
        *(f"{key} = {value}" for key, value in timing.items()),
        "",
    ]
    return "\n".join(lines) + "".join(sweeps)
