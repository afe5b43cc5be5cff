"""Tensors on a simulated GPU: a host tensor that says it is on the GPU, and the cost of every operation on it.

torch's C++ takes such a tensor for one of the CPU, so autograd, DTensor and FSDP work. A ``TorchDispatchMode`` sees
every operation, executes it on the host's memory, and puts its time into the current stream of its GPU.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Self, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from simulated.device import HOST, Stream, current
from simulated.graphs import Capture, Node

_FREE: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach", "detach_", "lift_fresh"),
        *("set_", "resize_", "alias", "lift", "record_stream", "is_pinned", "sym_size", "is_same_size"),
    )
)
"""Operations without a kernel."""
_COPIES: Final = frozenset({"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"})
_SYNCHRONISING: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "masked_select", "bincount", "unique_dim"),
        *("_unique2", "repeat_interleave"),
    )
)
"""Operations after which the host knows a result, so it waits."""
_INDEXED_BY_THE_HOST: Final = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_"})
_OVERWRITING: Final = frozenset({"aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_", "aten::uniform_"})
"""Operations in place that do not read what they overwrite."""
_PRODUCTS: Final[Mapping[str, Callable[..., int]]] = {
    "aten::mm": lambda left, right, **_: 2 * left.numel() * right.shape[-1],
    "aten::addmm": lambda _bias, left, right, **_: 2 * left.numel() * right.shape[-1],
    "aten::bmm": lambda left, right, **_: 2 * left.numel() * right.shape[-1],
}
"""Operation of cuBLAS → its floating-point operations."""


def _flop_of_attention(query: torch.Tensor, key: torch.Tensor, *_others: object, **_named: object) -> int:
    return 4 * query.numel() * key.shape[-2]


_FLOP: Final[Mapping[str, Callable[..., int]]] = {
    **_PRODUCTS,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _flop_of_attention,  # torch takes the tensors to be there
}
"""The same of all operations; others take the time of their traffic alone."""


class GpuTensor(torch.Tensor):
    """A tensor on a simulated GPU. ``inner``: the tensor of the host that holds its data."""

    inner: torch.Tensor  # type: ignore[assignment] # nobody calls torch's method of this name
    home: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment] # as torch documents it

    @staticmethod
    def __new__(cls: type[Self], inner: torch.Tensor, home: torch.device) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device("cpu"),
        )
        made.inner, made.home = inner, home
        torch._C._set_neg(made, inner.is_neg())
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override] # noqa: ANN001, ANN206 - torch's own signature
        return _dispatched(func, types, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.home

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return int(self.home.index)

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inner.untyped_storage()

    def __deepcopy__(self, _copied: dict[int, Any]) -> torch.Tensor:
        return self.detach().clone()

    def cpu(self, *_format: object, **_named: object) -> torch.Tensor:
        copied: torch.Tensor = torch.ops.aten._to_copy(self, device=torch.device("cpu"))
        return copied

    def tolist(self) -> Any:  # noqa: ANN401 - as torch has it
        return self.cpu().tolist()

    def to(self, *args: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as torch has it
        given = [*args, *named.values()]
        like = next((value for value in given if isinstance(value, torch.Tensor)), None)
        device = next((value for value in given if isinstance(value, str | torch.device)), None)
        dtype = next((value for value in given if isinstance(value, torch.dtype)), None)
        if like is not None:
            device, dtype = like.device, like.dtype
        home = self.home if device is None else placed(torch.device(device))
        if home == self.home and dtype in {None, self.dtype} and not named.get("copy"):
            return self
        waits = named.get("non_blocking", next((value for value in args if isinstance(value, bool)), False))
        kind = self.dtype if dtype is None else dtype
        copied: torch.Tensor = torch.ops.aten._to_copy(self, dtype=kind, device=home, non_blocking=bool(waits))
        return copied

    def type_as(self, other: torch.Tensor) -> torch.Tensor:
        return self.to(other.device, other.dtype)

    def new_empty(self, *size: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as torch has it
        return torch.empty(*size, **self._as(named))

    def new_zeros(self, *size: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as torch has it
        return torch.zeros(*size, **self._as(named))

    def new_full(self, size: Any, fill_value: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as torch has it
        return torch.full(size, fill_value, **self._as(named))

    def _as(self, named: dict[str, Any]) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.home, **{name: at for name, at in named.items() if at is not None}}

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        self.inner = cast("GpuTensor", new).inner
        torch.Tensor.data.__set__(self, new)  # type: ignore[attr-defined] # a descriptor

    def __repr__(self) -> str:  # type: ignore[override] # as above
        return f"GpuTensor({self.inner!r}, {self.home})"


def placed(device: torch.device) -> torch.device:
    """``device`` with its number, if it is a GPU. Raises CudaError if there is no such GPU."""
    return torch.device("cuda", current().index_of(device)) if device.type == "cuda" else device


def leaves_of(value: Any) -> list[Any]:  # noqa: ANN401 - arguments or results of an operation
    """What lists, tuples and dictionaries hold. (torch's own pytree takes half of the time of the simulation.)"""
    kind = type(value)
    if kind is dict:
        value, kind = list(value.values()), list
    return [leaf for part in value for leaf in leaves_of(part)] if kind in {list, tuple} else [value]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:  # noqa: ANN401 - as above
    """``value`` with ``function`` of each of its leaves."""
    kind = type(value)
    if kind is dict:
        return {name: map_leaves(function, part) for name, part in value.items()}
    return kind([map_leaves(function, part) for part in value]) if kind in {list, tuple} else function(value)


def host_of(value: Any) -> Any:  # noqa: ANN401 - any argument of an operation
    """The host tensor of a tensor on a GPU; anything else as it is."""
    return value.inner if isinstance(value, GpuTensor) else value


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a tensor."""
    return tensor.numel() * tensor.element_size()


class OnGpus(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """Sees every operation while the machine is simulated."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and torch's guard would cost as much as an operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        return _dispatched(func, types, args, kwargs or {})


def _dispatched(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as torch
    """Tensors that are made of others come first: they call again with those."""
    if any(issubclass(kind, DTensor | AsyncCollectiveTensor) for kind in types):
        return NotImplemented
    return execute(func, args, kwargs)


@cache
def _written(func: Any) -> tuple[bool, tuple[int, ...], tuple[str, ...]]:  # noqa: ANN401 - an OpOverload
    """Whether an operation returns a view, and which arguments it writes: by position and by name."""
    schema = func._schema
    written = [at for at, argument in enumerate(schema.arguments) if argument.is_write]
    view = any(given.alias_info is not None and not given.alias_info.is_write for given in schema.returns)
    return view, tuple(written), tuple(schema.arguments[at].name for at in written)


def execute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401, PLR0911 - any operation of torch, a return for every kind
    """Execute one operation of torch: on the host as it is, on a GPU with its cost."""
    name = func.name().partition(".")[0]
    leaves = leaves_of((args, kwargs))
    mine = [leaf for leaf in leaves if isinstance(leaf, GpuTensor)]
    if name.startswith(("c10d::", "_c10d_functional::")):
        from simulated import nccl  # noqa: PLC0415 - it imports this module

        return nccl.communicate(func, name, args, kwargs, mine)
    home, args, kwargs = _home(args, kwargs, leaves, mine)
    if home is None and not mine:
        return _on_the_host(func, name, args, kwargs, leaves)
    if any(isinstance(leaf.inner, FakeTensor) for leaf in mine):
        out = func(*map_leaves(host_of, args), **map_leaves(host_of, kwargs))  # DTensor asks for a shape
        return map_leaves(
            lambda leaf: GpuTensor(leaf, home or mine[0].home) if isinstance(leaf, torch.Tensor) else leaf, out
        )
    if mine and home is not None and home.type == "cpu":
        return _host_copy(func, args, kwargs, mine[0].home, to_host=True)
    target = home or mine[0].home
    on_host = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, GpuTensor)]
    if name in _COPIES and on_host:
        return _host_copy(
            func, args, kwargs, target, to_host=name == "aten::copy_" and not isinstance(args[0], GpuTensor)
        )
    _refuse_strangers(name, mine, on_host, target)
    view, at, names = _written(func)
    if (view and not at) or name in _FREE:
        return wrapped(func(*map_leaves(host_of, args), **map_leaves(host_of, kwargs)), target, leaves)
    into = [args[place] for place in at if place < len(args)] + [kwargs[given] for given in names if given in kwargs]
    into = [leaf for leaf in leaves_of(into) if isinstance(leaf, GpuTensor)]
    return _kernel(func, name, args, kwargs, target, mine, into)


def _home(
    args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any], mine: list[GpuTensor]
) -> tuple[torch.device | None, tuple[Any, ...], dict[str, Any]]:
    """The device that the caller names, and the arguments with the host's in its place."""
    named = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    if named is None and isinstance(kwargs.get("device"), str):
        named = torch.device(kwargs["device"])
    if named is None:
        return None, args, kwargs
    if named.type == "cpu" and mine and "dtype" in kwargs and "non_blocking" not in kwargs:
        named = mine[0].home  # C++ names the device that it takes the tensor to be on, as in ``zeros_like``
    on_host = torch.device("cpu")

    def moved(leaf: Any) -> Any:  # noqa: ANN401 - any argument
        return on_host if isinstance(leaf, torch.device) else leaf

    home = placed(named)
    args, kwargs = map_leaves(moved, args), map_leaves(moved, kwargs)
    return (None if home.type == "cpu" and not mine else home), args, kwargs


def _on_the_host(func: Any, name: str, args: Any, kwargs: dict[str, Any], leaves: list[Any]) -> Any:  # noqa: ANN401
    """An operation without a GPU; a copy that is not complete must not be read by it."""
    state, pin = current(), bool(kwargs.get("pin_memory"))
    made = func(*args, **({**kwargs, "pin_memory": False} if pin else kwargs))
    if pin and isinstance(made, torch.Tensor):
        storage = made.untyped_storage()
        state.pinned[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, state.pinned.pop, storage.data_ptr(), None)
    view, at, names = _written(func)
    if not view and name not in _FREE and state.pinned:
        into = {id(args[place]) for place in at if place < len(args)} | {id(kwargs.get(name)) for name in names}
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        state.note([(leaf, id(leaf) in into) for leaf in tensors if pinned(leaf)], HOST, 0, state.order)
    return made


def pinned(tensor: torch.Tensor) -> bool:
    """Whether the memory of a host tensor is page-locked."""
    at = tensor.data_ptr()
    return any(start <= at < start + size for start, size in current().pinned.items())


def _refuse_strangers(name: str, mine: list[GpuTensor], on_host: list[torch.Tensor], target: torch.device) -> None:
    """Raise RuntimeError, in torch's words, if the tensors of a kernel are on several devices."""
    if name in _COPIES or name in _INDEXED_BY_THE_HOST or name in _FREE:
        return
    others = [leaf.home for leaf in mine if leaf.home != target]
    others += [leaf.device for leaf in on_host if leaf.dim()]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {target} and {others[0]}!"
        )


def wrapped(out: Any, home: torch.device, leaves: list[Any]) -> Any:  # noqa: ANN401 - any result
    """Results as tensors on ``home``; those that are an argument as that argument."""
    by_inner = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, GpuTensor)}

    def placed_on(leaf: Any) -> Any:  # noqa: ANN401 - any result
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, GpuTensor):
            return leaf
        if id(leaf) in by_inner:
            return by_inner[id(leaf)]
        if not isinstance(leaf, FakeTensor):
            current().allocate(leaf, home.index)
        return GpuTensor(leaf, home)

    return map_leaves(placed_on, out)


def _traffic(read: Iterable[torch.Tensor], wrote: Iterable[torch.Tensor]) -> int:
    """Bytes that a kernel reads and writes; a tensor that it gets twice is read once."""
    return sum(
        sum({(tensor.data_ptr(), size_of(tensor)): size_of(tensor) for tensor in tensors}.values())
        for tensors in (read, wrote)
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """A kernel that is about to run: its function, its arguments on the host's memory, what it reads and writes."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    home: torch.device
    leaves: list[Any]
    into: list[GpuTensor]
    read: list[torch.Tensor]


def _kernel(
    func: Any,  # noqa: ANN401 - an OpOverload
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    home: torch.device,
    mine: list[GpuTensor],
    into: list[GpuTensor],
) -> Any:  # noqa: ANN401 - any result
    """A kernel in the current stream."""
    state = current()
    source = args[1] if name == "aten::copy_" else args[0] if name == "aten::_to_copy" else None
    replaced = into if name in _OVERWRITING else [kwargs.get("out")]
    read = [leaf.inner for leaf in mine if not any(leaf is target for target in replaced)]
    inner = map_leaves(host_of, args), map_leaves(host_of, kwargs)
    call = _Call(_ON_GPUS_ONLY.get(name, func), *inner, home, leaves_of((args, kwargs)), into, read)
    state.now += state.machine.launch_ns
    if isinstance(source, GpuTensor) and source.home != home:
        return _peer_copy(call, source.home.index)
    stream, product = state.stream(home.index), name in _PRODUCTS
    flop = _FLOP[name](*args, **kwargs) if name in _FLOP else 0
    if stream.capture is not None:
        if name in _SYNCHRONISING or (product and home.index not in state.cublas):
            state.refuse_in_capture()
        return _captured(call, stream.capture, stream, flop)
    if product:
        state.cublas.add(home.index)
    begin = stream.begin()
    out = call.run(*call.args, **call.kwargs)
    wrote = _results(call, out)
    number = stream.work(state.machine.kernel(home.index, _traffic(read, wrote), flop), begin)
    state.corrupt(home.index, wrote)
    state.touch(stream, number, read, wrote)
    if name in _SYNCHRONISING:
        state.wait_for([stream])
    return wrapped(out, home, call.leaves)


def _results(call: _Call, out: Any) -> list[torch.Tensor]:  # noqa: ANN401 - any result
    """The tensors that a kernel writes: its outputs and the arguments that it changes."""
    targets = [leaf.inner for leaf in call.into]
    made = [leaf for leaf in leaves_of(out) if isinstance(leaf, torch.Tensor)]
    return [*targets, *(leaf for leaf in made if not any(leaf is target for target in targets))]


def _peer_copy(call: _Call, source: int) -> Any:  # noqa: ANN401 - as ``_kernel``
    """A copy to another GPU: on the source's current stream, and the current streams of both wait for each other; by
    copy engines if the bytes of both are the same and contiguous, else by a kernel (ATen/native/cuda/Copy.cu).
    """
    state = current()
    stream, other = state.stream(source), state.stream(call.home.index)
    if stream.capture is not None or other.capture is not None:
        state.refuse_in_capture()
    state.now += 2 * state.machine.event_ns
    begin = stream.begin()
    stream.follow(other)
    out = call.run(*call.args, **call.kwargs)
    wrote = _results(call, out)
    out_of, into = call.read[0], wrote[0]
    engines = out_of.is_neg() == into.is_neg() and out_of.is_contiguous() and into.is_contiguous()
    duration = state.machine.peer_copy(
        source,
        call.home.index,
        sum(map(size_of, wrote)),
        kernel=not engines or out_of.dtype != into.dtype,
        sharing=state.sharing(source, call.home.index),
    )
    number = stream.work(duration, max(begin, stream.end))
    state.touch(stream, number, call.read, wrote)
    other.follow(stream)
    return wrapped(out, call.home, call.leaves)


def _captured(call: _Call, capture: Capture, stream: Stream, flop: int) -> Any:  # noqa: ANN401 - as ``_kernel``
    """Capture a kernel: its results have their shapes, but no values before the first replay."""
    state, replaced = current(), {id(leaf.inner): leaf.inner.clone() for leaf in call.into}

    def apart(leaf: Any) -> Any:  # noqa: ANN401 - any argument
        return replaced.get(id(leaf), leaf)

    out = call.run(*map_leaves(apart, call.args), **map_leaves(apart, call.kwargs))
    back = {id(replaced[id(leaf.inner)]): leaf for leaf in call.into}
    results = [leaf for leaf in leaves_of(out) if isinstance(leaf, torch.Tensor)]
    fresh = [None if id(leaf) in back else leaf for leaf in results]
    for leaf in fresh:
        if leaf is not None and leaf.is_floating_point():
            leaf.fill_(math.nan)

    def again() -> None:
        made = call.run(*call.args, **call.kwargs)
        for target, value in zip(fresh, leaves_of(made), strict=False):
            if target is not None:
                target.copy_(value)

    wrote = [*(leaf.inner for leaf in call.into), *(leaf for leaf in fresh if leaf is not None)]
    duration = state.machine.kernel(call.home.index, _traffic(call.read, wrote), flop)
    capture.nodes.append(Node(stream.stream_id, duration, again, call.read, wrote))
    state.touch(stream, stream.count(), call.read, wrote)
    results = wrapped(out, call.home, call.leaves)
    return map_leaves(lambda leaf: back.get(id(host_of(leaf)), leaf), results)


def _host_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], home: torch.device, *, to_host: bool) -> Any:  # noqa: ANN401
    """A copy between the host and the GPU ``home``: from or to pageable memory, the host waits for it."""
    state, leaves = current(), leaves_of((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    free = bool(kwargs.get("non_blocking")) or (len(args) > 2 and args[2] is True)
    stream, on_host = state.stream(home.index), [leaf for leaf in tensors if not isinstance(leaf, GpuTensor)]
    inner = map_leaves(host_of, args), map_leaves(host_of, kwargs)
    fast = bool(on_host) and all(map(pinned, on_host))
    if stream.capture is not None and not (free and fast):
        state.refuse_in_capture()
    duration = state.machine.host_copy(home.index, size_of(tensors[0]), pinned=fast)
    source = tensors[-1]
    read, into = [host_of(source)], [host_of(tensors[0])] if len(tensors) > 1 else []
    state.now += state.machine.launch_ns
    if stream.capture is not None:
        stream.capture.nodes.append(Node(stream.stream_id, duration, lambda: func(*inner[0], **inner[1]), read, into))
        state.touch(stream, stream.count(), read, into)
        return args[0]
    begin = stream.begin()
    out = func(*inner[0], **inner[1])
    state.touch(stream, stream.work(duration, begin), read, into or [out])
    if not (free and fast):
        state.wait_for([stream])
    return args[0] if into else out if to_host else wrapped(out, home, leaves)


# --- kernels that the host has under another name ------------------------------------------------------------------


def _attention(query: Any, key: Any, value: Any, *args: Any, **_named: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
    """``_scaled_dot_product_efficient_attention``; its log-sum-exp is padded to a multiple of 32 rows."""
    causal = bool(args[3]) if len(args) > 3 else False
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal)
    padded = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % _LSE_ROWS), value=math.inf)
    return out, padded, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *args: Any, **_named: Any) -> Any:  # noqa: ANN401
    """Its backward pass. Raises RuntimeError if the log-sum-exp is not padded, as the kernel does."""
    _bias, out, lse, *_rest = args
    if lse.shape[-1] % _LSE_ROWS:
        raise RuntimeError("logsumexp.size(-1) must be a multiple of 32")
    causal = bool(args[7]) if len(args) > 7 else False
    rows = lse[..., : query.shape[2]].contiguous()
    made = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, out, rows, 0.0, causal
    )
    return (*made, None)


_LSE_ROWS: Final = 32
_ON_GPUS_ONLY: Final[Mapping[str, Callable[..., Any]]] = {
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
}
"""Operation of a GPU → the same on the host."""
