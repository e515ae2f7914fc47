"""Load a tiny model as a run does, and feed it tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from reference import REPLY_TOKENS, Reference
from torch import Tensor

from mrs.architecture.describe import describe
from mrs.architecture.description import Description
from mrs.cache.cache_space import CacheSpace
from mrs.cache.paged_kv import PagedKVCache
from mrs.devices.probe import probe_devices
from mrs.engine.profile.run import profile_run
from mrs.formats import kv_format_of
from mrs.kernels.cpu.library import is_available
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.kv_bytes import layer_kv_bytes
from mrs.plan.memory.stored_weights import ModelWeightsInfo
from mrs.plan.plan import Plan, make_plan
from mrs.request import PREFILL_CHUNK_TOKENS, AdapterRequest, ModelSource, RunRequest
from mrs.source.bound_adapters import add_adapters
from mrs.source.find import open_checkpoint
from support.planned_decoder import planned_decoder

CPU = torch.device("cpu")
PLANNED_TOKENS = 40
#: How far logits may be from the reference, over its largest one.
TOLERANCE = 1e-4
Dtype = Literal["f32", "bf16"]


@dataclass(frozen=True)
class Loaded:
    description: Description
    plan: Plan
    weights: ModelWeights
    decoder: Decoder


def load(
    source: ModelSource,
    dtype: Dtype = "f32",
    devices: Sequence[torch.device] = (CPU,),
    isq: str | None = None,
    packs: bool | None = None,
    adapters: Sequence[AdapterRequest] = (),
    cache: str | None = None,
) -> Loaded:
    """The layers are spread over `devices` in equal runs; the rest sits on the first.

    Keys and values have the format `cache`, by default that of the plan.

    `packs` says whether quantized weights are packed for the native kernels, if there are any; by
    default, only those that are quantized while loading.
    """
    request = RunRequest(
        source,
        dtype=dtype,
        isq=isq,
        cpu=True,
        max_seq_len=PLANNED_TOKENS,
        adapters=tuple(adapters),
    )
    checkpoint = open_checkpoint(source)
    checkpoint, description = add_adapters(checkpoint, describe(checkpoint), request)
    host = probe_devices(what_if=(), cpu_only=True)
    on_cpu = all(device.type == "cpu" for device in devices)
    packs = on_cpu and is_available() and (isq is not None if packs is None else packs)
    made = make_plan(request, ModelWeightsInfo(checkpoint, description), host, cpu_packs=packs)
    if cache is not None:
        made = replace(made, cache_format=kv_format_of(cache))
    weights, decoder = planned_decoder(checkpoint, description, made, devices)
    return Loaded(description, made, weights, decoder)


class Conversation:
    """One sequence of a decoder: remembers its tokens and its cache, as an engine does."""

    def __init__(
        self, decoder: Decoder, chunk_tokens: int = 512, space: CacheSpace | None = None
    ) -> None:
        self._decoder = decoder
        self._chunk_tokens = chunk_tokens
        self._ids: list[int] = []
        # Less room than the conversation takes, so that it grows.
        self.space = space or decoder.new_space(CacheSize(50, 1, chunk_tokens))
        self.cache = self.space.new()

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int]) -> Tensor:
        """Logits (T, V) after every one of the tokens."""
        self._ids += tokens
        if self._decoder.needs_recompute(self.cache, len(self._ids)):
            self.cache = self.space.new()
        new, total = self._ids[self.cache.length :], len(self._ids)
        parts = []
        for start in range(0, len(new), self._chunk_tokens):
            ids = new[start : start + self._chunk_tokens]
            fed = SequenceInput(self.cache, ids, total, logits_rows=range(len(ids)))
            parts.append(self._decoder.forward(forward_batch([fed]), [self.cache]))
        return torch.cat(parts)[-len(tokens) :]

    def reply(self, last: Tensor, count: int) -> tuple[list[int], Tensor]:
        """`count` greedy tokens after the logits `last` (V,), and the logits before each.

        The last token is not fed.
        """
        tokens, logits = [int(last.argmax())], [last]
        while len(tokens) < count:
            logits.append(self.feed(tokens[-1:])[0])
            tokens.append(int(logits[-1].argmax()))
        return tokens, torch.stack(logits)


def check_planned_bytes(loaded: Loaded) -> None:
    """Weights and caches take exactly what was planned, and a chunk of a prompt no more."""
    for parameter in loaded.description.parameters:
        planned = loaded.plan.storage[parameter.name].size_bytes
        if parameter.role in ("vector", "dense"):
            assert loaded.weights.vector(parameter.name).nbytes == planned, parameter.name
        else:
            slot = parameter.name.removesuffix(".weight")
            assert loaded.weights.matrix(slot).nbytes == planned, parameter.name
    (terms,) = loaded.plan.breakdowns
    assert loaded.weights.bytes_by_device() == {CPU: terms.weight_bytes}
    assert cache_bytes(loaded.decoder, PREFILL_CHUNK_TOKENS) == list(loaded.plan.kv_bytes)
    layers = loaded.description.spec.layers
    planned_kv = [
        layer_kv_bytes(layer, CacheSize(PLANNED_TOKENS, 1, 7), loaded.plan.cache_format)
        for layer in layers
    ]
    assert cache_bytes(loaded.decoder, chunk_tokens=7) == planned_kv
    seen = profile_run(loaded.decoder, loaded.plan.workload.cache)
    assert 0 < seen.activation_bytes[CPU] <= terms.activations.expected


def cache_bytes(decoder: Decoder, chunk_tokens: int) -> list[int]:
    """Bytes that each layer allocates for one sequence of the planned tokens."""
    cache = decoder.new_cache(PLANNED_TOKENS, chunk_tokens)
    sizes = [
        layer.kv.nbytes if isinstance(layer, PagedKVCache) else layer.nbytes
        for layer in cache.layers
    ]
    by_layer = decoder.stack.by_layer(sizes)
    return [sum(each) if isinstance(each, tuple) else each for each in by_layer]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference over the largest absolute logit."""
    assert ours.shape == theirs.shape
    return float((ours.cpu() - theirs).abs().max() / theirs.abs().max())


def check_conversation(loaded: Loaded, truth: Reference, chunk_tokens: int = 512) -> None:
    """A prompt, a greedy reply and a second turn from the cache."""
    conversation = Conversation(loaded.decoder, chunk_tokens)
    prompt = conversation.feed(truth.prompt)
    assert difference(prompt, truth.prompt_logits) < TOLERANCE
    tokens, logits = conversation.reply(prompt[-1], REPLY_TOKENS)
    assert tokens == truth.reply
    assert difference(logits, truth.reply_logits) < TOLERANCE
    second = conversation.feed(truth.second_turn)
    assert difference(second, truth.second_logits) < TOLERANCE
    assert conversation.cache.length == len(truth.prompt + truth.reply + truth.second_turn) - 1
