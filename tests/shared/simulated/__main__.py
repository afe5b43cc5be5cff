"""``PYTHONPATH=tests/shared python -m simulated run --backend nccl …``: busbw's command on a simulated machine.

``SIMULATED_GPUS`` is the number of its GPUs, two by default, ``SIMULATED_MACHINE`` has other fields of ``Machine`` and
``SIMULATED_FAULTS`` what is wrong with it, the fields of ``Faults``, as literals of Python: ``{"slow_links": {(0, 1):
4.0}}``. Its matrix products are slow, because the host makes each of them, and busbw warms a GPU up with them for a
second of its clock.
"""

import os
import sys
from ast import literal_eval
from dataclasses import replace

from busbw.cli.main import main
from simulated.install import seen_by_busbw, simulated
from simulated.machine import EXACT, Faults
from simulated.management import managed_machine

gpus = int(os.environ.get("SIMULATED_GPUS", "2"))
faults = Faults(**literal_eval(os.environ.get("SIMULATED_FAULTS", "{}")))
fields = {"flops": 1e9, **literal_eval(os.environ.get("SIMULATED_MACHINE", "{}"))}
machine = replace(EXACT, gpus=gpus, faults=faults, **fields)
with simulated(machine), seen_by_busbw(), managed_machine(machine):
    sys.exit(main())
