"""fio beside our own samples, where it is installed: one job on the same file in the same blocks, after the samples.

It is a check and no sample: fio times itself, in whole milliseconds, and starting it takes longer than many a call. So
its rate stands beside the samples of a case and is never mixed with them.
"""

import json
import shutil
import subprocess

from busbw.ops.storage import Access
from busbw.runs.records import CrossCheck


def command(fio: str, file: str, size_bytes: int, access: Access, *, writes: bool) -> tuple[str, ...] | None:
    """What does with fio what our own loop does: ``size_bytes`` of ``file`` once from start to end, but for the rest
    that is no whole block, which fio leaves out whatever it is told. None where fio has no engine for that: without
    O_DIRECT none of them has more than one block under way.
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
        # The file is there, has no name, and stays; what is written counts once the device has it.
        *(("--overwrite=1", "--end_fsync=1") if writes else ("--invalidate=1",)),
        "--output-format=json",
    )


def _rest(size_bytes: int, access: Access) -> int:
    """Bytes at the end of the file that are no whole block."""
    return size_bytes % min(access.block_bytes, size_bytes)


def _ending_with_us(job: tuple[str, ...]) -> tuple[str, ...]:
    """The same, killed by the kernel when this process dies, where util-linux can arrange for it."""
    arranger = shutil.which("setpriv")
    return job if arranger is None else (arranger, "--pdeathsig", "KILL", *job)


def measured(file: str, size_bytes: int, access: Access, timeout_seconds: float, *, writes: bool) -> CrossCheck | None:
    """What fio says of ``file`` on this rank; None where it is not installed or has no way to do the same. A job that
    failed, or took longer than ``timeout_seconds``, has no rate and an error.
    """
    fio = shutil.which("fio")
    job = None if fio is None else command(fio, file, size_bytes, access, writes=writes)
    if job is None:
        return None
    settings = " ".join(part for part in job[1:] if not part.startswith(("--name", "--filename", "--output")))
    if rest := _rest(size_bytes, access):
        settings += f" (without the last {rest} of {size_bytes} B, which are no whole block)"
    try:
        done = subprocess.run(
            _ending_with_us(job), capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        # Warnings may come before it.
        told = json.loads(done.stdout[done.stdout.index("{") :])
        rate = float(told["jobs"][0]["write" if writes else "read"]["bw_bytes"])
        version = str(told["fio version"]).removeprefix("fio-")
    except subprocess.TimeoutExpired:
        said = f"it was not through after {timeout_seconds:g} s, half of what --timeout gives a rank"
        return CrossCheck(tool="fio", version="", settings=settings, error=said)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
        return CrossCheck(tool="fio", version="", settings=settings, error=f"{type(error).__name__}: {error}")
    if rate <= 0:
        said = (done.stderr.strip().splitlines() or ["it moved nothing"])[0]
        return CrossCheck(tool="fio", version=version, settings=settings, error=said)
    return CrossCheck(tool="fio", version=version, settings=settings, bytes_per_second=(rate,))
