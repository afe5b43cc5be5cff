"""Steps of training over torch.distributed, with PyTorch's own libraries where it has them: one row each."""

from busbw.backends.pytorch.training.context_parallel import Ring, Ulysses
from busbw.backends.pytorch.training.data_parallel import AllReduced, Bucketed, Zero1
from busbw.backends.pytorch.training.expert_parallel import ExpertParallel
from busbw.backends.pytorch.training.pipeline import pipelined
from busbw.backends.pytorch.training.sharded import Sharded
from busbw.backends.pytorch.training.step import MakeStep
from busbw.backends.pytorch.training.tensor_parallel import tensor_parallel

WORKLOADS: dict[str, MakeStep] = {
    "train_all_reduce": AllReduced,
    "train_ddp": Bucketed,
    "train_zero1": Zero1,
    "train_fsdp": Sharded,
    "train_fsdp_kept": lambda made: Sharded(made, reshard=False),
    "train_fsdp_prefetch": lambda made: Sharded(made, prefetch=True),
    "train_hsdp": Sharded,
    "train_tensor": tensor_parallel("rows"),
    "train_columns": tensor_parallel("columns"),
    "train_sequence": tensor_parallel("sequence"),
    "train_ring": Ring,
    "train_ulysses": Ulysses,
    "train_experts": ExpertParallel,
    "train_gpipe": pipelined("ScheduleGPipe"),
    "train_1f1b": pipelined("Schedule1F1B"),
    "train_3d": pipelined("Schedule1F1B"),
    "train_interleaved": pipelined("ScheduleInterleaved1F1B"),
}
