"""A Llama in plain torch, in float64 and for one sequence: the truth of what resembles it.

A family changes the method that it computes otherwise. `at` is how a layer's names begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainLlama:
    """`weights` by their names in safetensors files; x (T, hidden), heads (H, T, head size)."""

    def __init__(self, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        self.weights, self.config = weights, config

    def logits(self, ids: list[int]) -> Tensor:
        x = self.embed(ids)
        for index in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{index}."
            x = x + self.mix(self.norm(x, f"{at}input_layernorm"), at)
            x = x + self.mlp(self.norm(x, f"{at}post_attention_layernorm"), at)
        return self.product(self.norm(x, "model.norm"), "lm_head")

    def embed(self, ids: list[int]) -> Tensor:
        return self.weights["model.embed_tokens.weight"][ids].double()

    def mix(self, x: Tensor, at: str) -> Tensor:
        """What a layer's attention adds to the stream."""
        return self.product(self.attended(x, at), f"{at}self_attn.o_proj")

    def attended(self, x: Tensor, at: str) -> Tensor:
        """The output of all heads (T, H * head size)."""
        q, k, v = (self.heads(x, f"{at}self_attn.{name}_proj") for name in "qkv")
        return self.attend(self.rotated(q), self.rotated(k), v)

    def mlp(self, x: Tensor, at: str) -> Tensor:
        """What a layer's MLP adds to the stream."""
        return self.product(self.inner(x, at), f"{at}mlp.down_proj")

    def inner(self, x: Tensor, at: str) -> Tensor:
        return self.swiglu(x, f"{at}mlp.gate_proj", f"{at}mlp.up_proj")

    def swiglu(self, x: Tensor, gate: str, up: str) -> Tensor:
        return F.silu(self.product(x, gate)) * self.product(x, up)

    def product(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].double().T

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt()
        return x * scale * self.weights[f"{name}.weight"]

    def heads(self, x: Tensor, name: str) -> Tensor:
        size = self.config["hidden_size"] // self.config["num_attention_heads"]
        return self.product(x, name).unflatten(1, (-1, size)).transpose(0, 1)

    def rotated(self, x: Tensor) -> Tensor:
        exponents = torch.arange(0, 1, 2 / x.shape[2], dtype=torch.float64)
        base = self.config["rope_parameters"]["rope_theta"]
        angles = (torch.arange(x.shape[1])[:, None] * base**-exponents).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
