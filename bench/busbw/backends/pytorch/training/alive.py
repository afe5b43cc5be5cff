"""How many bytes of tensors are alive at once, where no allocator tells: on the processor, torch has no statistics."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class Alive(TorchDispatchMode):
    """Within it, ``peak_bytes`` is the most that the storages of ``known`` and of all tensors that operations take or
    return hold at once. What an operation needs within itself is not seen.
    """

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages = WeakIdKeyDictionary()
        self.peak_bytes = 0
        self._see(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """One operation of torch, of plain tensors: DTensor is asked first for what it does with them."""
        if any(issubclass(kind, torch.Tensor) and kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self._see(one for one in tree_leaves((args, kwargs, result)) if isinstance(one, torch.Tensor))
        return result

    def _see(self, tensors: Iterable[torch.Tensor]) -> None:
        for one in tensors:
            if type(one) in {torch.Tensor, torch.nn.Parameter}:
                self._storages[one.untyped_storage()] = None
        # All of them anew: a storage may have been resized, as fully sharded weights are.
        self.peak_bytes = max(self.peak_bytes, sum(one.nbytes() for one in self._storages))
