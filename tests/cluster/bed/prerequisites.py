"""What the machine must have for a bed, and what of it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

_FOR_HOSTS = ("unshare", "nsenter", "mount", "ip", "tc", "cc")
_FOR_SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo")
_TUN = Path("/dev/net/tun")


def missing(*, slurm: bool) -> tuple[str, ...]:
    """Why there can be no bed here (with ``slurm``, or only a network), in words; nothing when there can be one."""
    if not sys.platform.startswith("linux"):
        return (f"virtual hosts need Linux, this is {sys.platform}",)
    if os.geteuid() != 0:
        return ("virtual hosts can be made by root only",)
    programs = _FOR_HOSTS + (_FOR_SLURM if slurm else ())
    absent = [name for name in programs if shutil.which(name) is None]
    reasons = [f"{', '.join(absent)} cannot be found: make cluster-setup installs them"] if absent else []
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        reasons.append(f"{_TUN} cannot be opened ({error.strerror}), so there are no virtual cables")
    if "unshare" not in absent:
        tried = subprocess.run(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "true"],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode != 0:
            reasons.append(f"root may not make namespaces here: {tried.stderr.strip()}")
    if slurm and not absent and not _pmix().exists():
        reasons.append(f"{_pmix()}, which Slurm's PMIx opens, is missing: make cluster-setup makes it")
    return tuple(reasons)


def _pmix() -> Path:
    """The library that Debian's Slurm opens by its name without a version, which only the -dev package brings."""
    return Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "", "pmix2/lib/libpmix.so")
