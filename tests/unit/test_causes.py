"""Which failures are a case's own, and which are of a rank or the machine and are measured again."""

import errno
import os

import pytest
from testing.synthetic import case

from busbw.errors import BackendError, BusbwError, ClockError, LaunchError, RankFailure, StoreError
from busbw.runs.causes import cause_of
from busbw.runs.records import Failed, FailureCause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("the operation raised on every rank: this library does not like it", "backend"),
        ("cannot be prepared: rank 0 says: Cannot allocate memory", "backend"),
        (f"the operation raised on every rank: [Errno 28] {os.strerror(errno.ENOSPC)}", "environment"),
        (f"cannot be prepared: rank 1 says: socket: {os.strerror(errno.EMFILE)}", "environment"),
        (StoreError("cannot write it"), "environment"),
        (LaunchError("the ranks did not meet"), "environment"),
        (ClockError("it went backwards"), "environment"),
        (RankFailure("rank 1 was killed by SIGKILL", (1,)), "rank_lost"),
        (RankFailure("rank 1 hangs", (1,), late=True), "timeout"),
        (RankFailure("failed on every rank; rank 0 says: Timed out waiting 12000ms for recv"), "timeout"),
        (RankFailure("failed on every rank; rank 0 says: Connection closed by peer"), "environment"),
        (RankFailure("failed on every rank; rank 0 says: this rank does not like it"), "backend"),
        (BackendError("the operation raised on 1 of 3 ranks: no"), "backend"),
        (BusbwError("rank 1: ZeroDivisionError: a bug"), "backend"),
    ],
)
def test_a_cause_is_told_by_what_broke(error: Exception | str, cause: FailureCause) -> None:
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("cause", "transient"),
    [
        ("wrong_data", False),
        ("backend", False),
        ("rank_lost", True),
        ("timeout", True),
        ("environment", True),
    ],
)
def test_only_what_is_not_the_fault_of_the_case_is_transient(cause: FailureCause, *, transient: bool) -> None:
    row = Failed(case=case("barrier", 0), launch=0, block=0, error="it failed", cause=cause)
    assert row.transient is transient
