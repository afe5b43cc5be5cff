"""Outputs of tools that busbw knows but does not read, and what to do instead."""

import re
from typing import Final

from busbw.errors import LogError

_UNREAD: Final = (
    (
        "OSU's benchmarks without its headings",
        rb"\bosu_[a-z]",
        "paste the lines that begin with # too, which say what is measured",
    ),
    ("nvbandwidth", rb"(?m)^SUM \w+_(?:ce|sm) ", "sums over copies are no rate of one; paste the matrices above them"),
    (
        "TRT-LLM's benchmark of all_reduce",
        rb"TRT-LLM AllReduce Benchmark",
        "write a table with one line of headings: op, ranks, size and a time_us of each strategy",
    ),
    (
        "netperf with chosen columns",
        rb"MIGRATED [A-Z]+ [\w/ ]{2,40} TEST from ",
        "run it without -o, -O and -k, or write a table of op, ranks, size and time_us",
    ),
    ("fio", rb'(?m)^fio-\d|\bIOPS=\S+, BW=|"fio version"', "busbw run --op storage_write measures the same"),
    (
        "gdsio",
        rb"Throughput: [\d.]+ GiB/sec,? Avg_Latency: ",
        "busbw run --op storage_read,storage_write measures the same, without GPUs",
    ),
    ("mdtest", rb"(?m)^SUMMARY (?:rate|time)\b", "busbw has no operations on names of files"),
    (
        "IOR",
        rb"(?m)^Max (?:Write|Read): +[\d.]+ MiB/sec|^access +bw\(MiB/s\)",
        "busbw run --op storage_read,storage_write measures the same",
    ),
    (
        "torch's profiler",
        rb"Self CUDA +Self CUDA %|CUDA time avg +# of Calls",
        "its times are sums over calls of any size; write a table with the headings op, ranks, size and time_us",
    ),
    ("Intel MLC", rb"Intel\(R\) Memory Latency Checker", "busbw run --op memory_read measures the same"),
    ("CollectiveX (experts)", rb'"record_type"\s*:\s*"case-attempt"', "busbw has no dispatch and combine of tokens"),
    (
        "JAX benchmarks before 2025-11",
        rb"matrix_size_gbyte=.*_(?:bandwidth_gbyte_s|time_ms)\b",
        "the number of devices is missing and rates vary by version; write a table of times",
    ),
    (
        "JAX microbenchmarks",
        rb"metadata: +\{'iteration': \d|\bachieved_bw \(GB/s\)_",
        "read the .tsv file that they wrote, which their last line names",
    ),
    (
        "JAX microbenchmarks since 2026-05",
        rb"Benchmark ID: \w+-\{|\bKET_ms\b",
        "write a table of op, ranks, size and time_ms",
    ),
    ("jax-nccl-test", rb"-device collective performance", "write a table of op, ranks, size and time_ms"),
    (
        "DeepEP",
        rb"\(RDMA\), [\d.]+ GB/s|Dispatch(?: \+ combine)? bandwidth:",
        "busbw has no dispatch and combine of tokens",
    ),
    ("TransferBench", rb"SRC\+EXE\\DST|Transfer \d+ +\|", "busbw run --op peer_copy,host_to_device measures the same"),
    (
        "a STREAM program",
        rb"(?m)^Triad +[\d.]+ MB/s",
        "busbw run --op stream_triad measures the same",
    ),
    ("Google Benchmark", rb"Benchmark +Time +CPU +Iterations", "write a table of sizes and times"),
    ("DeepSpeed's log of communication", rb"Comm\. Op +Message Size", "its calls are those of a job, at any load"),
    (
        "all_reduce_bench.py before 2024",
        rb"algo throughput: [\d.]+ bps",
        "it prints no size; write a table of op, ranks, size and busbw",
    ),
    (
        "Gloo's benchmark",
        rb"(?m)^[^(\n]{0,99}\belements +min \(us\)",
        "it prints no sizes; write a table of op, ranks, size and time_us",
    ),
    ("DeepSpeed", rb"\bSamplesPerSec=", "it prints averages since the start, in which no step can be seen"),
    (
        "a training program",
        rb"\d(?:it/s|s/it)\b|train_speed\(|'train_runtime|train_\w+_per_second +=|step_avg:|_microstep: |/sec: \S+ \+/",
        "these are averages or parts of steps; print the time of each step, such as step: 1, loss: 2.1, time: 250.0 ms",
    ),
)
"""Name and sign of outputs without a result that busbw can compare, and what to do instead."""


def unread_in(name: str, head: bytes) -> LogError | None:
    """The error that names the tool of an output that busbw does not read; None for any other."""
    for tool, sign, instead in _UNREAD:
        if re.search(sign, head) is not None:
            return LogError(f"{name}: output of {tool}, which busbw does not read: {instead}", code="not-a-log")
    return None
