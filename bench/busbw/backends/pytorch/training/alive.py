"""Peak bytes of live tensors on the CPU, where torch's allocator has no statistics."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class Alive(TorchDispatchMode):
    """Dispatch mode that records ``peak_bytes``: the peak of all live storages.

    It counts storages of ``tensors`` and of tensors that operations take or return, not temporaries within operations.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = WeakIdKeyDictionary()
        self._most_bytes = 0  # upper bound: freed and shrunk storages count until the next full recount
        self.peak_bytes = 0
        self._see(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run one operation on plain tensors; a DTensor is first resolved into them."""
        if any(issubclass(kind, torch.Tensor) and kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self._see(value for value in tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor))
        return result

    def _see(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if type(tensor) in {torch.Tensor, torch.nn.Parameter}:
                storage = tensor.untyped_storage()
                size, before = storage.nbytes(), self._storages.get(storage, 0)  # type: ignore[no-untyped-call]
                if size != before:
                    self._storages[storage] = size
                    self._most_bytes += max(0, size - before)
        # A full recount, because storages are freed and resized unnoticed (fully sharded weights, for example). Only if
        # a new peak is possible, because a large model has thousands of storages and of operations.
        if self._most_bytes > self.peak_bytes:
            sizes = [(storage, storage.nbytes()) for storage in self._storages]
            for storage, size in sizes:
                self._storages[storage] = size
            self._most_bytes = sum(size for _, size in sizes)
            self.peak_bytes = max(self.peak_bytes, self._most_bytes)
