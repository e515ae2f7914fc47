"""The whole decoder: embedding, layers on their devices, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mrs.cache.sequence import SequenceCache
from mrs.cache.space import CacheBuilder, CacheConfig, CacheSpace
from mrs.families.spec import CrossAttention, Layer, ModelSpec, RopeScaling
from mrs.model.batch import ForwardBatch
from mrs.model.cross_attention import CrossAttentionLayer
from mrs.model.halves import fuse_attention, fuse_feed_forward
from mrs.model.layer_run import FusedLayer, find_runs
from mrs.model.matrix import Linear
from mrs.model.parts import build_feed_forward, build_mixer
from mrs.model.rope import RopeTable, file_factors
from mrs.model.vision.build import VisionPart
from mrs.model.weights import ModelWeights
from mrs.sizes.blocks import BLOCK_TOKENS


class DecoderLayer:
    """One layer: mixes tokens, then transforms each, in one of three styles."""

    def __init__(self, layer: Layer, weights: ModelWeights, rope: RopeTable | None) -> None:
        self._scale = layer.residual_scale
        self._is_parallel = layer.style == "parallel"
        self.mixer = build_mixer(layer.mixer, weights, rope)
        self._feed_forward = build_feed_forward(layer.feed_forward, weights)
        self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        self._mixer_post_norm = self._post_norm = None
        if not self._is_parallel:
            self._norm = weights.norm("ffn.norm", layer.norm)
        if layer.style == "sandwich":
            self._mixer_post_norm = weights.norm("mixer.post_norm", layer.norm)
            self._post_norm = weights.norm("ffn.post_norm", layer.norm)
        self._fused_mixer = fuse_attention(layer, weights, rope)
        self._fused_feed_forward = fuse_feed_forward(layer, weights)

    @property
    def fused(self) -> FusedLayer | None:
        """Both halves, if the native library computes them."""
        if self._fused_mixer is None or self._fused_feed_forward is None:
            return None
        return self._fused_mixer, self._fused_feed_forward

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""
        if self._is_parallel:
            normed = self._mixer_norm(x)
            return x + self.mixer(normed, batch, cache) + self._feed_forward(normed)
        return self._transform(self._mix(x, batch, cache))

    def _mix(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        if self._fused_mixer is not None and self._fused_mixer.takes(x):
            return self._fused_mixer(x, batch, cache)
        mixed = self.mixer(self._mixer_norm(x), batch, cache)
        if self._mixer_post_norm is not None:
            mixed = self._mixer_post_norm(mixed)
        return x + mixed * self._scale if self._scale != 1.0 else x + mixed

    def _transform(self, x: Tensor) -> Tensor:
        if self._fused_feed_forward is not None and self._fused_feed_forward.takes(x):
            return self._fused_feed_forward(x)
        out = self._feed_forward(self._norm(x))
        if self._post_norm is not None:
            out = self._post_norm(out)
        return x + out * self._scale if self._scale != 1.0 else x + out


class Decoder:
    """A model whose layers sit on `layer_devices`; the rest sits on the embedding's device.

    `cache_dtype` is the type of keys and values. Activations are float32 on a CPU, where kernels
    accumulate in it anyway, and of `cache_dtype` elsewhere.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layer_devices: Sequence[torch.device],
        cache_dtype: torch.dtype,
    ) -> None:
        self.spec = spec
        self._layer_devices = layer_devices
        self._cache_dtype = cache_dtype
        self._embedding = weights.matrix("embedding")
        self._norm = weights.norm("norm", spec.norm)
        head = "embedding" if spec.tied_head else "head"
        self._head = Linear(weights.matrix(head), weights.optional_vector("head.bias"))
        self._switches = _rope_switches(spec)
        self.vision = None
        if spec.vision is not None:
            dtype = self._activation_dtype(self.home)
            self.vision = VisionPart(spec.vision, weights.under("vision."), self.home, dtype)
        tables: dict[object, RopeTable] = {}
        factors = file_factors(weights)
        self._layers: list[DecoderLayer | CrossAttentionLayer] = []
        for index, (layer, device) in enumerate(zip(spec.layers, layer_devices, strict=True)):
            if isinstance(layer.mixer, CrossAttention):
                self._layers.append(CrossAttentionLayer(layer, weights.layer(index)))
                continue
            rope = layer.mixer.rope
            if rope is not None and (rope, device) not in tables:
                tables[rope, device] = RopeTable(rope, device, factors)
            table = tables.get((rope, device))
            self._layers.append(DecoderLayer(layer, weights.layer(index), table))
        self._runs = find_runs(
            [layer.fused if isinstance(layer, DecoderLayer) else None for layer in self._layers]
        )

    @property
    def home(self) -> torch.device:
        """Where tokens go in and logits come out."""
        return self._embedding.device

    def new_space(
        self,
        tokens: int,
        chunk_tokens: int,
        *,
        sequences: int = 1,
        block_tokens: int = BLOCK_TOKENS,
    ) -> CacheSpace:
        """Memory for the caches of `sequences` sequences of `tokens` each, prompts in chunks."""
        dtype = self._cache_dtype
        builder = CacheBuilder(CacheConfig(tokens, sequences, chunk_tokens, dtype, block_tokens))
        for layer, device in zip(self._layers, self._layer_devices, strict=True):
            layer.mixer.add_cache(builder, device)
        return builder.build()

    def new_cache(self, capacity_tokens: int, chunk_tokens: int) -> SequenceCache:
        """An empty cache for one sequence, with memory of its own for `capacity_tokens`."""
        return self.new_space(capacity_tokens, chunk_tokens).new()

    def is_outdated(self, cache: SequenceCache, total_tokens: int) -> bool:
        """Whether a sequence of `total_tokens` turns its keys otherwise than those in `cache`.

        Its tokens then have to be fed once more, to an empty cache.
        """
        return any(0 < cache.length <= switch < total_tokens for switch in self._switches)

    def era(self, total_tokens: int) -> int | None:
        """What the keys of a sequence of `total_tokens` depend on beside its tokens.

        Sequences of one era may share keys; None stands for a length that shares none with any.
        """
        for scaling in _rope_scalings(self.spec):
            trained = scaling.get("max_position_embeddings", 2048)
            if scaling.kind == "dynamic" and total_tokens > trained:
                return None
        return sum(switch < total_tokens for switch in self._switches)

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Logits (W, vocab) float32 after the batch's `logits_rows`.

        `caches` are those of the batch's sequences, which take up the new tokens. Activations
        move between devices only where the next layer sits on another one. `check` is called
        before each layer, and may raise to give the step up.
        """
        by_layer = list(zip(*(cache.layers for cache in caches), strict=True))
        # Nothing else holds x: what was before a layer goes when it is done.
        x, index = self._embed(batch), 0
        here = batch
        while index < len(self._layers):
            check()
            device = self._layer_devices[index]
            if x.device != device:
                x = x.to(device, self._activation_dtype(device))
            here = here.on(device)
            run = self._runs.get(index)
            if run is not None and run.takes(x, here):
                x = run(x, here, by_layer)
                index = run.places.stop
            else:
                x = self._layers[index](x, here, by_layer[index])
                index += 1
        for cache, (rows, _) in zip(caches, batch.queries, strict=True):
            cache.advance(rows.stop - rows.start)
        if batch.logits_rows.shape[0] < x.shape[0]:
            x = x[batch.logits_rows.to(x.device)]
        if x.device != self.home:
            x = x.to(self.home, self._activation_dtype(self.home))
        return self._logits(self._norm(x))

    def _embed(self, batch: ForwardBatch) -> Tensor:
        """(N, hidden), at home; with features of images in the place of tokens, where it is so."""
        home = self.home
        x = self._embedding.rows(batch.token_ids.to(home), self._activation_dtype(home))
        if self.spec.embedding_scale != 1.0:
            x = x * self.spec.embedding_scale
        if self.spec.vision is not None and self.spec.vision.enters == "embeddings":
            for image in batch.images:
                x[image.rows.to(home)] = image.features.to(x.dtype)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        logits = self._head(x).float()
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_softcap is not None:
            logits = torch.tanh(logits / self.spec.logit_softcap) * self.spec.logit_softcap
        return logits

    def _activation_dtype(self, device: torch.device) -> torch.dtype:
        return torch.float32 if device.type == "cpu" else self._cache_dtype


def _rope_switches(spec: ModelSpec) -> set[int]:
    """The lengths at which a rope of the model changes."""
    switches = {scaling.switch_tokens for scaling in _rope_scalings(spec)}
    return {switch for switch in switches if switch is not None}


def _rope_scalings(spec: ModelSpec) -> set[RopeScaling]:
    ropes = {layer.mixer.rope for layer in spec.layers}
    return {rope.scaling for rope in ropes if rope is not None and rope.scaling is not None}
