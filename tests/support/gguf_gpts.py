"""What llama.cpp's converter writes of the families that followed GPT-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Architectures without a base of rope in the file.
GPT_ARCHS = ("gpt2", "starcoder", "gptneox", "falcon", "bloom", "mpt")
GPT_SPELLINGS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "max_seq_len": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}


def gpt_tensor(arch: str, name: str, tensor: Tensor, config: dict[str, Any]) -> Tensor:
    """GPT-2's matrices the usual way round; queries of all heads before keys and values."""
    if arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return tensor.T
    if "query_key_value" not in name:
        return tensor
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    by_group = tensor.unflatten(0, (groups, heads // groups + 2, -1))
    parts = by_group[:, :-2].flatten(0, 1), by_group[:, -2], by_group[:, -1]
    return torch.cat(parts).flatten(0, 1)
