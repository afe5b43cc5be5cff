"""Kernels that compute: what one call is counted as, which sizes there are, and that a wrong result is seen."""

import math
from typing import Any

import pytest
import torch
from testing.narrow import require
from testing.synthetic import case
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from busbw.backends.base import Bound, Operation
from busbw.backends.local import LOCAL, compute
from busbw.backends.local.compute import wrong_attention, wrong_elements, wrong_rows
from busbw.backends.patterns import TORCH_DTYPES, poison
from busbw.ops import LEAST_TRAFFIC, OPS
from busbw.ops.base import Share
from busbw.ops.local import TOKEN
from busbw.runs import cases as planned
from busbw.runs import plan
from busbw.runs.records import DTYPE_BYTES, Case

COMPUTING = ("matmul", "attention", "attention_unfused")
FLOATS = ("float32", "float64", "bfloat16", "float16")


def bound(op_case: Case) -> Bound:
    layout = OPS[op_case.op].layout(Share(0, 1, op_case.count))
    dtype = TORCH_DTYPES[op_case.dtype or ""]
    send, receive = (torch.empty(count, dtype=dtype) for count in (layout.send_count, layout.receive_count))
    poison(receive, None)
    return Bound(op_case, send, receive, None)


def called(op_case: Case) -> tuple[Bound, Operation]:
    where = bound(op_case)
    operation = LOCAL[op_case.op].bind(where)
    operation.call()
    return where, operation


def wrong(operation: Operation) -> int:
    assert operation.wrong is not None
    return operation.wrong()


# --- what is counted -------------------------------------------------------------------------------------------


def test_a_product_of_two_matrices_is_2_n_cubed() -> None:
    flop = require(OPS["matmul"].flop)
    assert [flop(side * side) for side in (16, 48, 1024)] == [8192, 221184, 2147483648]


def test_attention_is_two_products_for_each_head() -> None:
    """8 heads, 32 tokens: scores are 32 × 128 times 128 × 32 and the result 32 × 32 times 32 × 128."""
    for name in ("attention", "attention_unfused"):
        flop = require(OPS[name].flop)
        assert flop(32 * TOKEN) == 8 * (2 * 32 * 128 * 32 + 2 * 32 * 32 * 128)


def test_flop_are_those_that_torch_counts() -> None:
    for name, count in (("matmul", 192 * 192), ("attention_unfused", 39 * TOKEN)):
        op_case = case(name, 4 * count, 1)
        operation = LOCAL[name].bind(bound(op_case))
        with FlopCounterMode(display=False) as counter:
            operation.call()
        flop = require(OPS[name].flop)
        assert counter.get_total_flops() == flop(op_case.count), name


def test_the_kernels_of_stream_have_one_or_two_for_every_element() -> None:
    """McCalpin 1995: scale and add one, triad two; a copy computes nothing and has no place below a roofline."""
    counted = {name: op.flop(1000) for name, op in OPS.items() if op.flop is not None and name.startswith("stream")}
    assert counted == {"stream_scale": 1000, "stream_add": 1000, "stream_triad": 2000}


class _Moved(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that operations take and make, except of those that only look at memory anew."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        made = func(*args, **(kwargs or {}))
        taken = [operand for operand in args if isinstance(operand, torch.Tensor)]
        if isinstance(made, torch.Tensor) and all(_memory_of(made) != _memory_of(operand) for operand in taken):
            self.size_bytes += sum(tensor.numel() * tensor.element_size() for tensor in (made, *taken))
        return made


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize(("name", "factor"), [("matmul", 3.0), ("attention", 4.0)])
def test_what_must_move_at_least_is_every_operand_and_the_result_once(name: str, factor: float) -> None:
    assert LEAST_TRAFFIC[name](40 * TOKEN) == factor


@pytest.mark.parametrize("tokens", [16, 40, 128])
def test_separate_operations_must_move_every_operand_and_result_of_each(tokens: int) -> None:
    op_case = case("attention_unfused", 4 * tokens * TOKEN, 1)
    operation = LOCAL[op_case.op].bind(bound(op_case))
    with _Moved() as moved:
        operation.call()
    assert moved.size_bytes == LEAST_TRAFFIC[op_case.op](op_case.count) * op_case.size_bytes


# --- sizes -----------------------------------------------------------------------------------------------------


def test_sizes_become_whole_matrices_and_tokens_and_it_is_said() -> None:
    sweep = plan.Sweep(ops=("matmul", "attention"), sizes="8,1MiB,2MiB", dtypes=("float32", "bfloat16"))
    expanded = planned.expand(plan.Plan(sweep=(sweep,)), 2, 1)
    for op_case in expanded.cases:
        side = math.isqrt(op_case.count)
        assert (
            op_case.count % TOKEN == 0
            if op_case.op == "attention"
            else (side * side == op_case.count and side % 16 == 0)
        )
    sizes = [op_case.size_bytes for op_case in expanded.cases if op_case.op == "matmul"]
    assert sizes == [1024, 1 << 20, 4 * 720**2, 512, 2 * 720**2, 1 << 21]


# --- results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", COMPUTING)
def test_right_results_are_right(name: str, dtype: str) -> None:
    for tokens in (1, 40):
        count = tokens * TOKEN if name != "matmul" else (16 * tokens) ** 2
        assert wrong(called(case(name, count * DTYPE_BYTES[dtype], 1, dtype=dtype))[1]) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_that_is_not_computed_is_wrong_everywhere_that_is_looked_at(dtype: str) -> None:
    op_case = case("matmul", 256 * 256 * DTYPE_BYTES[dtype], 1, dtype=dtype)
    where = bound(op_case)
    errors = wrong(LOCAL["matmul"].bind(where))
    assert errors >= (256 if dtype in {"float32", "float64"} else 0.9 * 64 * 256)


@pytest.mark.parametrize("value", [0.0, 0.5, math.nan, math.inf])
def test_one_wrong_element_of_an_exact_product_is_seen(value: float) -> None:
    where, operation = called(case("matmul", 96 * 96 * 4, 1))
    product = where.receive.view(96, 96)
    for row, column in ((0, 0), (95, 95), (50, 3)):
        kept = float(product[row, column])
        product[row, column] = value
        assert wrong(operation) == 1
        product[row, column] = kept
    assert wrong(operation) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_product_that_lacks_a_part_of_every_sum_is_wrong(dtype: str) -> None:
    where, operation = called(case("matmul", 512 * 512 * DTYPE_BYTES[dtype], 1, dtype=dtype))
    left, right = torch.randint(1, 5, (2, 512, 512)).to(TORCH_DTYPES[dtype])
    short = left[:, :480] @ right[:480]
    count = wrong_rows if dtype in {"float32", "float64"} else wrong_elements
    assert count(left, right, left @ right) == 0
    assert count(left, right, short) > 0
    assert wrong(operation) == 0
    where.receive.zero_()
    assert wrong(operation) > 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_attention_that_lost_a_few_keys_or_the_scale_is_wrong(dtype: str) -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, 8, 256, 128).to(TORCH_DTYPES[dtype])
    assert wrong_attention(query, key, value, sdpa(query, key, value)) == 0
    assert wrong_attention(query, key, value, sdpa(query, key[..., :-16, :], value[..., :-16, :])) > 0
    assert wrong_attention(query, key, value, sdpa(query, key, value, scale=0.08)) > 0
    assert wrong_attention(query, key, value, sdpa(query, key, value, is_causal=True)) > 0
    assert wrong_attention(query, key, value, torch.full_like(query, math.nan)) > 0


@pytest.mark.parametrize("name", ["attention", "attention_unfused"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_what_an_earlier_call_has_left_is_no_result_of_the_next_one(name: str, tokens: int) -> None:
    _, operation = called(case(name, 4 * tokens * TOKEN, 1))
    assert wrong(operation) == 0
    assert wrong(operation) > 0
    operation.call()
    assert wrong(operation) == 0


def test_what_a_replay_writes_where_the_captured_call_did_is_what_is_checked() -> None:
    """A replay runs no Python: it leaves new numbers in the tensor that the captured call made."""
    made: list[torch.Tensor] = []
    operands: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def noted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        operands.append((query, key, value))
        made.append(sdpa(query, key, value))
        return made[-1]

    operation = compute._attention(noted, bound(case("attention", 4 * 40 * TOKEN, 1)))
    operation.call()
    assert wrong(operation) == 0
    operation.call()
    made[-1].fill_(0)  # a capture computes nothing
    assert wrong(operation) > 0
    for _ in range(2):
        made[-1].copy_(sdpa(*operands[-1]))
        assert wrong(operation) == 0
        assert wrong(operation) > 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_operands_are_dense_and_finite(dtype: str) -> None:
    """In float16 the largest sums, in the others the exact ones: 0 would make a GPU draw less power than real work."""
    op_case = case("matmul", 1024 * 1024 * DTYPE_BYTES[dtype], 1, dtype=dtype)
    where, operation = called(op_case)
    assert wrong(operation) == 0
    assert bool(where.receive.isfinite().all())
    assert float((where.receive == 0).float().mean()) < 0.01


@pytest.mark.parametrize("name", COMPUTING)
def test_a_case_with_threads_has_them_until_it_is_given_back(name: str) -> None:
    before = torch.get_num_threads()
    operations = [LOCAL[name].bind(bound(case(name, 4096, 1, threads=3))) for _ in range(2)]
    assert torch.get_num_threads() == 3
    operations[0].call()
    assert wrong(operations[0]) == 0
    for operation in operations:
        operation.free()
    assert torch.get_num_threads() == before


# --- refusals --------------------------------------------------------------------------------------------------
