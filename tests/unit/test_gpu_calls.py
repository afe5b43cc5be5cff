"""The table of calls in tests/README.md has every call of torch.cuda, c10d and NVML that busbw makes, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "bench/busbw"
TABLE = re.findall(
    r"^\| (`.*?`) \| [^|]+ \| [^|]+ \| [^|]+ \| [^|]+ \|$", (ROOT / "tests/README.md").read_text(), re.MULTILINE
)
CALLS = {name for cell in TABLE for name in re.findall(r"`([^`]+)`", cell)}

ALWAYS = re.compile(
    r"torch\.cuda\.\w+(\.version)?|torch\.version\.hip|.*ProfilerActivity\.CUDA|cudart\.\w+|library\.(nvml|NVML|cu[A-Z]|nccl[A-Z])\w+"
)
OVER_NCCL = re.compile(r"dist\.([a-z]\w*|P2POp|ReduceOp\.\w+|ProcessGroup\.\w+|Work\.\w+)")
OF_GLOO = {"dist.group", "dist.rendezvous"}
NAMES = re.compile(r"nvml[A-Z]\w+|NVML_[A-Z_]+|TORCH_(NCCL|FR)_\w+|_host_emptyCache|_comm_ptr|nccl[A-Z]\w+|MPIX_\w+")
"""Names that are looked up by their text."""
OLDER = {"TORCH_NCCL_TRACE_BUFFER_SIZE"}


def chain(node: ast.AST) -> str:
    """``a.b.c`` of an attribute; empty for one of something that has no name."""
    if isinstance(node, ast.Attribute):
        inner = chain(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls_of(path: Path) -> Iterator[str]:
    over_nccl, of_memory = "pytorch" in path.parts, path.name == "numa.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = chain(node)
        if ALWAYS.fullmatch(name) or (over_nccl and OVER_NCCL.fullmatch(name) and name not in OF_GLOO):
            yield name
        if (of_memory and name in {"ctypes.CDLL", "ctypes.get_errno"}) or name == "torch.set_float32_matmul_precision":
            yield name
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMES.fullmatch(node.value):
            yield f"torch._C.{node.value}" if node.value == "_host_emptyCache" else node.value


def test_every_call_of_the_code_of_gpus_is_in_the_table_and_no_other() -> None:
    made = {name for path in SOURCE.rglob("*.py") for name in calls_of(path)} - OLDER
    made = {name for name in made if not any(longer.startswith(f"{name}.") for longer in made)}
    assert len(made) > 80, "or the tree is not read"
    assert (sorted(made - CALLS), sorted(CALLS - made)) == ([], [])


def test_a_call_has_one_row() -> None:
    names = [name for cell in TABLE for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(set(names)) == sorted(names)
