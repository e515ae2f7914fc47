"""What a model asks of a device: weights, KV cache and activations of each layer, in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial

from mrs.architecture.layers import Layer
from mrs.devices.cpu_path import cpu_path, torch_units
from mrs.devices.device import Device
from mrs.devices.processor import cpu_threads
from mrs.formats import FORMATS, Format
from mrs.plan.memory.forward_pass import ForwardShape
from mrs.plan.memory.kv_bytes import layer_kv_bytes
from mrs.plan.memory.layer_activations import (
    head_activation_bytes,
    layer_activation_bytes,
    persistent_bytes,
)
from mrs.plan.memory.stored_weights import ModelWeightsInfo, StoredWeights
from mrs.plan.memory.vision_sizes import Pictures, VisionSizes, vision_sizes
from mrs.request import PREFILL_CHUNK_TOKENS
from mrs.sizes.blocks import BLOCK_TOKENS, CacheSize
from mrs.storage import Storage, StorageRules


@dataclass(frozen=True)
class DeviceSizes:
    """A whole model as one device would hold it, one entry a layer.

    `layer_act_bytes` is what lives while a layer runs, `head_act_bytes` while embedding and head
    run, `persistent_bytes` what stays beside both. `vision` is part of the non-mapped weights, and
    of what embedding and head take.
    """

    kept: StoredWeights
    kv_bytes: Sequence[int]
    layer_act_bytes: Sequence[int]
    head_act_bytes: int
    persistent_bytes: int
    vision: VisionSizes | None = None

    @property
    def storage(self) -> Mapping[str, Storage]:
        return self.kept.storage

    @property
    def layer_bytes(self) -> Sequence[int]:
        """Weights of each layer."""
        return self.kept.layer_bytes

    @property
    def non_mapped_bytes(self) -> int:
        """Weights of embedding, final norm and head."""
        return self.kept.non_mapped_bytes

    @property
    def mapped_act_bytes(self) -> int:
        """Activations of the largest layer, as the strategies want them."""
        return max(self.layer_act_bytes, default=0) + self.persistent_bytes

    @property
    def non_mapped_act_bytes(self) -> int:
        return self.head_act_bytes + self.persistent_bytes + self.feature_bytes

    @property
    def feature_bytes(self) -> int:
        """What was seen of pictures and waits for its place in the prompt."""
        return self.vision.feature_bytes if self.vision else 0


@dataclass(frozen=True)
class Workload:
    """What is planned for: `batch` sequences of `context_tokens`, prompts in chunks.

    The KV cache has blocks of `block_tokens`: `pool_blocks` of them, or as many as are needed.
    """

    context_tokens: int
    batch: int
    chunk_tokens: int = PREFILL_CHUNK_TOKENS
    block_tokens: int = BLOCK_TOKENS
    pool_blocks: int | None = None

    @property
    def cache(self) -> CacheSize:
        """What the KV cache is made for."""
        sizes = self.context_tokens, self.chunk_tokens, self.block_tokens
        if self.pool_blocks is not None:
            return CacheSize.of_pool(self.pool_blocks, *sizes)
        return CacheSize(sizes[0], self.batch, *sizes[1:])

    def passes(
        self,
        dense: Format,
        cache: Format,
        *,
        on_cpu: bool,
        native: bool,
        shown: Pictures | None = None,
    ) -> tuple[ForwardShape, ForwardShape]:
        """A whole chunk at the end of the context, and one new token of every sequence.

        Activations are `dense` except on a CPU. All pictures that are `shown` stand in the chunk.
        """
        chunk = min(self.chunk_tokens, self.context_tokens)
        make = partial(
            ForwardShape,
            context_tokens=self.context_tokens,
            activation=FORMATS["F32"] if on_cpu else dense,
            cache=cache,
            threads=cpu_threads() if on_cpu else 0,
            path=cpu_path() if native else "torch",
            torch_units=torch_units() if on_cpu else frozenset(),
            image_keys=shown.keys if shown else 0,
        )
        reading = make(chunk, chunk, new_image_keys=shown.largest.keys if shown else 0)
        return reading, make(self.batch, 1)


class ModelSizes:
    """Sizes of one model on any device; devices that store alike share them.

    `dense` is the type of what is not quantized, `level` that of `--isq`, `cache` that of keys and
    values. `kv_bytes` are those of the cache of the load, `sequence_kv_bytes` those of one
    sequence, of each layer.
    """

    def __init__(
        self,
        files: ModelWeightsInfo,
        load: Workload,
        dense: Format,
        level: Format | None,
        *,
        cpu_packs: bool,
        cache: Format | None = None,
        shown: Pictures | None = None,
    ) -> None:
        self.spec = files.spec
        self.parameters = files.parameters
        self.load = load
        self.dense = dense
        self.cache = cache or dense
        self._files = files
        self._level = level
        self._cpu_packs = cpu_packs
        self._shown = shown
        self.image_keys = shown.keys if shown else 0
        self.kv_bytes = self._kv_bytes(load.cache, self.image_keys)
        length, chunk = load.context_tokens, load.chunk_tokens
        one = CacheSize(length, 1, chunk, load.block_tokens)
        self.sequence_kv_bytes = self._kv_bytes(one, self.image_keys)
        now, later = (
            sum(self._kv_bytes(CacheSize(tokens, 1, chunk, 1))) for tokens in (length, length + 1)
        )
        self.kv_bytes_per_token = now // length
        self.kv_bytes_per_further_token = later - now
        self._sizes: dict[bool, DeviceSizes] = {}

    def with_pool(self, blocks: int) -> ModelSizes:
        """The same with a pool of so many blocks."""
        other = copy(self)
        other.load = replace(self.load, pool_blocks=blocks)
        other.kv_bytes = self._kv_bytes(other.load.cache, self.image_keys)
        other._sizes = {
            is_cpu: replace(sizes, kv_bytes=other.kv_bytes) for is_cpu, sizes in self._sizes.items()
        }
        return other

    def pool_bytes(self, blocks: int) -> int:
        """Bytes of a pool of so many blocks, in all layers together."""
        size = replace(self.load, pool_blocks=blocks).cache
        return sum(self._kv_bytes(size, self.image_keys))

    def on(self, device: Device) -> DeviceSizes:
        """The sizes on a device."""
        is_cpu = device.torch_device == "cpu"
        if is_cpu not in self._sizes:
            self._sizes[is_cpu] = self._make(is_cpu)
        return self._sizes[is_cpu]

    def _make(self, is_cpu: bool) -> DeviceSizes:
        rules = StorageRules(self.dense, self._level, is_cpu and self._cpu_packs)
        kept = self._files.kept(rules, is_cpu=is_cpu)
        storage = kept.storage
        passes = self.load.passes(
            self.dense, self.cache, on_cpu=is_cpu, native=rules.packs, shown=self._shown
        )
        vision = None
        if self._shown is not None:
            vision = vision_sizes(
                self.spec, self.parameters, storage, self._shown, passes[0], self.load.batch
            )
        head = storage["embedding.weight" if self.spec.tied_head else "head.weight"]
        return DeviceSizes(
            kept=kept,
            kv_bytes=self.kv_bytes,
            layer_act_bytes=self._layer_activations(kept, passes),
            head_act_bytes=max(
                vision.activation_bytes if vision else 0,
                *(head_activation_bytes(self.spec, run, head, self.load.batch) for run in passes),
            ),
            persistent_bytes=max(
                persistent_bytes(self.spec, run, self.load.batch) for run in passes
            ),
            vision=vision,
        )

    def _layer_activations(
        self, weights: StoredWeights, passes: Sequence[ForwardShape]
    ) -> list[int]:
        """Layers of one kind whose matrices are kept alike are counted once."""
        hidden_size = self.spec.hidden_size
        largest = [
            max(
                layer_activation_bytes(layer, hidden_size, run, dict(slots).__getitem__)
                for run in passes
            )
            for layer, slots in weights.kinds
        ]
        return [largest[kind] for kind in weights.layer_kinds]

    def _kv_bytes(self, size: CacheSize, image_keys: int = 0) -> tuple[int, ...]:
        """Bytes of each layer's caches; layers of one kind are counted once."""

        @cache
        def of(layer: Layer) -> int:
            return layer_kv_bytes(layer, size, self.cache, image_keys=image_keys)

        return tuple(of(layer) for layer in self.spec.layers)
