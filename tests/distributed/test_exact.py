"""A model split over processes makes the tokens of one process, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import Workers, cluster_decoder, engine_of, request_for, single_decoder

from mrs.engine.engine import Engine
from mrs.model.decoder import Decoder
from mrs.request import PagedRequest
from support.engines import Asked
from support.model_files import DEMO, SMALL, write_model
from support.suites import first
from support.tiny_decoders import CONFIGS, GREEDY, WARM, WINDOW

LAYERS = 5
VOCABULARY = 96
_TYPES = {
    "hybrid": ["conv", "full_attention", "conv", "conv", "full_attention"],
    "delta": ["linear_attention", "full_attention", *["linear_attention"] * 3],
}
PROMPTS = [[(7 * n + 3 * k) % VOCABULARY for n in range(9 + 11 * k)] for k in range(5)]


def config_of(kind: str) -> dict[str, Any]:
    config = {**SMALL, **CONFIGS[kind], "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS}
    if kind in _TYPES:
        config["layer_types"] = _TYPES[kind]
    return config


def talk(engine: Engine) -> list[list[int]]:
    """Five replies at once, a second turn of each, and one more prompt that begins like a first."""
    settings = [replace(GREEDY, max_tokens=6), replace(WARM, max_tokens=6, seed=3)]
    asked = [Asked.of(engine, prompt, settings[n % 2]) for n, prompt in enumerate(PROMPTS)]
    replies = [each.finish() for each in asked]
    turns = [p + reply + [5, 6, 7] for p, reply in zip(PROMPTS, replies, strict=True)]
    asked = [Asked.of(engine, turn, settings[0]) for turn in turns]
    replies += [each.finish() for each in asked]
    assert engine.scheduler.num_cached_tokens > 0
    replies.append(Asked.of(engine, [*PROMPTS[4][:40], 1, 2, 3], settings[0]).finish())
    return replies


@torch.inference_mode()
def logits_of(decoder: Decoder) -> torch.Tensor:
    from mrs.model.batch import SequenceInput, forward_batch

    cache = decoder.new_cache(64, chunk_tokens=32)
    parts = []
    for ids in (PROMPTS[2], [4], [5, 6]):
        fed = SequenceInput(cache, ids, logits_rows=range(len(ids)))
        parts.append(decoder.forward(forward_batch([fed]), [cache]))
    return torch.cat(parts)


@pytest.mark.few("hybrid")
@pytest.mark.parametrize("kind", first(3, CONFIGS))
def test_tokens_and_logits_are_those_of_one_process(
    kind: str, workers: Workers, tmp_path: Path
) -> None:
    """With 2 to 4 processes: attention, windows, convolutions, delta rules, latents, ropes."""
    folder = write_model(tmp_path / kind, config_of(kind), std=0.2)
    single = single_decoder(request_for(folder, None, 0))
    expected, logits = talk(engine_of(single)), logits_of(single)
    count = 1 + list(CONFIGS).index(kind) % 3
    with cluster_decoder(request_for(folder, workers.port, count)) as (decoder, cluster):
        assert sum(len(each.layers) for each in cluster.coordinator.members) == LAYERS - len(
            cluster.own_layers
        )
        assert talk(engine_of(decoder)) == expected
        assert torch.equal(logits_of(decoder), logits)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["window", "dense"])
def test_quantized_keys_and_values(kind: str, workers: Workers, tmp_path: Path) -> None:
    """With the rests of their first and last blocks, and prefixes that end inside blocks."""
    folder = write_model(tmp_path / kind, {**config_of(kind), "head_dim": 32}, std=0.2)
    paged = PagedRequest(key_cache_type="q8_0", value_cache_type="q4_0")
    prompts = [[(7 * n + 3 * k) % VOCABULARY for n in range(50 + 40 * k)] for k in range(3)]

    def replies(decoder: Decoder) -> list[list[int]]:
        engine, settings = engine_of(decoder), replace(GREEDY, max_tokens=24)
        asked = [Asked.of(engine, prompt, settings) for prompt in prompts]
        found = [each.finish() for each in asked]
        turns = [p + reply + [5, 6] for p, reply in zip(prompts, found, strict=True)]
        found += [Asked.of(engine, turn, settings).finish() for turn in turns]
        assert engine.scheduler.num_cached_tokens > 100
        return found

    request = replace(request_for(folder, None, 0), paged=paged)
    expected = replies(single_decoder(request))
    request = replace(request_for(folder, workers.port, 2), paged=paged)
    with cluster_decoder(request) as (decoder, _):
        assert replies(decoder) == expected


@pytest.mark.full
def test_a_gguf_file_is_split_as_well(workers: Workers) -> None:
    """Quantized blocks, with more layers on the last process, as the user says."""
    file = DEMO / "demo.gguf"
    expected = talk(engine_of(single_decoder(request_for(file, None, 0))))
    request = request_for(file, workers.port, 1, layer_map="0:2;1:3")
    with cluster_decoder(request) as (decoder, cluster):
        assert cluster.own_layers == range(2)
        assert talk(engine_of(decoder)) == expected


@pytest.mark.full
def test_windows_move_on_and_pools_grow(workers: Workers, tmp_path: Path) -> None:
    """A reply much longer than window and planned blocks."""
    folder = write_model(tmp_path / "window", config_of("window"), std=0.2)
    settings = replace(GREEDY, max_tokens=8 * WINDOW, ignore_eos=True)
    sizes = {"planned_tokens": 24, "block_tokens": 8, "chunk_tokens": 8}
    single = engine_of(single_decoder(request_for(folder, None, 0)), **sizes)
    expected = Asked.of(single, PROMPTS[3], settings).finish()
    with cluster_decoder(request_for(folder, workers.port, 2)) as (decoder, _):
        assert Asked.of(engine_of(decoder, **sizes), PROMPTS[3], settings).finish() == expected


@pytest.mark.full
def test_each_process_has_its_own_part_only(workers: Workers, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "dense", config_of("dense"), std=0.2)
    whole = single_decoder(request_for(folder, None, 0))
    assert len(whole.stack.layers) == LAYERS
    with cluster_decoder(request_for(folder, workers.port, 2)) as (decoder, cluster):
        layer_bytes = cluster.coordinator.members[0].weight_bytes / len(
            cluster.coordinator.members[0].layers
        )
        for member in cluster.coordinator.members:
            assert member.weight_bytes == layer_bytes * len(member.layers)
        assert len(decoder.stack.layers) == len(cluster.own_layers)
