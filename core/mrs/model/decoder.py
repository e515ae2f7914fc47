"""The decoder of a model: embedding, layers on their devices, final norm and output head."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.cross_attention_spec import CrossAttention
from mrs.architecture.mixers.mixer import NoFeedForward, NoMixer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Rope, RopeScaling
from mrs.architecture.unmerged_adapter import UnmergedAdapter
from mrs.cache.cache_space import CacheBuilder, CacheConfig, CacheSpace
from mrs.cache.layer_cache import LayerCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.model.adapters import AdapterRows, adapted_weights
from mrs.model.altup import AltUpLayer, StreamsModule
from mrs.model.batch import ForwardBatch
from mrs.model.cross_attention import CrossAttentionLayer
from mrs.model.encoder_input import EncoderInputModule
from mrs.model.fused_blocks import fuse_attention, fuse_feed_forward
from mrs.model.fused_chain import FusedLayer, find_chains
from mrs.model.laurel import LaurelModule
from mrs.model.layer_inputs import GatedInputModule, LayerInputsModule
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights, NormModule
from mrs.model.modules import build_feed_forward, build_mixer
from mrs.model.readout import ReadoutModule
from mrs.model.rope import RopeTable, file_factors
from mrs.model.vision.vision_module import VisionModule
from mrs.sizes.blocks import CacheSize

#: Adds up the outputs (N, hidden) of the same module in several processes.
SumOfRanks = Callable[[Tensor], Tensor]


class DecoderLayer:
    """Token mixer and feed-forward block, of any style but `gated`.

    If several processes share its weights, `sum_of_ranks` adds up what each computes.
    """

    def __init__(
        self,
        layer: Layer,
        index: int,
        weights: ModelWeights,
        rope: RopeTable | None,
        sum_of_ranks: SumOfRanks | None = None,
    ) -> None:
        self._index = index
        self._scale = layer.residual_scale
        self._sum_of_ranks = sum_of_ranks
        self._is_parallel = layer.style == "parallel"
        self._norms_sum = layer.style == "post_sum"
        self.mixer = build_mixer(layer.mixer, weights, rope)
        self._feed_forward = build_feed_forward(layer.feed_forward, weights)
        self._mixer_norm = self._norm = self._mixer_post_norm = self._post_norm = None
        self._has_mixer = not isinstance(layer.mixer, NoMixer)
        self._has_feed_forward = not isinstance(layer.feed_forward, NoFeedForward)
        if layer.has_mixer_norm:
            self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        if layer.has_feed_forward_norm:
            self._norm = weights.norm("ffn.norm", layer.norm)
        if layer.has_post_norms:
            self._mixer_post_norm = weights.norm("mixer.post_norm", layer.norm)
            self._post_norm = weights.norm("ffn.post_norm", layer.norm)
        self._gated_input = None
        if layer.gated_input is not None:
            self._gated_input = GatedInputModule(layer.gated_input, weights)
        self._laurel = LaurelModule(layer.laurel, weights) if layer.laurel else None
        self._output_scale = weights.vector("output_scale") if layer.output_scale else None
        is_whole = sum_of_ranks is None
        self._fused_mixer = fuse_attention(layer, weights, rope) if is_whole else None
        self._fused_feed_forward = fuse_feed_forward(layer, weights) if is_whole else None

    @property
    def fused(self) -> FusedLayer | None:
        """Both blocks, if the native library computes them."""
        if self._fused_mixer is None or self._fused_feed_forward is None:
            return None
        return FusedLayer(self._fused_mixer, self._fused_feed_forward)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""
        if self._is_parallel:
            normed = _maybe(self._mixer_norm, x)
            mixed = self._summed(self.mixer(normed, batch, cache))
            return x + mixed + self._summed(self._feed_forward(normed))
        x = self.compute(x, batch, cache)
        added = self.own_input(x, batch)
        if added is not None:
            x = x + added
        return x if self._output_scale is None else x.mul_(self._output_scale)

    def compute(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) after mixer and feed-forward module."""
        if self._has_mixer:
            x = self._mix(x, batch, cache)
        return self._transform(x) if self._has_feed_forward else x

    def own_input(self, x: Tensor, batch: ForwardBatch) -> Tensor | None:
        """What the layer's own input adds, (N, hidden), if it has one."""
        if self._gated_input is None or batch.layer_inputs is None:
            return None
        return self._gated_input(x, batch.layer_inputs[:, self._index])

    def _mix(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        if self._fused_mixer is not None and self._fused_mixer.supports(x):
            return self._fused_mixer(x, batch, cache)
        if self._laurel is not None:
            normed = _maybe(self._mixer_norm, x)
            out = _maybe(self._mixer_post_norm, self.mixer(normed, batch, cache))
            return (x + out).add_(self._laurel(normed)).mul_(math.sqrt(0.5))
        out = self._summed(self.mixer(_maybe(self._mixer_norm, x), batch, cache))
        if self._norms_sum:
            return _maybe(self._mixer_post_norm, out.add_(x))
        out = _maybe(self._mixer_post_norm, out)
        return x + out * self._scale if self._scale != 1.0 else x + out

    def _transform(self, x: Tensor) -> Tensor:
        if self._fused_feed_forward is not None and self._fused_feed_forward.supports(x):
            return self._fused_feed_forward(x)
        out = self._summed(self._feed_forward(_maybe(self._norm, x)))
        if self._norms_sum:
            return _maybe(self._post_norm, out.add_(x))
        out = _maybe(self._post_norm, out)
        return x + out * self._scale if self._scale != 1.0 else x + out

    def _summed(self, out: Tensor) -> Tensor:
        return out if self._sum_of_ranks is None else self._sum_of_ranks(out)


def _maybe(norm: NormModule | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


#: A table of cos and sin for each rope and device.
RopeTables = dict[tuple[Rope, torch.device], RopeTable]


class LayerStack:
    """Consecutive layers of a model from index `first` on, each on its device.

    Activations are float32 on a CPU, whose kernels accumulate in float32 anyway, and of `dtype` on
    other devices.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        first: int = 0,
        rope_tables: RopeTables | None = None,
        sum_of_ranks: SumOfRanks | None = None,
    ) -> None:
        self.indices = range(first, first + len(devices))
        self.devices = devices
        self._cache_counts = [spec.layers[index].mixer.cache_count for index in self.indices]
        self._dtype = dtype
        self.rope_tables = {} if rope_tables is None else rope_tables
        self.layers = _build_layers(
            spec, weights, self.indices, devices, self.rope_tables, sum_of_ranks
        )
        self.chains = find_chains(
            [layer.fused if isinstance(layer, DecoderLayer) else None for layer in self.layers]
        )

    def add_caches(self, builder: CacheBuilder) -> None:
        """Declare the cache of each layer."""
        for layer, device in zip(self.layers, self.devices, strict=True):
            layer.mixer.add_cache(builder, device)

    @property
    def cache_count(self) -> int:
        """Caches of all these layers for one sequence."""
        return sum(self._cache_counts)

    def by_layer(self, caches: Sequence[Any]) -> Sequence[Any]:
        """One entry for each layer: its cache, or a tuple of them, from those of all layers."""
        if self.cache_count == len(self.layers):
            return caches
        rest = iter(caches)
        return [
            next(rest) if count == 1 else tuple(next(rest) for _ in range(count))
            for count in self._cache_counts
        ]

    def forward(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[Sequence[LayerCache]],
        check: Callable[[], None],
    ) -> Tensor:
        """x (N, hidden) to (N, hidden), on the last layer's device.

        `caches` has for each sequence the caches of these layers. Activations move between devices
        only if the next layer is on another one. `check` is called before each layer.
        """
        # A method of its own: the arguments of `__call__` would stay alive until it returns, and
        # with them the first hidden states.
        by_layer = self.by_layer(list(zip(*caches, strict=True)))
        index = 0
        while index < len(self.layers):
            check()
            device = self.devices[index]
            if x.device != device:
                x = x.to(device, activation_dtype(device, self._dtype))
            batch = batch.on(device)
            chain = self.chains.get(index)
            if chain is not None and chain.supports(x, batch):
                x = chain(x, batch, by_layer)
                index = chain.layer_indices.stop
            else:
                x = self.layers[index](x, batch, by_layer[index])
                index += 1
        return x


class FurtherLayers(Protocol):
    """The layers of a model after those of this process, which other processes compute."""

    def add_caches(self, builder: CacheBuilder) -> None:
        """Declare the cache of each layer."""

    def __call__(
        self,
        x: Tensor,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        rows: Sequence[int],
    ) -> Tensor:
        """x (N, hidden) to the wanted rows (R, hidden) of the last layer's output.

        The caches of these layers take up the new tokens. Without wanted rows it returns before
        they are computed.
        """


def activation_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else dtype


class Decoder:
    """A model whose layers are on `layer_devices`; all else is on the embedding's device.

    `cache_dtype` is the type of cached keys and values, by default `dtype`. `further` computes the
    layers after those of `layer_devices`, if there are any. Sequences of a batch may use
    `adapters`, by their index. `sum_of_ranks` as in `DecoderLayer`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layer_devices: Sequence[torch.device],
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
        further: FurtherLayers | None = None,
        sum_of_ranks: SumOfRanks | None = None,
        adapters: Sequence[UnmergedAdapter] = (),
    ) -> None:
        self.spec = spec
        self.adapter_ids = {adapter.name: index for index, adapter in enumerate(adapters)}
        self._dtype = dtype
        self._cache_dtype = cache_dtype or dtype
        self._embedding = weights.matrix("embedding")
        self._norm = weights.norm("norm", spec.norm) if spec.norm else None
        self._input = EncoderInputModule(spec.input, weights) if spec.input else None
        self._streams = StreamsModule(spec.altup, weights) if spec.altup else None
        self._layer_inputs = None
        if spec.layer_inputs is not None:
            self._layer_inputs = LayerInputsModule(spec.layer_inputs, weights)
        self._head = self.readout = None
        if spec.readout is not None:
            self.readout = ReadoutModule(spec.readout, weights, self.primary_device)
        else:
            matrix = weights.matrix(spec.head_weight.removesuffix(".weight"))
            self._head = Linear(matrix, weights.optional_vector("head.bias"))
        self._rope_switch_lengths = _find_rope_switch_lengths(spec)
        self.vision = None
        if spec.vision is not None:
            activation_dtype = self._activation_dtype(self.primary_device)
            self.vision = VisionModule(
                spec.vision, weights.under("vision."), self.primary_device, activation_dtype
            )
        self.stack = LayerStack(spec, weights, layer_devices, dtype, sum_of_ranks=sum_of_ranks)
        self._adapter_rows, self._adapted_stack = AdapterRows(), self.stack
        if adapters:  # the same layers, fused only where no adapter changes them
            adapted = adapted_weights(weights, adapters, self._adapter_rows)
            self._adapted_stack = LayerStack(
                spec, adapted, layer_devices, dtype, rope_tables=self.stack.rope_tables
            )
        self._further = further

    @property
    def primary_device(self) -> torch.device:
        """The device of the embedding and the output head."""
        return self._embedding.device

    @property
    def is_on_one_device(self) -> bool:
        """Whether this process computes the whole model on the primary device."""
        return self._further is None and {self.primary_device} == {*self.stack.devices}

    def reserve_positions(self, count: int) -> tuple[int, ...]:
        """Have the rotary angles of the first `count` positions; how many each table has now.

        A table moves in memory when it grows.
        """
        for rope in self.stack.rope_tables.values():
            rope.reserve(count)
        return tuple(rope.rows for rope in self.stack.rope_tables.values())

    def new_space(self, size: CacheSize) -> CacheSpace:
        """Memory for the caches of all sequences."""
        builder = CacheBuilder(CacheConfig(size, self._cache_dtype))
        self._add_caches(builder)
        return builder.build()

    def _add_caches(self, builder: CacheBuilder) -> None:
        self.stack.add_caches(builder)
        if self._adapted_stack is not self.stack:
            # Its layers use the same caches, and choose how to compute attention over them.
            self._adapted_stack.add_caches(CacheBuilder(builder.config))
        if self._further is not None:
            self._further.add_caches(builder)

    def new_cache(self, capacity_tokens: int, chunk_tokens: int) -> SequenceCache:
        """An empty cache for one sequence of up to `capacity_tokens`, with its own memory."""
        return self.new_space(CacheSize(capacity_tokens, 1, chunk_tokens)).new()

    def needs_recompute(self, cache: SequenceCache, total_tokens: int) -> bool:
        """Whether the keys in `cache` are rotated wrongly for a sequence of `total_tokens`.

        If so, all of its tokens have to be computed again, with an empty cache.
        """
        lengths = self._rope_switch_lengths
        return any(0 < cache.length <= switch < total_tokens for switch in lengths)

    def rope_epoch(self, total_tokens: int) -> int | None:
        """Which rope factors a sequence of `total_tokens` uses.

        Sequences of the same epoch can share cached keys. None: the factors depend on the exact
        length, so that keys cannot be shared.
        """
        for scaling in _rope_scalings(self.spec):
            trained = scaling.get("max_position_embeddings", 2048)
            if scaling.kind == "dynamic" and total_tokens > trained:
                return None
        return sum(switch < total_tokens for switch in self._rope_switch_lengths)

    def forward(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        check: Callable[[], None] = lambda: None,
        observe: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Logits (W, vocab) float32 of the batch's `logits_rows`; none with a readout.

        `caches` are those of the batch's sequences; the new tokens are added to them. Activations
        move between devices only if the next layer is on another device. `check` is called before
        each layer, and may raise to abort the forward pass. `observe` gets the hidden states
        (N, hidden) of all tokens after the final norm.
        """
        rows: Sequence[int] = batch.logits_rows
        own = self.stack.cache_count
        own_caches = [each.layers[:own] for each in caches]
        stack = self.stack
        if batch.adapter_ids is not None:
            stack = self._adapted_stack
            self._adapter_rows.select(batch)
        batch = self._with_layer_inputs(batch)
        x = stack.forward(self._first_states(batch), batch, own_caches, check)
        if self._further is not None:
            x = self._further(x, batch, caches, rows if observe is None else range(x.shape[0]))
        for cache, (span, _) in zip(caches, batch.queries, strict=True):
            cache.advance(span.stop - span.start)
        if observe is not None:
            observe(self._normed(x))
        if self._head is None:
            return torch.empty(0)
        if len(rows) < x.shape[0]:
            x = x[rows]
        return self._logits(self._normed(x))

    def _with_layer_inputs(self, batch: ForwardBatch) -> ForwardBatch:
        if self._layer_inputs is None:
            return batch
        ids = batch.token_ids.to(self.primary_device)
        return replace(batch, layer_inputs=self._layer_inputs(ids, self._embed(batch)))

    def _normed(self, x: Tensor) -> Tensor:
        """The final norm of x (N, hidden), on the primary device."""
        if x.device != self.primary_device:
            x = x.to(self.primary_device, self._activation_dtype(self.primary_device))
        return _maybe(self._norm, x if self._streams is None else self._streams.join(x))

    def _first_states(self, batch: ForwardBatch) -> Tensor:
        """What the first layer reads."""
        x = self._embed(batch)
        return x if self._streams is None else self._streams.split(x)

    def _embed(self, batch: ForwardBatch) -> Tensor:
        """(N, hidden) on the primary device, with image features in place of image tokens."""
        primary_device = self.primary_device
        x = self._look_up(batch.token_ids.to(primary_device))
        if self.spec.vision is not None and self.spec.vision.enters == "embeddings":
            for image in batch.images:
                x[image.rows.to(primary_device)] = image.features.to(x.dtype)
        return x if self._input is None else self._input(x, batch)

    def _look_up(self, token_ids: Tensor) -> Tensor:
        """The scaled embeddings (N, hidden) of `token_ids` (N)."""
        x = self._embedding.rows(token_ids, self._activation_dtype(self.primary_device))
        return x if self.spec.embedding_scale == 1.0 else x * self.spec.embedding_scale

    def _project(self, x: Tensor) -> Tensor:
        """x (W, hidden) to logits (W, vocab) float32, before scale and cap."""
        assert self._head is not None
        return self._head(x).float()

    def _logits(self, x: Tensor) -> Tensor:
        logits = self._project(x)
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        if self.spec.logit_softcap is not None:
            logits = torch.tanh(logits / self.spec.logit_softcap) * self.spec.logit_softcap
        return logits

    def _activation_dtype(self, device: torch.device) -> torch.dtype:
        return activation_dtype(device, self._dtype)


def _build_layers(
    spec: ModelSpec,
    weights: ModelWeights,
    indices: range,
    devices: Sequence[torch.device],
    tables: RopeTables,
    sum_of_ranks: SumOfRanks | None,
) -> list[DecoderLayer | AltUpLayer | CrossAttentionLayer]:
    """The layers `indices`; those with the same rope and device share a table of cos and sin."""
    layers: list[DecoderLayer | AltUpLayer | CrossAttentionLayer] = []
    factors = file_factors(weights)
    for index, device in zip(indices, devices, strict=True):
        layer = spec.layers[index]
        if isinstance(layer.mixer, CrossAttention):
            layers.append(CrossAttentionLayer(layer, weights.layer(index)))
            continue
        rope = layer.mixer.rope
        if rope is not None and (rope, device) not in tables:
            tables[rope, device] = RopeTable(rope, device, factors)
        table = None if rope is None else tables[rope, device]
        own = DecoderLayer(layer, index, weights.layer(index), table, sum_of_ranks)
        layers.append(AltUpLayer(layer.altup, own, weights.layer(index)) if layer.altup else own)
    return layers


def _find_rope_switch_lengths(spec: ModelSpec) -> set[int]:
    """The sequence lengths at which the model's rope factors change (longrope)."""
    switches = {scaling.switch_tokens for scaling in _rope_scalings(spec)}
    return {switch for switch in switches if switch is not None}


def _rope_scalings(spec: ModelSpec) -> set[RopeScaling]:
    ropes = {layer.mixer.rope for layer in spec.layers}
    return {rope.scaling for rope in ropes if rope is not None and rope.scaling is not None}
