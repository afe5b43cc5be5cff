"""What the clocks and launches of this GPU are, as JSON on stdout: a part of ``make gpu-acceptance``."""

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

from busbw.backends.cuda import CudaDevice
from busbw.system.device import Device

_SAMPLES = 200
_STEP_NS = 37
"""Holds get longer by this, so that their times take every step of the events' clock."""


def timer_facts(device: Device) -> dict[str, float]:
    """Times in ns.

    host_read: between two reads of the host's clock
    event_steps: the smallest difference between the times of holds that get longer little by little
    event_record: the host records an event
    event_floor: between two events with nothing between
    launch, launch_on_device: the host launches an empty kernel; between events around it
    graph_launch: the host launches a graph of one empty kernel
    synchronise: the host waits for a GPU that has nothing to do
    events_per_host: time of a hold of 0.2 s between events, over the host's time around it
    """
    before, after = device.mark(), device.mark()
    empty = torch.zeros(1, device=device.name)
    kernel = empty.zero_
    kernel()
    replay = device.capture([kernel])

    def on_host(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(_SAMPLES):
            device.synchronise()
            begin = time.perf_counter_ns()
            call()
            taken.append(time.perf_counter_ns() - begin)
        device.synchronise()
        return float(median(taken))

    def on_device(call: Callable[[int], object]) -> list[int]:
        taken = []
        for number in range(_SAMPLES):
            before.record()
            call(number)
            after.record()
            device.synchronise()
            taken.append(after.ns_since(before))
        return taken

    device.hold(1_000_000)  # calibrated before
    device.synchronise()
    begin = time.perf_counter_ns()
    before.record()
    device.hold(200_000_000)
    after.record()
    device.synchronise()
    ratio = after.ns_since(before) / (time.perf_counter_ns() - begin)
    launched, floor = on_device(lambda _number: kernel()), on_device(lambda _number: None)
    times = sorted(set(on_device(lambda number: device.hold(_STEP_NS * number))))
    return {
        "host_read": on_host(lambda: None),
        "event_steps": float(min((b - a for a, b in pairwise(times)), default=0)),
        "event_record": on_host(before.record),
        "event_floor": float(median(floor)),
        "launch": on_host(kernel),
        "launch_on_device": float(median(launched)),
        "graph_launch": on_host(replay),
        "synchronise": on_host(device.synchronise),
        "events_per_host": ratio,
    }


if __name__ == "__main__":
    json.dump(timer_facts(CudaDevice(0)), sys.stdout, indent=1)
