"""Settings of MPT that its own code has, and transformers reads without using them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from running import TOLERANCE, Conversation, difference, load
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import MptConfig, MptForCausalLM

from mrs.architecture.family_registry import family_by_name
from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.request import ModelSource

SIZES = {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 96, "vocab_size": 160}
IDS = [(5 * n * n + n) % 160 for n in range(48)]


class NormedHeads(nn.Module):
    """Queries, keys and values, with LayerNorms of all queries and of all keys."""

    def __init__(self, projection: nn.Module, norms: list[nn.LayerNorm]) -> None:
        super().__init__()
        self._projection, self._norms = projection, norms

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._projection(x).chunk(3, -1)
        return torch.cat((self._norms[0](q), self._norms[1](k), v), -1)


def _model() -> Any:
    torch.manual_seed(3)
    model = MptForCausalLM._from_config(MptConfig(**SIZES, initializer_range=0.1))
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model.float().eval()


def _logits(
    folder: Path, model: Any, changes: dict[str, Any], tensors: dict[str, Tensor]
) -> Tensor:
    """What is computed of the model's files, with other config keys and further tensors."""
    model.save_pretrained(folder)
    file, config = folder / "model.safetensors", folder / "config.json"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return Conversation(load(ModelSource(str(folder), "safetensors")).decoder, 7).feed(IDS)


@torch.no_grad()
def _truth(model: Any) -> Tensor:
    return model(torch.tensor([IDS])).logits[0]


@pytest.mark.parametrize(
    ("scale", "factor"), [(0.25, 0.25), ("inv_sqrt_d_model", 64**-0.5), (None, 1.0)]
)
def test_logits_are_scaled(scale: float | str | None, factor: float, tmp_path: Path) -> None:
    model = _model()
    ours = _logits(tmp_path, model, {"logit_scale": scale}, {})
    assert difference(ours, factor * _truth(model)) < TOLERANCE


def test_all_queries_and_all_keys_have_a_norm(tmp_path: Path) -> None:
    model, tensors = _model(), {}
    plain = _truth(model)
    norms = [[nn.LayerNorm(64, bias=False) for _ in "qk"] for _ in range(2)]
    for index, both in enumerate(norms):
        for name, norm in zip("qk", both, strict=True):
            norm.weight.data = 1 + 0.5 * torch.randn(64)
            tensors[f"transformer.blocks.{index}.attn.{name}_ln.weight"] = norm.weight.data
    ours = _logits(tmp_path, model, {"attn_config": {"qk_ln": True}}, tensors)
    for block, both in zip(model.transformer.blocks, norms, strict=True):
        block.attn.Wqkv = NormedHeads(block.attn.Wqkv, both)
    assert difference(ours, _truth(model)) < TOLERANCE
    assert difference(ours, plain) > 0.01


def test_without_alibi_there_are_learned_positions(tmp_path: Path) -> None:
    model, table = _model(), torch.randn(96, 64) * 0.3
    tensors = {"transformer.wpe.weight": table}
    ours = _logits(tmp_path, model, {"attn_config": {"alibi": False}}, tensors)
    model.transformer.build_mpt_alibi_tensor = lambda *_, **__: None
    embed: Callable[[Tensor], Tensor] = model.transformer.wte.forward
    model.transformer.wte.forward = lambda ids: embed(ids) + table[: ids.shape[1]]
    assert difference(ours, _truth(model)) < TOLERANCE


def test_what_comes_first_of_both_is_not_known() -> None:
    values = {**SIZES, "attn_config": {"qk_ln": True, "clip_qkv": 1.0}}
    with pytest.raises(Unsupported, match="clip_qkv with qk_ln"):
        family_by_name("mpt").read(Config(values, "test"))
