"""Training steps over torch.distributed, with PyTorch's own libraries where they exist: one row per workload."""

from functools import partial

from busbw.backends.pytorch.training.context_parallel import Ring, Ulysses
from busbw.backends.pytorch.training.data_parallel import AllReduced, Bucketed, ExpertParallel, Sharded, Zero1
from busbw.backends.pytorch.training.model_parallel import Pipelined, TensorParallel
from busbw.backends.pytorch.training.step import MakeStep

WORKLOADS: dict[str, MakeStep] = {
    "train_all_reduce": AllReduced,
    "train_ddp": Bucketed,
    "train_zero1": Zero1,
    "train_fsdp": Sharded,
    "train_fsdp_kept": partial(Sharded, reshard=False),
    "train_fsdp_prefetch": partial(Sharded, prefetch=True),
    "train_hsdp": Sharded,
    "train_tensor": partial(TensorParallel, form="rows"),
    "train_columns": partial(TensorParallel, form="columns"),
    "train_sequence": partial(TensorParallel, form="sequence"),
    "train_ring": Ring,
    "train_ulysses": Ulysses,
    "train_experts": ExpertParallel,
    "train_gpipe": partial(Pipelined, schedule="ScheduleGPipe"),
    "train_1f1b": partial(Pipelined, schedule="Schedule1F1B"),
    "train_3d": partial(Pipelined, schedule="Schedule1F1B"),
    "train_interleaved": partial(Pipelined, schedule="ScheduleInterleaved1F1B"),
}
