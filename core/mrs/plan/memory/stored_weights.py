"""How devices keep the weights of one model, counted once for all plans of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from mrs.architecture.binding import Parameter
from mrs.architecture.describe import Description
from mrs.architecture.layers import Layer
from mrs.devices.processor import cpu_threads
from mrs.formats import FORMATS, Format
from mrs.plan.cost import Work, weights_work
from mrs.plan.memory.model_facts import ModelFacts, model_facts, weights_format
from mrs.sizes.quantization import CODED_WEIGHTS, SCALED_CHUNK_WEIGHTS, load_chunk_weights
from mrs.source.checkpoint import Checkpoint
from mrs.storage import Storage, StorageRules, resolve_dtype, store
from mrs.units import MIB

#: Temporaries of decoding or encoding a weight of a chunk, of a chunk that has scales of its own,
#: and of one that is stored transposed.
CODING_BYTES, SCALED_BYTES, TRANSPOSED_BYTES = 44, 64, 8
#: What 2**21 numbers take while an accelerator quantizes them and lays them out, at most.
BLOCK_LOAD_SCRATCH_BYTES = 96 * MIB


#: A layer, and how the matrices of its slots are kept.
LayerKind = tuple[Layer, tuple[tuple[str, Storage], ...]]


@dataclass(frozen=True)
class StoredWeights:
    """All parameters as one kind of device keeps them; `layer_…` have one entry a layer.

    `layer_kinds` tells layers apart that differ in themselves or in how the matrices of their slots
    (`mixer.q`) are kept: each is an index into `kinds`. `load_scratch_bytes` is what loading takes
    of the device's memory beside the weights. The works are what a forward pass asks for.
    """

    storage: Mapping[str, Storage]
    layer_bytes: Sequence[int]
    non_mapped_bytes: int
    layer_kinds: Sequence[int]
    kinds: Sequence[LayerKind]
    load_scratch_bytes: int
    layer_work: Sequence[Work]
    non_mapped_work: Work

    @cached_property
    def weights_format(self) -> str:
        return weights_format(self.storage)

    @cached_property
    def is_packed(self) -> bool:
        """Whether the native kernels multiply some of them."""
        return any(kept.form == "packed" for kept in self.storage.values())


class ModelWeightsInfo:
    """The weights of a model in its files, and what becomes of them on devices."""

    def __init__(self, checkpoint: Checkpoint, description: Description) -> None:
        self.checkpoint = checkpoint
        self.spec = description.spec
        self.parameters = description.parameters
        self._description = description
        self._kept: dict[tuple[StorageRules, bool], StoredWeights] = {}

    @cached_property
    def facts(self) -> ModelFacts:
        return model_facts(self.checkpoint, self._description)

    @cached_property
    def stored(self) -> Mapping[str, list[Format]]:
        """The formats of each parameter's pieces."""
        tensors = self.checkpoint.tensors
        return {
            p.name: [tensors[piece.tensor].format for piece in p.pieces] for p in self.parameters
        }

    @cached_property
    def stored_as(self) -> Mapping[str, Storage]:
        """Format and bytes of each parameter in the files; scales of FP8 numbers do not count.

        Only MXFP4 numbers come as plain bytes, two in each, with a byte of scale for 32.
        """
        found = {}
        for parameter in self.parameters:
            format = self.stored[parameter.name][0]
            format = FORMATS["MXFP4"] if format.name == "U8" else format
            size_bytes = prod(parameter.shape) * format.block_bytes // format.block_elements
            found[parameter.name] = Storage(format, size_bytes)
        return found

    def dense_format(self, wanted: str) -> Format:
        """The type of weights that are not quantized, and of the KV cache, for a `--dtype`."""
        return resolve_dtype(wanted, self._stored_counts)

    @cached_property
    def _stored_counts(self) -> Mapping[Format, int]:
        return Counter(
            format
            for parameter in self.parameters
            if parameter.role != "vector"
            for format in self.stored[parameter.name]
        )

    def kept(self, rules: StorageRules, *, is_cpu: bool) -> StoredWeights:
        """What a device makes of them."""
        key = rules, is_cpu
        if key not in self._kept:
            self._kept[key] = self._keep(rules, is_cpu)
        return self._kept[key]

    def _keep(self, rules: StorageRules, is_cpu: bool) -> StoredWeights:
        storage = {p.name: store(p, self.stored[p.name], rules) for p in self.parameters}
        layer_bytes = [0] * len(self.spec.layers)
        slots: list[list[tuple[str, Storage]]] = [[] for _ in self.spec.layers]
        non_mapped_bytes, loading = 0, set[_Loading]()
        for parameter in self.parameters:
            kept, layer = storage[parameter.name], parameter.layer
            loading.add(_Loading.of(parameter, self.stored[parameter.name], kept))
            if layer is None:
                non_mapped_bytes += kept.size_bytes
                continue
            layer_bytes[layer] += kept.size_bytes
            if parameter.role == "matrix":
                slot = parameter.name.split(".", 2)[2].removesuffix(".weight")
                slots[layer].append((slot, kept))
        works, non_mapped_work = weights_work(self.parameters, self.spec, storage)
        layers = list(zip(self.spec.layers, map(tuple, slots), strict=True))
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(layers))}
        return StoredWeights(
            storage=storage,
            layer_bytes=layer_bytes,
            non_mapped_bytes=non_mapped_bytes,
            layer_kinds=[kinds[layer] for layer in layers],
            kinds=list(kinds),
            load_scratch_bytes=max(each.scratch_bytes(is_cpu=is_cpu) for each in loading),
            layer_work=works,
            non_mapped_work=non_mapped_work,
        )


class _Loading(NamedTuple):
    """What loading a parameter depends on; most of a model's parameters are alike."""

    shape: tuple[int, ...]
    stored: tuple[Format, ...]
    kept: Storage
    is_scaled: bool
    is_transposed: bool

    @classmethod
    def of(cls, parameter: Parameter, stored: Sequence[Format], kept: Storage) -> _Loading:
        is_scaled = is_transposed = False
        for piece in parameter.pieces:
            is_scaled |= piece.scales is not None
            is_transposed |= piece.transposed
        return cls(parameter.shape, tuple(stored), kept, is_scaled, is_transposed)

    def scratch_bytes(self, *, is_cpu: bool) -> int:
        """Memory that loading takes besides the parameter's own.

        A chunk of the file, and what is made of it before it goes to its place. An accelerator
        makes blocks itself, some at a time.
        """
        kept, threads = self.kept, cpu_threads()
        weights = min(prod(self.shape), load_chunk_weights(threads))
        file_bytes = max(weights * f.block_bytes // f.block_elements for f in self.stored)
        if not is_cpu:
            return BLOCK_LOAD_SCRATCH_BYTES if kept.form == "blocks" else 0
        if all(format == kept.format for format in self.stored):
            return file_bytes
        kept_bytes = weights * kept.format.block_bytes // kept.format.block_elements
        coded = CODING_BYTES * min(weights, threads * CODED_WEIGHTS)
        if self.is_scaled:
            coded += SCALED_BYTES * min(weights, SCALED_CHUNK_WEIGHTS)
        if self.is_transposed:
            coded += TRANSPOSED_BYTES * weights
        return file_bytes + kept_bytes + coded
