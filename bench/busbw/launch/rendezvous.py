"""Where ranks that somebody else has started meet before there is a world: rank 0 tells the others what to measure.

So only rank 0 reads the plan and the run folder, and only its host has to have them.
"""

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from busbw.backends import BACKENDS, backend_named
from busbw.backends.base import no_longer_than
from busbw.backends.mpi.segments import LATE, remove_segments
from busbw.backends.signing import key_of, new_secret, printable, secret_in, signed, verified
from busbw.errors import LaunchError
from busbw.escape import say
from busbw.launch.hostlist import expand
from busbw.launch.interfaces import address_towards, elsewhere, use_the_way_to, wait_for
from busbw.launch.launcher_env import RankInfo, env_int, port_in
from busbw.runs.plan import Plan
from busbw.runs.records import Record
from busbw.runs.resume import Remaining

if TYPE_CHECKING:
    import torch.distributed as dist

_LEAST_PORT, _PORTS = 10_000, 20_000
"""Where a port is taken from that nobody has stated: below those that kernels give to outgoing connections."""

_PRESENT, _ASKED, _ORDER, _HEARD = "present/{rank}", "asked/{rank}", "order/{rank}", "heard/{rank}"
_ELSEWHERE = "elsewhere"
_SLACK_SECONDS = 2.0
"""How much later than the store's own timeout a wait for it is ended: without a network the store does not notice."""

_LINGER_SECONDS = 3.0
"""How long rank 0 waits for the others when there is nothing for them to do."""

_WITHOUT_MPI = (
    "ranks of gloo and nccl need no MPI to meet where MASTER_ADDR and MASTER_PORT are set for all: rank 0's host and a "
    "free port of it"
)

_LOOK_SECONDS = 0.02
_MOST_NAMES = 16


class LaunchOrder(Record, frozen=True, kw_only=True):
    """What rank 0 tells the others: the ``plan``, which ``launch`` this is of the run called ``run``, and what remains
    to be measured where that is resumed. ``plan`` None: nothing is measured, and ``status`` is the exit status then.
    ``session`` is new for each launch: the key with which its ranks sign what they say is made of it.
    """

    plan: Plan | None = None
    run: str = ""
    launch: int = 0
    remaining: Remaining | None = None
    status: int = 0
    session: str = ""


class Rendezvous(Protocol):
    """How rank 0 speaks to the others before the world has formed. ``store`` is the key-value store that the world can
    form over (None: it has its own way), and ``key`` what its ranks sign with; both are there once the others have been
    told.
    """

    store: tuple[str, int] | None
    key: bytes

    def publish(self, order: LaunchOrder) -> None:
        """Rank 0, once: the order is there for all others. Raises LaunchError when it cannot be said."""

    def receive(self) -> LaunchOrder:
        """Every other rank: what rank 0 tells. Raises LaunchError when nothing comes."""

    def close(self) -> None:
        """Leave, when no world is formed after all."""


class StoreRendezvous:
    """Over a key-value store of torch's at ``host`` and ``port``, which rank 0 keeps if it ``serves``: else the world
    forms elsewhere.

    Ranks of another ``attempt`` do not meet there. What ranks say there is signed with ``secret`` (empty: anyone can
    sign). A rank asks with a number that nobody has used before, and takes an order that is signed for that number
    alone: one that was recorded earlier is of no use. Raises LaunchError when rank 0 cannot open the store, or another
    rank does not reach it in ``timeout_seconds``.
    """

    def __init__(
        self,
        info: RankInfo,
        host: str,
        port: int,
        timeout_seconds: float,
        *,
        serves: bool = True,
        attempt: str = "0",
        secret: bytes = b"",
    ) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - heavy, and only needed where ranks are joined

        from busbw.backends.side_channel import serve_store  # noqa: PLC0415 - as above

        self._info = info
        self._me = f"rank {info.rank} of {info.size} (host {socket.gethostname()})"
        self._host, self._where = host, f"{host} port {port}"
        self._timeout_seconds = timeout_seconds
        self._counts_ranks = serves  # a store that outlives rank 0 has seen ranks of earlier attempts
        self._secret = secret
        self.key = b""
        keeps = serves and info.lead
        what = "open a port for the others at" if keeps else "reach rank 0 at"
        lacking = f"{self._me} cannot {what} {self._where}"
        try:
            if keeps:
                self._kept, _ = serve_store(host, port, timeout_seconds, one_host=info.local_size == info.size)
            else:
                wait_for(host, port, timeout_seconds)
                with _no_longer_than(timeout_seconds, lacking):
                    timeout = timedelta(seconds=timeout_seconds)
                    self._kept = dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        except (RuntimeError, OSError, LaunchError) as error:
            raise LaunchError(f"{lacking}: {_in_words(error)}; MASTER_ADDR and MASTER_PORT name another one") from error
        self._attempt = attempt
        self._store: dist.Store = dist.PrefixStore(f"busbw/rendezvous/{attempt}", self._kept)
        self.store = (host, port) if serves else None

    def publish(self, order: LaunchOrder) -> None:
        """Put it into the store, and wait until the others have taken it: it goes with this process."""
        patience = min(self._timeout_seconds, _LINGER_SECONDS) if order.plan is None else self._timeout_seconds
        order = msgspec.structs.replace(order, session=new_secret())
        self.key = key_of(self._secret, order.session)
        try:
            absent = self._absent(msgspec.json.encode(order).decode(), patience)
            if order.plan is not None:
                self._refuse_taken_ranks(range(1, self._info.size), coming=0)
            there = "" if absent or order.plan is None else self._where_the_others_are()
        except RuntimeError as error:
            raise LaunchError(f"rank 0 cannot tell the others what to measure: {_in_words(error)}") from error
        if absent and order.plan is not None:
            raise LaunchError(
                f"{len(absent)} of {self._info.size} ranks have not come to rank 0 at {self._where} within "
                f"{patience:g} s: {_listed(absent)}"
            )
        if there and not self._secret:
            unsigned = f"whoever reaches {self._where} can give these ranks orders; set it for all"
            say(f"caution: BUSBW_SECRET is not set: {unsigned}")
        self._go_the_way_to(there)

    def receive(self) -> LaunchOrder:
        """Wait for it in the store, and for where the other ranks are."""
        rank, me = self._info.rank, f"rank {self._info.rank} (host {socket.gethostname()})"
        lacking = f"{me} has heard nothing from rank 0"
        try:
            with _no_longer_than(self._timeout_seconds + _SLACK_SECONDS, lacking):
                self._refuse_taken_ranks([rank], coming=1)
                asked = new_secret()
                self._store.set(_ASKED.format(rank=rank), asked)
                order = self._order_for(asked)
                self.key = key_of(self._secret, order.session)
                self._say(_HEARD.format(rank=rank), address_towards(self._host))
            if order.plan is not None:
                lacking = f"{me} has met rank 0, and not all others have"
                with _no_longer_than(self._timeout_seconds + _SLACK_SECONDS, lacking):
                    self._go_the_way_to(self._heard(_ELSEWHERE))
        except RuntimeError as error:
            raise LaunchError(f"{lacking} for {self._timeout_seconds:g} s: {_in_words(error)}") from error
        return order

    def close(self) -> None:
        """Nothing is left behind but the store, which goes with its process."""

    def _order_for(self, asked: str) -> LaunchOrder:
        """Rank 0's answer to what this rank ``asked``. Raises LaunchError when it is somebody else's."""
        name = _ORDER.format(rank=self._info.rank)
        text = verified(self._secret, f"{self._attempt}/{name}/{asked}", self._store.get(name))
        try:
            if text is not None:
                return msgspec.json.decode(text, type=LaunchOrder)
        except msgspec.MsgspecError:
            pass  # somebody else's, where there is no secret
        raise LaunchError(
            f"{self._me} takes no order from {self._where}: it is not signed with this rank's BUSBW_SECRET; "
            "set the same for all ranks"
        )

    def _answer(self, rank: int, text: str) -> None:
        """The order, as ``text``, for the number that ``rank`` has asked with."""
        name = _ORDER.format(rank=rank)
        asked = printable(self._store.get(_ASKED.format(rank=rank)).decode(errors="replace"))
        self._store.set(name, signed(self._secret, f"{self._attempt}/{name}/{asked}", text))

    def _say(self, name: str, text: str) -> None:
        self._store.set(name, signed(self.key, name, text))

    def _heard(self, name: str) -> str:
        """What a rank of this launch has said. Raises LaunchError when somebody else did."""
        text = verified(self.key, name, self._store.get(name))
        if text is None:
            raise LaunchError(
                f"{self._me} found a message ({name}) at {self._where} that no rank of this launch has signed"
            )
        return printable(text)

    def _refuse_taken_ranks(self, ranks: Iterable[int], *, coming: int) -> None:
        """Count that many more processes for each of ``ranks``. Raises LaunchError where one of them is there twice."""
        if not self._counts_ranks:
            return
        twice = [rank for rank in ranks if self._store.add(_PRESENT.format(rank=rank), coming) > 1]
        if twice:
            raise LaunchError(
                f"rank(s) {_listed(twice)} of {self._info.size} came twice to {self._where}: two worlds were "
                "given one MASTER_ADDR and MASTER_PORT; each needs a port of its own"
            )

    def _where_the_others_are(self) -> str:
        """Rank 0, when all have been heard of: an address on another host, "" where there is none; all are told it."""
        heard = [self._heard(_HEARD.format(rank=rank)) for rank in range(1, self._info.size)]
        there = elsewhere([address_towards(self._host), *heard])
        self._say(_ELSEWHERE, there)
        return there

    def _go_the_way_to(self, there: str) -> None:
        """Where there are several hosts: to rank 0's, or, on that one, to ``there``, an address on another."""
        if there:
            use_the_way_to(self._host, there)

    def _absent(self, text: str, seconds: float) -> list[int]:
        """The ranks that have not heard the order, ``text``, after at most this long; each is answered once."""
        absent = list(range(1, self._info.size))
        answered: set[int] = set()
        deadline = time.monotonic() + seconds
        while True:
            for rank in absent:
                if rank not in answered and self._store.check([_ASKED.format(rank=rank)]):
                    self._answer(rank, text)
                    answered.add(rank)
            absent = [rank for rank in absent if not self._store.check([_HEARD.format(rank=rank)])]
            if not absent or time.monotonic() >= deadline:
                return absent
            time.sleep(_LOOK_SECONDS)


class MpiRendezvous:
    """Over MPI itself, by a broadcast. What forms its world otherwise gets a store at rank 0, and MPI is left before
    anything is measured. Raises LaunchError when MPI's world is not the one that was stated.

    No wait of MPI ends by itself. What takes longer than ``timeout_seconds`` ends this process, and with it the world.
    """

    def __init__(self, info: RankInfo, timeout_seconds: float) -> None:
        missing = BACKENDS["mpi"].missing()
        if missing is not None:
            raise LaunchError(f"{info.launcher} started this rank, and {missing}; {_WITHOUT_MPI}")
        self._info = info
        self._me = f"rank {info.rank} of {info.size} (host {socket.gethostname()})"
        self._timeout_seconds = timeout_seconds
        self._kept: dist.TCPStore | None = None
        self.store: tuple[str, int] | None = None
        self.key = b""
        with _no_longer_than(timeout_seconds, f"{self._me} waits in MPI_Init: not every rank has come there"):
            try:
                from busbw.backends.mpi import init  # noqa: PLC0415 - mpi4py loads the library

                init.initialise(info.rank, info.size, info.local_size or info.size, info.launcher)
            except LaunchError as error:
                raise LaunchError(f"{error}; {_WITHOUT_MPI}") from error
        self._mpi = init

    def publish(self, order: LaunchOrder) -> None:
        """The root's part of the broadcast."""
        order = msgspec.structs.replace(order, session=new_secret())
        with _no_longer_than(self._timeout_seconds, f"{self._me} cannot tell every rank what to measure"):
            self._mpi.broadcast(msgspec.json.encode(order))
        self._leave_for(order)

    def receive(self) -> LaunchOrder:
        """The others' part."""
        with _no_longer_than(self._timeout_seconds, f"{self._me} has heard nothing from rank 0"):
            order = msgspec.json.decode(self._mpi.broadcast(b""), type=LaunchOrder)
        self._leave_for(order)
        return order

    def close(self) -> None:
        """MPI wants to be left, and not just ended."""
        with _no_longer_than(self._timeout_seconds, f"{self._me} cannot leave MPI"):
            self._mpi.finalize()

    def _leave_for(self, order: LaunchOrder) -> None:
        """Where the world of ``order`` is not MPI's: agree on a store and on the way to it, and leave MPI."""
        self.key = key_of(b"", order.session)  # it came by MPI, not by the store
        if order.plan is None or backend_named(order.plan.backend).started_by == "mpiexec":
            return
        with _no_longer_than(self._timeout_seconds, f"{self._me} does not hear from every rank over MPI"):
            try:
                self._kept, self.store = self._mpi.meet_at_store(self._timeout_seconds)
            except (RuntimeError, OSError) as error:
                raise LaunchError(f"{self._me} cannot open a port for the others: {_in_words(error)}") from error
            host, _ = self.store
            if there := elsewhere(self._mpi.gathered(address_towards(host))):
                use_the_way_to(host, there)
            self._mpi.finalize()


def _no_longer_than(seconds: float, otherwise: str) -> AbstractContextManager[None]:
    """End this process, saying ``otherwise``, when what is done meanwhile takes longer; it must let threads run."""

    def end() -> None:
        say(f"{otherwise} within {seconds:g} s")
        remove_segments("self", LATE)  # nobody finalises MPI any more
        os._exit(1)

    return no_longer_than(seconds, end)


def at_torchrun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """Where ``torchrun`` says: at the store of its agent, or at one that rank 0 keeps where it has none."""
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return StoreRendezvous(
        info,
        variables["MASTER_ADDR"],
        port_in(variables, "MASTER_PORT"),
        timeout_seconds,
        serves=not agent,
        # The agent's store lives on when it starts its ranks again.
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        secret=secret_in(variables),
    )


def at_srun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """At MASTER_ADDR and MASTER_PORT where they are set, else at the first node of the step and a port of its own."""
    host = variables.get("MASTER_ADDR") or expand(variables["SLURM_STEP_NODELIST"])[0]
    port = port_in(variables, "MASTER_PORT") if "MASTER_PORT" in variables else port_of_step(variables)
    # Two jobs that share a node may come to share a port, and must not take each other's ranks.
    step = f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"
    return StoreRendezvous(info, host, port, timeout_seconds, attempt=step, secret=secret_in(variables))


def at_mpirun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """At MASTER_ADDR and MASTER_PORT where both are set, else in MPI: nothing else says where rank 0 is."""
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if host and port:
        # Two at once that were given one port must not take each other's ranks. Open MPI's mpirun has a name, the same
        # on all hosts; that of MPICH has none that its ranks see: there the size may differ, and ranks are counted.
        name = variables.get("PMIX_NAMESPACE", "") if "OMPI_COMM_WORLD_RANK" in variables else ""
        attempt = f"{name}/{info.size}"
        port_there = port_in(variables, "MASTER_PORT")
        return StoreRendezvous(info, host, port_there, timeout_seconds, attempt=attempt, secret=secret_in(variables))
    return MpiRendezvous(info, timeout_seconds)


def port_of_step(variables: Mapping[str, str]) -> int:
    """A port for rank 0 of a step: the first one that Slurm has reserved, else one made of the numbers of job and step,
    so that steps side by side do not meet. Raises LaunchError when the numbers are none.
    """
    reserved = variables.get("SLURM_STEP_RESV_PORTS", "").partition("-")[0].partition(",")[0]
    if reserved.isdigit():
        return int(reserved)
    job, step = env_int(variables, "SLURM_JOB_ID"), env_int(variables, "SLURM_STEP_ID")
    return _LEAST_PORT + (job * 61 + step) % _PORTS


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_MOST_NAMES])) + (", …" if len(ranks) > _MOST_NAMES else "")


def _in_words(error: Exception) -> str:
    from busbw.backends.side_channel import first_line  # noqa: PLC0415 - torch, which has raised it

    return first_line(error)
