"""The bed does what the other tests rely on: its hosts are apart, its network is what was set, and nothing stays."""

from __future__ import annotations

# ruff: noqa: S108 - each host has a /tmp of its own, which is looked at here
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import Bed, BedError, Cable, Network, both_ways
from bed import whole as bed_whole
from bed.network import Path as Way
from measured import measured
from testing.narrow import require

pytestmark = pytest.mark.alone  # other beds come and go with namespaces of their own, and most of it is measured

_PING = Path(__file__).parent / "programs" / "echo.py"


def ours(folder: Path) -> list[str]:
    """What is left of the bed in this folder: processes that name it, mounts below it, and files."""
    left = [str(folder)] if folder.exists() else []
    left += [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text:
            left.append(f"process {entry.name}: {text.partition(b'SLURM_CONF')[0]!r}")
    return left


def namespaces() -> set[str]:
    """Every network, mount and process namespace that a process of this machine is in."""
    links = set()
    for entry in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            links.add(str(entry.readlink()))
        except OSError:
            continue
    return links


def round_trip_ms(bed: Bed, source: str, destination: str) -> float:
    """The shortest of many round trips of a small datagram."""
    finished = bed.run_on(source, [sys.executable, _PING, "time", bed.address(destination)])
    return float(finished.stdout) if finished.returncode == 0 else float("inf")


def rate_mbit(bed: Bed, source: str, destination: str, megabytes: int = 4) -> float:
    """The rate of the later part of a long TCP stream, the best of five: its ends may have to wait for a processor."""
    rates = []
    for _ in range(5):
        finished = bed.run_on(source, [sys.executable, _PING, "rate", bed.address(destination), str(megabytes)])
        assert finished.returncode == 0, finished.stderr
        rates.append(float(finished.stdout))
    return max(rates)


class TestHosts:
    def test_each_host_has_its_own_name_processes_and_temporary_folder(self, network: Bed) -> None:
        network.run_on("n1", ["touch", "/tmp/of-n1", "/dev/shm/of-n1"])
        printed = {
            host: network.run_on(host, ["sh", "-c", "hostname; ls /tmp/of-n1 /dev/shm/of-n1; ls /proc"]).stdout
            for host in ("n1", "n2")
        }
        assert printed["n1"].split()[:3] == ["n1", "/dev/shm/of-n1", "/tmp/of-n1"]
        assert printed["n2"].split()[0] == "n2"
        assert "of-n1" not in printed["n2"]
        assert str(os.getpid()) not in printed["n2"].split()
        assert not Path("/tmp/of-n1").exists()

    def test_hosts_share_the_checkout_and_the_folders_that_are_named(self, network: Bed, tmp_path: Path) -> None:
        network.run_on("n1", ["touch", tmp_path / "written"])
        listing = network.run_on("n2", ["ls", tmp_path / "written", __file__])
        assert listing.returncode == 0, listing.stderr
        assert (tmp_path / "written").exists()

    def test_only_their_own_interfaces_are_there_and_each_finds_the_others_by_name(self, network: Bed) -> None:
        assert network.run_on("n3", ["ls", "/sys/class/net"]).stdout.split() == ["eth0", "lo"]
        assert network.run_on("n3", ["getent", "ahostsv4", "n1"]).stdout.split()[0] == network.address("n1")

    def test_nothing_of_the_callers_environment_is_there(self, network: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "7")
        assert "WORLD_SIZE" not in network.run_on("n1", ["env"]).stdout

    def test_a_command_that_takes_too_long_is_killed(self, network: Bed) -> None:
        with pytest.raises(subprocess.TimeoutExpired):
            network.run_on("n1", ["sh", "-c", "sleep 1000 & sleep 1000"], seconds=0.5)
        assert not network.processes("n1")

    def test_an_unknown_host_is_an_error_with_the_known_ones(self, network: Bed) -> None:
        with pytest.raises(BedError, match="n9"):
            network.run_on("n9", ["true"])
        with pytest.raises(ValueError, match="n9"):
            network.set_network(Network(cables={"n9": Cable(cut=True)}))


class TestNetwork:
    @pytest.fixture(autouse=True)
    def _answering(self, network: Bed) -> Iterator[None]:
        with ExitStack() as running:
            for host in ("n2", "n3"):
                answer = running.enter_context(network.running_on(host, [sys.executable, _PING, "answer"]))
                assert require(answer.stdout).readline() == "ready\n"
            yield

    @measured
    def test_a_round_trip_takes_the_delay_twice(self, network: Bed) -> None:
        network.set_network(Network(delay_ms=5))
        assert 10 <= round_trip_ms(network, "n1", "n2") < 11

    @measured
    def test_cable_and_path_have_their_own_delays(self, network: Bed) -> None:
        network.set_network(Network(delay_ms=2, cables={"n2": Cable(delay_ms=4)}, paths=[Way("n3", "n1", delay_ms=10)]))
        assert 10 <= round_trip_ms(network, "n1", "n2") < 11
        assert 14 <= round_trip_ms(network, "n1", "n3") < 15

    @pytest.mark.parametrize("mbit", [100, 500])
    @measured
    def test_a_stream_has_the_rate_of_the_cable(self, network: Bed, mbit: int) -> None:
        network.set_network(Network(rate_mbit=mbit))
        # 9000 bytes of frame hold 8948 of data and take 24 more on the cable.
        assert rate_mbit(network, "n1", "n2", mbit // 20) == pytest.approx(mbit * 8948 / 9038, rel=0.03)

    @measured
    def test_rates_hold_for_one_direction_and_one_pair(self, network: Bed) -> None:
        slow_down = Network(rate_mbit=200, cables={"n2": Cable(down_mbit=50)}, paths=both_ways("n1", "n3", 100))
        network.set_network(slow_down)
        assert rate_mbit(network, "n1", "n2", 4) == pytest.approx(50, rel=0.05)
        assert rate_mbit(network, "n1", "n3", 4) == pytest.approx(100, rel=0.05)
        network.set_network(Network(rate_mbit=200, cables={"n2": Cable(up_mbit=50)}))
        assert rate_mbit(network, "n1", "n2", 8) == pytest.approx(200, rel=0.05)

    @measured
    def test_a_cut_cable_loses_everything_until_it_is_mended(self, network: Bed) -> None:
        network.cut("n2")
        assert round_trip_ms(network, "n1", "n2") == float("inf")
        assert round_trip_ms(network, "n1", "n3") < 5
        network.mend("n2")
        assert round_trip_ms(network, "n1", "n2") < 5


class TestSlurm:
    def test_a_job_runs_on_all_hosts_and_its_end_is_told(self, cluster: Bed, tmp_path: Path) -> None:
        number = cluster.sbatch(["--nodes=4", f"--output={tmp_path}/out", "--wrap=srun hostname; exit 3"])
        job = cluster.ended_job(number)
        assert (job.state, job.exit_code) == ("FAILED", 3)
        assert sorted((tmp_path / "out").read_text().split()) == ["n1", "n2", "n3", "n4"]

    @pytest.mark.parametrize(("mpi", "variable"), [("pmi2", "PMI_RANK"), ("pmix", "PMIX_RANK")])
    def test_both_ways_to_start_mpi_are_there(self, cluster: Bed, mpi: str, variable: str) -> None:
        printed = cluster.ask("srun", "--nodes=2", f"--mpi={mpi}", "sh", "-c", f"echo ${variable}")
        assert sorted(printed.split()) == ["0", "1"]

    def test_switches_and_graphics_processors_are_known(self, cluster: Bed) -> None:
        assert "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n3,n4" in cluster.ask("scontrol", "show", "topology")
        shown = cluster.ask("srun", "--gpus-per-node=8", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert shown.strip() == "0,1,2,3,4,5,6,7"

    def test_a_node_that_is_set_down_ends_its_job(self, cluster: Bed, tmp_path: Path) -> None:
        number = cluster.sbatch(["--nodes=2", "--no-requeue", f"--output={tmp_path}/out", "--wrap=srun sleep 100"])
        while cluster.job(number).state != "RUNNING":
            time.sleep(0.05)
        cluster.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        try:
            assert cluster.ended_job(number).state == "NODE_FAIL"
        finally:
            cluster.ask("scontrol", "update", "nodename=n2", "state=resume")


class TestTheEnd:
    def test_nothing_is_left_of_a_bed_that_was_used(self) -> None:
        before = namespaces()
        with Bed(hosts=2, slurm=True) as bed:
            folder = bed.place
            left = bed.start_on("n1", ["sh", "-c", "sleep 1000 & sleep 1000"], output=subprocess.DEVNULL)
            bed.sbatch(["--nodes=2", f"--output={folder}/out", "--wrap=srun sleep 1000"])
            assert namespaces() - before
        left.wait()
        assert not ours(folder)
        assert not namespaces() - before

    @pytest.mark.parametrize("part", ["start_switch", "start_slurm", "wait_until"])
    def test_nothing_is_left_of_one_that_was_broken_off(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, part: str
    ) -> None:
        def ctrl_c(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(bed_whole, part, ctrl_c)
        with pytest.raises(KeyboardInterrupt), Bed(hosts=2, slurm=True, folder=tmp_path / "bed"):
            pass
        assert not ours(tmp_path / "bed")

    def test_slurm_that_does_not_start_is_told_with_its_last_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bed.slurm.topology", lambda _: "NoSuchKey=n7\n")
        with pytest.raises(BedError, match="NoSuchKey"), Bed(hosts=2, slurm=True):
            pass

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_it_ends_with_the_process_that_made_it(self, number: signal.Signals, tmp_path: Path) -> None:
        folder = tmp_path / "bed"
        lines = (
            f"import pathlib, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from bed import Bed\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
            f"with Bed(hosts=2, slurm=True, folder=pathlib.Path({str(folder)!r})):\n"
            "    print('up', flush=True)\n"
            "    signal.pause()\n"
        )
        keeper = subprocess.Popen(
            [sys.executable, "-c", lines], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with require(keeper.stdout) as output:
            assert output.readline() == "up\n"
        keeper.send_signal(number)
        keeper.wait()
        deadline = time.monotonic() + 30
        # Who is killed cannot remove its folder.
        while (
            left := [trace for trace in ours(folder) if number != signal.SIGKILL or trace != str(folder)]
        ) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left
