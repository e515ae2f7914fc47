"""Processes that share each layer make the tokens of one that adds their parts in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Workers, engine_of, request_for, shared_decoder, single_decoder
from ordered_reference import ordered_reference
from test_exact import VOCABULARY, logits_of, talk

from mrs.request import RunRequest
from support.model_files import DEMO, SMALL, write_model
from support.tiny_decoders import WINDOW

SIZES: dict[str, Any] = {
    **SMALL,
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {"model_type": "phi3"},
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "norm_topk_prob": True},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "shared expert": {"model_type": "qwen2_moe", **EXPERTS, "shared_expert_intermediate_size": 32},
    "sinks": {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": WINDOW,
    },
    "parallel": {"model_type": "phi", "num_key_value_heads": 8, "hidden_act": "gelu_new"},
    "biases": {"model_type": "starcoder2"},
}
#: Plain weights are float32, for torch's kernels, or bf16, for the native ones.
DTYPES = {"llama": "BF16", "qwen3_moe": "BF16"}
CASES = [(kind, 2 + (number + 1) % 3) for number, kind in enumerate(KINDS)]
OTHERS = [(kind, ranks) for kind in KINDS for ranks in (2, 3, 4) if (kind, ranks) not in CASES]


def model_of(kind: str, folder: Path, **changes: Any) -> Path:
    config = {**SIZES, **KINDS[kind], **changes}
    return write_model(folder / kind, config, DTYPES.get(kind, "F32"), std=0.2)


def require_equal(model: Path, workers: Workers, ranks: int, **changes: Any) -> None:
    """Tokens and logits are those of the reference; logits are close to those of one process."""
    alone = request_for(model, None, 0, **changes)
    reference = ordered_reference(alone, ranks)
    expected, logits = talk(engine_of(reference)), logits_of(reference)
    with shared_decoder(shared_request(model, workers, ranks, **changes)) as (decoder, cluster):
        assert len(cluster.plans) == ranks
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)
    whole = logits_of(single_decoder(alone))
    tolerance = 0.02 if "isq" in changes or model.suffix == ".gguf" else 0.01
    assert (whole - logits).abs().max() < tolerance * whole.abs().max()


def shared_request(model: Path, workers: Workers, ranks: int, **changes: Any) -> RunRequest:
    request = request_for(model, workers.port, ranks - 1, **changes)
    assert request.cluster is not None
    return replace(request, cluster=replace(request.cluster, shares_layers=True))


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_tokens_and_logits_are_those_of_the_ordered_sum(
    kind: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(model_of(kind, tmp_path), workers, ranks)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), OTHERS)
def test_with_the_other_numbers_of_ranks(
    kind: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(model_of(kind, tmp_path), workers, ranks)


def test_a_gguf_file_is_shared(workers: Workers) -> None:
    require_equal(DEMO / "demo.gguf", workers, 2)
