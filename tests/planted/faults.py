"""The planted faults: what ``make planted`` breaks, one after the other, to see that a test notices."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """``old``, which is found once in ``file``, becomes ``new``.

    name: what is wrong then, in a few words.
    tests: the files in ``tests`` that should notice; they are run first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_TABLE = r'''
@ bench/busbw/ops/communication.py: bus factor of all_reduce without its 2 [ops]
-bus_factor=lambda ranks: 2 * (ranks - 1) / ranks
+bus_factor=lambda ranks: (ranks - 1) / ranks
@ bench/busbw/ops/communication.py: traffic matrix read by columns [traffic ops]
-tuple(row[share.rank] for row in share.traffic)
+share.traffic[share.rank]
@ bench/busbw/ops/traffic.py: a rank's own block counted as traffic [traffic]
- - sum(matrix[rank][rank] for rank in range(len(matrix)))
@ bench/busbw/ops/algorithms.py: Bruck's all-gather sends the wrong way round [schedules]
-rank, (rank - step) % ranks, sent[step], received[step]
+rank, (rank + step) % ranks, sent[step], received[step]
@ bench/busbw/ops/algorithms.py: neighbour exchange one round short [schedules]
-for turn in range(1, ranks // 2):
+for turn in range(1, ranks // 2 - 1):
@ bench/busbw/backends/scheduled.py: algorithm by hand copies where it has to add [scheduled]
-if transfer.adds:
+if not transfer.adds:
@ bench/busbw/backends/patterns.py: minimum expected where the maximum is [patterns ops]
-"min": (_signed, lambda table: table.amin(0))
+"min": (_signed, lambda table: table.amax(0))
@ bench/busbw/backends/patterns.py: the end of a buffer is not verified [patterns]
-wrong += int(torch.count_nonzero(rest != row[: len(rest)]))
+wrong += 0
@ bench/busbw/measure/block.py: data are not verified after timing [measure_failing measure]
-check_case(bench, op, case, groups, part, settings.sets, "after timing")
+pass
@ bench/busbw/measure/loops.py: the start of a sample is inside of its time [loops measure]
-                call = next(calls)
-                start()
-                before = now()
+                call = next(calls)
+                before = now()
+                start()
@ bench/busbw/measure/sync.py: no barrier before a sample [sync measure]
-        """Wait for all ranks."""
-        self._barrier()
+        """Wait for all ranks."""
@ bench/busbw/measure/sync.py: dissemination hears from whom it tells [sync clock_sync]
-((rank + step) % size, (rank - step) % size)
+((rank + step) % size, (rank + step) % size)
@ bench/busbw/measure/reduction.py: the fastest rank is stored as the one that came last [reduction]
-last_rank=_integers(latest % size)
+last_rank=_integers(-shortest % size)
@ bench/busbw/measure/reduction.py: exit span from the first entry [reduction]
-exit_span_ns=_integers(last_out - last_in)
+exit_span_ns=_integers(last_out + first_in)
@ bench/busbw/measure/stopping.py: stop when one group has converged [stopping]
-and all(half_width(vector) <= precision for vector in slowest)
+and any(half_width(vector) <= precision for vector in slowest)
@ bench/busbw/measure/stopping.py: every round may spend the budget of all [stopping]
-max_ns=timing.max_seconds * SECOND_NS / parts
+max_ns=timing.max_seconds * SECOND_NS / timing.blocks
@ bench/busbw/measure/clock.py: clock error of the ranks in between left out [clock_sync]
-measured.error_ns + bound
+measured.error_ns
@ bench/busbw/measure/clock.py: clock offset at the end of its bound [clock_sync]
-offset = (low + high) // 2
+offset = low
@ bench/busbw/statistics.py: mean instead of the median [statistics]
-median = float(np.median(ordered))
+median = float(np.mean(ordered))
@ bench/busbw/statistics.py: spread by quartiles [statistics]
-(0.05, 0.5, 0.95)
+(0.25, 0.5, 0.75)
@ bench/busbw/statistics.py: autocorrelation time half as long [statistics]
-2 * pairs[mine, :stop].sum(axis=1) - 1
+pairs[mine, :stop].sum(axis=1)
@ analysis/busbw_analysis/data/intervals.py: interval over launches one order statistic too narrow [intervals]
-low = (1 - inwards) * ordered[..., rank - 1] + inwards * ordered[..., rank]
+low = ordered[..., rank]
@ analysis/busbw_analysis/data/launches.py: p99 is p90 [summary disturbance]
-np.quantile(ordered, (0.05, 0.95, 0.99), axis=1)
+np.quantile(ordered, (0.05, 0.95, 0.90), axis=1)
@ analysis/busbw_analysis/diagnosis/hypothesis_tests.py: Holm's correction left out [hypothesis_tests]
-(len(family) - rank) * p_value
+p_value
@ analysis/busbw_analysis/diagnosis/hypothesis_tests.py: slower called faster [hypothesis_tests compare]
-"slower" if estimated.ratio > 1 else "faster"
+"faster" if estimated.ratio > 1 else "slower"
@ bench/busbw/runs/store.py: a row is not written through to the disk [store]
-            os.fsync(self._file)
-        except
+        except
@ bench/busbw/runs/store.py: a changed row is not held against its checksum [store soundness]
-if row.checksum not in {None, checksum()}:
+if row.checksum not in {None, row.checksum}:
@ bench/busbw/runs/store.py: two writers in one run folder [resume store]
-fcntl.LOCK_EX | fcntl.LOCK_NB
+fcntl.LOCK_SH | fcntl.LOCK_NB
@ bench/busbw/runs/resume.py: a resumed run takes the number of its last launch again [resume]
-max(begun, default=-1) + 1
+max(begun, default=0)
@ bench/busbw/runs/progress.py: a resumed run measures again what it has [resume]
-return self.whole - self.there.get(launch, frozenset())
+return self.whole
@ bench/busbw/units.py: bits taken for bytes [units]
-f"{prefix}b/s": factor / 8 for
+f"{prefix}b/s": factor for
@ bench/busbw/backends/side_channel.py: the store of rank 0 listens at all addresses [side_channel attach]
-return socket.create_server((address, port), family=family), address
+return socket.create_server(("", port), family=family), address
@ bench/busbw/backends/signing.py: whoever signs, a message is believed [attach side_channel]
-return text if hmac.compare_digest(mac.encode(), _mac(key, about, text).encode()) else None
+return text
@ bench/busbw/backends/signing.py: a message of an earlier launch is believed [attach side_channel]
-hmac.digest(secret, session.encode(), "sha256")
+hmac.digest(secret, b"", "sha256")
@ bench/busbw/slurm/steps.py: the secret of the user is not taken [slurm_steps]
-VARIABLE: variables.get(VARIABLE) or new_secret()
+VARIABLE: new_secret()
@ bench/busbw/slurm/script.py: srun kills the ranks that have to tell what happened [slurm_script]
-"--kill-on-bad-exit=0"
+"--kill-on-bad-exit=1"
@ bench/busbw/launch/launchers.py: tasks of each node counted once [attach]
-[int(match[1])] * int(match[2] or 1)
+[int(match[1])]
@ bench/busbw/launch/launchers.py: only the first range of numbers is taken from the name of a host [attach]
-r"\1", match["first"])
+r"\1", match["first"], count=1)
@ bench/busbw/escape.py: what a run folder says reaches the terminal as it is [terminal]
-_CONTROL.sub(_escaped, _SPACE.sub(" ", text))
+_SPACE.sub(" ", text)
@ bench/busbw/system/dimms.py: memory at the speed that is printed on it [detect]
-else number(0x20, 2)
+else number(0x15, 2)
@ bench/busbw/system/detect.py: both directions of PCI Express taken for one [detect]
-row.peak.times(trained.lanes
+row.peak.times(2 * trained.lanes
@ analysis/busbw_analysis/peaks/peaks.py: the fastest host's network as the peak of all [peaks]
-slowest = min(networks, key=
+slowest = max(networks, key=
@ analysis/busbw_analysis/peaks/peaks.py: ranks do not share the memory of their host [peaks memory]
-moved = MEMORY_TRAFFIC[op] * ranks
+moved = MEMORY_TRAFFIC[op]
@ analysis/busbw_analysis/node/roofline.py: ends of an interval of a roofline swapped [roofline]
-for end in (group.interval.high_ns, group.interval.low_ns)
+for end in (group.interval.low_ns, group.interval.high_ns)
@ analysis/busbw_analysis/models/gloo.py: a wait of Gloo's ring rounded down [gloo]
-return 4 * math.ceil((segments - segments // ranks) / 2)
+return 4 * ((segments - segments // ranks) // 2)
@ analysis/busbw_analysis/models/costs.py: α and β swapped where algorithms cross [crossovers schedules]
-- first.rounds(*where)) * self.alpha_seconds
+- first.rounds(*where)) * self.beta_seconds_per_byte
@ analysis/busbw_analysis/models/networks.py: delays within and between hosts swapped [networks simulate]
-delays = np.where(far, network.delay, network.inner_delay)
+delays = np.where(far, network.inner_delay, network.delay)
@ analysis/busbw_analysis/models/simulate.py: a simulated round that comes again is counted once [simulate]
-seconds += times * run.run()
+seconds += run.run()
@ analysis/busbw_analysis/fitting/curve.py: half of the bandwidth by the first segment [curve]
-last.alpha_seconds * algbw
+first.alpha_seconds * algbw
@ analysis/busbw_analysis/predict/forecast.py: the largest number of ranks is carried from its own curve [carried]
-if curve.series.shape[0] < largest
+if curve.series.shape[0] <= largest
@ analysis/busbw_analysis/predict/forecast.py: curves of two ranks are carried [carried]
-LEAST_RANKS: Final = 3
+LEAST_RANKS: Final = 2
@ analysis/busbw_analysis/predict/forecast.py: the interval of a prediction without the prediction [predict]
-Value(value, min(low, *ends), max(high, *ends))
+Value(value, low, low)
@ analysis/busbw_analysis/data/lateness.py: a second late rank is not looked for [stragglers]
-most = min(len(ranks) // 2, _MOST_LATE_TOGETHER) if seen == "every entry" else 1
+most = 1
@ analysis/busbw_analysis/diagnosis/pairs.py: sender and receiver of a slow pair swapped [pairs]
-cells = tuple(np.searchsorted(ranks, times.pairs).T)
+cells = tuple(np.searchsorted(ranks, times.pairs).T[::-1])
@ analysis/busbw_analysis/diagnosis/compare.py: the fastest group speaks for those that run at once [compare]
-geometric_mean if summary.case.op in PAIRED else max
+geometric_mean if summary.case.op in PAIRED else min
@ analysis/busbw_analysis/gate/verdicts.py: a gate lets a failure pass beside what could not be judged [gate]
-("pass", "cannot tell", "fail").index
+("pass", "fail", "cannot tell").index
@ analysis/busbw_analysis/gate/verdicts.py: a rule that matches no case passes [gate]
-gaps = measured.gaps if rows or measured.gaps else (NO_CASE,)
+gaps = measured.gaps
@ analysis/busbw_analysis/gate/launch_tests.py: a gate passes whatever slowdown it could not see [gate]
-return "pass" if sees else "cannot tell"
+return "pass"
@ analysis/busbw_analysis/gate/launch_tests.py: a single launch beside other programs fails a gate [gate]
-if self.assumed is not None:
+if True:
@ analysis/busbw_analysis/data/bands.py: a size on the edge falls into the band below [compare]
-high is None or size_bytes < high
+high is None or size_bytes <= high
@ analysis/busbw_analysis/diagnosis/selftest.py: the self-test passes when others are flagged, too [selftest]
-if set(flagged) != {rank}:
+if rank not in flagged:
@ analysis/busbw_analysis/report/to_html.py: text of a run becomes markup in the report [report]
-autoescape=True
+autoescape=False
@ bench/busbw/measure/loops.py: a sample on a GPU ends before the work is done [gpu/cuda]
-            last.wait()
-            left = now()
+            left = now()
@ bench/busbw/measure/loops.py: the launch is timed instead of the work [gpu/truth]
-            for call in turn:
-                call()
-            last.record()
+            last.record()
+            for call in turn:
+                call()
@ bench/busbw/backends/cuda.py: the whole GPU is not waited for [cuda gpu/cuda]
-        torch.cuda.synchronize(self.index)
+        torch.cuda.current_stream(self.index).synchronize()
@ bench/busbw/backends/cuda.py: an event is recorded on the wrong stream [cuda]
-                    other()
-                    ended.record()
+                    other()
+                ended.record()
@ bench/busbw/backends/cuda.py: the host waits for another stream, and the current one does not [cuda]
-            for _, _, ended in branches:
-                torch.cuda.current_stream(self.index).wait_event(ended)
+            for _, _, ended in branches:
+                ended.synchronize()
@ bench/busbw/backends/cuda.py: work on another GPU does not wait for this one [cuda]
-                torch.cuda.current_stream().wait_event(begun)
-                call()
+                call()
@ bench/busbw/backends/cuda.py: the host waits for another GPU, and this one does not [cuda]
-            torch.cuda.current_stream(self.index).wait_event(ended)
-
-        return in_turn
+            ended.synchronize()
+
+        return in_turn
@ bench/busbw/backends/cuda.py: a product is captured before cuBLAS is initialised [cuda]
-        multiply()
-        computation =
+        computation =
@ bench/busbw/backends/cuda.py: a rank takes its GPU by its number in the world [cuda]
-return world.local_rank % count
+return world.rank % count
@ bench/busbw/backends/cuda.py: NCCL's watchdog spoils a capture [cuda gpu/cuda]
-capture_error_mode="thread_local"
+capture_error_mode="global"
@ bench/busbw/backends/local/device.py: a copy to or from a GPU leaves out its first element [gpu/copies]
-partial(target.copy_, source, non_blocking=True)
+partial(target[1:].copy_, source[1:], non_blocking=True)
@ bench/busbw/backends/local/device.py: the host waits for a copy [gpu/copies]
-partial(target.copy_, source, non_blocking=True)
+partial(target.copy_, source, non_blocking=False)
@ bench/busbw/backends/local/device.py: a copy by a kernel is made by copy engines [cuda]
-    if kernel:
+    if kernel and staged:
@ bench/busbw/ops/local.py: a copy from GPU to GPU counted twice on the wire [gpu/command]
-wire_bytes=lambda _ranks, size: size, members
+wire_bytes=lambda _ranks, size: 2 * size, members
@ bench/busbw/backends/local/latency.py: pointers of lines to themselves instead of a cycle [gpu/latency]
-order.roll(-1)
+order.clone()
@ bench/busbw/backends/local/latency.py: a kernel makes half of the loads that are counted [gpu/latency]
-ctypes.c_uint32(LOADS)
+ctypes.c_uint32(LOADS // 2)
@ bench/busbw/ops/local.py: twice the loads counted that a kernel makes [gpu/latency]
-trips=LOADS
+trips=2 * LOADS
@ bench/busbw/backends/local/latency.py: a kernel on the default stream instead of the current one [gpu/latency]
-ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
+ctypes.c_void_p(None)
@ bench/busbw/backends/local/latency.py: an array is not in the cache before a sample [gpu/latency]
-prepare=read if size <= device.cache_bytes else device.flush
+prepare=device.flush
@ bench/busbw/backends/pytorch/nccl_calls.py: NCCL's own call on the default stream [gpu/command]
-ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
+ctypes.c_void_p(None)
@ bench/busbw/backends/pytorch/nccl_calls.py: NCCL's own call is in place [gpu/command]
-buffer.data_ptr() or longer.data_ptr()
+longer.data_ptr()
@ bench/busbw/backends/pytorch/nccl.py: the first call over NCCL is a message [nccl gpu/command]
-            dist.all_reduce(torch.zeros(1, device=self._gpu.name))
-            self._gpu
+            self._gpu
@ bench/busbw/backends/pytorch/calls.py: a GPU sends and receives in calls of their own [nccl]
-    if send.is_cuda:
+    if send.dim() > 1:
@ bench/busbw/backends/pytorch/calls.py: messages of an algorithm are not grouped on a GPU [gpu/command]
-    if any(buffer.is_cuda for
+    if any(buffer.dim() > 1 for
@ bench/busbw/backends/pytorch/calls.py: torch guesses the GPU of a barrier [nccl]
-group=bound.comm, device_ids=devices)
+group=bound.comm)
@ bench/busbw/backends/pytorch/calls.py: the stream does not wait for an asynchronous collective [gpu/truth]
-return do_nothing if work is None else work.wait
+return do_nothing
'''
"""Each fault as in a diff: where it is, what is wrong [which tests should notice], the old text and the new. Tests are
in tests/unit unless their folder is given.
"""


def _fault(row: str) -> Fault:
    head, *lines = row.splitlines()
    file, _, rest = head.partition(": ")
    name, _, tests = rest.removesuffix("]").partition(" [")
    old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    files = tuple(
        f"{folder or 'unit'}/test_{test}.py" for folder, _, test in (one.rpartition("/") for one in tests.split())
    )
    return Fault(name, file, old, new, files)


FAULTS = tuple(_fault(row) for row in re.split(r"^@ ", _TABLE, flags=re.MULTILINE)[1:])
