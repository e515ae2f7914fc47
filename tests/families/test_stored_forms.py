"""Weights that a file keeps in another form load as the numbers that they stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_files import write_gguf
from parity_cases import CASES
from running import load
from safetensors.torch import load_file, save_file
from torch import Tensor

from mrs.errors import Unsupported
from mrs.request import ModelSource

BY_ID = {case.id: case for case in CASES}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}


def numbers(path: Path, container: str = "safetensors") -> dict[str, Tensor]:
    """Every parameter that is loaded from a checkpoint, in float32."""
    loaded = load(ModelSource(str(path), container))  # type: ignore[arg-type]
    found = {}
    for parameter in loaded.description.parameters:
        if parameter.role in ("vector", "dense"):
            found[parameter.name] = loaded.weights.vector(parameter.name)
        else:
            matrix = loaded.weights.matrix(parameter.name.removesuffix(".weight"))
            found[parameter.name] = matrix.rows(torch.arange(matrix.shape[0]), torch.float32)
    return found


def assert_same(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, expected[name]), name


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    return folder


def fp8(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Float8 numbers, one scale for each 128 times 128 of them, and what both stand for."""
    rows, columns = tensor.shape
    tiled = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    tiled[:rows, :columns] = tensor
    blocks = tiled.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))  # (R, 128, C, 128)
    scales = blocks.abs().amax((1, 3)) / 448
    stored = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = (stored.float() * scales[:, None, :, None]).reshape(tiled.shape)
    return stored.reshape(tiled.shape)[:rows, :columns], scales, meant[:rows, :columns]


@pytest.fixture(scope="module")
def wide_deepseek(tmp_path_factory) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and weights of a DeepSeek whose tiles are cut by rows, columns and heads."""
    import transformers

    case = BY_ID["deepseek_v3-default"]
    sizes = {
        "hidden_size": 160,
        "intermediate_size": 288,
        "qk_nope_head_dim": 40,
        "v_head_dim": 48,
        "kv_lora_rank": 136,
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(case.family, **{**case.config, **sizes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    folder = tmp_path_factory.mktemp("wide")
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def test_float8_tiles(tmp_path: Path, wide_deepseek) -> None:
    config, tensors = wide_deepseek
    stored, meant, coded = {}, {}, 0
    for name, tensor in tensors.items():
        if "_proj" in name and name.endswith(".weight"):
            stored[name], stored[f"{name}_scale_inv"], meant[name] = fp8(tensor)
            coded += 1
        else:
            stored[name] = meant[name] = tensor
    assert coded > 30
    ours = save(tmp_path / "fp8", {**config, "quantization_config": FP8}, stored)
    plain = save(tmp_path / "plain", config, meant)
    assert_same(numbers(ours), numbers(plain))


def test_fp4_blocks(tmp_path: Path, references) -> None:
    """gpt-oss as it is published; what the blocks stand for is what transformers makes of them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = references(BY_ID["gpt_oss-default"]).folder
    config = json.loads((folder / "config.json").read_text())
    stored, meant, coded = {}, {}, 0
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = meant[name] = tensor
            continue
        experts, columns, rows = tensor.shape
        shape = (experts, rows, columns // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(118, 130, shape, generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        meant[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        assert meant[name].shape == tensor.shape
        coded += 1
    assert coded == 4
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    ours = save(tmp_path / "fp4", {**config, "quantization_config": quantization}, stored)
    plain = save(tmp_path / "plain", config, meant)
    assert_same(numbers(ours), numbers(plain))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fmt": "e5m2"}, "e5m2"),
        ({"scale_fmt": "ue8m0"}, "ue8m0"),
        ({"quant_method": "eetq"}, "eetq"),
    ],
)
def test_other_quantizations_are_refused(
    tmp_path: Path, references, changes: dict[str, Any], named: str
) -> None:
    folder = references(BY_ID["deepseek_v3-default"]).folder
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "quantization_config": {**FP8, **changes}})
    )
    shutil.copy(folder / "model.safetensors", tmp_path)
    with pytest.raises(Unsupported, match=named):
        load(ModelSource(str(tmp_path), "safetensors"))


def test_a_layer_for_the_token_after_the_next_is_left_out(tmp_path: Path, references) -> None:
    truth = references(BY_ID["deepseek_v3-default"])
    config = json.loads((truth.folder / "config.json").read_text())
    tensors = load_file(truth.folder / "model.safetensors")
    extra = {"model.layers.2.eh_proj.weight": torch.zeros(2, 2)}
    folder = save(tmp_path / "extra", config, {**tensors, **extra})
    assert_same(numbers(folder), numbers(truth.folder))


def test_gguf_with_the_joint_map_of_keys_and_values(tmp_path: Path, references) -> None:
    """Older files keep it as it was, and give sizes of heads instead of latent vectors."""
    truth = references(BY_ID["deepseek_v2-default"])
    new, old = tmp_path / "new.gguf", tmp_path / "old.gguf"
    write_gguf(truth, new)
    reader, writer = gguf.GGUFReader(new), gguf.GGUFWriter(old, "deepseek2")
    lengths = {"deepseek2.attention.key_length": 32, "deepseek2.attention.value_length": 16}
    for name, entry in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture")) or name.endswith("_mla"):
            continue
        writer.add_key_value(name, lengths.get(name, entry.contents()), entry.types[0])
    for tensor in reader.tensors:
        if not tensor.name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            writer.add_tensor(tensor.name, tensor.data)
    joint = "model.layers.{}.self_attn.kv_b_proj.weight"
    for layer in range(2):
        weight = load_file(truth.folder / "model.safetensors")[joint.format(layer)]
        writer.add_tensor(f"blk.{layer}.attn_kv_b.weight", weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_same(numbers(old, "gguf"), numbers(new, "gguf"))
    assert_same(numbers(old, "gguf"), numbers(truth.folder))
