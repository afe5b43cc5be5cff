"""Which environment variables are recorded: what changes results and what says where a rank is, and never a secret.

And which of them belong to the place of one rank, so that no other process is to have them.
"""

import os
from collections.abc import Mapping, Sequence


def _each(prefix: str, names: str, suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{prefix}{name}{suffix}" for name in names.split())


VARIABLES = (
    *_each("CUDA_", "DEVICE_MAX_CONNECTIONS DEVICE_ORDER LAUNCH_BLOCKING MODULE_LOADING VISIBLE_DEVICES"),
    *_each("FI_", "PROVIDER TCP_IFACE EFA_USE_DEVICE_RDMA EFA_FORK_SAFE HMEM"),
    *_each("GLOO_", "SOCKET_IFNAME DEVICE_TRANSPORT"),
    *_each("I_MPI_", "ASYNC_PROGRESS FABRICS OFI_PROVIDER OFFLOAD PIN PIN_DOMAIN PIN_PROCESSOR_LIST"),
    *_each("MPICH_", "ASYNC_PROGRESS GPU_SUPPORT_ENABLED OFI_NIC_POLICY"),
    *_each("MPIR_CVAR_", "ASYNC_PROGRESS CH4_NETMOD CH4_OFI_MAX_NICS ENABLE_GPU NOLOCAL"),
    "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE",
    *_each("OMPI_MCA_", "btl btl_tcp_if_include coll hwloc_base_binding_policy mpi_yield_when_idle mtl pml"),
    # MPI, by its libraries' own lists: which algorithms collectives are made of
    *_each("OMPI_MCA_coll_tuned_", "allgather allreduce alltoall barrier bcast gather", "_algorithm"),
    *_each("OMPI_MCA_coll_tuned_", "reduce reduce_scatter reduce_scatter_block scatter", "_algorithm"),
    *_each("OMPI_MCA_coll_", "tuned_use_dynamic_rules tuned_dynamic_rules_filename tuned_priority han_priority"),
    *_each("MPIR_CVAR_", "ALLGATHER ALLREDUCE ALLTOALL BARRIER BCAST GATHER REDUCE", "_INTRA_ALGORITHM"),
    *_each("MPIR_CVAR_", "REDUCE_SCATTER REDUCE_SCATTER_BLOCK SCATTER", "_INTRA_ALGORITHM"),
    *_each("MPIR_CVAR_", "ALLREDUCE BARRIER BCAST REDUCE", "_POSIX_INTRA_ALGORITHM"),
    *_each("MPIR_CVAR_", "ALLGATHER ALLREDUCE ALLTOALL BARRIER BCAST REDUCE", "_COMPOSITION"),
    *_each("MPIR_CVAR_", "COLL_SELECTION_TUNING_JSON_FILE CH4_COLL_SELECTION_TUNING_JSON_FILE DEVICE_COLLECTIVES"),
    *_each("MPIR_CVAR_", "CH4_POSIX_COLL_SELECTION_TUNING_JSON_FILE POSIX_NUM_COLLS_THRESHOLD"),
    "KMP_AFFINITY",
    "MALLOC_CONF",
    "MKL_NUM_THREADS",
    *_each("OMP_", "NUM_THREADS PLACES PROC_BIND"),
    *_each("PYTORCH_", "ALLOC_CONF CUDA_ALLOC_CONF"),  # also how GPUs without peer access are copied between
    *_each("TORCH_NCCL_", "ASYNC_ERROR_HANDLING AVOID_RECORD_STREAMS BLOCKING_WAIT HIGH_PRIORITY USE_COMM_NONBLOCKING"),
    # NCCL, by its documentation: which network and how
    *_each("NCCL_", "CONF_FILE CROSS_NIC NET NET_PLUGIN TUNER_PLUGIN OOB_NET_ENABLE OOB_NET_IFNAME"),
    *_each("NCCL_", "SOCKET_FAMILY SOCKET_IFNAME SOCKET_NTHREADS NSOCKS_PERTHREAD"),
    *_each("NCCL_IB_", "ADAPTIVE_ROUTING ADDR_FAMILY ADDR_RANGE AR_THRESHOLD CUDA_SUPPORT DISABLE ECE_ENABLE FIFO_TC"),
    *_each("NCCL_IB_", "GID_INDEX HCA MERGE_NICS MERGE_VFS PCI_RELAXED_ORDERING QPS_PER_CONNECTION RETRY_CNT"),
    *_each("NCCL_IB_", "ROCE_VERSION_NUM SL SPLIT_DATA_ON_QPS TC TIMEOUT"),
    *_each("NCCL_NET_", "FORCE_MERGE GDR_C2C GDR_LEVEL GDR_READ MERGE_LEVEL SHARED_BUFFERS SHARED_COMMS"),
    # … which way inside a host
    *_each("NCCL_P2P_", "DIRECT_DISABLE DISABLE LEVEL LL_THRESHOLD NET_CHUNKSIZE PXN_LEVEL"),
    *_each("NCCL_", "CUMEM_ENABLE CUMEM_HOST_ENABLE DMABUF_ENABLE MNNVL_ENABLE NVB_DISABLE NVLS_ENABLE PXN_C2C"),
    *_each("NCCL_", "PXN_DISABLE SHM_DISABLE"),
    # … which algorithm, with what
    *_each("NCCL_", "ALGO PROTO COLLNET_ENABLE COLLNET_NODE_THRESHOLD GRAPH_FILE TOPO_FILE IGNORE_CPU_AFFINITY"),
    *_each("NCCL_", "BUFFSIZE CGA_CLUSTER_SIZE CTA_POLICY MAX_CTAS MIN_CTAS MAX_NCHANNELS MIN_NCHANNELS NTHREADS"),
    # … and how it is called
    *_each("NCCL_", "ALLOC_P2P_NET_LL_BUFFERS CHECKS_DISABLE CHECK_POINTERS COMM_BLOCKING DEBUG GRAPH_MIXING_SUPPORT"),
    *_each("NCCL_", "GRAPH_REGISTER LAUNCH_MODE LEGACY_CUDA_REGISTER LOCAL_REGISTER RUNTIME_CONNECT SET_STACK_SIZE"),
    *_each("UCX_", "ADAPTIVE_PROGRESS BCOPY_THRESH IB_GID_INDEX IB_SL IB_TRAFFIC_CLASS MAX_EAGER_RAILS MAX_RNDV_RAILS"),
    *_each("UCX_", "MEMTYPE_CACHE NET_DEVICES PROTO_ENABLE RNDV_SCHEME RNDV_THRESH TLS UNIFIED_MODE ZCOPY_THRESH"),
    # Slurm: the job, the step, what was asked for
    *_each("SLURM_", "CLUSTER_NAME JOB_ID JOB_NODELIST JOB_NUM_NODES JOB_PARTITION JOB_QOS JOB_RESERVATION NNODES"),
    *_each("SLURM_", "NTASKS NTASKS_PER_NODE TASKS_PER_NODE RESTART_COUNT MPI_TYPE NETWORK"),
    *_each("SLURM_ARRAY_", "JOB_ID TASK_ID TASK_COUNT"),
    *_each("SLURM_STEP_", "ID NODELIST NUM_NODES NUM_TASKS TASKS_PER_NODE GPUS"),
    *_each("SLURM_", "CPUS_ON_NODE CPUS_PER_TASK CPU_BIND CPU_BIND_TYPE DISTRIBUTION HINT JOB_CPUS_PER_NODE MEM_BIND"),
    *_each("SLURM_", "THREADS_PER_CORE GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_TASK GPU_BIND JOB_GPUS"),
    # … and the node
    *_each("SLURM_", "NODEID TOPOLOGY_ADDR TOPOLOGY_ADDR_PATTERN"),
    "SLURMD_NODENAME",
    # How MPI's ranks find each other
    *_each("PMIX_", "NAMESPACE VERSION RANK"),
    *_each("PMI_", "SIZE RANK"),
    *_each("SLURM_", "PROCID LOCALID"),
)
"""The environment variables that are recorded when they are set. None holds a secret: no address of a server either,
through which a job could be joined.
"""

OF_A_RANK = frozenset({"PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
"""Those that are one rank's alone, even where a host has no other."""


def recorded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is set of ``VARIABLES``."""
    return {name: environ[name] for name in VARIABLES if name in environ}


_OF_A_PLACE = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")
_OF_THE_USER = "PMIX_MCA_"


def without_places(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` but for what launchers of MPI leave there to tell a rank its place: the process that gets the rest is
    to have another one, or none. A step of one task has some, of that task.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OF_A_PLACE) or name.startswith(_OF_THE_USER)
    }


def in_common(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What the ranks of a host have alike, which is what can be said of the host: the rest is each rank's own."""
    first, *others = ranks
    return {
        name: value
        for name, value in first.items()
        if name not in OF_A_RANK and all(other.get(name) == value for other in others)
    }
