"""Named baselines: which runs a gate compares with, in ``baselines/NAME.json`` of the results folder."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from busbw.errors import StoreError, UsageError, refuse_unknown
from busbw.runs import files, store
from busbw.runs.records import Record
from busbw.units import listed
from busbw_analysis.data.likeness import CHECKED, SOFTWARE

_FOLDER: Final = "baselines"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED: Final = "latest"
VERSION: Final = 1


class BaselineRun(Record, frozen=True, kw_only=True):
    """One of its runs. ``folder``: relative to the results folder if it is there."""

    id: str
    folder: str
    launches: int


class Baseline(Record, frozen=True, kw_only=True):
    """A stored baseline.

    version: of this format
    set: when
    facts: what must be equal in a run that is compared with it, by name
    """

    version: int
    set: str
    machine: str
    facts: dict[str, str]
    runs: tuple[BaselineRun, ...]

    def folders(self, results_dir: Path) -> list[Path]:
        """The folders of its runs. Raises UsageError if some are gone."""
        paths = {run.id: results_dir / run.folder for run in self.runs}
        gone = [name for name, path in paths.items() if not (path / store.RUN_FILE).is_file()]
        if gone:
            raise UsageError(
                f"run {listed(gone)} of the baseline is gone: {paths[gone[0]]} is not a run folder. Set the baseline "
                "again with busbw baseline set --replace",
                code="baseline-gone",
            )
        return list(paths.values())


def baseline_of(pooled: Sequence[store.StoredRun], results_dir: Path) -> Baseline:
    """The baseline of pooled runs."""
    first = pooled[0].run
    facts = {
        name: _in_words(value)
        for name, value_of in CHECKED
        if name not in SOFTWARE and (value := value_of(first)) is not None
    }
    whole = results_dir.resolve()
    runs = []
    for stored in pooled:
        path = stored.path.resolve()
        inside = path.is_relative_to(whole)
        launches = len({row.launch for row in stored.measurements})
        folder = path.relative_to(whole) if inside else path
        runs.append(BaselineRun(id=stored.run.id, folder=str(folder), launches=launches))
    return Baseline(version=VERSION, set=store.utc_now(), machine=first.machine, facts=facts, runs=tuple(runs))


def _in_words(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{name.in_words} {of_name}" for name, of_name in value.items())


def names(results_dir: Path) -> list[str]:
    """The names of all baselines, sorted."""
    return sorted(path.stem for path in (results_dir / _FOLDER).glob("*.json") if _NAME.fullmatch(path.stem))


def is_name(results_dir: Path, name: str) -> bool:
    """Whether there is a baseline of this name."""
    return _NAME.fullmatch(name) is not None and _path(results_dir, name).is_file()


def read(results_dir: Path, name: str) -> Baseline:
    """A stored baseline. Raises UsageError with the known names, and StoreError for a damaged file."""
    _require(results_dir, name)
    path = _path(results_dir, name)
    with files.store_errors("read", path):
        content = files.document(path)
    try:
        baseline = msgspec.json.decode(content, type=Baseline)
    except store.NOT_A_RECORD as error:
        raise StoreError(f"{path}: damaged: {error}; set the baseline again with --replace") from error
    if baseline.version != VERSION:
        raise StoreError(f"{path}: version {baseline.version} of the format; this busbw reads only version {VERSION}")
    return baseline


def write(results_dir: Path, name: str, baseline: Baseline, *, replace: bool) -> Path:
    """Store a baseline atomically. Raises UsageError for a name that is not allowed, or that exists, unless
    ``replace``.
    """
    if not _NAME.fullmatch(name) or name == _RESERVED:
        raise UsageError(
            f"baseline name {name!r}: expected up to 64 letters, digits, dots, dashes and underscores, other than "
            f"{_RESERVED!r}",
            code="baseline-name",
        )
    path = _path(results_dir, name)
    if path.exists() and not replace:
        raise UsageError(f"baseline {name} exists; add --replace to set it again", code="baseline-exists")
    with files.store_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replaced(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(baseline)) + b"\n")
    return path


def remove(results_dir: Path, name: str) -> None:
    """Remove a baseline, but not its runs. Raises UsageError with the known names."""
    _require(results_dir, name)
    with files.store_errors("remove", _path(results_dir, name)):
        _path(results_dir, name).unlink()


def _require(results_dir: Path, name: str) -> None:
    if is_name(results_dir, name):
        return
    if not (known := names(results_dir)):
        raise UsageError(f"there is no baseline in {results_dir}; busbw baseline set NAME RUN", code="no-such-baseline")
    refuse_unknown("baseline", name, known, code="no-such-baseline")


def _path(results_dir: Path, name: str) -> Path:
    return results_dir / _FOLDER / f"{name}.json"
