"""``PYTHONPATH=tests/shared python -m simulated run --backend nccl …``: busbw's command on a simulated machine.

It has as many GPUs as ``SIMULATED_GPUS`` says, two by default. Its matrix products are slow, because the host makes
each of them, and busbw warms a GPU up with them for a second of its clock.
"""

import os
import sys
from dataclasses import replace

from busbw.cli.main import main
from simulated.install import seen_by_busbw, simulated
from simulated.machine import EXACT

with simulated(replace(EXACT, gpus=int(os.environ.get("SIMULATED_GPUS", "2")), flops=1e9)), seen_by_busbw():
    sys.exit(main())
