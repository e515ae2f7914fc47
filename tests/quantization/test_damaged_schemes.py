"""Files whose tensors contradict each other or the config are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write
from running import load
from safetensors.torch import load_file

from mrs.errors import ExitCode, MrsError
from mrs.request import ModelSource

UP = "model.layers.0.mlp.up_proj"


def refused(folder: Path, exit_code: ExitCode, *words: str) -> None:
    with pytest.raises(MrsError) as caught:
        load(ModelSource(str(folder), "safetensors"))
    assert caught.value.exit_code == exit_code
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def changed(made: Path, folder: Path, tensors: dict[str, Any], **config: Any) -> Path:
    """A copy with other tensors, without those that are None, and with another config."""
    values = json.loads((made / "config.json").read_text())
    key = "quantization_config" if "quantization_config" in values else "quantization"
    values[key] = {**values[key], **config}
    found = {**load_file(made / "model.safetensors"), **tensors}
    write(folder, values, {name: each for name, each in found.items() if each is not None})
    return folder


@pytest.mark.few(11)
@pytest.mark.parametrize(
    ("id", "suffix", "replacement"),
    [
        ("gptq-sym", ".scales", None),
        ("gptq-sym", ".qzeros", None),
        ("gptq-sym", ".qweight", torch.zeros(31, 384, dtype=torch.int32)),
        ("gptq-sym", ".qweight", torch.zeros(32, 384)),
        ("gptq-sym", ".scales", torch.zeros(3, 384).half()),
        ("gptq-sym", ".g_idx", torch.zeros(255, dtype=torch.int32)),
        ("gptq-sym", ".g_idx", torch.arange(255, -1, -1, dtype=torch.int32) // 128),
        ("gptq-act-order", ".g_idx", torch.zeros(256, dtype=torch.int32)),
        ("awq", ".qweight", torch.zeros(256, 47, dtype=torch.int32)),
        ("awq", ".qzeros", torch.zeros(2, 48)),
        ("compressed-4", ".weight_packed", torch.zeros(384, 33, dtype=torch.int32)),
        ("compressed-4", ".weight_scale", torch.zeros(383, 2)),
        ("compressed-fp8", ".weight", torch.zeros(384, 256)),
        ("compressed-mxfp4", ".weight_scale", torch.zeros(384, 7, dtype=torch.uint8)),
        ("fp8-tile", ".weight_scale_inv", torch.zeros(2, 2)),
        ("bnb-nf4", ".weight.absmax", torch.zeros(1535)),
        ("bnb-nf4", ".weight.quant_map", None),
        ("bnb-nf4", ".weight.quant_map", torch.linspace(-1, 1, 16)),
        ("bnb-int8", ".SCB", torch.zeros(383)),
        ("hqq-4", ".scale", torch.zeros(3, 1)),
        ("mlx-4-64-float16", ".biases", torch.zeros(384, 3).half()),
        ("mlx-4-64-float16", ".biases", None),
    ],
)
def test_tensors(id: str, suffix: str, replacement: Any, checkpoints, tmp_path: Path) -> None:
    folder = changed(checkpoints(id).packed, tmp_path / "x", {UP + suffix: replacement})
    refused(folder, ExitCode.NOT_READABLE, "up_proj")


@pytest.mark.parametrize(
    ("id", "config"),
    [
        ("gptq-sym", {"bits": 8}),
        ("gptq-sym", {"group_size": 64}),
        ("gptq-asym", {"sym": True}),
        ("awq", {"group_size": 32}),
        ("hqq-4", {"quant_config": {"weight_quant_params": {"nbits": 8, "group_size": 64}}}),
    ],
)
def test_configs(id: str, config: dict[str, Any], checkpoints, tmp_path: Path) -> None:
    refused(changed(checkpoints(id).packed, tmp_path / "x", {}, **config), ExitCode.NOT_READABLE)


@pytest.mark.parametrize(
    ("id", "config", "word"),
    [
        ("gptq-sym", {"bits": 5}, "5 bits"),
        ("gptq-sym", {"checkpoint_format": "marlin"}, "marlin"),
        ("awq", {"version": "gemv"}, "gemv"),
        ("compressed-4", {"format": "marlin-24"}, "marlin-24"),
        ("hqq-4", {"quant_config": {"weight_quant_params": {"nbits": 4, "axis": 0}}}, "axis 0"),
        ("mlx-4-64-float16", {"mode": "nvfp4"}, "nvfp4"),
        ("awq", {"quant_method": "quip"}, "quip"),
    ],
)
def test_what_is_not_supported(
    id: str, config: Any, word: str, checkpoints, tmp_path: Path
) -> None:
    folder = changed(checkpoints(id).packed, tmp_path / "x", {}, **config)
    refused(folder, ExitCode.UNSUPPORTED, word)


@pytest.mark.parametrize("bits", [0, -1, "4", None, [4]])
def test_config_values_of_wrong_types(bits: Any, checkpoints, tmp_path: Path) -> None:
    for key in ("bits", "group_size"):
        folder = changed(checkpoints("gptq-sym").packed, tmp_path / key, {}, **{key: bits})
        if (key, bits) != ("group_size", -1):
            refused(folder, ExitCode.NOT_READABLE, key)


def test_a_truncated_file(checkpoints, tmp_path: Path) -> None:
    made = checkpoints("gptq-sym").packed
    folder = changed(made, tmp_path / "x", {})
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    refused(folder, ExitCode.NOT_READABLE)
