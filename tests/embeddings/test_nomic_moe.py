"""Nomic's BERT with experts, from GGUF files, against plain torch: transformers lacks it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
import torch.nn.functional as F
from test_encoders import CPU, difference, hidden_states
from torch import Tensor

from mrs.architecture.describe import describe
from mrs.devices.probe import probe_devices
from mrs.engine.profile.run import profile_run
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import make_plan
from mrs.request import ModelSource, RunRequest
from mrs.source.find import open_checkpoint
from support.planned_decoder import planned_decoder

FAMILY = "nomic_bert_moe"
HIDDEN, HEADS, INNER, EXPERTS, TOP_K, LAYERS, TOKENS = 64, 4, 96, 4, 2, 3, 50
BASE, EPS, VOCABULARY = 100.0, 1e-5, 90


def random_weights() -> dict[str, Tensor]:
    torch.manual_seed(2)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape) * 0.15

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": 1 + matrix(HIDDEN), f"{name}.bias": matrix(HIDDEN)}

    def linear(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": matrix(rows, columns), f"{name}.bias": matrix(rows)}

    found = {"token_embd.weight": matrix(VOCABULARY, HIDDEN) * 8}
    found |= {"token_types.weight": matrix(1, HIDDEN), **norm("token_embd_norm")}
    for n in range(LAYERS):
        at = f"blk.{n}."
        found |= linear(f"{at}attn_qkv", 3 * HIDDEN, HIDDEN)
        found |= linear(f"{at}attn_output", HIDDEN, HIDDEN)
        found |= norm(f"{at}attn_output_norm") | norm(f"{at}layer_output_norm")
        if n % 2:
            found[f"{at}ffn_gate_inp.weight"] = matrix(EXPERTS, HIDDEN) * 3
            found[f"{at}ffn_up_exps.weight"] = matrix(EXPERTS, INNER, HIDDEN)
            found[f"{at}ffn_down_exps.weight"] = matrix(EXPERTS, HIDDEN, INNER)
        else:
            found |= linear(f"{at}ffn_up", INNER, HIDDEN) | linear(f"{at}ffn_down", HIDDEN, INNER)
    return found


def plain_states(weights: dict[str, Tensor], ids: list[int]) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (HIDDEN,), weights[f"{name}.weight"], weights[f"{name}.bias"], EPS)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def rotated(x: Tensor) -> Tensor:
        dim = x.shape[-1]
        steps = BASE ** (-torch.arange(0, dim, 2) / dim)
        angles = torch.outer(torch.arange(len(ids)).float(), steps)
        first, last = x.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - last * sin, last * cos + first * sin), -1)

    x = norm(
        weights["token_embd.weight"][ids] + weights["token_types.weight"][0], "token_embd_norm"
    )
    for n in range(LAYERS):
        at = f"blk.{n}."
        q, k, v = (
            part.view(len(ids), HEADS, -1).transpose(0, 1)
            for part in linear(x, f"{at}attn_qkv").chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v)
        mixed = linear(mixed.transpose(0, 1).flatten(1), f"{at}attn_output")
        x = norm(x + mixed, f"{at}attn_output_norm")
        if n % 2:
            shares = (x @ weights[f"{at}ffn_gate_inp.weight"].T).softmax(-1)
            best, chosen = shares.topk(TOP_K)
            out = torch.zeros_like(x)
            for token in range(len(ids)):
                for share, expert in zip(best[token], chosen[token], strict=True):
                    inner = F.gelu(weights[f"{at}ffn_up_exps.weight"][expert] @ x[token])
                    out[token] += share * (weights[f"{at}ffn_down_exps.weight"][expert] @ inner)
        else:
            out = linear(F.gelu(linear(x, f"{at}ffn_up")), f"{at}ffn_down")
        x = norm(x + out, f"{at}layer_output_norm")
    return x


def write(path: Path, weights: dict[str, Tensor]) -> None:
    writer = gguf.GGUFWriter(path, "nomic-bert-moe")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(EPS)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(1)
    writer.add_rope_freq_base(BASE)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_moe_every_n_layers(2)
    for name, tensor in weights.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.table("hidden states", "batch", "planned bytes")
@pytest.mark.parametrize("isq", [None, "q8_0"])
def test_states_of_experts(tmp_path: Path, isq: str | None) -> None:
    weights = random_weights()
    write(tmp_path / "model.gguf", weights)
    source = ModelSource(str(tmp_path / "model.gguf"), "gguf")
    checkpoint = open_checkpoint(source)
    description = describe(checkpoint)
    assert not description.warnings
    request = RunRequest(source, dtype="f32", isq=isq, cpu=True)
    host = probe_devices(what_if=(), cpu_only=True)
    plan = make_plan(request, ModelWeightsInfo(checkpoint, description), host, cpu_packs=False)
    loaded, decoder = planned_decoder(checkpoint, description, plan, (CPU,))
    (terms,) = plan.breakdowns
    assert loaded.bytes_by_device() == {CPU: terms.weight_bytes}
    measured = profile_run(decoder, plan.workload.cache)
    assert 0 < measured.activation_bytes[CPU] <= terms.activations.expected
    ids = torch.randint(0, VOCABULARY, (TOKENS,)).tolist()
    found = hidden_states(decoder, [ids[:7], ids])[1]
    assert difference(found, plain_states(weights, ids)) < (1e-4 if isq is None else 0.1)
