"""LoRA adapters that each sequence of a batch chooses, against weights merged in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_bases import ALL, LLAMA, PHI3, PROMPT, Base, logits, source, write_merged
from gguf_files import write_gguf
from running import CPU, TOLERANCE, Loaded, check_planned_bytes, difference, load
from torch import Tensor

from mrs.errors import Unsupported, UsageError
from mrs.model.batch import SequenceInput, forward_batch
from mrs.plan.memory.cache_size import CacheSize
from mrs.request import AdapterRequest, ModelSource, Sampling
from support.engines import Asked, generate, make_engine
from support.lora_files import Adapter

GREEDY = Sampling(temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=12)


def three(base: Base, targets: Sequence[str] = ALL) -> list[Adapter]:
    """Adapters of other ranks and other modules."""
    return [
        Adapter(base.weights, targets),
        Adapter(base.weights, targets[:2], rank=3, seed=1, settings={"use_rslora": True}),
        Adapter(
            base.weights, targets[2:], rank=9, seed=2, settings={"alpha_pattern": {"o_proj": 30}}
        ),
    ]


def with_three(base: Base, folder: Path, adapters: Sequence[Adapter], **settings: Any) -> Loaded:
    requests = [
        AdapterRequest(str(adapter.write(folder / name)), name, is_merged=False)
        for name, adapter in zip("abc", adapters, strict=True)
    ]
    return load(settings.pop("source", source(base.folder)), adapters=requests, **settings)


@torch.inference_mode()
def batch_logits(loaded: Loaded, adapter_ids: Sequence[int | None]) -> list[Tensor]:
    """Logits (T, V) of the prompt with each of these adapters, all in one batch."""
    space = loaded.decoder.new_space(CacheSize(50, len(adapter_ids), 512))
    caches = [space.new() for _ in adapter_ids]
    rows = range(len(PROMPT))
    inputs = [
        SequenceInput(cache, PROMPT, logits_rows=rows, adapter_id=adapter)
        for cache, adapter in zip(caches, adapter_ids, strict=True)
    ]
    found = loaded.decoder.forward(forward_batch(inputs), caches)
    return list(found.split(len(PROMPT)))


def truths(base: Base, folder: Path, adapters: Sequence[Adapter]) -> list[Tensor]:
    """The logits with each adapter in the weights."""
    return [
        logits(load(source(write_merged(base, folder / f"merged {n}", adapter))))
        for n, adapter in enumerate(adapters)
    ]


def test_three_adapters_in_one_batch(base: Any, tmp_path: Path) -> None:
    model = base(LLAMA)
    adapters = three(model)
    loaded = with_three(model, tmp_path, adapters)
    found = batch_logits(loaded, [2, None, 0, 1, 0])
    first, second, third = truths(model, tmp_path, adapters)
    plain = logits(load(source(model.folder)))
    for ours, theirs in zip(found, [third, plain, first, second, first], strict=True):
        assert difference(ours, theirs) < TOLERANCE
    assert difference(first, plain) > 100 * TOLERANCE


@pytest.mark.parametrize("isq", [None, "q8_0"])
def test_they_have_the_planned_bytes(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isq: str | None
) -> None:
    """Weights, and activations of a batch in which all sequences have the largest adapter."""
    model = base(LLAMA)
    adapters = three(model)
    loaded = with_three(model, tmp_path, adapters, isq=isq)
    plain_load = load(source(model.folder), isq=isq)
    monkeypatch.setattr("mrs.model.batch._adapter_ids", lambda inputs: [2] * len(inputs))
    check_planned_bytes(loaded)
    (terms,), (plain,) = loaded.plan.breakdowns, plain_load.plan.breakdowns
    in_files = sum(tensor.nbytes for adapter in adapters for tensor in adapter.tensors.values())
    assert terms.weight_bytes == plain.weight_bytes + in_files
    assert loaded.weights.bytes_by_device() == {CPU: terms.weight_bytes}


def test_rows_of_fused_tensors(base: Any, tmp_path: Path) -> None:
    """Query, key and value share the first matrix of an adapter, and so do gate and up."""
    model = base(PHI3)
    adapters = three(model, ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    found = batch_logits(with_three(model, tmp_path, adapters), [0, 1, 2])
    for ours, theirs in zip(found, truths(model, tmp_path, adapters), strict=True):
        assert difference(ours, theirs) < TOLERANCE


def test_adapters_of_a_gguf_file(base: Any, tmp_path: Path) -> None:
    model = base(LLAMA)
    write_gguf(model.saved, tmp_path / "base.gguf")
    adapters = three(model)
    gguf = ModelSource(str(tmp_path / "base.gguf"), "gguf")
    found = batch_logits(with_three(model, tmp_path, adapters, source=gguf), [0, 1, 2])
    for ours, theirs in zip(found, truths(model, tmp_path, adapters), strict=True):
        assert difference(ours, theirs) < TOLERANCE


def test_replies_without_adapter_are_computed_as_before(base: Any, tmp_path: Path) -> None:
    """With quantized weights, whose layers the native library computes at once."""
    model = base(LLAMA)
    loaded = with_three(model, tmp_path, three(model), isq="q8_0")
    plain = load(source(model.folder), isq="q8_0")
    assert torch.equal(logits(loaded), logits(plain))
    assert [*loaded.decoder.stack.runs] == [*plain.decoder.stack.runs]


def test_rows_of_a_batch_do_not_depend_on_each_other(base: Any, tmp_path: Path) -> None:
    model = base(LLAMA)
    loaded = with_three(model, tmp_path, three(model), isq="q8_0")
    together = batch_logits(loaded, [0, 1, None, 0])
    for ours, adapter in zip(together, [0, 1, None, 0], strict=True):
        assert difference(ours, batch_logits(loaded, [adapter])[0]) < 1e-5


def test_requests_choose_by_name(base: Any, tmp_path: Path) -> None:
    """They share no cached prefixes with requests of other adapters."""
    model = base(LLAMA)
    loaded = with_three(model, tmp_path, three(model))
    engine = make_engine(
        loaded.decoder, context_tokens=64, planned_tokens=64, planned_seqs=4, prefix_cache_n=8
    )
    prompt = [*PROMPT, *PROMPT, *PROMPT]
    alone = {name: generate(fresh(loaded), prompt, chosen(name)) for name in (None, "a", "b", "c")}
    assert len({tuple(tokens) for tokens in alone.values()}) > 2
    for _ in range(2):  # the second time with cached prefixes
        for name, tokens in alone.items():
            asked = Asked.of(engine, prompt, chosen(name))
            assert asked.finish() == tokens
    assert asked.sequence.num_cached_tokens > 0
    with pytest.raises(UsageError, match="no adapter 'x': choose one of a, b, c"):
        generate(engine, prompt, chosen("x"))


def fresh(loaded: Loaded) -> Any:
    return make_engine(loaded.decoder, context_tokens=64, planned_tokens=64)


def chosen(name: str | None) -> Sampling:
    return Sampling(
        temperature=0, frequency_penalty=0, presence_penalty=0, max_tokens=12, adapter=name
    )


@pytest.mark.parametrize(
    ("settings", "targets", "words"),
    [
        ({"use_dora": True}, ALL, "DoRA"),
        ({}, ("lm_head",), "'lm_head'"),
    ],
)
def test_what_only_merged_adapters_can_do(
    base: Any, tmp_path: Path, settings: dict[str, Any], targets: Sequence[str], words: str
) -> None:
    model = base(LLAMA)
    folder = Adapter(model.weights, targets, settings=settings).write(tmp_path / "adapter")
    with pytest.raises(Unsupported, match=f"{words}.*mrs lora -m ID -a ADAPTER"):
        load(source(model.folder), adapters=[AdapterRequest(str(folder), "a", is_merged=False)])
