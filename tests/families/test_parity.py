"""Every family gives the numbers of transformers, however the tokens arrive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity_cases import CASES, REPRESENTATIVES
from reference import REPLY_TOKENS, Reference
from running import (
    Conversation,
    Dtype,
    Loaded,
    check_conversation,
    check_planned_bytes,
    difference,
    load,
)

from mrs.architecture.describe import describe
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.request import ModelSource, Sampling
from mrs.source.find import open_checkpoint
from support.engines import Asked, generate, make_engine
from support.module_kinds import module_kinds

#: What bf16 may change, if it is more than usual: some do not scale their scores, and for others
#: the rounding of cached keys changes which tokens an indexer chooses.
BF16_TOLERANCES = {"gemma3n": 0.15, "gemma4": 0.15}
GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=REPLY_TOKENS)


@pytest.mark.full
def test_representatives_have_every_kind_of_layer(references) -> None:
    """But encoders, which have tests of their own."""
    chosen = [case for case in CASES if case.id in REPRESENTATIVES]
    assert len(chosen) == len(REPRESENTATIVES)
    found = set()
    for case in chosen:
        source = ModelSource(str(references(case).folder), "safetensors")
        for layer in describe(open_checkpoint(source)).spec.layers:
            found |= {type(layer.mixer), type(layer.feed_forward)}
    assert found == module_kinds() - {CrossAttention, EncoderAttention}


@pytest.mark.each_family
@pytest.mark.table("safetensors", "second turn")
def test_prompt_reply_and_second_turn(model: Loaded, truth: Reference) -> None:
    check_conversation(model, truth)


@pytest.mark.table("chunks of 7")
def test_in_chunks(model: Loaded, truth: Reference) -> None:
    check_conversation(model, truth, chunk_tokens=7)


@pytest.mark.table("two devices")
def test_split_over_two_logical_devices(truth: Reference) -> None:
    devices = torch.device("cpu"), torch.device("cpu", 0)
    assert devices[0] != devices[1]
    split = load(ModelSource(str(truth.folder), "safetensors"), devices=devices)
    check_conversation(split, truth)


@pytest.mark.table("two devices")
@pytest.mark.needs("a CUDA device")
def test_split_over_cpu_and_cuda(truth: Reference) -> None:
    devices = torch.device("cuda", 0), torch.device("cpu")
    split = load(ModelSource(str(truth.folder), "safetensors"), devices=devices)
    check_conversation(split, truth)


@pytest.mark.values
@pytest.mark.table("no cache")
@pytest.mark.parametrize("kv_cache", [True, False])
def test_engine(model: Loaded, truth: Reference, kv_cache: bool) -> None:
    engine = make_engine(
        model.decoder, planned_tokens=64, context_tokens=512, kv_cache=kv_cache, chunk_tokens=7
    )
    expected = truth.reply if kv_cache else truth.reply_without_cache
    assert generate(engine, truth.prompt, GREEDY) == expected


@pytest.mark.values
@pytest.mark.parametrize(
    "cached",
    [
        pytest.param(2, marks=pytest.mark.table("prefix cache")),
        pytest.param(0, marks=pytest.mark.table("batch of 5")),
    ],
)
def test_five_replies_share_steps(model: Loaded, truth: Reference, cached: int) -> None:
    """Twice: the second time from the prefix cache, if there is one."""
    engine = make_engine(
        model.decoder,
        planned_tokens=64,
        context_tokens=512,
        chunk_tokens=16,
        max_seqs=5,
        planned_seqs=5,
        prefix_cache_n=cached,
    )
    for _ in range(2):
        asked = [Asked.of(engine, truth.prompt, GREEDY) for _ in range(5)]
        assert [each.finish() for each in asked] == [truth.reply] * 5
    # Keys of some ropes are turned otherwise with every token, and are computed again.
    is_kept = model.decoder.rope_epoch(len(truth.prompt)) is not None
    assert bool(engine.stats.cached_tokens) == (bool(cached) and is_kept)


@pytest.mark.table("ISQ")
def test_quantized_in_place(truth: Reference) -> None:
    small = load(ModelSource(str(truth.folder), "safetensors"), isq="q8_0")
    logits = Conversation(small.decoder).feed(truth.steady_prompt)
    chunked = Conversation(small.decoder, chunk_tokens=7).feed(truth.steady_prompt)
    off = (logits - truth.steady_logits).abs().amax(1) / truth.steady_logits.abs().max()
    # At some positions other experts, or other tokens of an indexer, are chosen.
    assert 0 < off.median() < 0.15
    # Not zero: attention of odd head sizes rounds otherwise, and that can change an 8-bit code.
    assert difference(chunked, logits) < 2e-2


@pytest.mark.table("bf16")
def test_bf16(truth: Reference) -> None:
    half = load(ModelSource(str(truth.folder), "safetensors"), dtype="bf16")
    logits = Conversation(half.decoder).feed(truth.steady_prompt)
    found = (
        tolerance
        for family, tolerance in BF16_TOLERANCES.items()
        if truth.case.family.startswith(family)
    )
    tolerance = next(found, 2e-2)
    # An indexer chooses the tokens of later positions by cached keys, which are rounded here.
    compared = slice(getattr(truth.config, "index_topk", None))
    assert difference(logits[compared], truth.rounded_logits[compared]) < tolerance


@pytest.mark.values
@pytest.mark.table("planned bytes")
@pytest.mark.parametrize(
    ("dtype", "isq"),
    [("bf16", "q8_0"), ("f32", None), ("bf16", None)],
)
def test_planned_bytes_are_allocated(truth: Reference, dtype: Dtype, isq: str | None) -> None:
    check_planned_bytes(load(ModelSource(str(truth.folder), "safetensors"), dtype=dtype, isq=isq))


@pytest.mark.table("config")
def test_config_as_transformers_4_spells_it(
    model: Loaded, truth: Reference, tmp_path: Path
) -> None:
    config = json.loads((truth.folder / "config.json").read_text())
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {})
    if _kind(config) == "proportional" or "partial_rotary_factor" in local:
        pytest.skip("transformers 4 has no such rope")
    old = _as_transformers_4(config)
    for key in _follows_from_the_rest(truth, config):
        del old[key]
    described = describe_with(truth.folder, old, tmp_path)
    assert described == model.description


@pytest.mark.table("config")
def test_config_without_what_is_default(model: Loaded, truth: Reference, tmp_path: Path) -> None:
    """What a config.json leaves out has the value that transformers' class gives it."""
    config = json.loads((truth.folder / "config.json").read_text())
    defaults = type(truth.config)().to_dict()
    sparse = {
        key: value
        for key, value in config.items()
        if key == "model_type" or key not in defaults or defaults[key] != value
    }
    assert len(sparse) < len(config)
    assert describe_with(truth.folder, sparse, tmp_path) == model.description


def describe_with(folder: Path, config: Mapping[str, Any], copy: Path):
    shutil.copy(folder / "model.safetensors", copy)
    (copy / "config.json").write_text(json.dumps(config))
    return describe(open_checkpoint(ModelSource(str(copy), "safetensors")))


def _as_transformers_4(config: dict[str, Any]) -> dict[str, Any]:
    old = dict(config)
    rope = old.pop("rope_parameters", None)
    old["torch_dtype"] = old.pop("dtype")
    if rope is None:
        return old
    if "full_attention" in rope:
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    rope = dict(rope)
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope.pop("rope_type") == "default" and not rope:
        old["rope_scaling"] = None
    else:
        old["rope_scaling"] = {**rope, "type": _kind(config)}
    return old


def _follows_from_the_rest(truth: Reference, config: dict[str, Any]) -> list[str]:
    """Lists by layer that older configs leave to the reader."""
    if "layer_types" in config and config.get("sliding_window", 1) is None:
        return []  # EXAONE 4's class cannot derive them
    keys = [key for key in ("layer_types", "no_rope_layers") if key in config]
    stated = {k: v for k, v in truth.case.config.items() if k in config and k not in keys}
    derived = transformers.AutoConfig.for_model(truth.case.family, **stated).to_dict()
    return [key for key in keys if derived[key] == config[key]]


def _kind(config: dict[str, Any]) -> str:
    rope = config.get("rope_parameters") or {"rope_type": None}
    return rope.get("full_attention", rope)["rope_type"]
