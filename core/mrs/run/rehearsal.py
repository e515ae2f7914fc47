"""Run the worst moment that a plan counted with, and see what it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mrs.cache.sequence import SequenceCache
from mrs.model.decoder import Decoder
from mrs.model.segments import Segment
from mrs.model.weights import ModelWeights
from mrs.plan.reconcile import Measured
from mrs.run.measure import peak_bytes

#: Tokens that are decoded at the full length.
DECODED_TOKENS = 8


@dataclass(frozen=True)
class Rehearsal:
    """Bytes of the KV cache and of activations by device, and tokens a second.

    An activation peak of 0 means that the device cannot be measured.
    """

    kv_bytes: Mapping[torch.device, int]
    activation_bytes: Mapping[torch.device, int]
    prompt_tokens_per_s: float
    decode_tokens_per_s: float


@torch.inference_mode()
def rehearse(decoder: Decoder, context_tokens: int, chunk_tokens: int) -> Rehearsal:
    """A prompt that ends with a whole chunk, then decoding up to `context_tokens`."""
    decoded = min(DECODED_TOKENS, context_tokens - 1)
    cache = decoder.new_cache(context_tokens, chunk_tokens)
    devices = {layer.device for layer in cache.layers} | {decoder.home}
    prompt_tokens = context_tokens - decoded
    last = min(chunk_tokens, prompt_tokens)
    start = time.perf_counter()
    _feed(decoder, cache, prompt_tokens - last, chunk_tokens)
    peaks = _peaks(decoder, cache, last, devices)
    prompt_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(decoded):
        _feed(decoder, cache, 1, 1)
    decode_s = time.perf_counter() - start
    return Rehearsal(
        kv_bytes={
            device: sum(layer.nbytes for layer in cache.layers if layer.device == device)
            for device in devices
        },
        activation_bytes=peaks,
        prompt_tokens_per_s=prompt_tokens / prompt_s,
        decode_tokens_per_s=decoded / decode_s,
    )


def _peaks(
    decoder: Decoder, cache: SequenceCache, tokens: int, devices: set[torch.device]
) -> dict[torch.device, int]:
    """The peak of one chunk on every device; what it leaves in the cache was there before."""
    peaks: dict[torch.device, int] = {}

    def measured(waiting: list[torch.device]) -> None:
        if not waiting:
            _feed(decoder, cache, tokens, tokens)
            return
        peaks[waiting[0]] = peak_bytes(lambda: measured(waiting[1:]), waiting[0])

    measured(sorted(devices, key=str))
    return peaks


def _feed(decoder: Decoder, cache: SequenceCache, tokens: int, chunk_tokens: int) -> None:
    total = cache.length + tokens
    for start in range(0, tokens, chunk_tokens):
        ids = torch.zeros(min(chunk_tokens, tokens - start), dtype=torch.long)
        segment = Segment(slice(0, len(ids)), cache, total)
        wanted = torch.tensor([len(ids) - 1] if start + len(ids) == tokens else [])
        decoder.forward(ids, [segment], wanted.long())


def measure(
    seen: Rehearsal, weights: ModelWeights, free_bytes_before: Mapping[str, int]
) -> dict[str, Measured]:
    """What each device held, by its torch name; `free_bytes_before` is from before loading."""
    held = weights.bytes_by_device()
    return {
        str(device): Measured(
            weight_bytes=held.get(device, 0),
            kv_bytes=seen.kv_bytes.get(device, 0),
            activation_bytes=seen.activation_bytes.get(device) or None,
            runtime_bytes=_runtime_bytes(device, free_bytes_before),
        )
        for device in held
    }


def _runtime_bytes(device: torch.device, free_bytes_before: Mapping[str, int]) -> int | None:
    """What is gone from a GPU's memory beside the allocator's own."""
    before = free_bytes_before.get(str(device))
    if device.type != "cuda" or before is None:
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return max(0, before - free - torch.cuda.memory_reserved(device))
