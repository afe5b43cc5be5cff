"""The messages with which jobs fail, and what each means.

Sources of messages: ``src/init.cc`` and ``bootstrap.cc`` of NVIDIA/nccl; ``gloo/transport/tcp`` of pytorch/gloo;
``TCPStore.cpp``, ``socket.cpp``, ``ProcessGroupGloo.cpp``, ``ProcessGroupNCCL.cpp`` and ``torch/distributed/elastic``
of pytorch/pytorch; ``ncclGetErrorString``; ``src/perftest_communication.c`` of linux-rdma/perftest; Open MPI's help.
"""

import re
from typing import Final, NamedTuple


class Failure(NamedTuple):
    """A message with which jobs fail.

    sign: recognises it; its groups fill ``text``
    doing: the phase; "": the message does not say it
    text: what it means
    causes: why it usually comes
    action: what to do
    waits: whether ranks waited for others in vain
    follows: whether it usually follows from a failure of another rank
    """

    sign: str
    doing: str
    text: str
    causes: str
    action: str
    waits: bool = False
    follows: bool = False


WHICH_PATH: Final = (
    "run it again with NCCL_P2P_DISABLE=1, then NCCL_IB_DISABLE=1: if one of them ends the hang, that path is bad"
)
WHY_CALLS_HANG: Final = (
    "a rank that does not make the call, GPUs whose peer access hangs (ACS, IOMMU), a NIC that loses data"
)
_MEET, _CONNECT, _CALL = "ranks meet", "ranks connect", "a call runs"
_EARLIEST: Final = "find the rank whose error has the earliest time, in the logs of all ranks"
_ANOTHER_ENDED: Final = (
    "that rank failed (its own error is in its log), was killed for memory (dmesg), or its host was lost"
)
_NOT_STARTED: Final = (
    "ranks that never started or crashed before, another address or port there, a wrong number of processes, a firewall"
)
_TRY_PORT: Final = "start all ranks, and try the port from another host (nc -zv ADDRESS PORT)"
_GLOO_NAME: Final = "set GLOO_SOCKET_IFNAME to one interface that is UP on every host (ip -br addr; busbw doctor)"
_WARN: Final = "run it again with NCCL_DEBUG=WARN, which prints the call that failed"
_NO_MEMORY: Final = Failure(
    r"Call to (ibv_(?:create|alloc|reg)_\w+) failed|UCX  ERROR (ibv_reg_\w+)\(.{1,200}\) failed",
    _CONNECT,
    "a NIC gets no memory ({})",
    "too little locked memory, or memory of GPUs without nvidia-peermem or dma-buf",
    "set ulimit -l unlimited (docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK), load "
    "nvidia-peermem",
)
FAILURES: Final = (
    Failure(
        r"Unable to find (?:address|interface) for: ?\[?([^\s\]]{1,64})",
        _MEET,
        "Gloo finds no address of {}",
        "GLOO_SOCKET_IFNAME names no interface of this host (it takes names, no ^), or the name of the host has "
        "no address of its own (/etc/hosts)",
        _GLOO_NAME,
    ),
    Failure(
        r"pair\.cc:\d+\] (?:address family mismatch)",
        _CONNECT,
        "Gloo mixes IPv4 and IPv6",
        "the names of hosts have addresses of both",
        _GLOO_NAME,
    ),
    Failure(
        r"pair\.cc:\d+\] connect \S{1,64}:\d+: (Connection refused|No route to host|Connection timed out)"
        r"|connectFullMesh failed with .{0,200}?(no error|SO_ERROR: [\w ]{1,40}|timed out[\w ]{0,40})"
        r"|Gloo (connectFullMesh) f",
        _CONNECT,
        "Gloo does not reach another rank ({})",
        "hosts tell each other an address that others do not reach (127.0.0.1 behind the name of the host, docker0), a "
        "firewall, or the other rank ended",
        _GLOO_NAME,
        waits=True,
    ),
    Failure(
        r"No available shared memory broadcast block found in (\d{1,9} sec\w*)",
        _CALL,
        "workers of vLLM did not answer for {}",
        "a worker that still compiles or loads, failed, or hangs in a call between GPUs",
        "look for the earliest error of a worker; if there is none, at the stacks of all workers (py-spy dump)",
        waits=True,
    ),
    Failure(
        r"([Rr]anks? \d[\d, ]{0,200}) failed to (?:pass monitoredBarrier|call into monitoredBarrier)",
        _CALL,
        "{} did not come to the barrier",
        "late data, an exception, another call than that of the others",
        "look at the log of these ranks",
        waits=True,
    ),
    Failure(
        r"[Tt]imed out waiting (\d{1,12} ?ms) for (?:send|recv) operation|Application timeout caused pair closure",
        _CALL,
        "Gloo waited in vain for another rank ({})",
        "a rank that does not make the call: it is late, failed, or makes another call",
        _EARLIEST,
        waits=True,
    ),
    Failure(
        r"Timed out after (\d{1,9}) seconds waiting for (?:clients|workers)\. (\d{1,7})/(\d{1,7})",
        _MEET,
        "after {} s only {} of {} ranks had joined",
        _NOT_STARTED,
        _TRY_PORT,
        waits=True,
    ),
    Failure(
        r"client socket has (?:failed to connect to|timed out after \d+ ?m?s while trying to connect to) "
        r"(?:any network address of )?[\[(]?([^\s,\])]{1,255})[\])]?[:,] ?(\d{1,5})",
        _MEET,
        "nothing answers at {}, port {}",
        "rank 0 has not started or ended, MASTER_ADDR or MASTER_PORT differ, a firewall, a name with several addresses",
        _TRY_PORT,
        waits=True,
    ),
    Failure(
        r"failed to (?:bind|listen).{0,200}(?:EADDRINUSE|[Aa]ddress already in use)|(?<!\w)EADDRINUSE(?!\w)"
        r"|RuntimeError: Address already in use",
        _MEET,
        "the port of rank 0 is in use",
        "another job, or a process left of the last one",
        "give another port (--master-port), or end that process (ss -ltnp)",
    ),
    Failure(
        r"Rendezvous(?:Timeout|Connection|Closed)Error|[Rr]endezvous (?:timed out|has failed)",
        _MEET,
        "torchrun's rendezvous failed",
        "a node that did not start torchrun or ended it, another --rdzv-endpoint or --rdzv-id there, a firewall",
        _TRY_PORT,
        waits=True,
    ),
    Failure(
        r"([Mm]issing ranks: \[?\d[\d, ]{0,200})"
        r"|reduced, gathered or broadcasted by subset of ranks(?:.{0,2000}?\[(ready ranks: [\d, ]{1,200})\])?"
        r"|Stalled (?:ops|tensors|ranks): ?(.{1,99})",
        _CALL,
        "some ranks do not make the call ({})",
        "late data, an exception, another call than that of the others",
        "look at the log of these ranks",
        waits=True,
    ),
    Failure(
        r"[Hh]eartbeat monitor timed out|watchdog (?:thread )?got stuck for (?:\d+ ?seconds)?",
        _CALL,
        "the watchdog of NCCL itself hangs",
        "a call of CUDA that does not return (a GPU that hangs), Python's lock held elsewhere",
        "look for Xid errors (dmesg), and at the stacks of all ranks (py-spy dump)",
        waits=True,
    ),
    Failure(
        r"Test timeout(?! computed)",
        _CALL,
        "nccl-tests waited too long for a call",
        WHY_CALLS_HANG,
        WHICH_PATH,
        waits=True,
    ),
    Failure(
        r"(?:CCOM|NCCL) WARN Timeout waiting for (RX|(?:incoming )?connection)",
        _MEET,
        "a rank waited in vain for another one ({})",
        _NOT_STARTED + ", a host too busy to start all of its processes in time",
        _EARLIEST,
        waits=True,
    ),
    Failure(
        r"Getting (socket) times out|(Notify) register times out|wait (socket establish) timeout",
        "",
        "HCCL waited in vain for another rank ({})",
        "a rank that failed, is late or makes another call, an NPU whose network the others do not reach",
        _EARLIEST
        + "; try the way to it (hccn_tool -i 0 -ping -g address IP); HCCL_CONNECT_TIMEOUT is for ranks that are "
        "only late",
        waits=True,
    ),
    Failure(
        r"oot ?: (rank \d{1,7} of \d{1,7} ranks has already checked in)|(Invalid rank requested ?: \d{1,7}/\d{1,7}"
        r"|mismatch in rank count)",
        _MEET,
        "ranks are not numbered as one job ({})",
        "every host numbers its ranks from 0, two jobs meet at one address, another WORLD_SIZE or number of processes",
        "print RANK, WORLD_SIZE and MASTER_ADDR in every process (torchrun: --nnodes and --node-rank)",
    ),
    Failure(
        r"(?:No|no) socket interface found|No interface found in the same subnet as remote address",
        _MEET,
        "NCCL has no network interface",
        "NCCL_SOCKET_IFNAME names none of this host, or a container has none",
        "set NCCL_SOCKET_IFNAME to an interface of every host (ip -br addr)",
    ),
    Failure(
        r"(?:[Cc]onnect to|Call to connect(?: to)?) ?(\S{0,99}?)(?: |<\d+> )?(?:failed ?: ?|returned )(?:\d+\()?"
        r"(?:Connection refused|No route to|Connection timed out|Network is unreachable|Software caused)"
        r"(?!.*retrying)",
        _CONNECT,
        "a rank does not reach another one {}",
        "a firewall, an interface that other hosts do not reach, a rank that ended",
        "set NCCL_SOCKET_IFNAME to an interface that all hosts reach, and open its ports",
    ),
    Failure(
        r"NET/OFI (?!Using|Selected|Setting|Running|.{0,40}fi_getinfo)"
        r"(.{0,99}(?:[Cc]ouldn't|Unable to|[Ff]ail|UNDELIVERABLE|[Ee]rror\b).{0,99})",
        _CONNECT,
        "the network plugin for libfabric (EFA, Slingshot) failed ({})",
        "a security group that does not let the hosts reach each other, other versions of driver or libfabric, a NIC",
        "run fi_info -p efa (or cxi) and fi_pingpong between the hosts",
    ),
    Failure(
        r"\befa_\w{1,40}\(\):\d+<warn> err: \d+, message: (.{1,60}?)(?: My EFA| \(|\.|$)",
        _CALL,
        "EFA does not deliver a message ({})",
        "the process or host at the other end ended or was started again, a security group, a fault of its NIC",
        'look at the log of the host behind "Peer host id"; fi_pingpong -p efa tries the way to it',
    ),
    Failure(
        r"Rank (\d{1,7}) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+, ?)?OpType="
        r"(\w+(?:, TensorShape=\[[\d, ]{0,99}\])?).{0,999}?but Rank (\d{1,7}) is running collective: "
        r"(?:CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?OpType=)?(\w+(?:, TensorShape=\[[\d, ]{0,99}\])?)",
        _CALL,
        "ranks make other calls than the others (rank {}: {}; rank {}: {})",
        "branches or data that differ between ranks, shapes that do not divide evenly, a rank that skipped a call",
        "compare what these two ranks do before that call",
    ),
    Failure(
        r"did not receive grad for (rank \d{1,7})|Expected to have finished reduction in the prior iteration",
        _CALL,
        "DistributedDataParallel lacks gradients of some parameters ({})",
        "parts of the model that the loss does not use, in all steps or on some ranks",
        "find_unused_parameters=True, or leave these parameters out; TORCH_DISTRIBUTED_DEBUG=DETAIL names them",
    ),
    Failure(
        r"Message truncated ?: (received \d+ bytes instead of \d+)|(Mismatched collective)"
        r"|(local size \d+ remote size \d+)",
        "",
        "ranks make other calls than the others ({})",
        "other numbers of ranks, calls or versions of NCCL on some of them",
        "compare the versions of NCCL and the numbers of ranks of all hosts and containers",
    ),
    Failure(
        r"(fi_getinfo|OFI addrinfo)\(\)(?: call)? fail|OFI (endpoint open|fi_(?:fabric|open domain)) failed"
        r"|(\w{1,20} fabric is not available)|(PSM\d can't open \w{1,9} unit|PSM\d no hfi units are active)",
        _MEET,
        "libfabric has no network that the job can use ({})",
        "FI_PROVIDER, I_MPI_FABRICS or I_MPI_OFI_PROVIDER names one that this host lacks, no active port, more "
        "processes than a NIC of Omni-Path serves, a container without /dev/infiniband, no VNI of Slingshot",
        "fi_info lists those that there are; give the container its devices; unset these variables, or try "
        "FI_PROVIDER=tcp",
    ),
    Failure(
        r"(?:(ibv_modify_qp) failed|Unable to (create ah)\b|Failed to (modify QP)\b|Unable to (Connect the HCA))",
        _CONNECT,
        "a NIC does not connect to another one ({})",
        "with RoCE: a GID index that is not routed, other subnets, VLANs or MTU; NICs of other rails that do not reach "
        "each other; with InfiniBand: a port that is not active",
        "check the two with ib_write_bw (show_gids, ibstat); try NCCL_IB_GID_INDEX=3, NCCL_CROSS_NIC=0, NCCL_IB_HCA",
    ),
    _NO_MEMORY,
    Failure(
        r"[Aa]sync(?: fatal)? event(?: on device)? ?: ((?:port error|device fatal|.{0,20}catastrophic)[\w ]{0,40})",
        _CALL,
        "a NIC reports a fault ({})",
        "a cable, a port that flaps, firmware",
        "look at dmesg, ibstat and mlxlink of that NIC",
    ),
    Failure(
        r"Port number \d+ state is (Down|Init\w*)|(Unable to find the Infiniband/RoCE device)"
        r"|(IB device \S+ not found)",
        "client and server meet",
        "that NIC or its port is not up ({})",
        "another name of the device, a cable, no subnet manager, a container without /dev/infiniband",
        "ibstat lists the devices and the states of their ports",
    ),
    Failure(
        r"UCX +ERROR .{0,200}?(no [\w ]{1,30}transport|Destination is unreachable|ibv_create_ah)",
        _CONNECT,
        "UCX does not reach another rank ({})",
        "a GID index that is not routed (RoCE), UCX_TLS or UCX_NET_DEVICES without a network that all hosts have",
        "unset UCX_TLS and UCX_NET_DEVICES; with RoCE try UCX_IB_GID_INDEX=3 (show_gids, ucx_info -d)",
    ),
    Failure(
        r"(Too many open files)",
        _MEET,
        "a process has too many open files ({})",
        "the limit of the shell, the service or the container",
        "raise it on all hosts (ulimit -n 65536; docker run --ulimit nofile=65536)",
    ),
    Failure(
        r"MNNVL .{0,60}not working|[Cc]heck the IMEX|nvidia-imex",
        _CONNECT,
        "NVLink between hosts (MNNVL) cannot be set up",
        "nvidia-imex does not run on every host, or a container lacks its channel",
        "check it on all hosts (nvidia-imex-ctl -N); NCCL_MNNVL_ENABLE=0 does without",
    ),
    Failure(
        r"(system not yet initialized)",
        "",
        "NVSwitch is not set up ({})",
        "nvidia-fabricmanager does not run, or has another version than the driver",
        "start it (systemctl status nvidia-fabricmanager), and look at nvidia-smi -q -d FABRIC",
    ),
    Failure(
        r"nvls\.cc:\d+ NCCL WARN (.{1,120})|NVLink SHARP \(NVLS\)",
        _CONNECT,
        "NVLink SHARP (NVLS) cannot be set up ({})",
        "nvidia-fabricmanager, NVSwitch or IMEX in a bad state, a container or virtual machine without them",
        "NCCL_NVLS_ENABLE=0 does without; restart nvidia-fabricmanager",
    ),
    Failure(
        r"p2p\.cc:\d+ NCCL WARN (Cuda failure .{1,99}|.{0,20}Could not (?:enable|map) .{1,60})",
        _CONNECT,
        "a GPU does not reach the memory of another one ({})",
        "an IOMMU or ACS of PCI Express, a container without the other GPUs, a model without peer access",
        "NCCL_P2P_DISABLE=1 does without; turn the IOMMU off (iommu=pt), and let containers see all GPUs of the host",
    ),
    Failure(
        r"Attribute (\w+ of node \w+) not found",
        _MEET,
        "the description of the topology lacks {}",
        "a file of another version of NCCL or of the plugin, a processor that is not known, a virtual machine",
        "unset NCCL_TOPO_FILE, or update the plugin (aws-ofi-nccl) and NCCL",
    ),
    Failure(
        # 13, 31 and 43 are errors of programs, 45 follows from another one, after 63, 64 and 92 the GPU goes on.
        r"(uncorrectable (?:ECC|NVLink) error|previous Xid \d{1,3}"
        r"|Xid \(PCI:[^)]{1,40}\): (?!(?:13|31|43|45|63|64|92)\b)\d{1,3}"
        r"|fallen off the bus|NV_ERR_RESET_REQUIRED)|device handle for (GPU ?[\w:.]{1,30}?): (?:Unknown|GPU is lost)",
        "",
        "a GPU or its link is broken ({})",
        "memory, NVLink or slot of that GPU",
        "drain the host, check the GPU (dmesg, nvidia-smi -q, dcgmi diag -r 3), and reset it",
    ),
    Failure(
        r"NVRM: (?:GPU \S{1,20} )?(RmInitAdapter failed.{0,30}|No NVIDIA (?:graphics adapter|GPU|devices?)\b.{0,20}"
        r"|The NVIDIA probe routine was not called)",
        "",
        "the driver does not start a GPU ({})",
        "another driver that holds it (nouveau, vfio), one that is too old or of the other kind (open, proprietary) "
        "for it, its firmware (GSP), its slot or power",
        "look at dmesg (NVRM, AER) and lspci -k; try another version of the driver, then a cold start; compare with a "
        "GPU that works in that slot",
    ),
    Failure(
        r"HW Exception by GPU .{0,99}?(GPU Hang)"
        r"|amdgpu.{0,80}?(ring \S{1,30} timeout|MES failed to respond\b.{0,40}|GPU reset begin)",
        "",
        "a GPU hangs ({})",
        "a kernel that does not end, memory or a link of that GPU",
        "look at dmesg (amdgpu) and amd-smi of that host, and reset the GPU",
    ),
    Failure(
        r"pyxis: container start failed|pyxis: (couldn't mkdir .{1,99})"
        r"|pyxis: +(?:\[ERROR\] |enroot-\w{1,20}: |nvidia-container-cli: )(.{3,120})",
        "the launcher starts ranks",
        "the container does not start ({})",
        "a tool of the container runtime that this node lacks, an image without a shell, a folder without rights",
        "mend it on that node (enroot start IMAGE there shows the same)",
    ),
    Failure(
        r"srun: error: (?:Task launch for \S{1,40} failed on node (.{1,99})|task \d+ launch failed: (.{1,99})"
        r"|Unable to (?:create step for job \d+|allocate resources): (.{1,99}))"
        r"|sbatch: error: (?:Batch job submission failed: (?!Unspecified)|.{0,20}slurm_job_submit ERROR: )(.{1,99})",
        "the launcher starts ranks",
        "Slurm does not start it ({})",
        "options that ask for other CPUs, memory, GPUs or accounts than there are or the job has, a plugin that fails",
        "compare them with sinfo -Nel and scontrol show node (Gres); in a job give srun no others than the job has",
    ),
    Failure(
        r"'?(invalid device ordinal|CUDA-capable device\(s\) is/are busy or unavailable"
        r"|no CUDA-capable device is detected|No CUDA GPUs are available|Found no NVIDIA driver|no GPUs found!"
        r"|all CUDA-capable devices are busy)"
        r"|(?:CUDA|[Cc]uda|HIP).{0,200}?(initialization error)",
        "",
        "CUDA does not give a rank its GPU ({})",
        "more ranks than GPUs, CUDA_VISIBLE_DEVICES, a container without GPUs (--gpus all), a process that was forked, "
        "a GPU that another process holds alone",
        "compare nvidia-smi -L there with the ranks of each host",
    ),
    Failure(
        r"(synDeviceAcquire)\(.{0,99}failed|synStatus=.{1,60}(Device acquire failed)",
        "",
        "Gaudi's runtime does not give a rank its device ({})",
        "a server or virtual machine that it does not know, other versions of driver and container, a device that "
        "another process holds",
        "compare hl-smi on the host and in the container, and the ranks with the devices there",
    ),
    Failure(
        r"(Driver/library version mismatch)|Failed to initialize (NVML: Unknown Error)"
        r"|(couldn't communicate with the NVIDIA driver)",
        "",
        "the driver of the GPUs does not answer ({})",
        "a driver that is not loaded or was updated while it ran, a container that lost its devices",
        "restart the host, or the container (nvidia-smi has to work in it)",
    ),
    Failure(
        r"(?:package doesn't|not) have (NCCL) built in",
        "",
        "torch has no {}",
        "torch for CPUs, or for a system without NCCL",
        "install torch for CUDA or ROCm, or take the backend gloo",
    ),
    Failure(
        r"environment variable (\w{1,40}) expected, but not set",
        _MEET,
        "{} is not set, so that ranks do not find each other",
        "a program that was started without a launcher",
        "start it with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process",
    ),
    Failure(
        r"No available node types can fulfill resource request \{(.{1,99}?)[,}]"
        r"|Waiting for (creating a placement group)|number of (required GPUs exceeds)|Ray does not (allocate any GPUs)",
        "the launcher starts ranks",
        "Ray does not have the GPUs or the host that are asked for ({})",
        "fewer GPUs in its cluster than ranks, or VLLM_HOST_IP of a host is not the address by which Ray knows it",
        "compare it with ray status; set VLLM_HOST_IP of every host to its address there",
        waits=True,
    ),
    Failure(
        r"undefined symbol: (nccl\w+)",
        "",
        "another NCCL is loaded than the program was built for ({})",
        "a second NCCL in LD_LIBRARY_PATH or among Python's packages",
        "ldd and LD_DEBUG=libs name the one that is loaded; pip list shows nvidia-nccl",
    ),
    Failure(
        r"(not built with SLURM's PMI)|(PMIX ERROR: \w+)|(PMI2?_Init failed|PMIx_server_init failed)",
        "the launcher starts ranks",
        "the program does not find its launcher ({})",
        "srun starts it with another PMI than its MPI has",
        "srun --mpi=list names those that there are, such as --mpi=pmix; or use mpirun",
    ),
    Failure(
        r"attempt to run as root",
        "the launcher starts ranks",
        "mpirun refuses to start as root",
        "a container whose user is root",
        "give --allow-run-as-root",
    ),
    Failure(
        r"Duplicate GPU detected ?: ?(rank \d{1,7}(?: and rank \d{1,7})?)",
        _MEET,
        "ranks use the same GPU ({})",
        "the device is not set by local rank, or more processes than GPUs were started",
        "give every rank a GPU of its own (torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES)",
    ),
    Failure(
        r"(?i:(?:cuda|hip) failure) (?:\S{1,40}:\d+ |\d+ )?'"
        r"(named symbol not found|invalid device function|CUDA driver version is insufficient[^']{0,99}"
        r"|no kernel image is available[^']{0,99}"
        r"|the provided PTX[^']{0,99}|device kernel image is invalid)'"
        r"|(?:CUDA|HIP) error: (invalid device function|no kernel image is available)|(hipErrorNoBinaryForGpu): Unable",
        "",
        "NCCL does not run on this GPU and driver ({})",
        "NCCL was built for another CUDA, for other GPUs, or for a newer driver",
        "use an NCCL for the CUDA and GPU here (ldd names the one that is loaded), or a newer driver",
    ),
    Failure(
        r"((?:CUDA|HIP) out of memory(?:\. Tried to allocate [\d.]{1,20} [KMGT]iB)?(?:\. GPU \d+)?"
        r"|[Cc]uda failure (?:\d+ )?'out of memory')",
        "",
        "a GPU is full ({})",
        "other processes on it (nvidia-smi), or too large a batch or size",
        "free it, or use smaller sizes",
    ),
    Failure(
        r"(an illegal memory access|device-side assert|unspecified launch failure|misaligned address"
        r"|Xid \(PCI:[^)]{1,40}\): (?:13|31|43)\b)",
        "",
        "a kernel failed before ({})",
        "an error of the program; NCCL only reports it",
        "run it with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer, which name the kernel",
    ),
    Failure(
        r"(?:exitcode *: ?|\(exitcode: ?|return code = (?=-)|Exit [Cc]ode: +|= +EXIT CODE: +|= +KILLED BY SIGNAL: +"
        r"|[Ss]ignal )(-?9|137)\b|(?:[Ee]xited|terminated|failed:?)(?: with)? (?:exit )?(?:code|status):? +137\b"
        r"|[Oo]ut of memory: Killed|oom[-_]kill|OOMKilled|tasks? [\d,-]{1,99}: (?:Out Of Memory|Killed)",
        "",
        "a process was killed (signal 9)",
        "the host ran out of memory, or the scheduler ended the job",
        "look at dmesg and at the job's limit of memory",
    ),
    Failure(
        r"(?:pair\.cc:\d+\] ?|gloo.{0,200}|RuntimeError: )"
        r"((?:Read error|Write error|Connection closed by peer|Connection reset by peer|Broken pipe)"
        r"(?: \[?[\w.:]{1,64}\]?(?::\d+)?)?)",
        _CALL,
        "another rank ended first ({})",
        _ANOTHER_ENDED,
        _EARLIEST,
        follows=True,
    ),
    Failure(
        r"(?:exitcode ?: ?|\(exitcode: ?|return code = (?=-)|[Ss]ignal )(?:-?7)\b|(?<!PCIe )(?<!no )[Bb]us error",
        "",
        "a process ended by a bus error",
        "the shared memory of the host or container is full",
        "give it more (docker run --shm-size, --ipc=host; a memory volume in Kubernetes)",
    ),
    Failure(
        r"(peer access is not supported|PeerAccessUnsupported|peer mapping resources exhausted)",
        _CONNECT,
        "GPUs do not reach each other's memory ({})",
        "models without peer access, an IOMMU or ACS between them, or more than eight peers",
        "nvidia-smi topo -p2p r shows the pairs that can; between others copy through the host, as NCCL does",
    ),
    Failure(
        r"Got completion .{0,99}?(?:error |status=)(4|9|10|11)\b|(local access violation|local protection error)"
        r"|UCX  ERROR (Remote access|Local protection)",
        _CALL,
        "a NIC refuses the memory of a request ({})",
        "GPUDirect RDMA through an IOMMU or ACS, other versions of NCCL or of firmware on the two hosts",
        "try NCCL_NET_GDR_LEVEL=LOC and NCCL_IB_PCI_RELAXED_ORDERING=0, and compare the versions of the hosts",
    ),
    Failure(
        r"Got completion .{0,99}?(?:error |status=)(?:5|12|13)\b|[Ff]ailed status (?:5|12|13): wr_id"
        r"|[Tt]ransport retry count(?:er)? exceeded|InfiniBand retry count|IBV_WC_RETRY_EXC",
        _CALL,
        "the other NIC does not answer",
        "the GID index (RoCE), MTU, VLAN or a cable; the other program ended",
        "check with ib_write_bw between the two ports (show_gids, ibstat)",
    ),
    Failure(
        # torch goes on after a line with "gai error", to IPv4 or to the next attempt.
        r"(?<!gai error: -\d - )"
        r"(Name or service not known|Temporary failure in name resolution|[Nn]o address associated with hostname"
        r")|[Cc]an't resolve '([\w.-]{1,255})|unable to get host address for ([\w.-]{1,255})",
        _MEET,
        "the name of a host is not known ({})",
        "a wrong MASTER_ADDR or --rdzv-endpoint, a service or pod that does not exist yet, no DNS",
        "ask for it on all hosts (getent hosts NAME), or give an address",
    ),
    Failure(
        r"due to (completion queue exhaustion)|cxi:\S{1,99}<warn> .{0,40}(Flow control triggered)",
        _CALL,
        "a NIC of Slingshot has no place for more messages ({})",
        "more messages under way at once than it has places",
        "set FI_CXI_DEFAULT_CQ_SIZE=131072, or FI_CXI_RX_MATCH_MODE=hybrid",
    ),
    Failure(
        r"Barrier timed out\. (?:Barrier_id|Id): (\S{1,99}?)\.(?:\s|$)|DEADLINE_EXCEEDED: Deadline Exceeded"
        r"|may be stuck\. (Expected \d{1,7} threads to join)",
        _MEET,
        "tasks of JAX did not come to a barrier ({})",
        _NOT_STARTED,
        "look at the logs of the tasks that the next lines name; start all of them with the same coordinator_address",
        waits=True,
    ),
    Failure(
        r"Task (/job:\S{1,99}) heartbeat timeout|Task (\S{1,99}) heartbeat timeout\.?\s*$"
        r"|tasks are unhealthy \((stopped sending heartbeats)\)",
        "",
        "a task of JAX gives no sign of life ({})",
        "it failed, was killed or preempted, or was busy for longer (compilation, memory)",
        "look for an earlier error in the log of that task; heartbeat_timeout_seconds is for one that was only busy",
        follows=True,
    ),
    Failure(
        r"(Failed to recv, got 0 bytes|recvValue failed|"
        r"TCPStore server has shut down too early)"
        r"|store->get\(.{0,99}got error: (Connection reset by peer|Broken pipe)",
        "",
        "the store of rank 0 is gone ({})",
        "rank 0 ended, by an error of its own or because it was done before the others",
        "look at the end of the log of rank 0",
        follows=True,
    ),
    Failure(
        r"store->get\('?(\w{1,99})'?\) got error|wait timeout after \d+ms, keys: (\S{1,200})"
        r"|Timeout waiting for key: (\S{1,200})|(?:RuntimeError|DistStoreError): (Socket Timeout)"
        r"|remote=(\S{1,255})\) timed out|in store based barrier .{0,99}?(world_size=\d+, worker_count=\d+)",
        _MEET,
        "a rank waited in vain for what another one should have stored ({})",
        "that rank failed, is late (data, compilation), or never made this group or call",
        _EARLIEST,
        waits=True,
    ),
    Failure(
        r"ncclRemoteError|remote process exited or there was a network error|Connection closed by remote peer"
        r"|OFI poll failed|NCCL WARN .{0,99}Connection reset by peer|UCX  ERROR .{0,200}remote peer"
        r"|group\.cc:\d+ -> 6\b",
        _CALL,
        "another rank ended, or the network between them broke",
        _ANOTHER_ENDED + "; without any such error: cable, NIC, switch",
        _EARLIEST,
        follows=True,
    ),
    Failure(
        r"shmutils\.cc:\d+ NCCL WARN (Cuda failure .{1,99})",
        _CONNECT,
        "a GPU cannot use the shared memory of the host ({})",
        "too little locked memory, a driver or virtual machine that does not map it",
        "NCCL_SHM_DISABLE=1 does without; set ulimit -l unlimited, and try a newer driver",
    ),
    Failure(
        r"(?:creating|attaching to) shared memory segment|posix_fallocate failed|failed to extend /dev/shm",
        _CONNECT,
        "NCCL gets no shared memory of the host or container",
        "a container has 64 MB of /dev/shm unless it is given more, or files of earlier jobs are left there",
        "give it more (docker run --shm-size, --ipc=host; a memory volume in Kubernetes), and look at df /dev/shm",
    ),
    Failure(
        r"Proxy Call to rank (\d{1,7}) failed|Failed to execute operation (\w+ from rank \d{1,7})",
        _CONNECT,
        "NCCL could not connect ({})",
        "that rank ended, or its NIC or shared memory is not reached",
        "look at its log, " + _WARN,
    ),
    Failure(
        r"unhandled system error|ncclSystemError|group\.cc:\d+ -> 2\b",
        _CONNECT,
        "a call to the system failed in NCCL",
        "too little shared memory (docker run --shm-size, --ipc=host), a missing interface or NIC, a firewall, too "
        "little locked memory (ulimit -l)",
        _WARN,
    ),
    Failure(
        r"unhandled cuda error|ncclUnhandledCudaError|group\.cc:\d+ -> 1\b"
        r"|NCCL WARN Cuda failure (?:\d+ )?'([^']{1,99})'",
        "",
        "a call of CUDA failed in NCCL ({})",
        "NCCL built for another CUDA or GPU, a full GPU, a kernel that failed before, nvidia-fabricmanager not running",
        _WARN,
    ),
    Failure(
        r"ncclInternalError|internal error - please report|internal error, NCCL version|group\.cc:\d+ -> 3\b",
        "",
        "NCCL met a state that it does not expect",
        "another rank that ended, other versions of NCCL on other hosts, a topology that it does not know",
        _WARN + "; compare the versions of NCCL on all hosts",
        follows=True,
    ),
    Failure(
        r"ncclInvalidUsage|invalid usage, NCCL version|ncclInvalidArgument|invalid argument, NCCL version"
        r"|group\.cc:\d+ -> [45]\b|NCCL failure \S{1,99} 'invalid",
        "",
        "NCCL was called wrongly",
        "two ranks on one GPU, other versions of NCCL on other hosts, ranks that make other calls",
        _WARN,
    ),
    Failure(
        r"(?:Signal|Caught error): (Segmentation fault)|(?:exited on|Caught) signal 11\b"
        r"|exitcode ?: -11|return code = -11|Fatal Python error: Segmentation fault|Segmentation fault \(core dumped\)"
        r"|= +(?:EXIT CODE|KILLED BY SIGNAL): +(?:11|139)\b",
        "",
        "a process crashed (segmentation fault)",
        "libraries of other versions, a plugin of NCCL or UCX, a GPU without driver",
        "run it without plugins (NCCL_NET_PLUGIN=none), or look at the core file (gdb, bt)",
    ),
    Failure(
        r"unable to connect (?:from \S{1,99} )?to (?:server )?\"?([\w.-]{1,99})\"? (?:at port|\(Connection)"
        r"|Message: +connect\(\) to (\S{1,99}) failed|failed to TCP connect|unable to complete a TCP connection"
        r"|(on a different subnet \S{1,99})",
        "",
        "MPI does not reach another host over TCP ({})",
        "an interface that the others do not have (docker0, 169.254.x.x), a firewall",
        "give the network that all hosts have: mpirun --mca btl_tcp_if_include 10.0.0.0/24 --mca oob_tcp_if_include "
        "10.0.0.0/24",
    ),
    Failure(
        r"[Nn]ot enough slots available",
        "the launcher starts ranks",
        "the hosts have fewer slots than ranks",
        "the hosts are given without the number of their slots",
        "give it (--host A:8,B:8, or slots=8 in the file of hosts), or --oversubscribe",
    ),
    Failure(
        r"modprobe: (?:ERROR|FATAL): (?:could not insert '([\w-]{1,40})'|Module (\S{1,40}) not found)"
        r"|([\w-]{1,40}: Unknown symbol \w{1,60})",
        "",
        "a kernel module is not loaded ({})",
        "it was built for another kernel, or before the drivers (OFED, NVIDIA) that it needs; Secure Boot",
        "build it again after those (dkms), and look at dmesg; nvidia-peermem comes with NVIDIA's driver",
    ),
    Failure(
        r"init failed for (?:remote )?transport: ?(\w{1,20})|(Unable to initialize any transports)"
        r"|cannot allocate (mlx5dv_devx_uar)|device \S{1,40} (cannot allocate buffer on the specified memory type)",
        _CONNECT,
        "NVSHMEM sets up no transport ({})",
        "IBGDA without the driver's options (PeerMappingOverride=1), a container without rights to the NIC "
        "(/dev/infiniband, privileged), nvidia-peermem or gdrcopy that is not loaded, NICs other than mlx5",
        "check these on all hosts; NVSHMEM_DEBUG=TRACE tells which NIC it refuses, NVSHMEM_IB_ENABLE_IBGDA=0 does "
        "without IBGDA",
    ),
    Failure(
        r"(?:ORTE|PRTE) has lost communication|Remote daemon: \[\[\d+,\d+\],\d+\] on node (\S{1,255})",
        "",
        "mpirun lost a host ({})",
        "that host or pod ended (memory, preemption, a crash), or the network to it broke",
        "look at its end (dmesg, kubectl describe pod, the scheduler), then at the network",
    ),
    Failure(
        r"(?:ORTE|PRTE) (?:was unable to|daemon has)|failed sending task to execd@|Host key verification failed"
        r"|Permission denied \(publickey|ssh: connect to host|ssh exited with exit code 255"
        r"|sshd: (?:No such file|not found)|Command 'ssh .{1,200} returned non-zero exit status 255"
        r"|could not (?:access\s+or execute|find) an executable|(?:mpirun|orted|pdsh): (?:command )?not found"
        r"|mpi(?:run|exec) was unable to (?:find|start|launch) the specified|python[\d.]{0,5}: can't open file",
        "the launcher starts ranks",
        "not every rank was started",
        "ssh asks for a password, a host or container lacks sshd or the program, or its path differs there",
        "run ssh HOST ls PROGRAM from the first host to all others",
    ),
    Failure(
        r"error while loading shared libraries: (\S{1,200}?):|Failed to load NCCL library from ([^\s*]{1,200})"
        r"|ImportError: (\S{1,200}): cannot open shared object file|MPI startup\(\): cannot open dynamic library (\S+)",
        "the launcher starts ranks",
        "the library {} is not found",
        "LD_LIBRARY_PATH is not passed to other hosts, or lacks its folder",
        "pass it (mpirun -x LD_LIBRARY_PATH)",
    ),
    Failure(
        r"Couldn't connect to (\S{1,255})|(Unable to (?:init|open) the socket connection)",
        "client and server meet",
        "the client of perftest does not reach its server ({})",
        "the server is not started or has ended, a firewall closes its port (18515)",
        "start the server first, and try another port (-p)",
    ),
    Failure(
        r"RDMA_CM_EVENT_(REJECTED|UNREACHABLE|\w{3,9}_ERROR)|(Failed to exchange data between server)"
        r"|(Couldn't read remote address)",
        "client and server meet",
        "the two sides of perftest do not agree, or one of them ended ({})",
        "other options or another version at the other side, its own error, a route that RDMA CM does not find (-R)",
        "compare commands and versions of both sides, and read the other side's end; try without -R, or with -x",
    ),
    Failure(
        r"(?:[Cc]ouldn't allocate|[Ff]ailed to create).{0,20}(?:MR|mr)\b|ibv_reg_mr\w* failed.{0,20}(?:MR|mr|failed)\b",
        "client and server meet",
        "memory cannot be registered with the NIC",
        "memory of a GPU without nvidia-peermem or dma-buf, or too little locked memory",
        "load nvidia-peermem, or use --use_cuda_dmabuf; set ulimit -l unlimited",
    ),
    Failure(
        r"Parser function exited with Error",
        "",
        "perftest refuses its options",
        "an option that this build lacks, or that stands before one that it needs; the line above names it",
        "put --use_cuda before the options that need it, and compare with --help",
    ),
    Failure(
        r"Waiting for client to connect",
        "client and server meet",
        "the server of perftest waits for its client",
        "the client is not started, uses another address or port, or a firewall closes it (18515)",
        "start the same command with the address of this host behind it on the other host",
        waits=True,
    ),
    Failure(
        r"srun: error: Node failure on (\S{1,255})|CANCELLED AT .{0,40}DUE TO (NODE FAILURE)",
        "",
        "Slurm lost a host ({})",
        "that host hangs, has too little memory, or its network or slurmd broke; slurmctld or slurmstepd may have been "
        "too busy to answer",
        "look at its reason (scontrol show node, sinfo -R), at dmesg and at slurmd's log there",
    ),
    Failure(
        r"DUE TO (TIME LIMIT|PREEMPTION)",
        "",
        "Slurm ended it ({})",
        "a call that hangs, too short a limit, or another job that took the node",
        "run it with NCCL_DEBUG=INFO, which tells where it hangs, or give it more time (--time)",
        waits=True,
    ),
    _NO_MEMORY._replace(sign=r"neither nv_peer_mem, or (nvidia_peermem) detected"),  # after which NCCL goes on
    Failure(
        r"Invalid value when checking the pattern",
        _CALL,
        "a copy between GPUs delivered other data",
        "peer access through an IOMMU or ACS of PCI Express that redirects it, or a broken GPU",
        "turn the IOMMU off (iommu=pt) and ACS, then run dcgmi diag -r 3",
    ),
    Failure(
        r"Watchdog caught collective operation timeout|due to a collective timeout|operations have failed or timed out",
        _CALL,
        "torch's watchdog ended the job, because a call failed or took too long",
        "another rank that failed, is late (data, checkpoint) or makes another call",
        _EARLIEST,
        waits=True,
        follows=True,
    ),
    Failure(
        r"SignalException: Process \d+ got signal: (1|2|15)\b|Received Signals\.(SIG(?:HUP|INT|TERM)) death signal",
        "",
        "torchrun was told to end (signal {})",
        "a terminal that was closed (1, SIGHUP), a scheduler, or the launcher after another rank failed",
        "use tmux or setsid for signal 1; else look for an earlier error in the logs of all ranks",
        follows=True,
    ),
    Failure(
        r"RayActorError|The actor (?:died unexpectedly before|is dead because)"
        r"|A worker died or was killed while executing a task",
        "",
        "a worker of Ray died",
        "no memory left on its host, a crash or an exception of the program",
        "read the end of that worker's log on its host (/tmp/ray/session_latest/logs), and dmesg there",
        follows=True,
    ),
    Failure(
        r"unable to reach each other|Returned \"(Unreachable)\"|(PML \w+) cannot be sel"
        r"|No components were able to be opened in the (pml) frame",
        _CONNECT,
        "Open MPI has no transport between its processes ({})",
        "--mca btl or pml that leave out the network or shared memory, an Open MPI built without UCX",
        "leave these options out, or give --mca pml ob1 --mca btl self,vader,tcp (vader is sm since 5.0)",
    ),
    Failure(
        r"UCX  ERROR (?:ibv_open_device\((\S{1,64})\)|(rdma_create_event_channel)) failed",
        _CONNECT,
        "UCX cannot open a NIC ({})",
        "a container without /dev/infiniband, or without rights to it",
        "give the container its devices (docker run --device /dev/infiniband; a device plugin in Kubernetes)",
    ),
    Failure(
        r"(?:cu|cuda|hip)Ipc(?:Open|Get)MemHandle\w{0,9}(?:\(\))?:? (invalid \w{1,40}|fail\w{0,3}|error\b.{0,40})",
        _CONNECT,
        "processes do not share the memory of their GPUs ({})",
        "Slurm or a container hides the GPUs of the other ranks of the host",
        "let every rank see all GPUs of its host (srun --gpu-bind=none), and choose by local rank",
    ),
    Failure(
        r"UC[CX]  ERROR (.{1,99})",
        "",
        "UCX or UCC failed ({})",
        "a transport that does not work here: memory of GPUs, a NIC, shared memory",
        "run it without that transport (UCX_TLS=^cuda_ipc, UCC_CL_BASIC_TLS=^mlx5); UCX_LOG_LEVEL=info names it",
    ),
    Failure(
        r"\]\[(btl_\w{1,40})\.c:\d+:\w+\] ((?:error|cannot|failed)\b.{1,120})",
        "",
        "a transport of Open MPI failed ({}: {})",
        "a NIC or driver that this old transport does not know, a port that is not active",
        "let Open MPI use UCX (--mca pml ucx), or do without that transport (--mca btl ^openib)",
    ),
    Failure(
        # The first reason in the stack of calls of MPICH and those that are made of it.
        r"\b(?:P?MPI|internal_)\w{2,60}\(\d{1,5}\)\.{0,40}: (?!P?MPI_\w{1,40}\()(\w.{5,150})",
        "",
        "a call of MPI failed ({})",
        "an error of the transport below it, memory that cannot be shared, another rank that ended",
        "try another transport (FI_PROVIDER=tcp, UCX_TLS=tcp,self), which tells whether the network is at fault",
    ),
    Failure(
        r"\*\*\* An error occurred in (MPI_\w{1,40})|Open MPI (OFI MTL) is aborting"
        r"|Fatal error in ((?:internal_|P?MPIR?_)\w{1,40}(?:: (?!Other MPI)[\w ]{3,40}(?=, error stack))?)",
        "",
        "a call of MPI failed ({})",
        "an error of the transport below it, arguments that do not fit the call, another rank that ended",
        "read the line above it; try another transport (UCX_TLS, FI_PROVIDER; Open MPI: --mca pml ob1 --mca osc ^ucx "
        "--mca mtl ^ofi)",
    ),
    Failure(
        r"A requested component was not found|(\w{3,20})_base_open failed",
        "the launcher starts ranks",
        "a component of Open MPI or PMIx is not found or does not load ({})",
        "a library that it needs and this host or container lacks (munge, UCX), variables PMIX_MCA_ or OMPI_MCA_ that "
        "name one of another version",
        "install what the message names below it (Component), or unset that variable (PMIX_MCA_psec=native for munge)",
    ),
    Failure(
        r"Assertion failed in file (\S{1,200} at line \d+: .{1,99})|(?:^|\s)Assertion [`'](.{1,99})' failed",
        "",
        "a library or program stopped itself ({})",
        "a bug of it, or libraries of versions that do not fit each other",
        "look for that line among its known issues, and try another version of it",
    ),
    Failure(
        r"BAD TERMINATION OF ONE OF YOUR",
        "",
        "a process of MPI ended with an error",
        "an exception or a crash of the program",
        "read what that process printed above",
        follows=True,
    ),
    Failure(
        r"Root Cause \(first observed failure\)|ChildFailedError|exitcode ?: [1-9]\d{0,2} \(pid"
        r"|failed \(exitcode: [1-9]\d{0,2}\)"
        r"|exits with (?:return )?code = -?[1-9]",
        "",
        "a rank ended with an error",
        "an exception of the program",
        "read its traceback above torchrun's summary, or in the log of that rank (torchrun --redirects 3)",
        follows=True,
    ),
)
"""The first that a log has is its answer: the one that says most comes first."""
SIGNS: Final = tuple(re.compile(failure.sign) for failure in FAILURES)
_SIGN: Final = re.compile("|".join(failure.sign for failure in FAILURES).encode())
_MAY_FAIL: Final = re.compile(
    "rror|ail|ime(?:d )?out|nable to|runcated|ismatch|sync(?: fatal)? event|state is |not found|oo many open"
    "|not yet init|MNNVL|IMEX|nvidia-imex|NVLS|nvls.cc|p2p.cc|peer access|ordinal|no CUDA-cap|undefined symbol"
    "|not known|[Nn]o address|not built with|PMI|as root|egmentation|ssh[: ]|[OP]RTE |UC[CX] |losed by|efused|hut down"
    "|EADDRINUSE|issing ranks|Stalled|stuck for|[Nn]o socket"
    "|uplicate GPU|ut of memory|oom[-_]kill|OOMK|Out Of M|already checked"
    "|remote size|llegal|ligned|device-side|Xid |fallen off|device handle|RESET_REQ|HW Exc|or unavailable"
    "|exit|Exit [Cc]ode|ignal|remote p"
    "|nccl(?:Rem|Sys|Unh|In)|[Ii]nvalid|slots|Permission|complete a TCP|not access|loading shared|ouldn't|retry c"
    "|shared memory s|Broken pipe|Parser f|Waiting for c|DUE TO|peer mapping"
    "|RETRY|wr_id|Got completion|Software caused|Root Cause|No route|reset by|nreachable|mismatch|UNDELIVER"
    "|OFI poll|DEADLINE_E|peermem det|access v|rank  | resolve |subset of ranks|is running coll|queue exh"
    "|receive grad|finished reduction|imes out|EXIT CODE|SIGNAL: |actor |worker died|BAD TERM|eartbeats"
    r"|Remote daemon|lost comm|sshd: |group\.cc|placement gr|No compon|cannot be sel|No interface"
    r"|not available|an't open|no hfi|different sub|aborting|may be stuck"
    r"|equested component|pyxis: |ending task to|RDMA_CM_EVENT|cannot open dyn|Unknown sym|annot allocate"
    r"|amdgpu|Flow control|NVRM: |couldn't comm|Ipc(?:Open|Get)"
    r"|\]\[btl_|base_open|Node failure|^(?:P?MPI|internal_)\w+\("
)
"""In every line that is about a failure, and found faster than the signs."""
_GOES_ON: Final = re.compile(
    rb"heartbeat|RayActorError|The actor (?:died|is dead)|A worker died|restarting"
    rb"|Waiting (?:in|for)|No available shared memory broadcast|may be stuck"
    rb"|It is expected if|import of .{0,40} failed|UCX  ERROR ibv_reg"
)
"""Of workers that a launcher starts again, of what may still come, and of what a program can do without."""
_MAY_FAIL_BYTES: Final = re.compile(_MAY_FAIL.pattern.encode())


class _Sign:
    """Finds the first line that is about a failure."""

    def search(self, text: bytes) -> re.Match[bytes] | None:
        lines = filter(_MAY_FAIL_BYTES.search, text.split(b"\n"))
        return next(filter(None, map(_SIGN.search, lines)), None)


def after_the_last(text: bytes) -> bytes:
    """What follows the last line about a failure; nothing unless programs go on after all of them."""
    lines = text.split(b"\n")
    failed = [at for at, line in enumerate(lines) if _MAY_FAIL_BYTES.search(line) and _SIGN.search(line)]
    go_on = all(_GOES_ON.search(lines[at]) for at in failed)
    return b"\n".join(lines[failed[-1] + 1 :]) if failed and go_on else b""


def is_only_ended(text: bytes) -> bool:
    """Whether all that a text says of a failure is that somebody ended the job."""
    lines = [line for line in text.split(b"\n") if _MAY_FAIL_BYTES.search(line) and _SIGN.search(line)]
    return all(b"SIGTERM" in line for line in lines)


SIGN: Final = _Sign()


def may_fail(text: str) -> bool:
    """Whether a line may be about a failure."""
    return _MAY_FAIL.search(text) is not None
