"""Local operations: they use only the rank's own memory, files or device, with any backend.

Every backend binds them from one table.
"""

from busbw.backends.base import Local
from busbw.backends.local import compute, device, latency, memory, signature, storage

LOCAL: dict[str, Local] = {
    **memory.OPERATIONS,
    **latency.OPERATIONS,
    **device.OPERATIONS,
    **storage.OPERATIONS,
    **compute.OPERATIONS,
    **signature.OPERATIONS,
}
