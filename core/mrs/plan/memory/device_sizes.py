"""Bytes that a model needs on a device: weights, KV cache and activations of each layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from mrs.devices.cpu_path import cpu_path, torch_units
from mrs.devices.device import Device
from mrs.devices.processor import cpu_threads
from mrs.formats import FORMATS, Format, KVFormat
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.layers.forward_pass import ForwardShape
from mrs.layers.layer import Layer
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.kv_bytes import layer_kv_bytes
from mrs.plan.memory.layer_activations import (
    head_activation_bytes,
    layer_activation_bytes,
    persistent_bytes,
)
from mrs.plan.memory.model_activations import (
    embedding_map_bytes,
    input_map_bytes,
    joined_input_bytes,
    layer_inputs_bytes,
)
from mrs.plan.memory.stored_weights import ModelWeightsInfo, StoredWeights
from mrs.quantization.storage import Storage, StorageRules, isq_rules
from mrs.request import BLOCK_TOKENS, PREFILL_CHUNK_TOKENS, ActivationBits
from mrs.topology import Topology

if TYPE_CHECKING:
    from mrs.plan.memory.server_budget import ServerBudget
    from mrs.plan.memory.vision_sizes import PlannedImages, VisionSizes


@dataclass(frozen=True)
class DeviceSizes:
    """Sizes of a whole model stored on one device; sequences have one entry per layer.

    weights           parameters as the device stores them, the vision tower's included
    kv_bytes          KV cache
    layer_act_bytes   peak of activations while the layer runs
    head_act_bytes    peak of activations of embedding and head, or of the vision tower
    persistent_bytes  activations that stay allocated in addition to either peak
    """

    weights: StoredWeights
    kv_bytes: Sequence[int]
    layer_act_bytes: Sequence[int]
    head_act_bytes: int
    persistent_bytes: int
    vision: VisionSizes | None = None

    @property
    def storage(self) -> Mapping[str, Storage]:
        return self.weights.storage

    @property
    def layer_bytes(self) -> Sequence[int]:
        """Weights of each layer."""
        return self.weights.layer_bytes

    def layer_bytes_on(self, layer: int, experts: DeviceSizes) -> int:
        """Weights of a layer on this device and of its experts on a device of other sizes."""
        without_experts = self.weights.layer_bytes[layer] - self.weights.expert_bytes[layer]
        return without_experts + experts.weights.expert_bytes[layer]

    def without(self, layers: Collection[int], experts: Collection[int]) -> DeviceSizes:
        """The sizes without the weights and caches of some layers, and without some experts."""
        weights = [
            0 if n in layers else size - (self.weights.expert_bytes[n] if n in experts else 0)
            for n, size in enumerate(self.weights.layer_bytes)
        ]
        caches = [0 if n in layers else size for n, size in enumerate(self.kv_bytes)]
        return replace(self, weights=replace(self.weights, layer_bytes=weights), kv_bytes=caches)

    @property
    def non_mapped_bytes(self) -> int:
        """Weights of embedding, final norm and head."""
        return self.weights.non_mapped_bytes

    @property
    def mapped_act_bytes(self) -> int:
        """Activations of the largest layer, for the placement strategies."""
        return max(self.layer_act_bytes, default=0) + self.persistent_bytes

    @property
    def non_mapped_act_bytes(self) -> int:
        return self.head_act_bytes + self.persistent_bytes + self.feature_bytes

    @property
    def feature_bytes(self) -> int:
        """Features of images that wait until the prompt is computed."""
        return self.vision.feature_bytes if self.vision else 0


@dataclass(frozen=True)
class Workload:
    """The load that a plan is made for: `batch` sequences of `context_tokens`, prompts in chunks.

    The KV cache has `pool_blocks` blocks of `block_tokens`, or as many as the sequences need.
    """

    context_tokens: int
    batch: int
    chunk_tokens: int = PREFILL_CHUNK_TOKENS
    block_tokens: int = BLOCK_TOKENS
    pool_blocks: int | None = None

    @property
    def logits_rows(self) -> int:
        """The most rows of logits of a step: one per sequence, or those of drafts."""
        return max(self.batch, min(MAX_DRAFT_ROWS, self.chunk_tokens, self.context_tokens))

    @property
    def cache(self) -> CacheSize:
        """The load that the KV cache is sized for."""
        sizes = self.context_tokens, self.chunk_tokens, self.block_tokens
        if self.pool_blocks is not None:
            return CacheSize.of_pool(self.pool_blocks, *sizes)
        return CacheSize(sizes[0], self.batch, *sizes[1:])

    def forward_shapes(
        self,
        dense: Format,
        cache: KVFormat,
        *,
        on_cpu: bool,
        native: bool,
        images: PlannedImages | None = None,
    ) -> tuple[ForwardShape, ForwardShape]:
        """The largest forward passes: a chunk at the end of the context, and one batched decode.

        Activations have the type `dense`, on a CPU float32. The chunk has all `images`.
        """
        longest = self.cache.tokens  # a pool may be shorter than the context
        chunk = min(self.chunk_tokens, longest)
        make = partial(
            ForwardShape,
            context_tokens=longest,
            activation=FORMATS["F32"] if on_cpu else dense,
            cache=FORMATS["F32"] if cache.is_quantized else cache.keys,
            quantized=cache if cache.is_quantized else None,
            threads=cpu_threads() if on_cpu else 0,
            path=cpu_path() if native else "torch",
            torch_units=torch_units() if on_cpu else frozenset(),
            image_keys=images.keys if images else 0,
        )
        prefill = make(chunk, chunk, new_image_keys=images.largest.keys if images else 0)
        return prefill, make(self.batch, 1)


class ModelSizes:
    """Sizes of one model on any device; computed once for the CPU and once for accelerators.

    `dense` is the type of weights that are not quantized, `isq` the format of `--isq`, `cache`
    the type of keys and values. Per layer, `kv_bytes` is the KV cache of the whole workload and
    `sequence_kv_bytes` that of one sequence. `budget` is for the requests to a server.
    """

    def __init__(
        self,
        files: ModelWeightsInfo,
        workload: Workload,
        dense: Format,
        isq: Format | None,
        *,
        cpu_packs: bool,
        cache: KVFormat | None = None,
        images: PlannedImages | None = None,
        topology: Topology | None = None,
        budget: ServerBudget | None = None,
        activations: ActivationBits = 8,
    ) -> None:
        self.spec = files.spec
        self.budget = budget
        self.parameters = files.parameters
        self.workload = workload
        self.dense = dense
        self.cache = cache or KVFormat(dense, dense)
        self._files = files
        self._isq = isq
        self._topology = isq_rules(topology)
        self._cpu_packs, self.activations = cpu_packs, activations
        self._images = images
        self.image_keys = images.keys if images else 0
        self.kv_bytes = self._kv_bytes(workload.cache, self.image_keys)
        length, chunk = workload.context_tokens, workload.chunk_tokens
        one = CacheSize(length, 1, chunk, workload.block_tokens)
        self.sequence_kv_bytes = self._kv_bytes(one, self.image_keys)
        planned, later = (
            sum(self._kv_bytes(CacheSize(tokens, 1, chunk, 1))) for tokens in (length, length + 1)
        )
        self.kv_bytes_per_token = planned // length
        self.kv_bytes_per_further_token = later - planned
        self._sizes: dict[bool, DeviceSizes] = {}

    @property
    def layer_kinds(self) -> tuple[Sequence[Layer], Sequence[int]]:
        """The different layers, and for each layer which of them it is."""
        return self._files.layer_kinds

    def with_pool(self, blocks: int) -> ModelSizes:
        """A copy whose KV cache is a pool of `blocks`."""
        other = copy(self)
        other.workload = replace(self.workload, pool_blocks=blocks)
        other.kv_bytes = self._kv_bytes(other.workload.cache, self.image_keys)
        is_short = other.workload.cache.tokens < self.workload.context_tokens
        known = {} if is_short else self._sizes  # shorter sequences need less
        other._sizes = {
            is_cpu: replace(sizes, kv_bytes=other.kv_bytes) for is_cpu, sizes in known.items()
        }
        return other

    def remembered_bytes(self, sequences: int) -> list[int]:
        """Per layer, the caches of the planned `sequences` and of one that fills the context."""
        longest = replace(self.workload, context_tokens=self.spec.context_tokens, batch=1)
        whole = self._kv_bytes(replace(longest, pool_blocks=None).cache, self.image_keys)
        return [
            sequences * one + most for one, most in zip(self.sequence_kv_bytes, whole, strict=True)
        ]

    def pool_bytes(self, blocks: int) -> int:
        """Bytes of a pool of `blocks` in all layers together."""
        size = replace(self.workload, pool_blocks=blocks).cache
        return sum(self._kv_bytes(size, self.image_keys))

    def on(self, device: Device) -> DeviceSizes:
        """The sizes on a device."""
        is_cpu = device.torch_device == "cpu"
        if is_cpu not in self._sizes:
            self._sizes[is_cpu] = self._make(is_cpu)
        return self._sizes[is_cpu]

    def _make(self, is_cpu: bool) -> DeviceSizes:
        packs = is_cpu and self._cpu_packs
        rules = StorageRules(self.dense, self._isq, packs, self._topology, self.activations)
        weights = self._files.on_device(rules, is_cpu=is_cpu)
        storage = weights.storage
        shapes = self.workload.forward_shapes(
            self.dense, self.cache, on_cpu=is_cpu, native=rules.packs, images=self._images
        )
        vision = None
        if self._images is not None:
            from mrs.plan.memory.vision_sizes import vision_sizes

            vision = vision_sizes(
                self.spec, self.parameters, storage, self._images, shapes[0], self.workload.batch
            )
        head = storage[self.spec.head_weight]
        return DeviceSizes(
            weights=weights,
            kv_bytes=self.kv_bytes,
            layer_act_bytes=self._layer_activations(weights, self._with_adapters(shapes)),
            head_act_bytes=max(
                vision.activation_bytes if vision else 0,
                *(
                    head_activation_bytes(self.spec, shape, head, self.workload.logits_rows)
                    for shape in shapes
                ),
                *(layer_inputs_bytes(self.spec, shape, storage) for shape in shapes),
                *(joined_input_bytes(self.spec, shape, storage) for shape in shapes),
                *(input_map_bytes(self.spec, shape, storage) for shape in shapes),
                *(
                    embedding_map_bytes(self.spec, shape, storage, self.workload.logits_rows)
                    for shape in shapes
                ),
            ),
            persistent_bytes=max(
                persistent_bytes(self.spec, shape, self.workload.batch) for shape in shapes
            ),
            vision=vision,
        )

    def _with_adapters(self, shapes: Sequence[ForwardShape]) -> Sequence[ForwardShape]:
        """The passes with and, if the model has adapters that requests choose, without fusing."""
        rank = max((adapter.rank for adapter in self._files.adapters), default=0)
        return [*shapes, *(replace(each, adapter_rank=rank) for each in shapes if rank)]

    def _layer_activations(
        self, weights: StoredWeights, shapes: Sequence[ForwardShape]
    ) -> list[int]:
        """Computed once for all layers of one kind whose matrices are stored alike."""
        hidden_size = self.spec.hidden_size
        largest = [
            max(
                layer_activation_bytes(layer, hidden_size, shape, dict(slots).__getitem__)
                for shape in shapes
            )
            for layer, slots in weights.kinds
        ]
        return [largest[kind] for kind in weights.layer_kinds]

    def _kv_bytes(self, size: CacheSize, image_keys: int = 0) -> tuple[int, ...]:
        """Bytes of each layer's caches; computed once for all layers of one kind."""
        kinds, kind_of = self.layer_kinds
        kv = [layer_kv_bytes(each, size, self.cache, image_keys=image_keys) for each in kinds]
        return tuple(kv[kind] for kind in kind_of)
