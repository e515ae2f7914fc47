"""The decoder of a model: embedding, layers on their devices, final norm and output head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.unmerged_adapter import UnmergedAdapter
from mrs.cache.cache_space import CacheBuilder, CacheConfig, CacheSpace
from mrs.cache.sequence_cache import SequenceCache
from mrs.graph.step_rows import scored_pieces
from mrs.kernels.kv_codes import KVType
from mrs.layers.altup.module import StreamsModule
from mrs.layers.first_input.module import FirstInputModule
from mrs.layers.joined_input.module import JoinedInputModule
from mrs.layers.joined_input.spec import JoinedInput
from mrs.layers.layer_inputs.module import LayerInputsModule
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import RopeScaling
from mrs.model.adapters import AdapterRows, adapted_weights
from mrs.model.batch import ForwardBatch
from mrs.model.decoder_layer import maybe_norm
from mrs.model.disk_layers import DiskLayers
from mrs.model.layer_stack import LayerStack, activation_dtype
from mrs.model.model_weights import ModelWeights, NormModule
from mrs.model.native_layers import NativeSteps, native_head_of, native_model_of
from mrs.model.output_head import OutputHead
from mrs.model.pooler import PoolerModule
from mrs.plan.memory.cache_size import CacheSize

if TYPE_CHECKING:
    from mrs.model.vision.vision_module import VisionModule


class RemainingLayers(Protocol):
    """The remaining layers of a model, which other processes compute."""

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


class Decoder:
    """A model whose layers are on `layer_devices`; all else is on the embedding's device.

    `cache_dtype` is the type of cached keys and values, by default `dtype`. `remaining_layers`
    computes the layers after those of `layer_devices`, if there are any. Sequences of a batch may
    use `adapters`, by their index. Matrices of layers that are `on_disk` are read for each pass.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        layer_devices: Sequence[torch.device],
        dtype: torch.dtype,
        cache_dtype: KVType | None = None,
        remaining_layers: RemainingLayers | None = None,
        adapters: Sequence[UnmergedAdapter] = (),
        on_disk: DiskLayers | None = None,
    ) -> None:
        self.spec = spec
        self.adapter_ids = {adapter.name: index for index, adapter in enumerate(adapters)}
        self._dtype = dtype
        self._cache_dtype = cache_dtype or dtype
        self._embedding = weights.matrix("embedding")
        self._embedding_in = None
        if spec.embedding_size is not None:
            self._embedding_in = weights.linear("embedding_in")
        self._embedding_norm = None
        if spec.embedding_norm is not None:
            self._embedding_norm = NormModule(spec.embedding_norm, None, None)
        self._norm = weights.norm("norm", spec.norm) if spec.norm else None
        self._input: FirstInputModule | JoinedInputModule | None = None
        #: Whether the states that a draft head reads are those after the final norm.
        self.keeps_normed = True
        if isinstance(spec.input, JoinedInput):
            self._input = JoinedInputModule(spec.input, weights)
            self.keeps_normed = spec.input.feeds_normed
        elif spec.input is not None:
            self._input = FirstInputModule(spec.input, weights)
        self._streams = StreamsModule(spec.altup, weights) if spec.altup else None
        self._layer_inputs = None
        if spec.layer_inputs is not None:
            self._layer_inputs = LayerInputsModule(spec.layer_inputs, weights)
        self._head = self.pooler = None
        if spec.pooler is not None:
            self.pooler = PoolerModule(spec.pooler, weights, self.primary_device)
        else:
            self._head = OutputHead(spec, weights)
        self._native_head = native_head_of(spec, weights)
        self._rope_scalings = _find_rope_scalings(spec)
        #: The sequence lengths at which the model's rope factors change (longrope).
        self._rope_switch_lengths = {
            each.switch_tokens for each in self._rope_scalings if each.switch_tokens is not None
        }
        self.vision: VisionModule | None = None
        if spec.vision is not None:
            from mrs.model.vision.vision_module import VisionModule

            activation_dtype = self._activation_dtype(self.primary_device)
            self.vision = VisionModule(
                spec.vision, weights.under("vision."), self.primary_device, activation_dtype
            )
        self.stack = LayerStack(spec, weights, layer_devices, dtype, on_disk=on_disk)
        self._adapter_rows, self._adapted_stack = AdapterRows(), self.stack
        assert not (adapters and on_disk), "the plan refuses them"
        if adapters:  # the same layers, fused only where no adapter changes them
            adapted = adapted_weights(weights, adapters, self._adapter_rows)
            self._adapted_stack = LayerStack(
                spec, adapted, layer_devices, dtype, rope_tables=self.stack.rope_tables
            )
        self._remaining = remaining_layers
        self._native = None
        if remaining_layers is None and on_disk is None:
            first = self.stack.runs.get(0)
            self._native = native_model_of(spec, weights, first, self._native_head)
        # Such a norm is a part of the head's product, and leaves what it reads as it is.
        self._native_keeps = spec.norm is not None and spec.norm == Norm(spec.norm.eps)

    @property
    def primary_device(self) -> torch.device:
        """The device of the embedding and the output head."""
        return self._embedding.device

    @property
    def is_on_one_device(self) -> bool:
        """Whether this process computes the whole model on the primary device."""
        return self._remaining is None and {self.primary_device} == {*self.stack.devices}

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
        if self._remaining is not None:
            self._remaining.add_caches(builder)

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
        for scaling in self._rope_scalings:
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
        score: Callable[[slice, Tensor], None] | None = None,
        keep: Callable[[Tensor], None] | None = None,
    ) -> Tensor:
        """Logits (W, vocab) float32 of the batch's `logits_rows`; none with a pooler.

        `caches` are those of the batch's sequences; the new tokens are added to them. Activations
        move between devices only if the next layer is on another device. `check` is called before
        each layer, and may raise to abort the forward pass. `observe` gets the hidden states
        (N, hidden) of all tokens after the final norm. `score` gets the logits of pieces of the
        batch's `scored_rows`. `keep` gets the states (N, hidden) that a draft head reads next.
        """
        num_scored = len(batch.scored_rows)
        rows: Sequence[int] = [*batch.scored_rows, *batch.logits_rows]
        stack_caches = self.stack.cache_count
        own_caches = [each.layers[:stack_caches] for each in caches]
        stack = self.stack
        if batch.adapter_ids is not None:
            stack = self._adapted_stack
            self._adapter_rows.select(batch)
        is_plain = observe is None and not num_scored and stack is self.stack
        native = self._native if is_plain and (keep is None or self._native_keeps) else None
        if native is not None and native.supports(batch):
            check()
            is_normed = keep is not None and self.keeps_normed
            by_layer = stack.by_layer(list(zip(*own_caches, strict=True)))
            logits, x = native(batch, by_layer, is_normed=is_normed)
            _advance(caches, batch)
            if keep is not None:
                keep(x)
            assert self._head is not None
            return self._head.scaled(logits)
        batch = self.with_layer_inputs(batch)
        x = stack.forward(self.first_states(batch), batch, own_caches, check)
        if self._remaining is not None:
            x = self._remaining(x, batch, caches, rows if observe is None else range(x.shape[0]))
            rows = rows if observe is not None else list(range(len(rows)))
        _advance(caches, batch)
        if observe is not None:
            observe(self._normed(x))
        if keep is not None:
            keep(self._states(x))
        if self._head is None:
            return torch.empty(0)
        for piece in scored_pieces(num_scored):
            assert score is not None
            score(piece, self._logits(x[rows[piece]]))
        if num_scored or len(rows) < x.shape[0]:
            x = x[rows[num_scored:]]
        return self._logits(x)

    @property
    def has_steps(self) -> bool:
        """Whether `steps` may be called: all of it is native, and nothing depends on the length."""
        return self._native is not None and self._native.only_counts

    @property
    def has_read_steps(self) -> bool:
        """Whether so are those of a model whose states a draft head reads, or of a head."""
        return self.has_steps and self._native_keeps

    def steps(
        self,
        batch: ForwardBatch,
        caches: Sequence[SequenceCache],
        most_tokens: int,
        *,
        is_read: bool = False,
    ) -> NativeSteps:
        """Compute a batch as `forward` does; others of as many tokens of each may follow.

        In all each sequence gets at most `most_tokens`, in the same block of its cache. That takes
        up the first, and the caller counts the others there. If it `is_read`, a draft head reads
        the states next.
        """
        assert self._native is not None
        assert self._head is not None
        own_caches = [each.layers[: self.stack.cache_count] for each in caches]
        by_layer = self.stack.by_layer(list(zip(*own_caches, strict=True)))
        scale = self._head.scaled if self._head.scales else None
        is_normed = (is_read or self._native.reads_states) and self.keeps_normed
        steps = self._native.steps(batch, by_layer, most_tokens, scale, is_normed=is_normed)
        _advance(caches, batch)
        return steps

    def with_layer_inputs(self, batch: ForwardBatch) -> ForwardBatch:
        """The batch with the inputs of all layers, if the model has them."""
        if self._layer_inputs is None:
            return batch
        ids = batch.token_ids.to(self.primary_device)
        if batch.images:
            rows = torch.cat([image.rows for image in batch.images]).to(ids.device)
            ids = ids.index_fill(0, rows, self._layer_inputs.image_row)
        return replace(batch, layer_inputs=self._layer_inputs(ids, self._embed(batch)))

    def _normed(self, x: Tensor) -> Tensor:
        """The final norm of x (N, hidden), on the primary device."""
        if x.device != self.primary_device:
            x = x.to(self.primary_device, self._activation_dtype(self.primary_device))
        return maybe_norm(self._norm, x if self._streams is None else self._streams.join(x))

    def _states(self, x: Tensor) -> Tensor:
        """What a draft head reads of the last layer's output x (N, hidden), which may change."""
        is_copied = self.keeps_normed and self._norm is not None
        return self._normed(x) if is_copied else x.clone()

    def first_states(self, batch: ForwardBatch) -> Tensor:
        """What the first layer reads."""
        x = self._embed(batch)
        return x if self._streams is None else self._streams.split(x)

    def _embed(self, batch: ForwardBatch) -> Tensor:
        """(N, hidden) on the primary device, with image features in place of image tokens."""
        primary_device, ids = self.primary_device, batch.token_ids
        x = self._look_up(ids if ids.device == primary_device else ids.to(primary_device))
        if self.spec.vision is None or self.spec.vision.enters == "embeddings":
            for image in batch.images:
                features = image.features[:, : x.shape[1]]
                x[image.rows.to(primary_device)] = features.to(x.dtype)
        return x if self._input is None else self._input(x, batch)

    def _look_up(self, token_ids: Tensor) -> Tensor:
        """The scaled or normalized embeddings (N, hidden) of `token_ids` (N)."""
        x = self._embedding.rows(token_ids, self._activation_dtype(self.primary_device))
        x = x if self._embedding_in is None else self._embedding_in(x)
        x = maybe_norm(self._embedding_norm, x)
        return x if self.spec.embedding_scale == 1.0 else x * self.spec.embedding_scale

    def _project(self, x: Tensor) -> Tensor:
        """x (W, hidden) to logits (W, vocab) float32, before scale and cap."""
        assert self._head is not None
        return self._head.project(x)

    def _logits(self, x: Tensor) -> Tensor:
        """Logits (W, vocab) float32 of x (W, hidden), before the final norm; may overwrite x."""
        assert self._head is not None
        native = self._native_head
        logits = self._project(self._normed(x)) if native is None else native(x)
        return self._head.scaled(logits)

    def _activation_dtype(self, device: torch.device) -> torch.dtype:
        return activation_dtype(device, self._dtype)


def _advance(caches: Sequence[SequenceCache], batch: ForwardBatch) -> None:
    for cache, (span, _) in zip(caches, batch.queries, strict=True):
        cache.advance(span.stop - span.start)


def _find_rope_scalings(spec: ModelSpec) -> set[RopeScaling]:
    ropes = {layer.mixer.rope for layer in spec.layers}
    return {rope.scaling for rope in ropes if rope is not None and rope.scaling is not None}
