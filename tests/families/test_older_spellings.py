"""Configs and names of tensors as files had them before transformers renamed them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity_cases import CASES
from safetensors.torch import load_file, save_file

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

_BY_ID = {case.id: case for case in CASES}


def described(folder: Path) -> Description:
    return describe(open_checkpoint(ModelSource(str(folder), "safetensors")))


def _as_pythia(config: dict[str, Any]) -> None:
    rope = config.pop("rope_parameters")
    config |= {
        "rotary_pct": rope["partial_rotary_factor"],
        "rotary_emb_base": int(rope["rope_theta"]),
    }


def _as_internlm(config: dict[str, Any]) -> None:
    config |= {"qkv_bias": config.pop("attention_bias"), "bias": config.pop("mlp_bias")}


def _as_falcon(config: dict[str, Any]) -> None:
    """7B's config has as many key heads as heads, although all share one."""
    config["num_kv_heads"] = config["num_attention_heads"]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("gpt_neox-default", _as_pythia),
        ("internlm3-odd", _as_internlm),
        ("falcon-default", _as_falcon),
    ],
)
def test_config(
    references, tmp_path: Path, name: str, edit: Callable[[dict[str, Any]], None]
) -> None:
    folder = references(_BY_ID[name]).folder
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    assert described(tmp_path) == described(folder)


def test_names_without_the_wrapper_and_buffers(references, tmp_path: Path) -> None:
    """As in the first file of GPT-2."""
    folder = references(_BY_ID["gpt2-default"]).folder
    tensors = load_file(folder / "model.safetensors")
    inner = {name.removeprefix("transformer."): each for name, each in tensors.items()}
    inner["h.0.attn.bias"] = tensors["transformer.wpe.weight"].clone()
    save_file(inner, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert described(tmp_path).spec == described(folder).spec
