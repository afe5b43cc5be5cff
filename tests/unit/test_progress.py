"""What a log without rows tells: the phase in which a job hangs or the message with which it failed, by kind."""

import re
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from testing.logs import LOGS, read_log, refused

from busbw.cli.main import main
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.readers.failures import FAILURES, SIGN, may_fail
from busbw_analysis.data.sources import find

INFO: Final = "node1:12:34 [0] NCCL INFO "
NCCL: Final = "node1:4:5 [0] misc/x.cc:63 NCCL WARN "
IN_NCCL: Final = "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
OTHERS: Final = (
    "Rank 1 is running collective: CollectiveFingerPrint({}OpType=ALLREDUCE, TensorShape={}, TensorDtypes=Long), but "
    "Rank 2 is running collective: CollectiveFingerPrint({}OpType=REDUCE)"
)
EXAMPLES: Final = (
    # Megvii-BaseDetection/YOLOX#139, msr-fiddle/pipedream#32, aws-samples/aws-do-eks#51
    ("ifa != nullptr. Unable to find address for: ib0", "job-failed", "ib0"),
    ("gloo/transport/tcp/device.cc:127] rp != nullptr. Unable to find address for: dgx-1.ai", "job-failed", "dgx-1.ai"),
    ("  ifa != nullptr. Unable to find address for: ^lo", "job-failed", "^lo"),
    ("RuntimeError: CUDA error: peer access is not supported between these two devices", "job-failed", "topo -p2p r"),
    ("slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2025-04-01T10:20:33 DUE TO TIME LIMIT ***", "hang", "--time"),
    (
        "[gpu03:24451:0] ib_mlx5_log.c:171 UCX  ERROR Transport retry count exceeded on mlx5_0:1/RoCE",
        "job-failed",
        "NIC",
    ),
    # linux-rdma/perftest#336
    ("* Waiting for client to connect... *", "hang", "waits for its client"),
    (" Parser function exited with Error", "job-failed", "options"),
    ("Couldn't allocate MR", "job-failed", "nvidia-peermem"),
    (
        "node1:1:2 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment nccl-shm-recv (size 9)",
        "job-failed",
        "--shm-size",
    ),
    (
        "n1: Test CUDA failure common.cu:894 'CUDA driver version is insufficient for CUDA runtime version'",
        "job-failed",
        "newer driver",
    ),
    # pytorch/gloo#268, pytorch/pytorch#108732, gpustack/gpustack#2125
    ("RuntimeError: [gloo/transport/tcp/pair.cc:210] address family mismatch", "job-failed", "IPv6"),
    ("[gloo/transport/tcp/pair.cc:799] connect [172.31.71.170]:13195: Connection refused", "hang", "refused"),
    (
        "[rank1]:[E528 ProcessGroupGloo.cpp:145] Gloo connectFullMesh failed with [pair.cc:144] no error",
        "hang",
        "rank 1",
    ),
    ("RuntimeError: Application timeout caused pair closure", "hang", "Gloo"),  # lkeab/BCNet#53
    ("[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "hang", "1800000"),
    ("RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:17234", "job-failed", "10.0.0.1"),
    ("[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 10000 ms", "hang", "1, 3"),
    (
        "INFO 12-09 11:25:53 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
        "hang",
        "60 s",
    ),
    # Liuziyu77/Visual-RFT#123, pytorch/pytorch#111805
    ("DistStoreError: Timed out after 901 seconds waiting for clients. 1/3 clients joined.", "hang", "1 of 3"),
    ("The client socket has timed out after 600000ms while trying to connect to (node1, 29500).", "hang", "29500"),
    ("[c10d] The client socket has failed to connect to [node1]:29400 (errno: 110).", "hang", "29400"),
    ("The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "job-failed", "port"),
    ("The client socket has failed to connect to any network address of (node1, 29500).", "hang", "29500"),
    ("recvValue failed on SocketImpl: Failed to recv, got 0 bytes.", "job-failed", "rank 0"),
    ("via c10d key-value store by key '0', but store->get('0') got error: wait timed out", "hang", "(0)"),
    ("wait timeout after 600000ms, keys: /default_pg/0//cuda//0", "hang", "/default_pg/0//cuda//0"),
    ("RuntimeError: Socket Timeout", "hang", "Socket Timeout"),  # pytorch/pytorch#55571
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "hang", "rdzv"),
    ("[allreduce.x [missing ranks: 1, 3]]", "hang", "1, 3"),
    ("Heartbeat monitor timed out! Process will be terminated after dumping debug info.", "hang", "Xid"),
    (f"{NCCL}Bootstrap : no socket interface found", "job-failed", "NCCL_SOCKET_IFNAME"),
    # NVIDIA/nccl-tests#179, #284, #133
    ("node1: Test timeout common.cu:640", "hang", "NCCL_P2P_DISABLE"),
    (
        f"{NCCL}socketStartConnect: Connect to 10.42.0.4<48611> failed : Software caused connection abort",
        "job-failed",
        "10.42.0.4",
    ),
    (f"{NCCL}NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", "job-failed", "MTU"),
    (f"{NCCL}[Proxy Service 9] Failed to execute operation Connect from rank 9, retcode 6", "job-failed", "rank 9"),
    (f"{NCCL}NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument", "job-failed", "-22"),  # aws-ofi-nccl#24
    ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "job-failed", "rank 1 and rank 0"),
    (f"{NCCL}Cuda failure 'named symbol not found'", "job-failed", "named symbol"),  # NVIDIA/nccl-tests#208
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "job-failed", "full"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "job-failed", "illegal memory access"),
    ("NVRM: Xid (PCI:0000:4b:00): 79, pid=1, GPU has fallen off the bus.", "job-failed", "79"),
    ("failed (exitcode: -9) local_rank: 3 (pid: 81) of binary: python", "job-failed", "dmesg"),
    ("failed (exitcode: -7) local_rank: 3 (pid: 81) of binary: python", "job-failed", "shm"),
    # NVIDIA/nccl#2076, #473, NVIDIA/nccl-tests#6, NVIDIA/nccl#1514, #1241
    (f"{IN_NCCL}remote process exited or there was a network error, NCCL version 2.21.5", "job-failed", "another rank"),
    ("fastmoe: Test NCCL failure common.cu:777 'unhandled system error'", "job-failed", "shm-size"),
    ("NCCL failure common.cu:908 'unhandled cuda error'.", "job-failed", "NCCL_DEBUG=WARN"),
    (f"{IN_NCCL}internal error, NCCL version 2.14.3", "job-failed", "versions"),
    (f"{IN_NCCL}invalid usage, NCCL version 2.17.1", "job-failed", "two ranks"),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "job-failed", "traceback"),
    ("There are not enough slots available in the system to satisfy the 16", "job-failed", "slots"),
    ("Host key verification failed.", "job-failed", "ssh"),
    (
        "./all_reduce_perf: error while loading shared libraries: libmpi.so.40: cannot open",
        "job-failed",
        "libmpi.so.40",
    ),
    ("Couldn't connect to node1:18515", "job-failed", "18515"),
    # Lightning-AI/pytorch-lightning#19598, pytorch/pytorch#76287, horovod/horovod#584
    ("RuntimeError: DataLoader worker (pid 246611) is killed by signal: Aborted.", "job-failed", "num_workers=0"),
    ("The node 'node1_1_0' has failed to send a keep-alive heartbeat to the rendezvous", "job-failed", "node1_1_0"),
    ("n:1:2 [1] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused", "job-failed", "reach"),
    # deepseek-ai/DeepEP#202, #150, OpenRLHF/OpenRLHF#265, NVIDIA/nccl#706
    ("transport.cpp:nvshmemi_transport_init:275: init failed for transport: IBGDA", "job-failed", "IBGDA"),
    ("/nvshmem/host/nvshmemx_api.h:63: non-zero status: 7: Connection timed out, exiting...", "hang", "IFNAME"),
    (
        "The client socket has timed out after 1800s while trying to connect to (172.17.0.2, 44737).",
        "hang",
        "--network=host",
    ),
    ("n:1:2 [0] NCCL WARN Net : Call to recv from 10.0.0.1<4> failed : Connection timed out", "job-failed", "network"),
    # vllm-project/vllm#9046, NVIDIA/FasterTransformer#204, NVIDIA/deepops#1179
    ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'", "job-failed", "--disable-cust"),
    ("n:1:2 [0] NCCL WARN NET/IB : collective mismatch error local size 131072 remote 0", "job-failed", "131072"),
    (
        "slurmstepd: error: mpi/pmix_v3: pmixp_coll_ring_reset_if_to: n1 [0]: x.c:742: collective timeout",
        "hang",
        "PMIx on n1",
    ),
    (f"{NCCL}Could not find real path of /sys/class/pci_bus/0000:21/../../0000:21:00.0", "job-failed", "WSL"),
    # vllm-project/vllm#4062, NVIDIA/nccl#328
    ("Failed to find reverse path from remNode 0/41000 nlinks 2 to node 0/61000", "job-failed", "0/41000"),
    ("node8:1:2 [0] include/shm.h:27 NCCL WARN Call to shm_open failed : Permission denied", "job-failed", "chmod"),
    ("Couldn't listen to port 18515", "job-failed", "ss -lptn"),
    (" Unable to create QP.", "job-failed", "-q 1"),
    (" Failed status 10: wr_id 0 syndrom 0x88", "job-failed", "status 10"),
    (" Failed status 12: wr_id 0 syndrom 0x81", "job-failed", "GID index"),
    (" Invalid value when checking the pattern at 0x70a640000000", "job-failed", "iommu"),  # NVIDIA/nvbandwidth#34
    # NVIDIA/nccl-tests#227, #185; NVIDIA/nccl#2013; vllm-project/vllm and others, each in a line
    (f"{NCCL}Call to ibv_modify_qp failed with error Connection timed out", "job-failed", "NCCL_CROSS_NIC"),
    (" Failed to modify QP 1234 to RTR", "job-failed", "show_gids"),
    (f"{NCCL}Call to ibv_create_cq failed with error Cannot allocate memory", "job-failed", "memlock"),
    (f"{NCCL}Message truncated : received 1024 bytes instead of 256", "job-failed", "1024"),
    (f"{NCCL}NET/IB : mlx5_2:1 Got async event : port error", "job-failed", "mlxlink"),
    (" IB device mlx5_9 not found", "job-failed", "mlx5_9"),
    ("[n1:1:0] ucp_worker.c:1 UCX  ERROR   no active messages transport to <n2>: self/memory", "job-failed", "UCX_TLS"),
    (f"{NCCL}socketInit: Call to socket failed : Too many open files", "job-failed", "ulimit -n"),
    (f"{NCCL}MNNVL (cliqueSize 4) is available but not working on some system.", "job-failed", "nvidia-imex-ctl"),
    ("n1: Test CUDA failure common.cu:800 'system not yet initialized'", "job-failed", "nvidia-fabricmanager"),
    ("n1:4:5 [0] transport/nvls.cc:169 NCCL WARN Cuda failure 801", "job-failed", "NCCL_NVLS_ENABLE=0"),
    ("n1:4:5 [0] transport/p2p.cc:200 NCCL WARN Cuda failure 'invalid argument'", "job-failed", "NCCL_P2P_DISABLE"),
    (f"{NCCL}Attribute arch of node cpu not found", "job-failed", "NCCL_TOPO_FILE"),  # aws/aws-ofi-nccl#476
    (f"{NCCL}Cuda failure 101 'invalid device ordinal'", "job-failed", "nvidia-smi -L"),
    ("python: symbol lookup error: libtorch_cuda.so: undefined symbol: ncclCommRegister", "job-failed", "ldd"),
    ("socket.gaierror: [Errno -2] Name or service not known", "job-failed", "getent"),
    ("[node1:1] PMIX ERROR: UNREACHABLE in file pmix_server.c at line 2198", "job-failed", "--mpi=list"),
    ("mpirun has detected an attempt to run as root.", "job-failed", "--allow-run-as-root"),
    ("[node1:12345] Signal: Segmentation fault (11)", "job-failed", "NCCL_NET_PLUGIN=none"),
    (f"{NCCL}socketPollConnect: Connect to 10.0.0.2<45123> returned 113(No route to host)", "job-failed", "10.0.0.2"),
    ("node2: ssh: connect to host node2 port 22: Connection refused", "job-failed", "ssh"),
    # aurekaresearch/OpenDDE#23, bghira/SimpleTuner#2712
    (OTHERS.format("SequenceNumber=101, ", "[359, 1]", "SequenceNumber=0"), "job-failed", "[359, 1]; rank 2: REDUCE"),
    # lanl/MPI-Bash#14
    (
        "[A-c7-025-01:mpi_rank_24][error_sighandler] Caught error: Segmentation fault (signal 11)",
        "job-failed",
        "rank 24",
    ),
    # QMCPACK/qmcpack#1158, ayaka14732/llama-2-jax#20, NVIDIA/nccl#1710, deepseek-ai/DeepEP#223
    ("MPIDI_NM_mpi_init_hook(689): OFI addrinfo() failed (ofi_init.h:689:No data available)", "job-failed", "fi_info"),
    ("DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out tasks", "hang", "PjRT_Client"),
    (f"{NCCL}NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0", "job-failed", "(9)"),
    (
        "ibrc.cpp:nvshmemt_init:1851: neither nv_peer_mem, or nvidia_peermem detected.",
        "job-failed",
        "load nvidia-peermem",
    ),
    # Lightning-AI/pytorch-lightning#14986
    (f"{NCCL}Bootstrap Root : rank 1 of 8 ranks has already checked in", "job-failed", "WORLD_SIZE"),
    (  # snakemake/snakemake-executor-plugin-slurm#225
        "srun: error: Task launch for StepId=125452.4 failed on node n1: Unable to layout tasks on given cpus",
        "job-failed",
        "n1: Unable to layout",
    ),
    # aws-neuron/aws-neuron-sdk#713, hiyouga/LlamaFactory#5071, HabanaAI/hccl_demo#44, aws/aws-ofi-nccl#346,
    # jax-ml/jax#23599, OpenRLHF/OpenRLHF#265, cBio/cbio-cluster#256
    (
        "2023-Aug-01 16:14:43.0241 3:5 [29] include/socket.h:579 CCOM WARN Timeout waiting for RX (waited 120 sec)",
        "hang",
        "earliest",
    ),
    ("EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.", "hang", "hccn_tool"),
    (
        "HCCL demo error: In function initDevice(): synDeviceAcquire(&handle, nullptr) failed with synapse error: 20",
        "job-failed",
        "hl-smi",
    ),
    (
        "libfabric:4:17::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA addr: fi",
        "job-failed",
        "Invalid address",
    ),
    ("UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout.", "job-failed", "task:3"),
    ("The actor is dead because its worker process has died.", "job-failed", "ray/session_latest"),
    ("(LLMRayActor pid=90738) mlx5: host_unknown: got completion with error:", "job-failed", "earliest time"),
    ("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "job-failed", "printed above"),
    ("=   EXIT CODE: 9", "job-failed", "dmesg"),
    ("=   EXIT CODE: 139", "job-failed", "segmentation"),
    # jbornschein/mpi4py-examples#11, ofiwg/libfabric#9286, NVIDIA/nccl#1518, urchade/GLiNER#165
    ("  Message:    connect() to 169.254.140.13:1026 failed", "job-failed", "169.254.140.13:1026"),
    ("MPICH suspects a hang due to completion queue exhaustion.", "job-failed", "FI_CXI_DEFAULT_CQ_SIZE"),
    ("[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'", "job-failed", "NCCL_SHM_DISABLE"),
    ("Parameter indices which did not receive grad for rank 1: 0 1 2", "job-failed", "rank 1"),
    ("[rank6]:[E] [Rank 6] Some NCCL operations have failed or timed out.", "hang", "rank 6"),
    # NVIDIA/open-gpu-kernel-modules#1150, rwth-i6/returnn#1486, ROCm/legacy-rocm-build#4021
    ("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 1 caused by previous Xid 149", "job-failed", "149"),
    ("Unable to determine the device handle for GPU0000:03:00.0: Unknown Error", "job-failed", "GPU0000:03:00.0"),
    ("HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang", "job-failed", "amd-smi"),
    ("NVRM: Xid (PCI:0000:dc:00): 31, pid=18, name=python3", "job-failed", "compute-sanitizer"),
    # vllm-project/vllm#7466, #14186, open-mpi/ompi#3573
    ("ValueError: Error: environment variable RANK expected, but not set", "job-failed", "torchrun"),
    (
        "Error: No available node types can fulfill resource request {'node:1.2.3.4': 0.001, 'GPU': 1}.",
        "hang",
        "VLLM_HOST",
    ),
    ("At least one pair of MPI processes are unable to reach each other for", "job-failed", "--mca"),
    ("Failed to initialize NVML: Driver/library version mismatch", "job-failed", "nvidia-smi"),
    ("RuntimeError: Distributed package doesn't have NCCL built in", "job-failed", "gloo"),
    ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 1", "job-failed", "tmux"),
    # kubeflow/mpi-operator#152, openucx/ucc#284
    ("  Remote daemon: [[43015,0],20] on node worker-19", "job-failed", "worker-19"),
    ("[dgx1:3:0] tl_cuda_cache.c:231  UCC  ERROR ipc-cache: failed to open ipc mem handle", "job-failed", "ipc-cache"),
    ("NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)", "job-failed", "0x65"),
    ("ib_md.c:1700 UCX  ERROR ibv_open_device(mlx5_bond_0) failed: No such file", "job-failed", "mlx5_bond_0"),
    ("(GTL DEBUG: 1) cuIpcOpenMemHandle: invalid argument, line no 272", "job-failed", "gpu-bind"),
    ("eager_rcv.c:83   UCX Assertion `length >= hdr_len' failed", "job-failed", "hdr_len"),
    ("modprobe: ERROR: could not insert 'nv_peer_mem': Invalid argument", "job-failed", "nv_peer_mem"),
    ("transport.cpp:275: init failed for transport: IBGDA", "job-failed", "IBGDA"),
    ("Failed to exchange data between server and clients", "job-failed", "versions"),
    ("slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli", "job-failed", "container-cli"),
    # openpmix/openpmix#3559, pmix/pmix-standard#363, open-mpi/ompi#166
    ("srun: error: Node failure on c0091", "job-failed", "c0091"),
    ("  pmix_psec_base_open failed", "job-failed", "pmix_psec"),
    ("[rc0][[5,1],7][btl_openib.c:222:adjust_cq] cannot resize completion queue", "job-failed", "btl_openib"),
    ("MPIDIG_send(64)....: message sizes do not match across processes", "job-failed", "message sizes"),
    ("[jazz13:00000] *** An error occurred in MPI_Win_post", "job-failed", "MPI_Win_post"),
)
"""What is pasted, the code of the refusal, and a word that it has: a name of the message, or of what to do."""


@pytest.mark.parametrize(("line", "code", "word"), EXAMPLES)
def test_a_message_alone_says_how_a_job_failed(line: str, code: str, word: str, tmp_path: Path) -> None:
    error = refused(tmp_path, f"Why?\n\n{line}\n")
    assert error.code == code
    assert word in str(error)
    assert "(line 3)" in str(error)


def test_both_libraries_of_ucx_are_heard() -> None:
    assert may_fail("[node1:1 :0] UCC  ERROR no components for team creation")


def test_every_failure_has_an_example_and_its_words() -> None:
    lines = [line for line, _, _ in EXAMPLES]
    assert all(map(may_fail, lines))
    first = [next(place for place, row in enumerate(FAILURES) if re.search(row.sign, line)) for line in lines]
    assert set(first) == set(range(len(FAILURES)))


WARNS: Final = "node1:4:5 [0] transport/{} NCCL WARN "
P2P, NVLS = WARNS.format("p2p.cc:275"), WARNS.format("nvls.cc:12")
SAMPLES: Final = (
    ("Unable to find address for: ib0", "Unable to find interface for: [::1]"),
    ("[x/pair.cc:210] address family mismatch",),
    (
        "[x/pair.cc:9] connect [10.0.0.1]:13: Connection refused",
        "[x/pair.cc:9] connect 10.0.0.1:13: No route to host",
        "[x/pair.cc:9] connect 10.0.0.1:13: Connection timed out",
        "connectFullMesh failed with [pair.cc:1] no error",
        "connectFullMesh failed with SO_ERROR: Connection refused",
        "connectFullMesh failed with timed out",
        "Gloo connectFullMesh failed",
    ),
    ("No available shared memory broadcast block found in 60 seconds.",),
    ("Ranks 1, 3 failed to pass monitoredBarrier", "rank 1 failed to call into monitoredBarrier"),
    (
        "Timed out waiting 10ms for send operation",
        "timed out waiting 10 ms for recv operation",
        "Application timeout caused pair closure",
    ),
    ("Timed out after 901 seconds waiting for clients. 1/3", "Timed out after 901 seconds waiting for workers. 1/3"),
    (
        "client socket has timed out after 1800s while trying to connect to (172.17.0.2",
        "Connect to 172.17.0.2<3807> failed : Connection timed out",
    ),
    (
        "client socket has failed to connect to [node1]:29400",
        "client socket has failed to connect to any network address of (node1, 29500)",
        "client socket has timed out after 9ms while trying to connect to (node1, 29500)",
        "client socket has timed out after 600s while trying to connect to (node1, 29500)",
    ),
    (
        "failed to bind to [::]:29500 (errno: 98 - Address already in use)",
        "failed to listen on [::]:29500 (EADDRINUSE)",
        "EADDRINUSE",
        "RuntimeError: Address already in use",
    ),
    ("The node 'node1_1_0' has failed to send a keep-alive heartbeat to the rendezvous",),
    (
        "RendezvousTimeoutError",
        "RendezvousConnectionError",
        "RendezvousClosedError",
        "Rendezvous timed out",
        "The rendezvous has failed",
    ),
    (
        "missing ranks: 1",
        "Missing ranks: [1, 3]",
        "Stalled ops: a",
        "Stalled tensors: a",
        "Stalled ranks: 1",
        "submitted to be reduced, gathered or broadcasted by subset of ranks",
        "reduced, gathered or broadcasted by subset of ranks. Stalled ops: a [ready ranks: 3], b [ready ranks: 2]",
    ),
    ("Heartbeat monitor timed out", "watchdog got stuck for 9 seconds", "watchdog thread got stuck for 9 seconds"),
    ("Test timeout",),
    (
        "CCOM WARN Timeout waiting for RX",
        "NCCL WARN Timeout waiting for incoming connection",
        "NCCL WARN Timeout waiting for connection",
    ),
    ("Getting socket times out", "Notify register times out", "wait socket establish timeout"),
    (
        "mismatch in rank count",
        "Bootstrap Root : rank 1 of 8 ranks has already checked in",
        "Invalid rank requested : 2/2",
    ),
    (
        "No socket interface found",
        "no socket interface found",
        "NCCL WARN Net : No interface found in the same subnet as remote address fe80::1<5>",
    ),
    (
        "Connect to 10.0.0.1<9> failed : Connection refused",
        "Connect to 10.0.0.1<9> failed : No route to",
        "Call to connect returned No route to host",
        "Call to connect to 10.0.0.1<9> failed : Connection timed out",
        "connect to 10.0.0.1<9> returned 101(Network is unreachable",
        "Connect to 10.0.0.1<9> failed : Software caused connection abort",
    ),
    ("NET/OFI Couldn't open AV", "NET/OFI Unable to", "NET/OFI Failed", "NET/OFI UNDELIVERABLE", "NET/OFI error"),
    ("efa_rdm_txe_handle_error():737<warn> err: 5, message: Invalid address My EFA",),
    (
        OTHERS.format("SequenceNumber=0, ", "[4]", "SequenceNumber=0"),
        OTHERS.format("", "[]", ""),
        OTHERS.replace("CollectiveFingerPrint({}OpType=REDUCE)", "REDUCE").format("", "[4]"),
    ),
    ("did not receive grad for rank 1", "Expected to have finished reduction in the prior iteration"),
    (
        "Message truncated : received 9 bytes instead of 8",
        "Mismatched collective",
        "NET/IB : collective mismatch error local size 131072 remote 0",
        "local size 496640 remote size 65536",
    ),
    (
        "OFI addrinfo() failed",
        "NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available",
        "MPIDI_OFI_init_local(580): OFI fi_fabric failed (ofi_init.c:580)",
        "MPIDI_OFI_mpi_init_hook(599): OFI fi_open domain failed (ofi_init.c:599)",
        "OFI fi_getinfo() failed",
        "OFI endpoint open failed",
        "[0] MPI startup(): tmi fabric is not available and fallback fabric is not enabled",
        "node1.329747PSM2 can't open hfi unit: -1 (err=23)",
        "e001.53882PSM2 no hfi units are active (err=23)",
    ),
    (
        "Call to ibv_modify_qp failed",
        "ibv_modify_qp failed",
        "ibgda.cpp:2234: NULL value Unable to create ah.",
        "Failed to modify QP 9",
        "Unable to Connect the HCA",
    ),
    ("Call to ibv_create_cq failed", "Call to ibv_alloc_pd failed", "UCX  ERROR ibv_reg_mr(address=1) failed: Bad"),
    ("async event : port error", "Async fatal event on device : device fatal", "async event: QP catastrophic error"),
    (
        "Port number 1 state is Down",
        "Port number 1 state is Initializing",
        "Unable to find the Infiniband/RoCE device",
        "IB device mlx5_9 not found",
    ),
    ("UCX  ERROR no active messages transport", "UCX  ERROR Destination is unreachable", "UCX  ERROR ibv_create_ah"),
    ("Too many open files",),
    ("MNNVL is not working", "Check the IMEX", "check the IMEX", "Please check nvidia-imex"),
    ("system not yet initialized",),
    (f"{NVLS}Multicast not supported", "NVLink SHARP (NVLS)"),
    (f"{P2P}Cuda failure 'x'", f"{P2P}Could not enable P2P between dev 0 and dev 1", f"{P2P}Could not map IPC"),
    ("Attribute arch of node cpu not found",),
    (f"{NCCL}Could not find real path of /sys/class/pci_bus/0000:21/../../0000:21:00.0",),
    ("Failed to find reverse path from remNode 0/41000 nlinks 2 to node 0/61000",),
    (
        "uncorrectable ECC error",
        "uncorrectable NVLink error",
        "uncorrectable hardware error",
        "Xid (PCI:0000:4b:00): 79",
        "previous Xid 149",
        "fallen off the bus",
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
        "device handle for GPU 0000:03:00.0: GPU is lost",
        "returned NV_ERR_RESET_REQUIRED",
    ),
    (
        "NVRM: GPU 0000:98:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "NVRM: No NVIDIA graphics adapter probed!",
        "NVRM: The NVIDIA probe routine was not called for 3 device(s).",
    ),
    (
        "HW Exception by GPU node-9 (Agent handle: 0x6) reason :GPU Hang",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=61",
        "amdgpu 0000:c5:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE",
        "amdgpu 0000:c5:00.0: amdgpu: GPU reset begin!. Source:  3",
    ),
    (
        "slurmstepd: error: pyxis: container start failed with error code: 1",
        "slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli",
        "error: pyxis: couldn't mkdir /run/pyxis/100005: No such file or directory",
    ),
    (
        "srun: error: Task launch for StepId=1.4 failed on node n1: Unable to layout tasks",
        "srun: error: task 0 launch failed: Plugin initialization failed",
        "srun: error: Unable to create step for job 2: Memory required by task is not available",
        "srun: error: Unable to allocate resources: Requested node configuration is not available",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        "sbatch: error: !!! slurm_job_submit ERROR: 302 submitted a job without specifying an account",
    ),
    (
        "invalid device ordinal",
        "no CUDA-capable device is detected",
        "CUDA error: initialization error",
        "Cuda failure 3 'initialization error'",
        "from cudaGetDeviceCount(). Error 3: initialization error",
        "HIP error: initialization error",
        "'CUDA-capable device(s) is/are busy or unavailable'",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: Found no NVIDIA driver on your system",
        "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
        "CUDA error: all CUDA-capable devices are busy or unavailable",
    ),
    ("synDeviceAcquire(&a, b) failed", "RuntimeError: synStatus=26 [Generic failure] Device acquire failed."),
    (
        "Driver/library version mismatch",
        "Failed to initialize NVML: Unknown Error",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ),
    ("RuntimeError: Distributed package doesn't have NCCL built in",),
    ("ValueError: environment variable RANK expected, but not set",),
    (
        "Error: No available node types can fulfill resource request {'node:10.0.0.1': 0.001, 'GPU': 1.0}.",
        "Waiting for creating a placement group of specs for 10 seconds.",
        "The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        "RuntimeError: Ray does not allocate any GPUs on the driver node.",
    ),
    ("undefined symbol: ncclCommRegister",),
    ("mpi/pmix_v3: pmixp_coll_ring_reset_if_to: n1 [0]: pmixp_coll_ring.c:742: 0x1: collective timeout seq=0",),
    (
        "not built with SLURM's PMI",
        "PMIX ERROR: UNREACHABLE",
        "PMI_Init failed",
        "PMI2_Init failed",
        "PMIx_server_init failed",
    ),
    ("attempt to run as root",),
    ("Duplicate GPU detected : rank 1 and rank 0", "Duplicate GPU detected : rank 0"),
    (
        "Cuda failure 'named symbol not found'",
        "CUDA failure common.cu:9 'invalid device function'",
        "Cuda failure 35 'CUDA driver version is insufficient'",
        "HIP failure 'no kernel image is available'",
        "Cuda failure 'the provided PTX'",
        "Cuda failure 'device kernel image is invalid'",
        "HIP error: invalid device function",
        "CUDA error: no kernel image is available",
        "hipErrorNoBinaryForGpu: Unable to find code object",
    ),
    ("CUDA out of memory", "HIP out of memory", "Cuda failure 'out of memory'", "cuda failure 2 'out of memory'"),
    (
        "an illegal memory access",
        "device-side assert",
        "CUDA error: unspecified launch failure",
        "misaligned address",
        "Xid (PCI:0000:4b:00): 31",
    ),
    (
        "exitcode: -9",
        "(exitcode: 137)",
        "Exit code:    137",
        "exits with return code = -9",
        "srun: error: node1: task 3: Killed",
        "Exit Code:    137",
        "exitcode  : 137",
        "command terminated with exit code 137",
        "srun: error: node1: task 3: Exited with exit code 137",
        "Job failed: exit status 137",
        "Signal 9",
        "signal 9",
        "=   EXIT CODE: 9",
        "=   KILLED BY SIGNAL: 9 (Killed)",
        "Out of memory: Killed",
        "out of memory: Killed",
        "oom-kill",
        "oom_kill",
        "OOMKilled",
        "DataLoader worker (pid 13772) is killed by signal: Killed",
        "task 0: Out Of Memory",
        "tasks 0-3,5: Out Of Memory",
    ),
    (
        "[x/pair.cc:9] Read error",
        "gloo: Write error",
        "RuntimeError: Connection closed by peer [10.0.0.1]:13",
        "[x/pair.cc:9] Connection reset by peer",
        "[x/pair.cc:9] Broken pipe",
    ),
    ("exitcode: -7", "(exitcode: -7)", "exits with return code = -7", "Signal 7", "signal 7", "Bus error", "bus error"),
    (
        "DataLoader worker (pid 246611) is killed by signal: Aborted.",
        "DataLoader worker (pid(s) 1, 2) exited unexpectedly",
    ),
    ("Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'",),
    ("peer access is not supported", "cudaErrorPeerAccessUnsupported", "peer mapping resources exhausted"),
    (
        "Got completion from peer with status=9",
        "Got completion with error 10",
        "event : local access violation",
        "retry_cnt: 0): local protection error",
        "UCX  ERROR Remote access",
    ),
    (
        "Got completion with error 12",
        "Got completion from peer with status=5",
        "Failed status 12: wr_id",
        "failed status 13: wr_id",
        "a work item failed: status 12 (Ib failure: Cannot allocate memory)",
        "Transport retry count exceeded",
        "transport retry counter exceeded",
        "IBV_WC_RETRY_EXC",
    ),
    (
        "Name or service not known",
        "Temporary failure in name resolution",
        "No address associated with hostname",
        "no address associated with hostname",
        "nslookup: can't resolve 'master-0'",
        "HYDU_sock_connect (sock.c:145): unable to get host address for Master (4)",
    ),
    ("nvshmem/src/nvshmemx_api.h:63: non-zero status: 7: Connection timed out, exiting...",),
    (
        "MPICH suspects a hang due to completion queue exhaustion",
        "libfabric:4:16:cxi:core:cxip_ux_onload_cb():2444<warn> RXC (0xe910:7:0): Flow control triggered due",
    ),
    (
        "Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out",
        "Barrier timed out. Id: [Init]Wait_for_all::0. This",
        "DEADLINE_EXCEEDED: Deadline Exceeded",
        "waiting for `a` for 10 seconds and may be stuck. Expected 8 threads to join the rendezvous, but not all",
    ),
    (
        "Task /job:a/task:0 heartbeat timeout. The",
        "Task a:0 heartbeat timeout.",
        "The following tasks are unhealthy (stopped sending heartbeats):",
    ),
    (
        "Failed to recv, got 0 bytes",
        "recvValue failed",
        "TCPStore server has shut down too early",
        "store->get(key) got error: Connection reset by peer",
        "store->get(key) got error: Broken pipe",
    ),
    (
        "store->get('0') got error",
        "wait timeout after 9ms, keys: /0",
        "Timeout waiting for key: 0",
        "RuntimeError: Socket Timeout",
        "DistStoreError: Socket Timeout",
        "remote=[node-0]:20000) timed out",
        "RuntimeError: Timed out in store based barrier on rank: 1, for key: a (world_size=2, worker_count=1,",
    ),
    (
        "ncclRemoteError",
        "remote process exited or there was a network error",
        "Connection closed by remote peer",
        "OFI poll failed (x.c:1: UNDELIVERABLE)",
        "NCCL WARN Call to recv failed : Connection reset by peer",
        "Call to recv from 10.0.0.1<41468> failed : Connection timed out",
        "group.cc:47 -> 6",
        "UCX  ERROR endpoint reset by remote peer",
    ),
    ("misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'",),
    (
        "Call to shm_open failed : Permission denied",
        "open /dev/shm/nccl-x: Permission denied",
        "PermissionError: [Errno 13] Permission denied: '/dev/shm/x'",
    ),
    (
        "creating shared memory segment",
        "attaching to shared memory segment",
        "posix_fallocate failed",
        "failed to extend /dev/shm",
    ),
    ("Proxy Call to rank 9 failed", "Failed to execute operation Connect from rank 9"),
    ("unhandled system error", "ncclSystemError", "group.cc:64 -> 2"),
    (
        "unhandled cuda error",
        "ncclUnhandledCudaError",
        "group.cc:64 -> 1",
        "NCCL WARN Cuda failure 1 'invalid argument'",
    ),
    ("ncclInternalError", "internal error - please report", "internal error, NCCL version", "group.cc:68 -> 3"),
    (
        "ncclInvalidUsage",
        "invalid usage, NCCL version",
        "ncclInvalidArgument",
        "invalid argument, NCCL version",
        "group.cc:1 -> 4",
        "group.cc:1 -> 5",
        "Test NCCL failure common.cu:958 'invalid usage (run",
    ),
    (
        "Signal: Segmentation fault",
        "Caught error: Segmentation fault",
        "exited on signal 11",
        "Caught signal 11 (Segmentation fault: address not mapped",
        "exits with return code = -11",
        "Fatal Python error: Segmentation fault",
        "Segmentation fault (core dumped)",
        "exitcode: -11",
        "=   EXIT CODE: 139",
    ),
    (
        "unable to complete a TCP connection",
        '[proxy:0:1@n168] HYDU_sock_connect (sock.c:145): unable to connect from "n168" to "n100" (Connection refused)',
        "[proxy:0:1@n168] main (pmip.c:183): unable to connect to server n100 at port 54762 (check for firewalls!)",
        "  Message:    connect() to 169.254.140.13:1026 failed",
        "Open MPI failed to TCP connect",
        "Trying to connect from eth0 port 1 (subnet 10.0.0.1/32) to a node on a different subnet 10.0.1.1/32",
    ),
    ("Not enough slots available", "not enough slots available"),
    (
        "modprobe: ERROR: could not insert 'nv_peer_mem': Unknown symbol in module",
        "modprobe: FATAL: Module nvidia_peermem not found in directory",
        "nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)",
    ),
    (
        "WARN: init failed for remote transport: ibrc",
        "transport.cpp:287: Unable to initialize any transports. returning error.",
        "ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar",
        "WARN: device mlx5_0 cannot allocate buffer on the specified memory type. Skipping...",
    ),
    (
        "ORTE has lost communication with a remote daemon",
        "PRTE has lost communication with a remote daemon",
        "  Remote daemon: [[43015,0],20] on node worker-19",
    ),
    (
        "ORTE was unable to",
        "error: executing task of job 2352389 failed: failed sending task to execd@n47: got send error",
        "PRTE was unable to",
        "ORTE daemon has",
        "PRTE daemon has",
        "Host key verification failed",
        "Permission denied (publickey",
        "ssh: connect to host",
        "ssh exited with exit code 255",
        "could not access or execute an executable",
        "unable to launch the application as it could not find an executable",
        "bash: orted: command not found",
        "mpirun was unable to find the specified executable file",
        "mpiexec was unable to start the specified application",
        "mpirun was unable to launch the specified application",
        "python3: can't open file 'train.py': [Errno 2] No such file or directory",
        "/bin/bash: line 1: /usr/sbin/sshd: No such file or directory",
        "bash: sshd: not found",
        "Command 'ssh -o PasswordAuthentication=no 10.0.0.1 hostname' returned non-zero exit status 255.",
    ),
    (
        "error while loading shared libraries: libmpi.so.40:",
        "Failed to load NCCL library from libnccl.so.2 .",
        "ImportError: libnccl.so.2: cannot open shared object file",
    ),
    ("Couldn't connect to node1", "Unable to init the socket connection", "Unable to open the socket connection"),
    (
        "Event: RDMA_CM_EVENT_REJECTED; error: -111.",
        "Event: RDMA_CM_EVENT_ADDR_ERROR; error: -19.",
        "Failed to exchange data between server and clients",
        "ethernet_read_keys: Couldn't read remote address",
    ),
    (
        "Couldn't allocate MR",
        "couldn't allocate mr",
        "Failed to create MR",
        "failed to create mr",
        "ibv_reg_mr failed: MR",
        "ibv_reg_mr_iova failed: failed",
    ),
    ("Failed status 10: wr_id 0 syndrom 0x88", "failed status 4: wr_id"),
    ("Couldn't listen to port 18515",),
    ("Unable to create QP.", "Couldn't create rdma QP - Invalid argument"),
    ("Parser function exited with Error",),
    ("Waiting for client to connect",),
    ("srun: error: Node failure on n1", "*** JOB 4 ON n1 CANCELLED AT 2025-06-26T14:20:28 DUE TO NODE FAILURE, SEE"),
    ("DUE TO TIME LIMIT", "DUE TO PREEMPTION"),
    ("neither nv_peer_mem, or nvidia_peermem detected",),
    ("Invalid value when checking the pattern",),
    (
        "Watchdog caught collective operation timeout",
        "due to a collective timeout",
        "Some NCCL operations have failed or timed out",
    ),
    ("SignalException: Process 9 got signal: 1", "Received Signals.SIGTERM death signal, shutting down workers"),
    (
        "RayActorError",
        "The actor died unexpectedly before",
        "The actor is dead because",
        "A worker died or was killed while executing a task",
    ),
    (
        "At least one pair of MPI processes are unable to reach each other for",
        "No components were able to be opened in the pml framework.",
        "PML ucx cannot be selected",
        '  --> Returned "Unreachable" (-12) instead of "Success" (0)',
    ),
    (
        "UCX  ERROR ibv_open_device(mlx5_bond_0) failed: No such file or directory",
        "UCX  ERROR rdma_create_event_channel failed: No such file or directory",
    ),
    (
        "(GTL DEBUG: 1) cuIpcOpenMemHandle: invalid argument, CUDA_ERROR_INVALID_VALUE, line no 272",
        "cudaIpcOpenMemHandle failed: 1",
        "hipIpcGetMemHandle() error 17",
    ),
    ("UCC  ERROR ipc-cache: failed to open ipc mem handle",),
    ("[rc1][[5,1],4][btl_openib.c:222:adjust_cq] cannot resize completion queue, error: 16",),
    ("MPIR_Bcast_intra(225)..: Failure during collective", "internal_Init(67): message sizes do not match"),
    (
        "*** An error occurred in MPI_Win_post",
        "*** The Open MPI OFI MTL is aborting the MPI job",
        "Fatal error in PMPI_Init_thread: ",
        "Fatal error in internal_Isend",
    ),
    ("A requested component was not found, or was unable to be opened", "pmix_psec_base_open failed"),
    (
        "Assertion failed in file ../src/mpid/cray_gpu_ops.c at line 188: mpi_errno == MPI_SUCCESS",
        "eager_rcv.c:83   UCX Assertion `length >= hdr_len' failed",
    ),
    ("mlx5: host_unknown: got completion with error:",),
    ("BAD TERMINATION OF ONE OF YOUR",),
    (
        "Root Cause (first observed failure)",
        "ChildFailedError",
        "exitcode: 1 (pid",
        "failed (exitcode: 1) local_rank: 0",
        "exits with return code = 1",
        "exits with code = -6",
    ),
)
"""For each of ``FAILURES``, in their order, a line for each alternative of its sign."""


@pytest.mark.parametrize("place", range(len(FAILURES)))
def test_every_alternative_of_a_sign_is_found(place: int) -> None:
    assert len(SAMPLES) == len(FAILURES)
    for line in SAMPLES[place]:
        assert may_fail(line), line
        assert next(at for at, row in enumerate(FAILURES) if re.search(row.sign, line)) == place, line


def test_a_process_that_was_killed_is_the_cause_of_a_connection_that_closed(tmp_path: Path) -> None:
    closed = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:17234"
    assert refused(tmp_path, f"{closed}\ncommand terminated with exit code 137\n").follows == 0
    assert refused(tmp_path, f"{closed}\n").follows == 2


GAI: Final = (
    "[W1130 10:00:00.0 socket.cpp:752] [c10d] The IPv6 network addresses of (node1, 29500) cannot be retrieved (gai "
    "error: -2 - Name or service not known)."
)
"""torch prints it and goes on with IPv4."""
FULL: Final = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
TIMEOUT: Final = (
    "[rank0]:[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
    "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)


def test_a_name_that_has_only_an_ipv4_address_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{GAI}\n{(LOGS.parent / 'training/megatron.log').read_text(encoding='utf-8')}", encoding="utf-8")
    result = CliRunner().invoke(main, ["show", str(path)])
    assert result.exit_code == 0, result.output
    error = refused(tmp_path, f"{GAI}\n{FULL}\n")
    assert "(line 2), on rank 1" in error.answer
    assert "nvidia-smi" in str(error)


def test_a_full_gpu_says_more_than_a_name_that_is_not_known(tmp_path: Path) -> None:
    name = "socket.gaierror: [Errno -2] Name or service not known"
    assert "(line 2), on rank 1" in refused(tmp_path, f"{name}\n{FULL}\n").answer


@pytest.mark.parametrize(
    "above",
    [
        "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all::0. This",
        "Warning: peer access is not supported between these two devices",
        "neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",
        "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: new row marked",
        "curl: (6) Could not resolve host: metadata.google.internal",
    ],
)
def test_a_full_gpu_says_more_than_what_waited_or_went_on(above: str, tmp_path: Path) -> None:
    assert "(line 2), on rank 1" in refused(tmp_path, f"{above}\n{FULL}\n").answer


def test_a_process_that_was_killed_says_more_than_what_its_gpu_prints_then(tmp_path: Path) -> None:
    answer = refused(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 45, pid=9\nslurmstepd: error: Detected 1 oom-kill event\n")
    assert "(line 2)" in answer.answer


@pytest.mark.parametrize("before", ["[10:11:13 ERROR] ", "[2025-01-02T10:11:13 ERROR] ", "main.cu:10:11 "])
def test_neither_a_time_nor_a_place_in_a_file_is_a_host(before: str, tmp_path: Path) -> None:
    assert refused(tmp_path, f"{before}CUDA out of memory\n").answer.endswith("(line 1)")


def test_an_initialization_error_of_a_network_is_none_of_a_gpu(tmp_path: Path) -> None:
    crash = "[node1:12345] Signal: Segmentation fault (11)"
    above = "[node1:1:0] ucp_worker.c:1 UCX  ERROR network initialization error"
    assert "(line 2)" in refused(tmp_path, f"{above}\n{crash}\n").answer
    assert "(line 1)" in refused(tmp_path, f"CUDA error: initialization error\n{crash}\n").answer


@pytest.mark.parametrize(
    "texts",
    [
        {"node7.log": TIMEOUT, "node8.log": FULL},
        {"node7.log": TIMEOUT, "node8.log": f"{FULL}\n{TIMEOUT}"},
        {"node7.log": "RuntimeError: Socket Timeout", "node8.log": f"{FULL}\n{TIMEOUT}"},
        {"node7.log": f"{INFO}Init COMPLETE", "node8.log": f"{FULL}\n{TIMEOUT}"},
        {"node7.log": "ncclRemoteError: A call failed", "node8.log": TIMEOUT},
    ],
)
def test_a_rank_that_failed_comes_before_those_that_waited_for_it(texts: dict[str, str], tmp_path: Path) -> None:
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["show", str(tmp_path)], env={"COLUMNS": "400"})
    assert result.exit_code == 1
    assert "failed in 2 of 2 logs; look first at node8.log: " in result.output


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir() if path.suffix == ".txt"))
def test_a_log_with_results_is_no_failed_job(name: str) -> None:
    is_failed = name.startswith(("failed", "watchdog", "ras", "nccl-debug"))
    assert is_failed or SIGN.search((LOGS / name).read_bytes()) is None or read_log(LOGS / name).tables


DEVICES: Final = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1\n"
    "# Using devices\n"
    "#  Rank  0 Pid   1234 on node1 device  0 [0x00] Tesla V100-SXM2-16GB\n"
    "#  Rank  1 Pid   4321 on node2 device  0 [0x00] Tesla V100-SXM2-16GB\n"
)
MEET, CONNECT, CALL = "ranks meet (", "ranks connect (", "the first call runs ("
PERFTEST: Final = "                    RDMA_Write BW Test\n Dual-port       : OFF          Device         : mlx5_0\n"
ENDS: Final = (
    # NVIDIA/nccl#417, without hosts; #398; #997
    ("[0] NCCL INFO Setting affinity for GPU 0 to ff\n", f"{CONNECT}line 1"),
    (f"{INFO}Ring 00 : 15 -> 0 [send] via NET/Socket/0\n", f"{CONNECT}line 1"),
    (
        f"{INFO}AllReduce: opCount 0 sendbuff 0x7 recvbuff 0x7 count 16 datatype 1 op 0\n{INFO}Init COMPLETE\n",
        "AllReduce (opCount 0) of 16 elements (line 2",
    ),
    (DEVICES, "ranks meet and connect (line 4"),
    (f"{DEVICES}{INFO}Bootstrap : Using eth0:10.0.0.1<0>\n{INFO}Using network IB\n", f"{MEET}line 6"),
    (f"{DEVICES}{INFO}comm 0x5 rank 1 nranks 2 cudaDev 0 commId 0x7 - Init START\n", f"{MEET}line 5"),
    (f"{DEVICES}{INFO}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n", f"{CONNECT}line 5"),
    (f"{DEVICES}{INFO}Connected all rings\n", f"{CALL}line 5"),
    (f"{DEVICES}# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n", f"{CALL}line 5"),
    (f"{PERFTEST} local address: LID 0000 QPN 0x2da6 PSN 0x38f9aa\n", "client and server meet (line 3"),
    (f"{PERFTEST} local address: LID 0\n remote address: LID 0\n", f"{CALL}line 4"),
    ("# OSU MPI Bandwidth Test v7.2\n# Size      Bandwidth (MB/s)\n", CALL),
)
"""A log that ends, and the phase and line that are named."""


@pytest.mark.parametrize(("text", "phase"), ENDS)
def test_a_log_that_ends_before_its_first_row_says_where(text: str, phase: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text)
    of_nccl_alone = text.startswith((INFO, "[0] NCCL"))
    assert error.code == ("messages" if of_nccl_alone else "hang")
    assert phase in str(error)
    assert ("NCCL" in str(error).partition("Do: ")[2]) == ("OSU" not in text and "RDMA" not in text)


@pytest.mark.parametrize(
    ("above", "below"),
    [("", "#  Rank  2 Pid   4322 on no\n"), ("srun -N 2 --ntasks-per-node=2 all_reduce_perf -b 8 -g 1\n", "")],
)
def test_a_paste_that_is_cut_in_the_list_of_ranks_is_no_hang(above: str, below: str, tmp_path: Path) -> None:
    """nebius/soperator#428: the list is printed at once."""
    assert refused(tmp_path, above + DEVICES + below).code == "list-cut"


def test_addresses_of_different_networks_are_named(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#284: one host takes its wireless interface."""
    own = f"{INFO}Bootstrap: Using enp3s0:10.42.0.4<0>\n"
    other = "node2:12:34 [0] NCCL INFO Bootstrap: Using wlp4s0:192.168.1.7<0>\n"
    assert "wlp4s0 192.168.1.7" in str(refused(tmp_path, own + other))
    assert (
        "10.42.0.4"
        not in str(refused(tmp_path, own + own.replace("0.4<", "0.5<"))).partition("Why: ")[0].partition(";")[2]
    )


def test_the_rank_the_call_and_the_phase_are_named(tmp_path: Path) -> None:
    """As NVIDIA/nccl#1928 and #795, in parts."""
    lines = (
        "[rank3]:     dist.all_reduce(tensor)\n[rank3]: torch.distributed.DistBackendError: NCCL error in: x.cpp, "
        "remote process exited or there was a network error, NCCL version 2.28\n[rank2]: ncclRemoteError: A call\n"
    )
    text = str(refused(tmp_path, lines))
    assert "all_reduce" in text
    assert "ranks 2, 3" in text
    setup = f"{INFO}Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
    assert "ranks connect" in str(refused(tmp_path, setup + lines))


def test_the_rank_that_failed_first_is_that_of_torchrun(tmp_path: Path) -> None:
    """pytorch/pytorch#121209."""
    text = "  rank : 1 (local_rank: 1)\nRoot Cause (first observed failure):\n[0]:\n  rank      : 5 (local_rank: 5)\n"
    assert "rank 5 failed first" in str(refused(tmp_path, text))


def test_a_watchdog_names_the_cause_that_stands_beside_its_timeouts(tmp_path: Path) -> None:
    timeout = (
        "[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
        "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    )
    text = str(refused(tmp_path, f"torch.OutOfMemoryError: CUDA out of memory.\n{timeout}"))
    assert "work 7" in text
    assert "(line 1)" in text
    unnamed = timeout.partition("] ")[2].partition("] ")[2]
    assert "work 7, ALLREDUCE" in str(refused(tmp_path, unnamed))


def test_a_training_log_that_ends_in_a_failure_says_it(tmp_path: Path) -> None:
    step = " iteration {0:8d}/ 250000 | elapsed time per iteration (ms): 12695.3 | global batch size:  1024 |\n"
    steps = "".join(map(step.format, range(180, 184)))
    assert refused(tmp_path, steps).code == "training-log"
    failed = refused(tmp_path, f"{steps}ncclRemoteError: A call failed possibly due to a network error\n")
    assert failed.code == "job-failed"
    assert "(line 5)" in str(failed)


@pytest.mark.parametrize(
    "warning",
    [
        "ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use",
        "p2p.cc:944 NCCL WARN rank 0 failed to IPC register userbuff 0x7f",
        "transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration",
        "transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : GID table change",
    ],
)
def test_a_warning_after_which_jobs_go_on_is_no_failure(warning: str, tmp_path: Path) -> None:
    """vllm-project/vllm#19204, NVIDIA/nccl#1684, #1819, deepspeedai/DeepSpeedExamples#310."""
    assert refused(tmp_path, f"node1:12:12 [0] {warning}\n{INFO}Connected all rings\n").code == "messages"


def test_the_call_that_failed_says_more_than_the_errors_that_follow_from_it(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#227, #185, aws/aws-ofi-nccl#476, each in parts."""
    follows = (
        "n1: Test NCCL failure common.cu:961 'unhandled system error'\nsrun: error: n1: task 0: Exited with code 3\n"
    )
    first = f"{NCCL}socketProgressOpt: Call to recv from 10.0.0.2<52035> failed : Connection reset by peer\n"
    text = str(refused(tmp_path, f"{first}{NCCL}Call to ibv_modify_qp failed with error No route\n{follows}"))
    assert "(line 2)" in text.partition("Why:")[0]
    assert "NCCL_IB_GID_INDEX" in text
    text = str(
        refused(tmp_path, f"{NCCL}Attribute arch of node cpu not found\nTest NCCL failure 'internal error - ...'\n")
    )
    assert "Error: NCCL WARN Attribute arch" in text


def test_the_hosts_that_print_a_failure_are_named(tmp_path: Path) -> None:
    """openucx/ucx#5199, brain-score/vision#950; pytorch/ci-infra#490."""
    full = "[{0}:19546:0:19546] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB\n"
    assert ", on host-a, host-b" in refused(tmp_path, full.format("host-b") + full.format("host-a")).answer
    assert ", on node107" in refused(tmp_path, "srun: error: node107: task 0: Out Of Memory\n").answer
    assert ", on 12" not in refused(tmp_path, "12:30:45 CUDA out of memory\n").answer
    assert ", on node1" in refused(tmp_path, f"{NCCL}failed to extend /dev/shm/nccl-WU to 9 bytes\n").answer


def test_a_cause_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#185, llm-d/llm-d#352, ray-project/ray_lightning#24, each in parts."""
    follows = f"{NCCL}[Proxy Service 1] Failed to execute operation Connect from rank 1, retcode 2\n"
    shared = f"{NCCL}Error while creating shared memory segment /dev/shm/nccl-E (size 33030528)\n"
    first = f"{NCCL}Call to ibv_modify_qp failed with error Network is unreachable\n"
    for cause, word in ((first, "NCCL_IB_GID_INDEX"), (shared, "--shm-size")):
        assert word in str(refused(tmp_path, follows + cause))
    peers = (
        "n1:1:2 [0] p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between\n"
    )
    assert "topo -p2p r" in str(refused(tmp_path, f"{IN_NCCL}unhandled cuda error, NCCL version 2.7.8\n{peers}"))
    grads = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
    summary = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    assert "find_unused_parameters" in str(refused(tmp_path, f"{IN_NCCL}remote process exited or\n{grads}{summary}"))
    timeout = "[E] [Rank 0] Some NCCL operations have failed or timed out.\n"
    limit = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2025-04-01T10:20:33 DUE TO NODE FAILURE ***\n"
    assert "Slurm lost a host" in refused(tmp_path, f"{timeout}{limit}").answer
    away = f"{NCCL}Net : Connect to 192.168.1.9<54263> failed : No route to host\n"  # NVIDIA/nccl#1105
    assert "192.168.1.9" in refused(tmp_path, f"RuntimeError: Socket Timeout\n{away}").answer
    flushed = f"{NCCL}NET/IB : Got completion from peer 10.0.0.2<9> with status=5 opcode=0\n"
    assert "(9)" in refused(tmp_path, f"{flushed}{flushed.replace('=5', '=9')}").answer
    busy = "'CUDA-capable device(s) is/are busy or unavailable'\n"  # scitix/sichek#51
    assert "reset" in str(refused(tmp_path, f"{busy}NVRM: Reset required [NV_ERR_RESET_REQUIRED] (0x62) returned\n"))


def test_a_line_that_names_what_failed_comes_before_one_that_does_not(tmp_path: Path) -> None:
    """horovod/horovod#1012, in parts."""
    text = "W ops.cc:588] tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are\n"
    assert (
        "missing ranks: 1"
        in refused(tmp_path, f"{text}Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 1]\n").answer
    )


def test_a_call_below_the_failure_is_not_the_one_that_failed(tmp_path: Path) -> None:
    """tatsu-lab/stanford_alpaca#207: an answer in the thread quotes a call."""
    error = f"{IN_NCCL}remote process exited or there was a network error, NCCL version 2.14.3\n"
    call = "torch.distributed.init_process_group(backend='nccl')\n"
    assert "in init_process_group" in refused(tmp_path, call + error).answer
    assert "in init_process_group" not in refused(tmp_path, error + call).answer


def test_the_rank_in_a_prefix_that_all_lines_have_is_kept(tmp_path: Path) -> None:
    """PKU-YuanGroup/UniWorld#46, in parts."""
    lines = "".join(
        f"[rank6]:[E624 04:14:29.22{number} ProcessGroupNCCL.cpp:684] [Rank 6] {text}\n"
        for number, text in enumerate(
            ("Some NCCL operations have failed or timed out.", "To avoid data inconsistency, we end.", "Process group")
        )
    )
    assert "(line 1), on rank 6" in refused(tmp_path, lines).answer


@pytest.mark.parametrize(
    ("text", "code", "status"),
    [
        ("Communicators... (0.01s)\n=====\n\nErrors\n======\n", "healthy", 0),  # NVIDIA/nccl#1730
        ('{"communicators_count": 1, "communicators": []}', "healthy", 0),
        (
            '{"communicators_count": 1, "communicators": [{"ranks": [{"rank": 0, "status": {"async_error": 6}}]}]}',
            "no-results",
            1,
        ),
        ("Communicators... (0.01s)\n=====\n\nErrors\n======\n\n#0-0 (0123456789abcdef) INCOMPLETE\n", "no-results", 1),
    ],
)
def test_a_status_of_ras_without_findings_is_healthy_but_for_other_states(
    text: str, code: str, status: int, tmp_path: Path
) -> None:
    assert refused(tmp_path, text).code == code
    log = tmp_path / "ras.log"
    log.write_text(text, encoding="utf-8")
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(main, ["show", str(log), *options])
        assert (shown.exit_code, bool(shown.stdout)) == (status, not status)


def test_results_below_a_failure_and_many_messages_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    above = f"{NCCL}NET/OFI Couldn't open AV. RC: -22\n" + f"{INFO}{'x' * 1000}\n" * 1_200
    path.write_text(above + (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8"), encoding="utf-8")
    assert read_log(path).rows


STEPS: Final = "".join(f"step: {step}, loss: 2.1, time: 250.0 ms\n" for step in range(1, 9))


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("INFO: the EXIT CODE: 9 means killed\n", "training-log"),
        ("# a pod that ends with exit code 137 ran out of memory\n", "training-log"),
        ("dataloader worker: previous attempt exited with exit code 137, restarting it\n", "training-log"),
        ("Waiting in store based barrier to initialize process group (world_size=8, worker_count=7)\n", "training-log"),
        ("Waiting for creating a placement group of specs for 10 seconds\n", "training-log"),
        ("No available shared memory broadcast block found in 60 seconds.\n", "training-log"),
        ("This thread may be stuck. Expected 8 threads to join the rendezvous, but only 7 arrived\n", "training-log"),
        ("Failed to load NCCL library from libnccl.so.2. It is expected if you have no GPU\n", "training-log"),
        ("import of apex failed: ImportError: libcudart.so.11.0: cannot open shared object file\n", "training-log"),
        ("[node1:1 :0] UCX  ERROR ibv_reg_mr(address=0x7f) failed: Cannot allocate memory\n", "training-log"),
        ("jax.distributed: Task 3 heartbeat timeout is 100 s (heartbeat_timeout_seconds=100)\n", "training-log"),
        ("Task launch for the new model failed on node types that lack GPUs\n", "training-log"),
        ("test_device_acquire Device acquire failed path ok\n", "training-log"),
        ("mlx5: dev0 got completion without an error; flow steering is on\n", "training-log"),
        ("xla flags: stopped sending heartbeats\n", "training-log"),
        ("Tip: if you see 'The actor is dead' increase memory\n", "training-log"),
        (f"{STEPS}The actor died unexpectedly before finishing this task; restarting it\n", "training-log"),
        (f"{STEPS}The actor died unexpectedly before finishing this task\nCUDA out of memory\n", "job-failed"),
        ("srun: error: Task launch for StepId=12.0 failed on node n3: Invalid job credential\n", "job-failed"),
        ("=   KILLED BY SIGNAL: 9 (Killed)\n", "job-failed"),
    ],
)
def test_steps_below_a_failure_are_read_where_a_launcher_starts_workers_again(
    before: str, code: str, tmp_path: Path
) -> None:
    assert refused(tmp_path, before + STEPS).code == code


def test_steps_of_a_job_that_somebody_ended_are_read(tmp_path: Path) -> None:
    ended = "torch.distributed.elastic: Received Signals.SIGTERM death signal, shutting down workers"
    assert refused(tmp_path, f"{STEPS}{ended}\n").code == "training-log"
    assert refused(tmp_path, f"{STEPS}{ended}\nCUDA out of memory\n").code == "job-failed"


@pytest.mark.parametrize("after", ["E0101 Task /job:jax_worker/replica:0/task:1 heartbeat timeout.", "RayActorError"])
def test_a_worker_that_ends_after_the_last_step_is_a_failure(after: str, tmp_path: Path) -> None:
    assert refused(tmp_path, f"{STEPS}{after}\n").code == "job-failed"


def test_a_failure_below_rows_has_its_meaning(tmp_path: Path) -> None:
    """What follows from an error that is known does not take its place."""
    rows = " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 5000 381.50 381.41 0.72\n"
    path = tmp_path / "log"
    for error, meaning in (
        (
            " Failed status 10: wr_id 0 syndrom 0x88\n Failed to complete run_iter_bw function successfully\n",
            "status 10",
        ),
        (" Failed to complete run_iter_bw function successfully\n", None),
    ):
        path.write_text(f"ib_write_bw -a\n{rows}{error}", encoding="utf-8")
        end = find(tmp_path, str(path)).read(LogFacts()).stored.end
        assert end is not None
        assert end.reason is not None
        assert end.status == "failed"
        assert (meaning or "Failed to complete run_iter_bw function successfully") in end.reason
        assert ("; usually " in end.reason) == (meaning is not None)


_STEPS: Final = "".join(f"step: {step}, loss: 2.1, time: {250 + step}.0 ms\n" for step in range(1, 13))
_MUNGE: Final = "A requested component was not found, or was unable to be opened.  This\n"


@pytest.mark.parametrize(
    "line",
    [
        _MUNGE,
        "[node1][[1,1],0][btl_openib_component.c:1699:init_one_device] error obtaining device attributes for mlx5_0\n",
        "modprobe: FATAL: Module nvidia_peermem not found in directory /lib/modules/5\n",
        "fi_getinfo() call failed, using sockets\n",
        "WARNING telemetry: unable to connect to server metrics.local (Connection refused)\n",
        "MPI_Rank(0): starting on node1 with GPU 0\n",
        "UCX  DEBUG rdmacm client: got event RDMA_CM_EVENT_REJECTED\n",
    ],
)
def test_steps_around_what_programs_do_without_are_of_a_job_that_goes_on(tmp_path: Path, line: str) -> None:
    assert refused(tmp_path, line + _STEPS).code == "training-log"
    if line == _MUNGE:
        assert refused(tmp_path, _STEPS + line).code == "training-log"


def test_a_hang_is_said_before_what_programs_do_without(tmp_path: Path) -> None:
    start = "node1:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init START\n"
    assert refused(tmp_path, f"{_MUNGE}{start}It hangs here forever.\n").code == "hang"


def test_an_exception_that_a_program_survived_is_no_failure(tmp_path: Path) -> None:
    traced = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: upload failed\n'
    assert refused(tmp_path, f"{_STEPS}{traced}").code == "job-failed"
    assert refused(tmp_path, f"{_STEPS}{traced}Uploaded on second try\n").code == "training-log"


def test_ranks_that_all_started_are_numbered_as_one_job(tmp_path: Path) -> None:
    started = "Initializing distributed: GLOBAL_RANK: {}, MEMBER: {}/2\n"
    both = started.format(0, 1) + started.format(1, 2)
    assert refused(tmp_path, both + both).code != "job-failed"
    assert refused(tmp_path, 2 * started.format(0, 1)).code == "job-failed"
