"""The made-up families on every path: run by `test_made_up.py` with a package that has them.

`KNOWS_SHARES` is set in the environment if shards know their fields, too.
"""

from __future__ import annotations

import os

import torch
from every_path import EveryPath, EveryPathOfSafetensors, PlainCase
from plain_llama import PlainLlama
from torch import Tensor

EXPERTS, CHOSEN = 4, 2


def refused(**names: str) -> dict[str, str]:
    return {} if "KNOWS_SHARES" in os.environ else names


class Fable(PlainLlama):
    def attended(self, x: Tensor, at: str) -> Tensor:
        gains = self.weights[f"{at}self_attn.head_gain"]
        return (super().attended(x, at).unflatten(1, (len(gains), -1)) * gains[:, None]).flatten(1)


class TestFable(EveryPath):
    case = PlainCase(
        *("fable", "default", {}, "fable"),
        plain=Fable,
        gguf_like="qwen2",
        gguf_names={"self_attn.head_gain": "attn_head_gain.weight"},
    )
    refused = refused(shards="head_gain")


class Grimm(PlainLlama):
    def mlp(self, x: Tensor, at: str) -> Tensor:
        return self.norm(super().mlp(x, at), f"{at}mlp.second_norm")


class TestGrimm(EveryPathOfSafetensors):
    case = PlainCase("grimm", "default", {}, None, plain=Grimm)
    refused = refused(shards="second_norm")


class Saga(PlainLlama):
    def mlp(self, x: Tensor, at: str) -> Tensor:
        layer = int(at.split(".")[2])
        at = f"{at}block_sparse_moe."
        logits = self.product(x, f"{at}gate") / self.config["router_temperatures"][layer]
        best, chosen = logits.softmax(-1).topk(CHOSEN)
        factors = torch.zeros_like(logits).scatter(1, chosen, best / best.sum(-1, keepdim=True))
        out = torch.zeros_like(x)
        for factor, name in zip(
            factors.T, (f"{at}experts.{n}.w" for n in range(EXPERTS)), strict=True
        ):
            inner = self.swiglu(x, f"{name}1", f"{name}3")
            out += factor[:, None] * self.product(inner, f"{name}2")
        return out


class TestSaga(EveryPathOfSafetensors):
    case = PlainCase(
        *("saga", "default"),
        {
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "router_temperatures": [0.5, 3.0],
        },
        None,
        plain=Saga,
    )
    refused = refused(shards="temperature")


class Ode(PlainLlama):
    def inner(self, x: Tensor, at: str) -> Tensor:
        return super().inner(x, at) * self.weights[f"{at}mlp.inner_gain"]


class TestOde(EveryPath):
    case = PlainCase(
        *("ode", "default", {}, "ode"),
        plain=Ode,
        gguf_like="qwen2",
        gguf_names={"mlp.inner_gain": "ffn_inner_gain.weight"},
    )
    refused = refused(shards="inner_gain")


class Myth(PlainLlama):
    def embed(self, ids: list[int]) -> Tensor:
        return super().embed(ids) * self.weights["model.embedding_gain"]


class TestMyth(EveryPath):
    case = PlainCase(
        *("myth", "default", {}, "myth"),
        plain=Myth,
        gguf_like="qwen2",
        gguf_names={"model.embedding_gain": "token_embd_gain.weight"},
    )
    refused = refused(shards="embedding_gain") | {"stages": "embedding_gain"}
