"""A Slurm of Debian's packages on the virtual hosts: its configuration, and starting it without systemd."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from bed.hosts import BedError, Host, wait_until

GPUS = 8
"""How many graphics processors every host says it has. They are /dev/null under other names."""

Start = Callable[[str, Sequence[str | Path], Path], subprocess.Popen[str]]
"""Starts a daemon on the host of this name and writes what it says to this file."""

_CONTROLLER_PORT = 6817
_MEBIBYTES = 4096
"""The memory that every host says it has."""


def configuration(folder: Path, hosts: Sequence[str], head: Host, addresses: Sequence[str], cpus: int) -> str:
    """The text of slurm.conf: one partition of all hosts but the head, with fake processors and graphics processors."""
    nodes = "".join(
        f"NodeName={name} NodeAddr={address} CPUs={cpus} RealMemory={_MEBIBYTES} Gres=gpu:{GPUS} State=UNKNOWN\n"
        for name, address in zip(hosts, addresses, strict=True)
    )
    return f"""\
ClusterName=bed
SlurmctldHost={head.name}({head.address})
SlurmctldPort={_CONTROLLER_PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,sched_interval=1
# Processors are counted as written here, not as the machine has them.
SlurmdParameters=config_overrides
TopologyPlugin=topology/tree
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
ReturnToService=1
SlurmdTimeout=20
KillWait=2
JobRequeue=1
MinJobAge=3600
TmpFS=/tmp
PropagateResourceLimits=NONE
{nodes}PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""


def topology(hosts: Sequence[str]) -> str:
    """The text of topology.conf: the first half of the hosts on one leaf switch, the others on a second one."""
    half = (len(hosts) + 1) // 2
    return f"""\
SwitchName=leaf1 Nodes={",".join(hosts[:half])}
SwitchName=leaf2 Nodes={",".join(hosts[half:])}
SwitchName=spine Switches=leaf[1-2]
"""


def start_slurm(folder: Path, hosts: Sequence[Host], head: Host, cpus: int, start: Start) -> None:
    """Write the configuration start munged and slurmctld on ``head``, and begin to start a slurmd on each of
    ``hosts``. Raises BedError when one of the first two does not come up.
    """
    folder.mkdir(mode=0o755)
    names = [host.name for host in hosts]
    _write_configuration(folder, names, head, [host.address for host in hosts], cpus)
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (folder / "state").mkdir()
    files = [f"--{what}-file={munge / what}" for what in ("key", "pid", "log", "seed")]
    threads = "--num-threads=4"
    socket = munge / "socket"
    start(head.name, ["munged", "--foreground", "--force", f"--socket={socket}", *files, threads], munge / "out")
    wait_until(socket.exists, "munged did not start")
    controller = start(head.name, ["slurmctld", "-D"], folder / "slurmctld.out")
    # Who asks earlier is not refused at once, but waits for seconds.
    wait_until(lambda: head.listens(_CONTROLLER_PORT) or controller.poll() is not None, "slurmctld does not listen")
    if controller.poll() is not None:
        message = f"slurmctld ended with {controller.returncode}"
        raise BedError(message)
    for name in names:
        (folder / f"spool.{name}").mkdir()
        start(name, ["slurmd", "-D"], folder / f"slurmd.{name}.out")


def told_by_daemons(folder: Path) -> str:
    """The last lines of every log of Slurm, for the message when it does not start."""
    texts = []
    for log in sorted([*folder.glob("*.log"), *folder.glob("*.out"), *folder.glob("munge/*.log")]):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        texts += [f"{log.name}: {line}" for line in lines]
    return "\n".join(texts)


def _write_configuration(folder: Path, names: Sequence[str], head: Host, addresses: Sequence[str], cpus: int) -> None:
    if len(names) < 2:
        message = f"a Slurm of the bed has two leaf switches, so it needs two hosts or more, not {len(names)}"
        raise BedError(message)
    (folder / "slurm.conf").write_text(configuration(folder, names, head, addresses, cpus), encoding="utf-8")
    (folder / "topology.conf").write_text(topology(names), encoding="utf-8")
    for number in range(GPUS):
        os.mknod(folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
    gres = f"NodeName={','.join(names)} Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n"
    (folder / "gres.conf").write_text(gres, encoding="utf-8")
