"""Operations that need no other rank: what a rank does to memory of its own, whatever the backend of the world is.

One table says how each is called, and every backend binds from it.
"""

from busbw.backends.local import compute, device, memory, storage
from busbw.backends.local.base import Local

LOCAL: dict[str, Local] = {
    **memory.OPERATIONS,
    **device.OPERATIONS,
    **storage.OPERATIONS,
    **compute.OPERATIONS,
}
