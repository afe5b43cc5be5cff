"""The program that mpiexec starts for each rank: it passes environment and descriptors to busbw, then waits.

Run as ``python -I -S mpi_stub.py SOCKET``. It imports little, and only from the standard library, because it must start
in milliseconds for each rank of each launch.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Send the data, and return the exit status that busbw sends back (1 if busbw has exited)."""
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(sys.argv[1])
        # Only the descriptors that the process manager announces to its rank (PMI_FD), not others that were inherited.
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
