"""The planted faults: what ``make planted`` breaks, one after the other, to see that a test notices.

``faults.diff`` has each as in a diff: where it is, what is wrong [which tests should notice], the old text and the
new. Tests are in tests/unit unless their folder is given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """``old``, which is found once in ``file``, becomes ``new``.

    name: what is wrong then, in a few words.
    tests: the files in ``tests`` that should notice; they are run first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _fault(row: str) -> Fault:
    head, *lines = row.splitlines()
    file, _, rest = head.partition(": ")
    name, _, tests = rest.removesuffix("]").partition(" [")
    old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    files = tuple(
        f"{folder or 'unit'}/test_{test}.py" for folder, _, test in (one.rpartition("/") for one in tests.split())
    )
    return Fault(name, file, old, new, files)


_TABLE = Path(__file__).with_suffix(".diff").read_text(encoding="utf-8")
FAULTS = tuple(_fault(row) for row in re.split(r"^@ ", _TABLE, flags=re.MULTILINE)[1:])
