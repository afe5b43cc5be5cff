"""The planted faults: what ``make planted`` breaks, one after the other, to see that a test notices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """``old``, which is found once in ``file``, becomes ``new``.

    name: what is wrong then, in a few words.
    tests: the files in tests/unit that should notice; they are run first.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_OPS = "bench/busbw/ops/"
_MEASURE = "bench/busbw/measure/"
_RUNS = "bench/busbw/runs/"
_LAUNCH = "bench/busbw/launch/"
_DATA = "analysis/busbw_analysis/data/"
_DIAGNOSIS = "analysis/busbw_analysis/diagnosis/"
_FITTING = "analysis/busbw_analysis/fitting/"
_MODELS = "analysis/busbw_analysis/models/"
_PEAKS = "analysis/busbw_analysis/peaks/"

FAULTS: tuple[Fault, ...] = (
    # --- what an operation is
    Fault(
        "bus factor of all_reduce without its 2",
        _OPS + "communication.py",
        "bus_factor=lambda ranks: 2 * (ranks - 1) / ranks",
        "bus_factor=lambda ranks: (ranks - 1) / ranks",
        ("test_ops.py",),
    ),
    Fault(
        "traffic matrix read by columns",
        _OPS + "communication.py",
        "tuple(row[share.rank] for row in share.traffic)",
        "share.traffic[share.rank]",
        ("test_traffic.py", "test_ops.py"),
    ),
    Fault(
        "a rank's own block counted as traffic",
        _OPS + "traffic.py",
        " - sum(matrix[rank][rank] for rank in range(len(matrix)))",
        "",
        ("test_traffic.py",),
    ),
    Fault(
        "Bruck's all-gather sends the wrong way round",
        _OPS + "algorithms.py",
        "rank, (rank - step) % ranks, sent[step], received[step]",
        "rank, (rank + step) % ranks, sent[step], received[step]",
        ("test_schedules.py",),
    ),
    Fault(
        "neighbour exchange one round short",
        _OPS + "algorithms.py",
        "for turn in range(1, ranks // 2):",
        "for turn in range(1, ranks // 2 - 1):",
        ("test_schedules.py",),
    ),
    Fault(
        "algorithm by hand copies where it has to add",
        "bench/busbw/backends/scheduled.py",
        "if transfer.adds:",
        "if not transfer.adds:",
        ("test_scheduled.py",),
    ),
    # --- data that prove themselves
    Fault(
        "minimum expected where the maximum is",
        "bench/busbw/backends/patterns.py",
        '"min": (_signed, lambda table: table.amin(0))',
        '"min": (_signed, lambda table: table.amax(0))',
        ("test_patterns.py", "test_ops.py"),
    ),
    Fault(
        "the end of a buffer is not verified",
        "bench/busbw/backends/patterns.py",
        "wrong += int(torch.count_nonzero(rest != row[: len(rest)]))",
        "wrong += 0",
        ("test_patterns.py",),
    ),
    Fault(
        "data are not verified after timing",
        _MEASURE + "block.py",
        'check_case(bench, op, case, part, settings.sets, "after timing")',
        "pass",
        ("test_measure_failing.py", "test_measure.py"),
    ),
    # --- how time is taken
    Fault(
        "the start of a sample is inside of its time",
        _MEASURE + "loops.py",
        "                call = next(calls)\n                start()\n                before = now()\n",
        "                call = next(calls)\n                before = now()\n                start()\n",
        ("test_loops.py", "test_measure.py"),
    ),
    Fault(
        "no barrier before a sample",
        _MEASURE + "sync.py",
        '        """Wait for all ranks."""\n        self._barrier()\n',
        '        """Wait for all ranks."""\n',
        ("test_sync.py", "test_measure.py"),
    ),
    Fault(
        "dissemination hears from whom it tells",
        _MEASURE + "sync.py",
        "((rank + step) % size, (rank - step) % size)",
        "((rank + step) % size, (rank + step) % size)",
        ("test_sync.py", "test_clock_sync.py"),
    ),
    Fault(
        "the fastest rank is stored as the one that came last",
        _MEASURE + "reduction.py",
        "last_rank=_integers(latest % size)",
        "last_rank=_integers(-shortest % size)",
        ("test_reduction.py",),
    ),
    Fault(
        "exit span from the first entry",
        _MEASURE + "reduction.py",
        "exit_span_ns=_integers(last_out - last_in)",
        "exit_span_ns=_integers(last_out + first_in)",
        ("test_reduction.py",),
    ),
    Fault(
        "stop when one group has converged",
        _MEASURE + "stopping.py",
        "and all(half_width(vector) <= precision for vector in slowest)",
        "and any(half_width(vector) <= precision for vector in slowest)",
        ("test_stopping.py",),
    ),
    Fault(
        "every round may spend the budget of all",
        _MEASURE + "stopping.py",
        "max_ns=timing.max_seconds * SECOND_NS / parts",
        "max_ns=timing.max_seconds * SECOND_NS / timing.blocks",
        ("test_stopping.py",),
    ),
    Fault(
        "clock error of the ranks in between left out",
        _MEASURE + "clock.py",
        "measured.error_ns + bound",
        "measured.error_ns",
        ("test_clock_sync.py",),
    ),
    Fault(
        "clock offset at the end of its bound",
        _MEASURE + "clock.py",
        "offset = (low + high) // 2",
        "offset = low",
        ("test_clock_sync.py",),
    ),
    # --- statistics
    Fault(
        "mean instead of the median",
        "bench/busbw/statistics.py",
        "median = float(np.median(ordered))",
        "median = float(np.mean(ordered))",
        ("test_statistics.py",),
    ),
    Fault(
        "spread by quartiles",
        "bench/busbw/statistics.py",
        "(0.05, 0.5, 0.95)",
        "(0.25, 0.5, 0.75)",
        ("test_statistics.py", "test_live_table.py"),
    ),
    Fault(
        "autocorrelation time half as long",
        "bench/busbw/statistics.py",
        "2 * pairs[mine, :stop].sum(axis=1) - 1",
        "pairs[mine, :stop].sum(axis=1)",
        ("test_statistics.py",),
    ),
    Fault(
        "interval over launches one order statistic too narrow",
        _DATA + "intervals.py",
        "low = (1 - inwards) * ordered[..., rank - 1] + inwards * ordered[..., rank]",
        "low = ordered[..., rank]",
        ("test_intervals.py",),
    ),
    Fault(
        "p99 is p90",
        _DATA + "launches.py",
        "np.quantile(ordered, (0.05, 0.95, 0.99), axis=1)",
        "np.quantile(ordered, (0.05, 0.95, 0.90), axis=1)",
        ("test_summary.py", "test_disturbance.py"),
    ),
    Fault(
        "Holm's correction left out",
        _DIAGNOSIS + "hypothesis_tests.py",
        "(len(family) - rank) * p_value",
        "p_value",
        ("test_hypothesis_tests.py",),
    ),
    Fault(
        "slower called faster",
        _DIAGNOSIS + "hypothesis_tests.py",
        '"slower" if estimated.ratio > 1 else "faster"',
        '"faster" if estimated.ratio > 1 else "slower"',
        ("test_hypothesis_tests.py", "test_compare.py"),
    ),
    # --- stored runs
    Fault(
        "a row is not written through to the disk",
        _RUNS + "store.py",
        "            os.fsync(self._file)\n        except",
        "        except",
        ("test_store.py",),
    ),
    Fault(
        "a changed row is not held against its checksum",
        _RUNS + "store.py",
        "if row.checksum not in {None, checksum()}:",
        "if row.checksum not in {None, row.checksum}:",
        ("test_store.py", "test_soundness.py"),
    ),
    Fault(
        "two writers in one run folder",
        _RUNS + "store.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("test_resume.py", "test_store.py"),
    ),
    Fault(
        "a resumed run takes the number of its last launch again",
        _RUNS + "resume.py",
        "max(begun, default=-1) + 1",
        "max(begun, default=0)",
        ("test_resume.py",),
    ),
    Fault(
        "a resumed run measures again what it has",
        _RUNS + "progress.py",
        "return self.whole - self.there.get(launch, frozenset())",
        "return self.whole",
        ("test_resume.py",),
    ),
    Fault(
        "bits taken for bytes",
        "bench/busbw/units.py",
        'f"{prefix}b/s": factor / 8 for',
        'f"{prefix}b/s": factor for',
        ("test_units.py",),
    ),
    # --- launchers, secrets, jobs
    Fault(
        "the store of rank 0 listens at all addresses",
        "bench/busbw/backends/side_channel.py",
        "return socket.create_server((address, port), family=family), address",
        'return socket.create_server(("", port), family=family), address',
        ("test_side_channel.py", "test_attach.py"),
    ),
    Fault(
        "whoever signs, a message is believed",
        "bench/busbw/backends/signing.py",
        "return text if hmac.compare_digest(mac.encode(), _mac(key, about, text).encode()) else None",
        "return text",
        ("test_attach.py", "test_side_channel.py"),
    ),
    Fault(
        "a message of an earlier launch is believed",
        "bench/busbw/backends/signing.py",
        'hmac.digest(secret, session.encode(), "sha256")',
        'hmac.digest(secret, b"", "sha256")',
        ("test_attach.py", "test_side_channel.py"),
    ),
    Fault(
        "the secret of the user is not taken",
        "bench/busbw/slurm/steps.py",
        "VARIABLE: variables.get(VARIABLE) or new_secret()",
        "VARIABLE: new_secret()",
        ("test_slurm_steps.py",),
    ),
    Fault(
        "srun kills the ranks that have to tell what happened",
        "bench/busbw/slurm/script.py",
        '"--kill-on-bad-exit=0"',
        '"--kill-on-bad-exit=1"',
        ("test_slurm_script.py",),
    ),
    Fault(
        "tasks of each node counted once",
        _LAUNCH + "launchers.py",
        "[int(match[1])] * int(match[2] or 1)",
        "[int(match[1])]",
        ("test_attach.py",),
    ),
    Fault(
        "only the first range of numbers is taken from the name of a host",
        _LAUNCH + "launchers.py",
        'r"\\1", match["first"])',
        'r"\\1", match["first"], count=1)',
        ("test_attach.py",),
    ),
    Fault(
        "what a run folder says reaches the terminal as it is",
        "bench/busbw/escape.py",
        'return _CONTROL.sub(_escaped, _SPACE.sub(" ", text))',
        'return _SPACE.sub(" ", text)',
        ("test_terminal.py",),
    ),
    # --- hardware and peaks
    Fault(
        "memory at the speed that is printed on it",
        "bench/busbw/system/dimms.py",
        "else number(0x20, 2)\n",
        "else number(0x15, 2)\n",
        ("test_detect.py",),
    ),
    Fault(
        "both directions of PCI Express taken for one",
        "bench/busbw/system/detect.py",
        "row.peak.times(trained.lanes",
        "row.peak.times(2 * trained.lanes",
        ("test_detect.py",),
    ),
    Fault(
        "the fastest host's network as the peak of all",
        _PEAKS + "peaks.py",
        "slowest = min(networks, key=",
        "slowest = max(networks, key=",
        ("test_peaks.py",),
    ),
    Fault(
        "ranks do not share the memory of their host",
        _PEAKS + "peaks.py",
        "moved = MEMORY_TRAFFIC[op] * ranks",
        "moved = MEMORY_TRAFFIC[op]",
        ("test_peaks.py", "test_memory.py"),
    ),
    Fault(
        "ends of an interval of a roofline swapped",
        "analysis/busbw_analysis/node/roofline.py",
        "for end in (group.interval.high_ns, group.interval.low_ns)",
        "for end in (group.interval.low_ns, group.interval.high_ns)",
        ("test_roofline.py",),
    ),
    # --- models and fits
    Fault(
        "a wait of Gloo's ring rounded down",
        _MODELS + "gloo.py",
        "return 4 * math.ceil((segments - segments // ranks) / 2)",
        "return 4 * ((segments - segments // ranks) // 2)",
        ("test_gloo.py",),
    ),
    Fault(
        "α and β swapped where algorithms cross",
        _MODELS + "costs.py",
        "- first.rounds(*where)) * self.alpha_seconds",
        "- first.rounds(*where)) * self.beta_seconds_per_byte",
        ("test_crossovers.py", "test_schedules.py"),
    ),
    Fault(
        "delays within and between hosts swapped",
        _MODELS + "networks.py",
        "delays = np.where(far, network.delay, network.inner_delay)",
        "delays = np.where(far, network.inner_delay, network.delay)",
        ("test_networks.py", "test_simulate.py"),
    ),
    Fault(
        "a simulated round that comes again is counted once",
        _MODELS + "simulate.py",
        "seconds += times * run.run()",
        "seconds += run.run()",
        ("test_simulate.py",),
    ),
    Fault(
        "half of the bandwidth by the first segment",
        _FITTING + "curve.py",
        "last.alpha_seconds * algbw",
        "first.alpha_seconds * algbw",
        ("test_curve.py",),
    ),
    Fault(
        "the largest number of ranks is carried from its own curve",
        "analysis/busbw_analysis/predict/forecast.py",
        "if curve.series.shape[0] < largest",
        "if curve.series.shape[0] <= largest",
        ("test_carried.py",),
    ),
    Fault(
        "curves of two ranks are carried",
        "analysis/busbw_analysis/predict/forecast.py",
        "LEAST_RANKS: Final = 3",
        "LEAST_RANKS: Final = 2",
        ("test_carried.py",),
    ),
    Fault(
        "the interval of a prediction without the prediction",
        "analysis/busbw_analysis/predict/forecast.py",
        "Value(value, min(low, *ends), max(high, *ends))",
        "Value(value, low, low)",
        ("test_predict.py",),
    ),
    # --- findings
    Fault(
        "a second late rank is not looked for",
        _DATA + "lateness.py",
        'most = min(len(ranks) // 2, _MOST_LATE_TOGETHER) if seen == "every entry" else 1',
        "most = 1",
        ("test_stragglers.py",),
    ),
    Fault(
        "sender and receiver of a slow pair swapped",
        _DIAGNOSIS + "pairs.py",
        "cells = tuple(np.searchsorted(ranks, times.pairs).T)",
        "cells = tuple(np.searchsorted(ranks, times.pairs).T[::-1])",
        ("test_pairs.py",),
    ),
    Fault(
        "the fastest group speaks for those that run at once",
        _DIAGNOSIS + "compare.py",
        "_geometric_mean if summary.case.op in PAIRED else max",
        "_geometric_mean if summary.case.op in PAIRED else min",
        ("test_compare.py",),
    ),
    Fault(
        "a gate lets a finding pass beside what could not be judged",
        _DIAGNOSIS + "gate.py",
        'return "failed" if "failed" in outcomes else "cannot tell"',
        'return "failed" if outcomes == {"failed"} else "cannot tell"',
        ("test_compare.py",),
    ),
    Fault(
        "a gate passes whatever slowdown it could not see",
        _DIAGNOSIS + "gate.py",
        "if not _sees(band, detect))",
        "if False)",
        ("test_compare.py",),
    ),
    Fault(
        "a size on the edge falls into the band below",
        "analysis/busbw_analysis/data/bands.py",
        "high is None or size_bytes < high",
        "high is None or size_bytes <= high",
        ("test_compare.py",),
    ),
    Fault(
        "the self-test passes when others are flagged, too",
        _DIAGNOSIS + "selftest.py",
        "if set(flagged) != {rank}:",
        "if rank not in flagged:",
        ("test_selftest.py",),
    ),
    Fault(
        "text of a run becomes markup in the report",
        "analysis/busbw_analysis/report/to_html.py",
        "autoescape=True",
        "autoescape=False",
        ("test_report.py",),
    ),
)
