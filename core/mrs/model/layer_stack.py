"""Consecutive layers of a model, each on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.cache.cache_space import CacheBuilder
from mrs.cache.layer_cache import LayerCache
from mrs.layers.attention.spec import SharedAttention
from mrs.layers.cross_attention.module import CrossAttentionLayer
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.rope.module import RopeTable, file_factors
from mrs.layers.rope.spec import Rope
from mrs.model.batch import ForwardBatch
from mrs.model.decoder_layer import DecoderLayer, StreamsLayer
from mrs.model.disk_layers import DiskLayers
from mrs.model.model_weights import ModelWeights
from mrs.model.native_layers import find_runs

#: A table of cos and sin for each rope and device.
RopeTables = dict[tuple[Rope, torch.device], RopeTable]


class LayerStack:
    """Consecutive layers of a model from index `first` on, each on its device.

    Activations are float32 on a CPU, whose kernels accumulate in float32 anyway, and of `dtype` on
    other devices. The matrices of those `on_disk`, by their index here, are read for each pass.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        devices: Sequence[torch.device],
        dtype: torch.dtype,
        first: int = 0,
        rope_tables: RopeTables | None = None,
        on_disk: DiskLayers | None = None,
    ) -> None:
        self.indices = range(first, first + len(devices))
        self.devices = devices
        self._cache_counts = [spec.layers[index].mixer.cache_count for index in self.indices]
        self._dtype = dtype
        self.rope_tables = {} if rope_tables is None else rope_tables
        self.layers = _build_layers(spec, weights, self.indices, devices, self.rope_tables)
        #: Adjacent layers that one native call computes, by the first of them.
        self.runs = find_runs(
            [None if isinstance(layer, StreamsLayer) else layer.native for layer in self.layers],
            alone=on_disk or (),
        )
        self._on_disk = on_disk

    def add_caches(self, builder: CacheBuilder) -> None:
        """Declare the cache of each layer."""
        for layer, device in zip(self.layers, self.devices, strict=True):
            layer.mixer.add_cache(builder, device)

    @property
    def has_host_choices(self) -> bool:
        """True if some layer routes tokens on the host, so that a step cannot be captured."""
        return any(getattr(layer, "has_host_choices", False) for layer in self.layers)

    @property
    def cache_count(self) -> int:
        """Caches of all these layers for one sequence."""
        return sum(self._cache_counts)

    def by_layer(self, caches: Sequence[Any]) -> Sequence[Any]:
        """The caches grouped by layer: the cache of each layer, or a tuple of several."""
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
        has_features = batch.has_features_for(x.shape[-1])
        index = 0
        while index < len(self.layers):
            check()
            device = self.devices[index]
            if x.device != device:
                x = x.to(device, activation_dtype(device, self._dtype))
            batch = batch.on(device)
            run = None if has_features else self.runs.get(index)
            if run is not None and not run.supports(batch, by_layer):
                run = None
            with self._on_disk.held(index) if self._on_disk else nullcontext():
                if run is not None:
                    x = run(x, batch, by_layer, check)
                    index = run.layer_indices.stop
                else:
                    x = self.layers[index](x, batch, by_layer[index])
                    for image in batch.images if has_features else ():
                        image.add_to(x, self.indices[index])
                    index += 1
        return x


def activation_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else dtype


def _build_layers(
    spec: ModelSpec,
    weights: ModelWeights,
    indices: range,
    devices: Sequence[torch.device],
    tables: RopeTables,
) -> list[DecoderLayer | StreamsLayer | CrossAttentionLayer]:
    """The layers `indices`; those with the same rope and device share a table of cos and sin."""
    layers: list[DecoderLayer | StreamsLayer | CrossAttentionLayer] = []
    factors = file_factors(weights)
    for index, device in zip(indices, devices, strict=True):
        layer = spec.layers[index]
        own = (layer, spec.hidden_size, index - indices.start, weights.layer(index))
        if isinstance(layer.mixer, CrossAttention):
            layers.append(CrossAttentionLayer(*own))
            continue
        rope = layer.mixer.rope
        if rope is not None and (rope, device) not in tables:
            tables[rope, device] = RopeTable(rope, device, factors)
        table = None if rope is None else tables[rope, device]
        source = layer.mixer.layer if isinstance(layer.mixer, SharedAttention) else index
        decoder_layer = DecoderLayer(
            *own,
            table,
            reads_elsewhere=devices[source - indices.start] != device,
        )
        if layer.altup is None:
            layers.append(decoder_layer)
        else:
            layers.append(StreamsLayer(*own, decoder_layer))
    return layers
