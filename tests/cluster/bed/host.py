"""The first process of a virtual host: sets the host up from within its namespaces, then waits for the end of the bed.

Started below ``unshare``, with the host's name, the folder of the bed, and the folders that all hosts share. It says
``ready`` and reads its standard input, which ends when whoever made the bed ends, however that happens. Then this
process ends, and as it is process 1 of its namespace the kernel ends all others of the host, and takes away the mounts
and the network with the last of them.
"""

import signal
import socket
import subprocess
import sys
from pathlib import Path


def mount(*arguments: str | Path) -> None:
    """``mount`` with these arguments. Raises subprocess.CalledProcessError when it fails; it says why itself."""
    subprocess.run(["mount", *map(str, arguments)], check=True, stdin=subprocess.DEVNULL)


def set_up(name: str, run: Path, shared: list[Path]) -> None:
    """Give this host its name, /etc/hosts, /proc, /sys, /dev/shm and /tmp; ``shared`` folders show through."""
    socket.sethostname(name)
    mount("-t", "proc", "proc", "/proc")
    staged = run / "stages" / name
    mount("-t", "sysfs", "sysfs", staged)  # a new one, so that it shows the interfaces of this host
    if Path("/sys/fs/cgroup").is_dir():
        mount("--rbind", "/sys/fs/cgroup", staged / "fs/cgroup")
    mount("--move", staged, "/sys")
    mount("--bind", run / "hosts", "/etc/hosts")
    mount("-t", "tmpfs", "shm", "/dev/shm")  # noqa: S108 - its own, on purpose
    own = Path("/tmp")  # noqa: S108 - its own, on purpose
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", staged)
    for folder in shared:
        if folder.is_relative_to(own):
            inside = staged / folder.relative_to(own)
            inside.mkdir(parents=True, exist_ok=True)
            mount("--bind", folder, inside)
    mount("--move", staged, own)
    # Else TCP forgets in a pause what it knew of the way, and the first bytes after it measure its slow start.
    tcp = Path("/proc/sys/net/ipv4")
    (tcp / "tcp_slow_start_after_idle").write_text("0")
    # Every kernel has it, and where nothing is lost it does nothing but open its window.
    (tcp / "tcp_congestion_control").write_text("reno")


def main() -> None:
    """Set up, say so, wait."""
    name, *folders = sys.argv[1:]
    run, *shared = map(Path, folders)
    set_up(name, run, shared)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries those whom nobody waits for
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
