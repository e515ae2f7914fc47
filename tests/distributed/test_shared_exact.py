"""Processes that share each layer make the tokens of one that adds their parts in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder
from ordered_reference import ordered_reference
from test_exact import PROMPTS, VOCABULARY, logits_of, talk

from mrs.distributed import process_group
from mrs.distributed.process_group import CollectiveGroup
from mrs.request import RunRequest
from support.engines import Asked
from support.model_files import DEMO, SMALL, tensor_shapes, write_model
from support.suites import suite_of
from support.tiny_decoders import GREEDY, WINDOW

ENDLESS = replace(GREEDY, max_tokens=300, ignore_eos=True)
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
#: Dense layers, and the ways to share experts; `test_shared_families.py` has all kinds of layers.
CORE = ("gemma3", "qwen3_moe", "sinks")
OTHERS = [(kind, ranks) for kind in KINDS for ranks in (2, 3, 4) if (kind, ranks) not in CASES]


def model_of(kind: str, folder: Path, **changes: Any) -> Path:
    config = {**SIZES, **KINDS[kind], **changes}
    write = write_transposed_experts if kind == "sinks" else write_model
    return write(folder / kind, config, DTYPES.get(kind, "F32"), std=0.2)


def write_transposed_experts(folder: Path, config: dict[str, Any], *more: Any, **std: Any) -> Path:
    """A model whose files stack the transposed matrices of all experts."""
    from safetensors.torch import load_file, save_file

    write_model(folder, config, *more, **std)
    tensors, experts = load_file(folder / "model.safetensors"), config["num_local_experts"]
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")) and "experts" in name:
            rows, columns = tensor.shape
            stack = tensor.view(experts, rows // experts, columns)
            tensors[name] = stack.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder


def require_equal(model: Path, workers: Workers, ranks: int, **changes: Any) -> None:
    """Tokens and logits are those of the reference; logits are close to those of one process."""
    alone = request_for(model, None, 0, **changes)
    reference = ordered_reference(alone, ranks)
    expected, logits = talk(engine_of(reference)), logits_of(reference)
    with cluster_decoder(shared_request(model, workers.port, ranks, **changes)) as (
        decoder,
        cluster,
    ):
        assert len(cluster.plans) == ranks
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)
    whole = logits_of(single_decoder(alone))
    tolerance = 0.02 if "isq" in changes or model.suffix == ".gguf" else 0.01
    assert (whole - logits).abs().max() < tolerance * whole.abs().max()


def shared_request(
    model: Path, port: int, ranks: int, size: int | None = None, **changes: Any
) -> RunRequest:
    """With stages of `size` ranks, or one of all."""
    request = request_for(model, port, ranks - 1, **changes)
    assert request.cluster is not None
    return replace(request, cluster=replace(request.cluster, group_size=size or ranks))


@pytest.mark.few("gemma3-2")
@pytest.mark.parametrize(
    ("kind", "ranks"), [pytest.param(*each, marks=suite_of(each[0], CORE)) for each in CASES]
)
def test_tokens_and_logits_are_those_of_the_ordered_sum(
    kind: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(model_of(kind, tmp_path), workers, ranks)


@pytest.fixture(scope="module")
def card_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Workers that add up as those with cards do."""
    found = Workers(tmp_path_factory.mktemp("card-workers"), 3, collectives=True)
    yield found
    found.end()


_SUMS = [(2, 2), (3, 3), (4, 2)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "size"), [pytest.param(*each, marks=suite_of(each, {(4, 2)})) for each in _SUMS]
)
def test_processes_that_add_up_as_cards_do(
    ranks: int, size: int, card_workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's process groups, here with gloo."""
    workers = card_workers
    monkeypatch.setattr(process_group, "uses_collectives", lambda device: True)
    model = model_of("llama", tmp_path)
    reference = ordered_reference(request_for(model, None, 0), size)
    expected, logits = talk(engine_of(reference)), logits_of(reference)
    with cluster_decoder(shared_request(model, workers.port, ranks, size)) as (decoder, _):
        assert isinstance(decoder.group.current, CollectiveGroup)
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)


#: Further families: other norms, ropes, activations, scales, routers and residuals.
FAMILIES = (
    *("arcee", "cohere2", "dots1", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma4_unified_text"),
    *("glm4", "glm4_moe", "granite", "hunyuan_v1_dense", "hunyuan_v1_moe", "ministral3", "mistral"),
    *("phimoe", "qwen2", "seed_oss", "smollm3"),
)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_further_families(family: str, workers: Workers, tmp_path: Path) -> None:
    experts = {**EXPERTS, "num_local_experts": 6, "n_routed_experts": 6}
    config = {**SIZES, **experts, "model_type": family, "sliding_window": WINDOW}
    require_equal(write_model(tmp_path / family, config, std=0.2), workers, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), OTHERS)
def test_with_the_other_numbers_of_ranks(
    kind: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    require_equal(model_of(kind, tmp_path), workers, ranks)


@pytest.mark.full
def test_replies_that_end_early_leave_the_others_as_they_are(
    workers: Workers, tmp_path: Path
) -> None:
    """Sequences are aborted at any step; their blocks are used again."""
    model = model_of("gemma3", tmp_path)
    expected = talk(engine_of(ordered_reference(request_for(model, None, 0), 3)))
    with cluster_decoder(shared_request(model, workers.port, 3)) as (decoder, _):
        engine, chance = engine_of(decoder), random.Random(5)
        for _ in range(12):
            asked = [Asked.of(engine, prompt, ENDLESS) for prompt in PROMPTS]
            for each in asked:
                for _ in range(chance.randrange(6)):
                    engine.step()
                each.sequence.abort(RuntimeError("enough"))
            engine.step()
        assert talk(engine) == expected


#: Sizes of which blocks of 256 columns can be shared: a KV head has 256 columns of queries.
LARGE = {"hidden_size": 256, "head_dim": 128, "intermediate_size": 1024}


@pytest.mark.full
@pytest.mark.parametrize(("kind", "isq", "ranks"), [("qwen3", "q4k", 3), ("mixtral", "q8_0", 2)])
def test_shares_are_quantized_while_they_are_loaded(
    kind: str, isq: str, ranks: int, workers: Workers, tmp_path: Path
) -> None:
    model = model_of(kind, tmp_path, **(LARGE if isq == "q4k" else {}))
    require_equal(model, workers, ranks, isq=isq)


@pytest.mark.full
def test_a_gguf_file_is_shared(workers: Workers) -> None:
    require_equal(DEMO / "demo.gguf", workers, 2)


@pytest.mark.full
def test_blocks_of_256_columns_are_shared_unevenly(workers: Workers, tmp_path: Path) -> None:
    file = write_quantized(tmp_path / "model.gguf", {**SIZES, **KINDS["llama"], **LARGE})
    require_equal(file, workers, 3)


def write_quantized(file: Path, config: dict[str, Any]) -> Path:
    """A Llama as a GGUF file of Q4_K and Q6_K."""
    import gguf

    from mrs.formats import FORMATS
    from mrs.quantization.gguf import encode

    writer = gguf.GGUFWriter(file, "llama")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    chance = torch.Generator().manual_seed(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, shape in tensor_shapes(config).items():
        values = 0.2 * torch.randn(shape, generator=chance)
        mapped = names.get_name(name, try_suffixes=(".weight",))
        if len(shape) == 1:
            writer.add_tensor(mapped, values.numpy())
            continue
        kind = "Q6_K" if "down" in name or "embed" in name else "Q4_K"
        blocks = encode(values, FORMATS[kind]).numpy()
        writer.add_tensor(mapped, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
