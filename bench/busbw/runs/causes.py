"""Why a case failed: because of the case itself, or because of the machine, where it may succeed later."""

import errno
import os

from busbw.errors import ClockError, LaunchError, RankFailure, StoreError
from busbw.runs.records import Case, Failed, FailureCause

_CODES = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
)
_ENVIRONMENT = (*map(os.strerror, _CODES), "Connection closed by peer")
"""System messages for a failing disk, limit or network. C++ libraries pass on these messages without the number. Out of
memory is not among them, because a size that is too large always fails. The last one is Gloo's.
"""


def cause_of(error: Exception | str) -> FailureCause:
    """The cause of a failure, from the exception that broke the launch, or the message that all ranks agreed on."""
    text = str(error)
    if isinstance(error, StoreError | LaunchError | ClockError) or any(words in text for words in _ENVIRONMENT):
        return "environment"
    if isinstance(error, RankFailure) and error.lost:
        return "timeout" if error.late else "rank_lost"
    return "timeout" if "timed out" in text.lower() else "backend"


def failed(
    case: Case,
    launch: int,
    block: int,
    error: Exception | str,
    cause: FailureCause | None = None,
    ranks: tuple[int, ...] = (),
) -> Failed:
    """The row of a block of ``case`` that gave no result because of ``error``; ``cause``: if it is known; ``ranks``:
    with wrong data.
    """
    return Failed(case=case, launch=launch, block=block, error=str(error), cause=cause or cause_of(error), ranks=ranks)
