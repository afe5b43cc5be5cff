"""A machine with GPUs that is not there: its rates, costs and faults are known, and busbw's own code runs on it.

``machine`` holds what is known, ``device`` time, streams, events and memory, ``graphs`` captures, ``tensors`` tensors
on a GPU, ``nccl`` the collectives of torch.distributed, ``install`` puts all of it in the place of torch.cuda.

It is strict where CUDA is strict. It does not capture asynchronous collectives. It knows nothing of caches, clocks
under load, the algorithms of NCCL, drivers and their faults: these are tested on hardware only.
"""
