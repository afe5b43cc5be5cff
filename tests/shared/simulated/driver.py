"""``libcuda.so.1``: kernels of one thread, written in PTX, that follow addresses in the memory of a GPU.

The text is parsed and executed instruction by instruction; a load of global memory takes the latency of the cache if it
has the line, else that of the memory. Instructions that no kernel of busbw has are refused as invalid.
"""

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from simulated.device import current, stream_of
from simulated.graphs import Node

_LINE_BYTES: Final = 128
_ERRORS: Final = {
    1: b"invalid argument",
    209: b"no kernel image is available for execution on the device",
    218: b"a PTX JIT compilation failed",
    500: b"named symbol not found",
}
_TYPES: Final = {"u32": ctypes.c_uint32, "u64": ctypes.c_uint64}
_CAPABILITY: Final = 90
_TARGET: Final = re.compile(r"\.target sm_(\d+)")
_ENTRY: Final = re.compile(r"\.visible \.entry (\w+)\((.*?)\)\s*\{(.*)\}", re.DOTALL)
_PARAMETER: Final = re.compile(r"\.param \.(\w+) (\w+)")
_STATEMENT: Final = re.compile(r"(?:(\w+):\s*)?(?:@(%\w+) )?([\w.]+)(.*)", re.DOTALL)
Registers = dict[str, int]
"""Values of registers, and of parameters."""


class _Memory:
    """Global memory as a running kernel sees it: what it has read and written, and the ``ns`` of its loads.

    Raises CudaError for an address that is in no allocation.
    """

    def __init__(self, gpu: int) -> None:
        self.gpu, self.ns = gpu, 0
        self.read: dict[range, torch.Tensor] = {}
        self.wrote: dict[range, torch.Tensor] = {}

    def load(self, address: int) -> int:
        _note(self.read, address, self.gpu)
        machine, gpu = current().machine, current().gpus[self.gpu]
        cached, line = gpu.cached, address // _LINE_BYTES
        self.ns += machine.l2_load_ns if line in cached or gpu.has(address) else machine.hbm_load_ns
        cached.pop(line, None)
        cached[line] = None  # the one used last
        if len(cached) > machine.l2_bytes // _LINE_BYTES:
            del cached[next(iter(cached))]
        return ctypes.c_uint64.from_address(address).value

    def store(self, address: int, value: int) -> None:
        _note(self.wrote, address, self.gpu)
        ctypes.c_uint64.from_address(address).value = value


def _note(kept: dict[range, torch.Tensor], address: int, gpu: int) -> None:
    """Keep the allocation that has ``address``."""
    for addresses in kept:
        if address in addresses:
            return
    tensor = current().bytes_at(address, gpu)
    kept[range(tensor.data_ptr(), tensor.data_ptr() + len(tensor))] = tensor


Step = Callable[[Registers, _Memory], None]


def _place(operand: str) -> tuple[str, int]:
    """The register and the offset of an address."""
    base, _, offset = operand.strip("[]").partition("+")
    return base, int(offset or 0)


def _parameter(target: str, name: str) -> Step:
    def step(registers: Registers, _memory: _Memory) -> None:
        registers[target] = registers[name.strip("[]")]

    return step


def _load(target: str, place: str) -> Step:
    base, offset = _place(place)

    def step(registers: Registers, memory: _Memory) -> None:
        registers[target] = memory.load(registers[base] + offset)

    return step


def _store(place: str, source: str) -> Step:
    base, offset = _place(place)

    def step(registers: Registers, memory: _Memory) -> None:
        memory.store(registers[base] + offset, registers[source])

    return step


def _subtract(target: str, left: str, right: str) -> Step:
    constant = int(right)

    def step(registers: Registers, _memory: _Memory) -> None:
        registers[target] = (registers[left] - constant) % (1 << 32)

    return step


def _differ(target: str, left: str, right: str) -> Step:
    constant = int(right)

    def step(registers: Registers, _memory: _Memory) -> None:
        registers[target] = int(registers[left] != constant)

    return step


_STEPS: Final[dict[str, Callable[..., Step]]] = {
    "ld.param.u32": _parameter,
    "ld.param.u64": _parameter,
    "ld.global.u64": _load,
    "ld.global.cg.u64": _load,
    "st.global.u64": _store,
    "sub.u32": _subtract,
    "setp.ne.u32": _differ,
}
"""Instruction → what it does with its operands."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """parameters: name → type, in order. program: condition (a register, or empty), and what to do: a step, to go on at
    a label, or, None, to end.
    """

    parameters: dict[str, Any]
    program: list[tuple[str, Step | str | None]]
    labels: dict[str, int]

    def run(self, values: Registers, memory: _Memory) -> int:
        """Execute it with these ``values`` of its parameters; returns its time, ns."""
        registers, at, memory.ns = dict(values), 0, 0
        while True:
            condition, step = self.program[at]
            at += 1
            if condition and not registers[condition]:
                continue
            if step is None:
                machine = current().machine
                return round(machine.kernel_ns + memory.ns * machine.faults.slowed.get(memory.gpu, 1.0))
            if isinstance(step, str):
                at = self.labels[step]
            else:
                step(registers, memory)


def _parsed(text: str) -> tuple[str, _Kernel]:
    """The one kernel of a text, by its name. Raises ValueError or LookupError if the text is invalid."""
    entry = _ENTRY.search(text)
    if entry is None:
        raise ValueError(text)
    name, given, body = entry.groups()
    kernel = _Kernel({parameter: _TYPES[kind] for kind, parameter in _PARAMETER.findall(given)}, [], {})
    for statement in filter(None, map(str.strip, body.split(";"))):
        parts = _STATEMENT.fullmatch(statement)
        if parts is None:
            raise ValueError(statement)
        label, condition, instruction, rest = parts.groups()
        operands = [operand.strip() for operand in rest.split(",")]
        if label is not None:
            kernel.labels[label] = len(kernel.program)
        if instruction == "ret":
            kernel.program.append(("", None))
        elif instruction == "bra":
            kernel.program.append((condition, operands[0]))
        elif instruction != ".reg":
            kernel.program.append((condition, _STEPS[instruction](*operands)))
    return name, kernel


class Driver:
    """The functions of the library that busbw calls; each returns a status."""

    def __init__(self) -> None:
        self._modules: list[tuple[str, _Kernel]] = []

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:  # noqa: ANN401, N802 - ctypes' reference, CUDA's name
        text = image.decode()
        if any(int(target) > _CAPABILITY for target in _TARGET.findall(text)):
            return 209
        try:
            self._modules.append(_parsed(text))
        except (ValueError, LookupError):
            return 218
        module._obj.value = len(self._modules)
        return 0

    def cuModuleGetFunction(self, function: Any, module: ctypes.c_void_p, name: bytes) -> int:  # noqa: ANN401, N802 - as above
        if self._modules[(module.value or 0) - 1][0] != name.decode():
            return 500
        function._obj.value = module.value
        return 0

    def cuGetErrorString(self, status: int, words: Any) -> int:  # noqa: ANN401, N802 - as above
        words._obj.value = _ERRORS.get(status)
        return int(status not in _ERRORS)

    def cuLaunchKernel(self, function: ctypes.c_void_p, *given: Any) -> int:  # noqa: ANN401, N802 - as above
        *shape, _shared, handle, parameters, _extra = given
        if shape != [1] * 6:
            return 1
        state = current()
        state.now += state.machine.launch_ns
        _, kernel = self._modules[(function.value or 0) - 1]
        kinds = kernel.parameters.items()
        values = {name: kind.from_address(at).value for (name, kind), at in zip(kinds, parameters, strict=True)}
        stream = stream_of(handle.value)
        memory = _Memory(stream.device_index)
        run = partial(kernel.run, values, memory)
        if stream.capture is not None:
            stream.capture.nodes.append(Node(stream.stream_id, None, run))
            stream.count()
            return 0
        begin = stream.begin()
        number = stream.work(run(), begin)
        state.touch(stream, number, memory.read.values(), memory.wrote.values())
        return 0
