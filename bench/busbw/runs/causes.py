"""Why a case failed: by its own doing, or by that of the machine, which another time may be well."""

import errno
import os

from busbw.errors import ClockError, LaunchError, RankFailure, StoreError
from busbw.runs.records import Case, Failed, FailureCause

WRONG_DATA = "wrong data"
"""How the error of a case begins whose data are wrong."""

_CODES = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE),
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
)
_ENVIRONMENT = (*map(os.strerror, _CODES), "Connection closed by peer")
"""The system's words for a disk, a limit or a network that is at fault. Libraries written in C++ hand on these words
and no number; no memory is not among them, because of a size that is too large it is true for ever. The last one is
Gloo's.
"""


def cause_of(error: Exception | str) -> FailureCause:
    """The cause of a failure, by what broke the launch, or by the words that all ranks agree on for one case."""
    text = str(error)
    if text.startswith(WRONG_DATA):
        return "wrong_data"
    if isinstance(error, StoreError | LaunchError | ClockError) or any(words in text for words in _ENVIRONMENT):
        return "environment"
    if isinstance(error, RankFailure) and error.lost:
        return "timeout" if error.late else "rank_lost"
    return "timeout" if "timed out" in text.lower() else "backend"


def failed(case: Case, launch: int, block: int, error: Exception | str) -> Failed:
    """The row of a block of ``case`` that gave no result, because of ``error``."""
    return Failed(case=case, launch=launch, block=block, error=str(error), cause=cause_of(error))
