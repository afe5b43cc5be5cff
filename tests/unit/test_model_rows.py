"""The rows of models: counted tensor by tensor and product by product, and held against what their papers state."""

import math
from pathlib import Path

import msgspec
import pytest

from busbw.errors import UsageError
from busbw.workloads.model_rows import (
    Model,
    attention_flop,
    flop_per_token,
    models,
    named,
    parameters,
    parse,
    products,
    samples,
)

PUBLISHED = {
    "Llama 3 8B": 8.03e9,
    "Llama 3 70B": 70.6e9,
    "Llama 3 405B": 405.9e9,
    "GPT-3 175B": 175e9,
    "Qwen3 32B": 32.8e9,
    "Mixtral 8x7B": 46.7e9,
    "DeepSeek-V3": 671e9,
}
"""https://huggingface.co/meta-llama (Meta-Llama-3-8B and its like), arXiv:2005.14165, https://huggingface.co/Qwen/Qwen3-32B,
https://huggingface.co/mistralai/Mixtral-8x7B-v0.1, arXiv:2412.19437."""

ROW = """name = "toy"
layers = 2
hidden = 8
ffn = 4
sequence = 3
batch = 2
source = "https://a.b/c"
looked_up = "2026-11"
"""


def toy(**changes: object) -> Model:
    (row,) = parse(f"[[model]]\n{ROW}\n", "toy").model
    return msgspec.structs.replace(row, **changes)


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_parameters_are_within_one_percent_of_what_is_published(name: str, published: float) -> None:
    assert parameters(models()[name]) == pytest.approx(published, rel=0.01)


def test_active_parameters_are_those_that_the_papers_state() -> None:
    """Mixtral: 12.9e9 (arXiv:2401.04088); DeepSeek-V3: 36.7e9 without the embedding (README_WEIGHTS.md)."""
    rows = models()
    assert parameters(rows["Mixtral 8x7B"], active=True) == pytest.approx(12.9e9, rel=0.01)
    deepseek = rows["DeepSeek-V3"]
    looked_up = deepseek.vocabulary * deepseek.hidden
    assert parameters(deepseek, active=True) - looked_up == pytest.approx(36.7e9, rel=0.01)


def test_parameters_of_llama_are_those_of_its_files() -> None:
    assert parameters(models()["Llama 3 8B"]) == 8030261248
    assert parameters(models()["Llama 3 405B"]) == 405853388800


def tensors(model: Model) -> list[tuple[int, ...]]:
    """The shapes of all weights, as a module would have them."""
    h = model.hidden
    shapes: list[tuple[int, ...]] = [(model.vocabulary, h)]
    shapes += [] if model.tied else [(h, model.vocabulary)]
    shapes += [(h,)]
    for layer in range(model.layers):
        shapes += [(h,), (h,)]
        if model.kv_rank:
            shapes += [(h, model.q_rank), (model.q_rank,), (h, model.kv_rank + model.rope_dim), (model.kv_rank,)]
            for _ in range(model.heads):
                shapes += [(model.q_rank, model.head_dim + model.rope_dim)]
                shapes += [(model.kv_rank, model.head_dim), (model.kv_rank, model.value_dim), (model.value_dim, h)]
        else:
            shapes += [(h, model.head_dim), (model.head_dim, h)] * model.heads
            shapes += [(h, model.head_dim)] * (2 * model.kv_heads)
        if model.experts and layer >= model.dense_layers:
            shapes += [(h, model.experts)]
            shapes += [(h, model.expert_ffn)] * (3 * (model.experts + model.shared_experts))
        else:
            shapes += [(h, model.ffn)] * 3
    return shapes


LATENT = {"heads": 4, "kv_heads": 4, "head_dim": 6, "rope_dim": 2, "value_dim": 5, "q_rank": 7, "kv_rank": 3}
MIXED = {"experts": 6, "top_k": 2, "shared_experts": 1, "expert_ffn": 5, "dense_layers": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": 4, "kv_heads": 2, "head_dim": 3, "vocabulary": 11},
        {"heads": 4, "kv_heads": 4, "head_dim": 2, "vocabulary": 11, "tied": True},
        {"heads": 4, "kv_heads": 1, "head_dim": 2, "vocabulary": 11, **MIXED},
        {"vocabulary": 11, **LATENT, **MIXED},
    ],
)
def test_parameters_are_the_elements_of_all_tensors(changes: dict[str, object]) -> None:
    model = toy(**changes)
    assert parameters(model) == sum(math.prod(shape) for shape in tensors(model))


def test_flop_are_those_of_every_product_of_a_sequence() -> None:
    """Forward 2 for each multiplication, backward two products of the same size for each; causal pairs one by one."""
    model = toy(heads=4, kv_heads=2, head_dim=3, vocabulary=11)
    s, h, forward = 5, model.hidden, 0
    for _ in range(model.layers):
        forward += s * h * (4 * 3) + 2 * s * h * (2 * 3) + s * (4 * 3) * h + 3 * s * h * model.ffn
    forward += s * h * 11
    pairs = {True: sum(1 for query in range(s) for key in range(s) if key <= query), False: s * s}
    for causal, count in pairs.items():
        scores = model.layers * 4 * (count * 3 + count * 3)
        assert s * attention_flop(model, s, causal=causal) == 2 * scores
        assert s * flop_per_token(model, s, causal=causal) == 3 * 2 * (forward + scores)


def test_a_token_multiplies_with_its_experts_alone() -> None:
    model = toy(heads=2, kv_heads=2, head_dim=4, **MIXED)
    attention, dense = 4 * 8 * 8, 3 * 8 * 4
    assert products(model) == 2 * attention + dense + (8 * 6 + (2 + 1) * 3 * 8 * 5)


def test_a_file_of_ones_own_has_its_own_rows(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f"[[model]]\n{ROW}\n[[model]]\n{ROW.replace('toy', 'Llama 3 8B')}\n")
    rows = models(own)
    assert rows["toy"].hidden == rows["Llama 3 8B"].hidden == 8
    assert list(rows) == ["toy", "Llama 3 8B"]
    assert named(rows, "llama-3-8b") is rows["Llama 3 8B"]


@pytest.mark.parametrize(
    "line",
    [
        'name = " "',
        'name = "forged\\nline"',
        'note = "\\u001b[31m"',
        "layers = 0",
        "layers = 1000000",
        "hidden = -1",
        "heads = 3",
        "heads = 4\nkv_heads = 3\nhead_dim = 2",
        "experts = 4\nexpert_ffn = 2\ntop_k = 5",
        "top_k = 1",
        "dense_layers = 3",
        "ffn = 0",
        "kv_rank = 4",
        'dtype = "float1"',
        'source = "a paper"',
        'looked_up = "2026"',
        "wide = 4",
        "layers = 1e400",
    ],
)
def test_rows_that_cannot_be_are_refused(line: str, tmp_path: Path) -> None:
    keys = {entry.partition(" =")[0] for entry in line.splitlines()}
    kept = [entry for entry in ROW.splitlines() if entry.partition(" =")[0] not in keys]
    own = tmp_path / "own.toml"
    own.write_text("\n".join(["[[model]]", *kept, line]))
    with pytest.raises(UsageError) as refused:
        models(own)
    assert refused.value.code == "model"


def test_a_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="DeepSeek-V3") as refused:
        named(models(), "Llama 9")
    assert refused.value.code == "model"


@pytest.mark.parametrize(("name", "meant"), [("Lama 3 8B", True), ("Llama 8B", True), ("Llama 2 7B", False)])
def test_a_name_with_other_numbers_is_another_model(name: str, meant: bool) -> None:  # noqa: FBT001
    with pytest.raises(UsageError) as refused:
        named(models(), name)
    assert ("did you mean Llama 3 8B?" in str(refused.value)) is meant
    assert "describe another" in str(refused.value)


def test_samples_have_the_sizes_of_their_source() -> None:
    rows = samples()
    assert rows["CosmoFlow"].bytes == 16 << 20
    assert rows["CosmoFlow"].flop == 247 << 30
    assert rows["DeepCAM"].flop == 2887 << 30
    assert rows["ResNet-50"].bytes == pytest.approx(0.14 * (1 << 20), abs=1)
