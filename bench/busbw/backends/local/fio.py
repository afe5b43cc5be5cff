"""Cross-check of storage samples with fio, if installed: one job on the same file and block size, after the samples.

fio times itself in whole milliseconds and takes long to start, so its rate is stored separately from the samples.
"""

import json
import shutil
import subprocess

from busbw.ops.storage import Access
from busbw.runs.records import CrossCheck


def command(fio: str, file: str, size_bytes: int, access: Access, *, writes: bool) -> tuple[str, ...] | None:
    """fio's command line for the same accesses as ours: ``size_bytes`` of ``file`` once from start to end.

    fio always leaves out a last partial block. None if fio has no suitable engine: without O_DIRECT, none accesses more
    than one block concurrently.
    """
    direct = access.way == "direct"
    if not direct and access.depth > 1:
        return None
    engine = ("--ioengine=libaio", f"--iodepth={access.depth}") if direct else ("--ioengine=psync",)
    return (
        fio,
        "--name=busbw",
        "--thread",
        f"--filename={file}",
        f"--rw={'write' if writes else 'read'}",
        f"--size={size_bytes - _rest(size_bytes, access)}",
        f"--bs={min(access.block_bytes, size_bytes)}",
        f"--direct={int(direct)}",
        *engine,
        # The unlinked file is reused; written data count once they are on the device.
        *(("--overwrite=1", "--end_fsync=1") if writes else ("--invalidate=1",)),
        "--output-format=json",
    )


def _rest(size_bytes: int, access: Access) -> int:
    """Bytes of a partial block at the end of the file."""
    return size_bytes % min(access.block_bytes, size_bytes)


def _killed_with_us(job: tuple[str, ...]) -> tuple[str, ...]:
    """Wrap ``job`` so that the kernel kills it when this process dies, if util-linux is installed."""
    arranger = shutil.which("setpriv")
    return job if arranger is None else (arranger, "--pdeathsig", "KILL", *job)


def measured(file: str, size_bytes: int, access: Access, timeout_seconds: float, *, writes: bool) -> CrossCheck | None:
    """Rate that fio measures for ``file`` on this rank; None if it is not installed or has no suitable engine.

    A job that failed, or took longer than ``timeout_seconds``, has an error in place of a rate.
    """
    fio = shutil.which("fio")
    job = None if fio is None else command(fio, file, size_bytes, access, writes=writes)
    if job is None:
        return None
    settings = " ".join(part for part in job[1:] if not part.startswith(("--name", "--filename", "--output")))
    if rest := _rest(size_bytes, access):
        settings += f" (without the partial block of {rest} B at the end of {size_bytes} B)"
    try:
        done = subprocess.run(
            _killed_with_us(job), capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        # Warnings may precede the JSON.
        report = json.loads(done.stdout[done.stdout.index("{") :])
        rate = float(report["jobs"][0]["write" if writes else "read"]["bw_bytes"])
        version = str(report["fio version"]).removeprefix("fio-")
    except subprocess.TimeoutExpired:
        problem = f"not finished after {timeout_seconds:g} s, half of --timeout"
        return CrossCheck(tool="fio", version="", settings=settings, error=problem)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
        return CrossCheck(tool="fio", version="", settings=settings, error=f"{type(error).__name__}: {error}")
    if rate <= 0:
        problem = (done.stderr.strip().splitlines() or ["no data were moved"])[0]
        return CrossCheck(tool="fio", version=version, settings=settings, error=problem)
    return CrossCheck(tool="fio", version=version, settings=settings, bytes_per_second=(rate,))
