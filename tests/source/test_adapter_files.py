"""Adapters whose files are damaged, or that do not fit the model: one line that says what."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mrs.architecture.describe import describe
from mrs.errors import MrsError, NotReadable, Unsupported, UsageError
from mrs.request import AdapterRequest, ClusterRequest, ModelSource, RunRequest
from mrs.source.bound_adapters import add_adapters
from mrs.source.find import fetch, open_checkpoint
from mrs.source.weights import Weights
from support.hub_server import HubServer
from support.lora_files import Adapter
from support.model_files import DEMO

WEIGHTS = "adapter_model.safetensors"
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = load_file(DEMO / "model.safetensors")
    weights = {name: each.float() for name, each in weights.items()}
    return Adapter(weights, ("q_proj", "down_proj")).write(tmp_path / "adapter")


def bind(folder: Path, *, name: str = "", is_merged: bool = True, **settings: Any) -> Any:
    request = RunRequest(
        ModelSource("demo", "safetensors"),
        adapters=(AdapterRequest(str(folder), name, is_merged),),
        **settings,
    )
    checkpoint = open_checkpoint(request.source)
    return add_adapters(checkpoint, describe(checkpoint), request)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, **changes: Any) -> None:
    """Set tensors by the ends of their names; None drops them."""
    tensors = load_file(folder / WEIGHTS)
    for end, value in changes.items():
        for name in [name for name in tensors if name.endswith(end.replace("__", "."))]:
            del tensors[name]
            if value is not None:
                tensors[name] = value
    save_file(tensors, folder / WEIGHTS)


def test_a_sound_adapter(folder: Path) -> None:
    checkpoint, description = bind(folder)
    updated = [each for each in description.parameters if each.updates]
    assert len(updated) == 2 * len(description.spec.layers)
    assert checkpoint.total_bytes > (folder / WEIGHTS).stat().st_size


CONFIGS: list[tuple[dict[str, Any], type[MrsError], str]] = [
    ({"peft_type": "IA3"}, Unsupported, "type IA3"),
    ({"bias": "lora_only"}, Unsupported, "bias 'lora_only'"),
    ({"lora_bias": True}, Unsupported, "lora_bias"),
    ({"fan_in_fan_out": True}, Unsupported, "fan_in_fan_out"),
    ({"target_parameters": ["experts.down_proj"]}, Unsupported, "target_parameters"),
    ({"trainable_token_indices": [1]}, Unsupported, "trainable_token_indices"),
    ({"init_lora_weights": "pissa"}, Unsupported, "'pissa' changes the base model"),
    ({"r": 5}, NotReadable, "expected rank 5"),
    ({"r": "4"}, NotReadable, "r = '4'"),
    ({"lora_alpha": None}, NotReadable, "lacks 'lora_alpha'"),
    ({"lora_alpha": float("nan")}, NotReadable, "lora_alpha"),
    ({"target_modules": ["q_proj"]}, NotReadable, "down_proj', which its config does not name"),
    ({"target_modules": 3}, NotReadable, "target_modules"),
    ({"exclude_modules": ["q_proj"]}, NotReadable, "which its config does not name"),
    ({"layers_to_transform": [1]}, NotReadable, "which its config does not name"),
    ({"layers_to_transform": "x"}, NotReadable, "layers_to_transform"),
    ({"rank_pattern": {"q_proj": 3}}, NotReadable, "expected rank 3"),
    ({"rank_pattern": {"(": 3}}, NotReadable, "no regular expression"),
    ({"alpha_pattern": {"(a+)+": 3}}, Unsupported, "repeats too much"),
    ({"alpha_pattern": {"q_proj": "x"}}, NotReadable, "not a positive number"),
    ({"alpha_pattern": [1]}, NotReadable, "alpha_pattern"),
    ({"use_dora": True}, NotReadable, "lora_magnitude_vector of"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), CONFIGS, ids=lambda each: str(each)[:40])
def test_a_config(folder: Path, changes: dict[str, Any], kind: type[MrsError], words: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(kind) as caught:
        bind(folder)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


TENSORS: list[tuple[dict[str, Any], type[MrsError], str]] = [
    ({f"{Q}__lora_B__weight": None}, NotReadable, f"lora_B of '{Q}' is missing"),
    ({f"{Q}__lora_A__weight": torch.zeros(4, 3)}, NotReadable, "has shape [4, 3]"),
    ({f"{Q}__lora_B__weight": torch.zeros(7, 4)}, NotReadable, "has shape [7, 4]"),
    ({f"{Q}__lora_B__weight": torch.zeros(7)}, NotReadable, "has shape [7]"),
    ({f"{Q}__lora_A__weight": torch.zeros(4, 3).int()}, NotReadable, "of type I32"),
]


@pytest.mark.parametrize(("changes", "kind", "words"), TENSORS, ids=lambda each: str(each)[:40])
def test_tensors(folder: Path, changes: dict[str, Any], kind: type[MrsError], words: str) -> None:
    change_tensors(folder, **changes)
    with pytest.raises(kind) as caught:
        bind(folder)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.99.mlp.down_proj.lora_A.weight", "lora_B of 'model.layers.99"),
        ("model.layers.99.input_layernorm.weight", "which the model does not have"),
        ("model.layers.0.mlp.down_proj.ia3_l.weight", "which the model does not have"),
        ("model.layers.0.mlp.down_proj.lora_X.weight", "not one of a LoRA adapter"),
        ("model.layers.0.mlp.up_proj.bias", "not one of a LoRA adapter"),
    ],
)
def test_tensors_of_something_else(folder: Path, name: str, words: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[f"base_model.model.{name}"] = torch.zeros(4, 4)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(MrsError, match=words):
        bind(folder)


def test_a_tensor_for_a_layer_that_does_not_exist(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    for part in "AB":
        old = tensors[f"base_model.model.{Q}.lora_{part}.weight"]
        tensors[f"base_model.model.model.layers.77.self_attn.q_proj.lora_{part}.weight"] = (
            old.clone()
        )
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(NotReadable, match=r"model\.layers\.77\.self_attn\.q_proj.*does not have"):
        bind(folder)


def _truncate(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 5)


def _pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (_truncate, NotReadable, "truncated"),
        (_pickled, Unsupported, "pickled"),
        (lambda f: (f / WEIGHTS).unlink(), NotReadable, f"no {WEIGHTS}"),
        (lambda f: (f / "adapter_config.json").unlink(), NotReadable, "no adapter_config.json"),
        (lambda f: (f / "adapter_config.json").write_text("{"), NotReadable, "not valid JSON"),
        (lambda f: (f / "xlora_config.json").write_text("{}"), Unsupported, "X-LoRA"),
        (lambda f: save_file({}, f / WEIGHTS), NotReadable, "no tensors"),
    ],
)
def test_files(
    folder: Path, damage: Callable[[Path], Any], kind: type[MrsError], words: str
) -> None:
    damage(folder)
    with pytest.raises(kind, match=words):
        bind(folder)


def test_requests_that_make_no_sense(folder: Path) -> None:
    with pytest.raises(UsageError, match="no unique names"):
        bind(folder, is_merged=False)
    with pytest.raises(Unsupported, match="several processes"):
        bind(folder, name="a", is_merged=False, cluster=ClusterRequest(2))


def test_names_of_older_files(folder: Path) -> None:
    """They have the name of the adapter in those of the tensors."""
    tensors = load_file(folder / WEIGHTS)
    renamed = {name.replace(".weight", ".default.weight"): each for name, each in tensors.items()}
    save_file(renamed, folder / WEIGHTS)
    bind(folder)


def test_an_adapter_of_the_hub(hub: HubServer, folder: Path) -> None:
    """It is planned by its headers, and downloaded with the model."""
    names = ("adapter_config.json", WEIGHTS)
    hub.add("someone/adapter", {name: (folder / name).read_bytes() for name in names})
    checkpoint, description = bind(Path("someone/adapter"))
    assert not checkpoint.is_local
    assert checkpoint.files[-1].size_bytes == (folder / WEIGHTS).stat().st_size
    fetched = fetch(checkpoint)
    assert fetched.is_local
    (update, *_) = next(each.updates for each in description.parameters if each.updates)
    info = fetched.tensors[update.down[0].tensor]
    found = np.empty(info.shape, np.float32)
    with Weights(fetched) as weights:
        weights.read_into(found.data.cast("B"), info)
    name = info.name.partition(": ")[2]
    np.testing.assert_array_equal(found, load_file(folder / WEIGHTS)[name].numpy())
