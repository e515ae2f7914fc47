"""LoRA adapters that are merged while a model is loaded, against weights merged in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_bases import (
    ALL,
    GEMMA,
    LLAMA,
    PHI3,
    TIED,
    Base,
    logits,
    source,
    write_merged,
)
from case import Case
from gguf_files import write_gguf
from running import TOLERANCE, Loaded, check_planned_bytes, difference, load

from mrs.plan.report.conversions import conversion_text
from mrs.request import AdapterRequest, ModelSource
from support.lora_files import Adapter

OTHERS = (
    Case("qwen2", "biased", {}, None),
    Case("smollm3", "some without rope", {}, "smollm3"),
)


def merged(folder: Path) -> AdapterRequest:
    return AdapterRequest(str(folder))


def check_merged(base: Base, folder: Path, *adapters: Adapter) -> Loaded:
    """Loaded with the adapters, the model computes what the merged files do."""
    truth = logits(load(source(write_merged(base, folder / "merged", *adapters))))
    requests = [
        merged(adapter.write(folder / f"adapter {index}")) for index, adapter in enumerate(adapters)
    ]
    loaded = load(source(base.folder), adapters=requests)
    assert difference(logits(loaded), truth) < TOLERANCE
    assert difference(logits(load(source(base.folder))), truth) > 100 * TOLERANCE
    return loaded


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 7}, "alpha_pattern": {"mlp.down_proj": 20}},
    ],
    ids=["plain", "rank-stabilized", "dora", "patterns"],
)
def test_a_merged_adapter_is_part_of_the_weights(
    base: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    model = base(LLAMA)
    adapter = Adapter(model.weights, ALL, settings=settings)
    loaded = check_merged(model, tmp_path, adapter)
    check_planned_bytes(loaded)
    (plain,) = load(source(model.folder)).plan.breakdowns
    (terms,) = loaded.plan.breakdowns
    assert terms.weight_bytes == plain.weight_bytes
    in_file = sum(tensor.nbytes for tensor in adapter.tensors.values())
    assert loaded.plan.model.merged_bytes == in_file
    assert "of adapters are added to the weights" in conversion_text(loaded.plan)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.id)
def test_adapters_of_other_families(base: Any, tmp_path: Path, case: Case) -> None:
    model = base(case)
    check_merged(model, tmp_path, Adapter(model.weights, ALL))


def test_rows_of_fused_tensors(base: Any, tmp_path: Path) -> None:
    model = base(PHI3)
    targets = ("qkv_proj", "gate_up_proj", "o_proj")
    check_merged(model, tmp_path, Adapter(model.weights, targets, settings={"use_dora": True}))


def test_several_adapters_are_added_one_after_another(base: Any, tmp_path: Path) -> None:
    model = base(LLAMA)
    check_merged(
        model,
        tmp_path,
        Adapter(model.weights, ("q_proj", "v_proj")),
        Adapter(model.weights, ALL, rank=3, seed=1),
    )


def test_whole_weights_replace_those_of_the_model(base: Any, tmp_path: Path) -> None:
    model = base(GEMMA)
    name = "model.layers.1.input_layernorm.weight"
    whole = {name: torch.rand(model.weights[name].shape)}
    settings = {"modules_to_save": ["input_layernorm"]}
    check_merged(model, tmp_path, Adapter(model.weights, ALL, settings=settings, whole=whole))


def test_a_head_that_is_no_longer_the_embedding(base: Any, tmp_path: Path) -> None:
    model = base(TIED)
    head = torch.randn(model.weights["model.embed_tokens.weight"].shape) * 0.1
    settings = {"modules_to_save": ["lm_head"]}
    adapter = Adapter(model.weights, ALL, settings=settings, whole={"lm_head.weight": head})
    check_planned_bytes(check_merged(model, tmp_path, adapter))


def test_an_adapter_of_the_embedding(base: Any, tmp_path: Path) -> None:
    """Its matrices are stored transposed, and the head stays as it is."""
    model = base(TIED)
    embedding = model.weights["model.embed_tokens.weight"]
    a, b = torch.randn(4, embedding.shape[0]), torch.randn(embedding.shape[1], 4) * 0.1
    adapter = Adapter(model.weights, ("embed_tokens",))
    adapter.tensors = {
        "model.embed_tokens.lora_embedding_A": a,
        "model.embed_tokens.lora_embedding_B": b,
    }
    whole = {"model.embed_tokens.weight": embedding + 1.5 * (b @ a).T, "lm_head.weight": embedding}
    truth = write_merged(model, tmp_path / "merged", Adapter({}, ("none",), whole=whole))
    loaded = load(source(model.folder), adapters=[merged(adapter.write(tmp_path / "adapter"))])
    assert difference(logits(loaded), logits(load(source(truth)))) < TOLERANCE


@pytest.mark.parametrize("case", [LLAMA, PHI3], ids=lambda case: case.id)
def test_an_adapter_of_a_gguf_file(base: Any, tmp_path: Path, case: Case) -> None:
    """The file has other names, and other rows of q and k, than the model that was adapted."""
    model = base(case)
    write_gguf(model.saved, tmp_path / "base.gguf")
    targets = ALL if case is LLAMA else ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    adapter = Adapter(model.weights, targets, settings={"use_dora": True})
    request = merged(adapter.write(tmp_path / "adapter"))
    loaded = load(ModelSource(str(tmp_path / "base.gguf"), "gguf"), adapters=[request])
    truth = logits(load(source(write_merged(model, tmp_path / "merged", adapter))))
    assert difference(logits(loaded), truth) < TOLERANCE


def test_quantized_after_it_is_merged(base: Any, tmp_path: Path) -> None:
    model = base(LLAMA)
    adapter = Adapter(model.weights, ALL)
    request = merged(adapter.write(tmp_path / "adapter"))
    loaded = load(source(model.folder), isq="q8_0", adapters=[request])
    truth = load(source(write_merged(model, tmp_path / "merged", adapter)), isq="q8_0")
    assert difference(logits(loaded), logits(truth)) < TOLERANCE
    check_planned_bytes(loaded)
