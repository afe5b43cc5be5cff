"""What a launcher, a host or a network does that busbw has to bear: names that are loopbacks, hosts that cannot be
reached, jobs that are cancelled.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import Bed
from testing.narrow import require

from busbw.launch.launchers import first_host
from busbw.runs import store

# As Debian's installer writes it: a host's own name is 127.0.1.1, and only others have their addresses.
_DEBIANS_HOSTS = """\
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' $(hostname) > /tmp/hosts
grep -v " $(hostname)$" /etc/hosts >> /tmp/hosts
mount --bind /tmp/hosts /etc/hosts
exec "$@"
"""


def _below_torchrun_of_two_such_hosts(bed: Bed, folder: Path, *more: str) -> list[tuple[int, str]]:
    """Exit status and words of ``busbw run`` on n1, where rank 0 is, and on n2."""
    within = ["unshare", "--mount", "bash", "-c", _DEBIANS_HOSTS, "_", *more, "torchrun", "--nnodes=2"]
    world = ["--nproc-per-node=2", "--master-addr=n1", "--master-port=29511", "--no-python"]
    run = ["busbw", "run", "--op", "all_reduce", "--sizes", "1KiB", "--max-seconds", "0.05", "--timeout", "10"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                bed.running_on(
                    f"n{number + 1}",
                    [*within, f"--node-rank={number}", *world, *run, "--results-dir", folder / "results"],
                )
            )
            for number in range(2)
        ]
        words = ["".join(process.communicate(timeout=120)) for process in processes]
    return [(process.returncode, said) for process, said in zip(processes, words, strict=True)]


def test_torchrun_over_hosts_whose_own_name_is_the_loopback(network: Bed, tmp_path: Path) -> None:
    ended = _below_torchrun_of_two_such_hosts(network, tmp_path)
    assert [status for status, _ in ended] == [0, 0], ended
    (folder,) = store.folders(tmp_path / "results")
    run = store.read(folder)
    assert run.run.hosts == ("n1", "n1", "n2", "n2")
    assert not run.not_reached
    assert {facts.variables["GLOO_SOCKET_IFNAME"] for facts in run.run.environments.values()} == {"eth0"}


def test_ranks_that_gloo_does_not_connect_end_and_are_told_of_the_interface(network: Bed, tmp_path: Path) -> None:
    ended = _below_torchrun_of_two_such_hosts(network, tmp_path, "env", "GLOO_SOCKET_IFNAME=lo")
    assert all(status != 0 and "GLOO_SOCKET_IFNAME" in error for status, error in ended)
    assert not list(store.folders(tmp_path / "results"))


def test_the_first_host_is_the_one_that_slurm_names_first(cluster: Bed) -> None:
    for text in ("n1", "n[1-3]", "gpu[08-10,3],login", "rack[1-2]node[1-2]"):
        assert first_host(text) == cluster.ask("scontrol", "show", "hostnames", text).split()[0]


def test_a_rank_0_that_cannot_be_reached_is_an_error_in_words(cluster: Bed, tmp_path: Path) -> None:
    output = tmp_path / "told"
    argv = ["--nodes=2", "--ntasks-per-node=1", f"--output={output}"]
    command = f"srun --kill-on-bad-exit=0 busbw run --op barrier --timeout 3 --results-dir {tmp_path}/results"
    job = cluster.ended_job(
        cluster.sbatch([*argv, f"--wrap={command}"], environment={"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"})
    )
    text = output.read_text(encoding="utf-8")
    assert job.exit_code != 0, text
    assert "192.0.2.1" in text
    assert not list(store.folders(tmp_path / "results"))


def test_ranks_without_a_launcher_stay_on_their_host_in_a_job_of_several(cluster: Bed, tmp_path: Path) -> None:
    """Left alone, the mpiexec that is theirs would start them on all hosts of the job."""
    pytest.importorskip("mpi4py")
    output = tmp_path / "told"
    argv = ["--nodes=2", f"--output={output}"]
    command = f"busbw run --op barrier --backend mpi --ranks 4 --max-seconds 0.05 --results-dir {tmp_path}/results"
    job = cluster.ended_job(cluster.sbatch([*argv, f"--wrap={command}"]))
    assert job.exit_code == 0, output.read_text(encoding="utf-8")
    (folder,) = store.folders(tmp_path / "results")
    run = store.read(folder).run
    first = str(job.facts["BatchHost"])
    assert (run.launcher, run.hosts) == ("local", (first,) * 4)
    said = (
        f"# caution: this Slurm job has 2 tasks on 2 nodes, but this run has 4 ranks on {first} alone; use srun busbw"
    )
    assert said in output.read_text(encoding="utf-8")


def test_the_bed_ends_with_no_process_of_a_run(cluster: Bed, tmp_path: Path) -> None:
    """A job that is cancelled in the middle of a block leaves a run that can be gone on with, and nobody behind."""
    output = tmp_path / "told"
    argv = ["--nodes=2", "--ntasks-per-node=1", f"--output={output}"]
    command = f"srun busbw run --op all_reduce --sizes 8..64KiB+512 --results-dir {tmp_path}/results"
    number = cluster.sbatch([*argv, f"--wrap={command}"])
    while not any(store.read(folder).measurements for folder in store.folders(tmp_path / "results")):
        assert not cluster.job(number).ended, output.read_text(encoding="utf-8")
    cluster.ask("scancel", str(number))
    cluster.ended_job(number)
    (folder,) = store.folders(tmp_path / "results")
    run = store.read(folder)
    assert require(run.end).status == "interrupted"
    assert not [line for host in cluster.names for line in cluster.processes(host).values() if "busbw run" in line]
