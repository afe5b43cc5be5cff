"""What mpiexec starts in the place of a rank: hands its environment and descriptors to the launcher, and stays.

Run by its path, with the path of a socket: ``python -I -S mpi_stub.py SOCKET``. Only the standard library, and little
of it: this has to start in milliseconds, once for each rank of each launch.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Open, and return the exit status that the launcher gives: 1 when it is gone."""
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(sys.argv[1])
        # What the process manager left open for its rank, and told it so (PMI_FD); not everything that leaked to here.
        descriptors = sorted(
            {int(value) for name, value in os.environ.items() if name.endswith("_FD") and value.isdigit()}
        )
        about = json.dumps(
            {
                "variables": dict(os.environ),
                "descriptors": descriptors,
                "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
            }
        ).encode()
        size = len(about).to_bytes(8, "little")
        if descriptors:
            socket.send_fds(launcher, [size], descriptors)
        else:
            launcher.sendall(size)
        launcher.sendall(about)
        status = launcher.recv(1)
        return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
