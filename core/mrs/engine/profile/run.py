"""Runs the largest step that a plan allows for, and measures memory and speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mrs.cache.cache_space import CacheSpace
from mrs.cache.sequence_cache import SequenceCache
from mrs.devices.host_memory import peak_resident_bytes
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.model.batch import ImageFeatures, SequenceInput, forward_batch
from mrs.model.decoder import Decoder
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize, blocks_of
from mrs.plan.report.reconcile import Measured

#: Tokens that are decoded at the full length.
DECODED_TOKENS = 8


@dataclass(frozen=True)
class ProfileResult:
    """Bytes of the KV cache and of activations by device, and tokens a second.

    The prompt has `prompt_tokens` tokens. An activation peak of 0 means that the device cannot be
    measured. `process_bytes` is the peak of the process's memory, as the operating system counts
    it, or None if it does not.
    """

    kv_bytes: Mapping[torch.device, int]
    activation_bytes: Mapping[torch.device, int]
    process_bytes: int | None
    prompt_tokens: int
    prompt_tokens_per_s: float
    decode_tokens_per_s: float


@torch.inference_mode()
def profile_run(decoder: Decoder, size: CacheSize, images: int = 0, edge: int = 0) -> ProfileResult:
    """Measure a whole chunk of a prompt near the planned length, then decoding up to there.

    Before the chunk, `images` images are encoded, the largest ones without an edge longer than
    `edge`; their features stay in memory until the chunk is computed.

    The cache of earlier tokens is copied from one computed chunk: memory and time do not depend
    on the values in a cache. The caches of the other planned sequences are such copies, too.
    """
    context_tokens, chunk_tokens = size.tokens, size.chunk_tokens
    decoded = min(DECODED_TOKENS, context_tokens - 1)
    last = min(chunk_tokens, context_tokens - decoded)
    before = context_tokens - decoded - last
    _feed(decoder, decoder.new_cache(1, 1), 1)  # the first call starts threads
    sample = decoder.new_cache(last, chunk_tokens)
    prompt_s = _timed(lambda: _feed(decoder, sample, last))
    spaces: list[CacheSpace] = []
    full: list[SequenceCache] = []

    def peak_step() -> None:
        spaces.append(decoder.new_space(size))
        full.extend(spaces[0].new() for _ in range(size.sequences))
        _skip(full[0], sample, before)
        for other, tokens in zip(full[1:], _other_lengths(size), strict=True):
            _skip(other, sample, tokens)
        features = [_encode_image(decoder, edge) for _ in range(images)]
        _feed(decoder, full[0], last, _image_features(decoder, features))
        features.clear()

    devices = {layer.device for layer in sample.layers} | {decoder.primary_device}
    peak_step()  # without a profiler, which takes memory itself
    process_bytes = peak_resident_bytes()
    if process_bytes is not None:
        process_bytes -= sum(x.nbytes for x in sample.layers if x.device.type == "cpu")
    full.clear()
    spaces.clear()
    peaks = _peaks(peak_step, sorted(devices, key=str))
    cache = full[0]
    steps_s = [_timed(lambda: _feed(decoder, cache, 1)) for _ in range(decoded)]
    kv_bytes = spaces[0].allocated_bytes(full)
    return ProfileResult(
        kv_bytes=kv_bytes,
        activation_bytes={d: max(0, peak - kv_bytes[d]) for d, peak in peaks.items()},
        process_bytes=process_bytes,
        prompt_tokens=last,
        prompt_tokens_per_s=last / prompt_s,
        decode_tokens_per_s=1 / statistics.median(steps_s) if steps_s else 0.0,
    )


def _other_lengths(size: CacheSize) -> list[int]:
    """Tokens of every sequence but the first, so that all blocks are full."""
    left = size.blocks() - blocks_of(size.tokens, size.block_tokens)
    lengths = []
    for _ in range(size.sequences - 1):
        lengths.append(min(size.tokens, left * size.block_tokens))
        left -= blocks_of(lengths[-1], size.block_tokens)
    return lengths


def _timed(work: Callable[[], None]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peaks(work: Callable[[], None], devices: Sequence[torch.device]) -> dict[torch.device, int]:
    """The peak of `work` on every device."""
    if not devices:
        work()
        return {}
    inner: dict[torch.device, int] = {}
    peak = peak_bytes(lambda: inner.update(_peaks(work, devices[1:])), devices[0])
    return {devices[0]: peak, **inner}


def _skip(cache: SequenceCache, sample: SequenceCache, tokens: int) -> None:
    """Fill an empty cache with `tokens` tokens: those of `sample`, again and again."""
    if not tokens:
        return
    exported = [layer.export(0, sample.length) for layer in sample.layers]
    starts = range(0, tokens, sample.length)
    cache.restore(
        tokens,
        [[part and replace(part, first=at + part.first) for at in starts] for part in exported],
    )


def _encode_image(decoder: Decoder, edge: int) -> Tensor:
    """The features of a black image of the largest shape."""
    assert decoder.vision is not None
    shape = decoder.vision.description.layout.largest(edge)
    return decoder.vision(torch.zeros(shape.pixels), shape)


def _image_features(decoder: Decoder, features: Sequence[Tensor]) -> tuple[ImageFeatures, ...]:
    """Images in a row, if cross-attention layers attend to them."""
    vision = decoder.spec.vision
    if vision is None or vision.enters == "embeddings":
        return ()
    return tuple(ImageFeatures(torch.tensor([row]), x) for row, x in enumerate(features))


def _feed(
    decoder: Decoder, cache: SequenceCache, tokens: int, images: tuple[ImageFeatures, ...] = ()
) -> None:
    """New tokens as one chunk of a sequence, with the logits of as many as a draft has."""
    rows = range(max(tokens - MAX_DRAFT_ROWS, 0), tokens)
    new = SequenceInput(cache, [0] * tokens, cache.length + tokens, images, logits_rows=rows)
    decoder.forward(forward_batch([new]), [cache])


def measure(
    result: ProfileResult,
    weights: ModelWeights,
    free_bytes_before: Mapping[str, int],
    disk_bytes: int = 0,
) -> dict[str, Measured]:
    """Memory of each device by its torch name; `free_bytes_before` is from before loading.

    Weights on disk share `disk_bytes` of the CPU's memory.
    """
    weight_bytes = weights.bytes_by_device()
    if disk_bytes:
        weight_bytes[torch.device("cpu")] += disk_bytes
    return {
        str(device): Measured(
            weight_bytes=weight_bytes.get(device, 0),
            kv_bytes=result.kv_bytes.get(device, 0),
            activation_bytes=result.activation_bytes.get(device) or None,
            runtime_bytes=_runtime_bytes(device, free_bytes_before),
        )
        for device in weight_bytes
    }


def _runtime_bytes(device: torch.device, free_bytes_before: Mapping[str, int]) -> int | None:
    """Bytes of a GPU that are used, but not by torch's allocator."""
    before = free_bytes_before.get(str(device))
    if device.type != "cuda" or before is None:
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return max(0, before - free - torch.cuda.memory_reserved(device))
