"""What Gloo sends: the bytes that all ranks put on the loopback device in a call, over S, and what the models say.

    .venv/bin/python tests/bench/gloo_bytes.py

It needs a network namespace of its own, in which nobody else sends (`unshare` of util-linux, `ip` of iproute2).
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.select import model_for

SIZE: Final = 12 << 20
RANKS: Final = (2, 3, 4)
CALLS: Final = 5


def calls(rank: int, ranks: int) -> dict[str, Callable[[], object]]:
    """Every operation with S = SIZE, as the suite calls it."""
    whole, other = torch.ones(SIZE // 4), torch.ones(SIZE // 4)
    block = torch.ones(SIZE // 4 // ranks)
    blocks = list(other.chunk(ranks))
    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(block, whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, block),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "gather": lambda: dist.gather(block, None if rank else blocks),
        "scatter": lambda: dist.scatter(block, None if rank else blocks),
    }


def sent_bytes() -> int:
    """What went out of the loopback device of this namespace so far."""
    line = next(line for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines() if "lo:" in line)
    return int(line.split()[9])


def be_rank(rank: int, ranks: int, meeting: str) -> None:
    """One rank; the first one says what all have sent."""
    warnings.simplefilter("ignore", FutureWarning)  # torch has new names for two of the calls
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    for op, call in calls(rank, ranks).items():
        call()
        dist.barrier()
        before = sent_bytes()
        dist.barrier()
        for _ in range(CALLS):
            call()
        dist.barrier()
        if rank == 0:
            say(op, ranks, (sent_bytes() - before) / CALLS)
        dist.barrier()
    dist.destroy_process_group()


def say(op: str, ranks: int, counted: float) -> None:
    """A line of the table."""
    model = model_for(op, "gloo")
    assert isinstance(model, CostModel)
    said = model.moved(ranks, 1, SIZE) * SIZE
    print(f"  {op:<14} {ranks:5d} {counted / SIZE:10.2f} {said / SIZE:7.2f} {counted / said - 1:+8.1%}", flush=True)


def main() -> None:
    """Enter a namespace, and count there."""
    if "--inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "--map-root-user", "--net", sys.executable, __file__, "--inside"])  # noqa: S606, S607
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # noqa: S607
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    print(f"# op             ranks  counted/S  said/S          S = {SIZE >> 20} MiB, {CALLS} calls")
    context = multiprocessing.get_context("fork")
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            world = [context.Process(target=be_rank, args=(rank, ranks, f"{folder}/meeting")) for rank in range(ranks)]
            for one in world:
                one.start()
            for one in world:
                one.join()
            if any(one.exitcode for one in world):
                sys.exit(f"a rank of {ranks} failed")


if __name__ == "__main__":
    main()
