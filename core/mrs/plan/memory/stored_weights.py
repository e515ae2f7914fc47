"""How devices store the weights of one model, computed once for all plans of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from mrs.architecture.description import Description
from mrs.devices.processor import cpu_threads
from mrs.formats import FORMATS, Format
from mrs.layers.layer import Layer
from mrs.plan.cost import Work, weights_work
from mrs.plan.memory.model_facts import ModelFacts, main_format, model_facts
from mrs.quantization.isq import ENCODABLE
from mrs.quantization.storage import Storage, StorageRules, is_values, resolve_dtype, store
from mrs.quantization.workspace import CODED_WEIGHTS, SCALED_CHUNK_WEIGHTS, load_chunk_weights
from mrs.source.checkpoint import Checkpoint
from mrs.topology import is_expert
from mrs.units import MIB
from mrs.weights.binding import Parameter
from mrs.weights.role import Role

#: Temporary bytes per weight that is decoded or encoded; in addition if its tensor has separate
#: scales; in addition if it is transposed in the file.
CODING_BYTES, SCALED_BYTES, TRANSPOSED_BYTES = 48, 64, 8
#: The same for weights that an adapter is added to: their values, and a matrix of the adapter.
UPDATED_BYTES = 12
#: Most memory of an accelerator while it quantizes 2**21 values and brings them into its layout.
BLOCK_LOAD_SCRATCH_BYTES = 96 * MIB


#: A layer, and the storage of the matrices in its slots.
LayerKind = tuple[Layer, tuple[tuple[str, Storage], ...]]


@dataclass(frozen=True)
class StoredWeights:
    """All parameters as one kind of device stores them; `layer_...` have one entry per layer.

    `expert_bytes` are the part of each layer's bytes that is its routed experts.

    `layer_kinds` are indices into `kinds`: layers are of one kind if they have the same spec and
    the matrices of their slots (`mixer.q`) are stored alike. `load_scratch_bytes` is temporary
    memory of the device while weights are loaded. The works are those of a forward pass.
    """

    storage: Mapping[str, Storage]
    layer_bytes: Sequence[int]
    expert_bytes: Sequence[int]
    non_mapped_bytes: int
    layer_kinds: Sequence[int]
    kinds: Sequence[LayerKind]
    load_scratch_bytes: int
    layer_work: Sequence[Work]
    non_mapped_work: Work

    @cached_property
    def main_format(self) -> str:
        """The format of most weights."""
        return main_format(self.storage)

    @cached_property
    def is_packed(self) -> bool:
        """Whether some weights are packed for the native kernels."""
        return any(stored.form == "packed" for stored in self.storage.values())


class ModelWeightsInfo:
    """The weights of a model in its files and on devices."""

    def __init__(self, checkpoint: Checkpoint, description: Description) -> None:
        self.checkpoint = checkpoint
        self.spec = description.spec
        self.parameters = description.parameters
        self.adapters = description.adapters
        self.warnings = (*checkpoint.notes, *description.warnings)
        self._description = description
        self._stored: dict[tuple[StorageRules, bool], StoredWeights] = {}

    @cached_property
    def layer_kinds(self) -> tuple[Sequence[Layer], Sequence[int]]:
        """The different layers, and for each layer which of them it is."""
        kinds = {layer: index for index, layer in enumerate(dict.fromkeys(self.spec.layers))}
        return list(kinds), [kinds[layer] for layer in self.spec.layers]

    @cached_property
    def facts(self) -> ModelFacts:
        return model_facts(self.checkpoint, self._description)

    @cached_property
    def _kinds(self) -> Sequence[tuple[_ParameterKind, Sequence[Parameter]]]:
        """The parameters of each kind; a model of many parameters has few kinds."""
        parameters_of: dict[_ParameterKind, list[Parameter]] = {}
        for parameter in self.parameters:
            kind = _ParameterKind.of(parameter, self.checkpoint)
            parameters_of.setdefault(kind, []).append(parameter)
        return list(parameters_of.items())

    @cached_property
    def file_storage(self) -> Mapping[str, Storage]:
        """Format and bytes of each parameter in the files."""
        storage: dict[str, Storage] = {}
        for kind, parameters in self._kinds:
            stored = Storage(kind.formats[0], kind.file_bytes, scheme=kind.scheme)
            storage.update(dict.fromkeys((p.name for p in parameters), stored))
        return storage

    def dense_format(self, wanted: str) -> Format:
        """The type of weights that are not quantized, for a `--dtype`."""
        return resolve_dtype(wanted, self._stored_counts)

    @cached_property
    def is_quantized(self) -> bool:
        """Whether the files have quantized weights."""
        return any(each.format.is_quantized or each.scheme for each in self.file_storage.values())

    @cached_property
    def _stored_counts(self) -> Mapping[Format, int]:
        counts: Counter[Format] = Counter()
        for kind, parameters in self._kinds:
            if kind.role != "vector" and not kind.scheme:
                for format in kind.formats:
                    counts[format] += len(parameters)
        return counts

    def on_device(self, rules: StorageRules, *, is_cpu: bool) -> StoredWeights:
        """The weights as a device stores them under these rules."""
        key = rules, is_cpu
        if key not in self._stored:
            self._stored[key] = self._store(rules, is_cpu)
        return self._stored[key]

    def _store(self, rules: StorageRules, is_cpu: bool) -> StoredWeights:
        storage: dict[str, Storage] = {}
        load_scratch_bytes = 0
        for kind, parameters in self._kinds:
            for own_rules, group in _by_rules(parameters, rules).items():
                stored = store(group[0], kind.formats, own_rules, is_permuted=kind.is_permuted)
                storage.update(dict.fromkeys((p.name for p in group), stored))
                if all(p.is_shared for p in group):
                    continue
                scratch_bytes = kind.load_scratch_bytes(stored, is_cpu=is_cpu)
                load_scratch_bytes = max(load_scratch_bytes, scratch_bytes)
        layer_bytes, expert_bytes = [0] * len(self.spec.layers), [0] * len(self.spec.layers)
        slots: list[list[tuple[str, Storage]]] = [[] for _ in self.spec.layers]
        non_mapped_bytes = 0
        for parameter in self.parameters:
            stored, layer = storage[parameter.name], parameter.layer
            if parameter.is_shared:
                continue
            if layer is None:
                non_mapped_bytes += stored.size_bytes
                continue
            layer_bytes[layer] += stored.size_bytes
            if is_expert(parameter.name):
                expert_bytes[layer] += stored.size_bytes
            if parameter.role == "matrix":
                slot = parameter.name.split(".", 2)[2].removesuffix(".weight")
                slots[layer].append((slot, stored))
        works, non_mapped_work = weights_work(self.parameters, self.spec, storage)
        layers = list(zip(self.spec.layers, map(tuple, slots), strict=True))
        kinds = {kind: index for index, kind in enumerate(dict.fromkeys(layers))}
        return StoredWeights(
            storage=storage,
            layer_bytes=layer_bytes,
            expert_bytes=expert_bytes,
            non_mapped_bytes=non_mapped_bytes,
            layer_kinds=[kinds[layer] for layer in layers],
            kinds=list(kinds),
            load_scratch_bytes=load_scratch_bytes,
            layer_work=works,
            non_mapped_work=non_mapped_work,
        )


def _by_rules(
    parameters: Sequence[Parameter], rules: StorageRules
) -> dict[StorageRules, Sequence[Parameter]]:
    """The parameters of each set of rules; only a topology makes several."""
    if rules.topology is None:
        return {rules: parameters}
    groups: dict[StorageRules, list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(rules.of(parameter), []).append(parameter)
    return dict(groups)


class _ParameterKind(NamedTuple):
    """Everything that storing and loading a parameter depends on.

    `formats` are those of its pieces as they are read. `scheme` describes the scheme of a weight
    that is stored in several tensors. `update_bytes` are those of the matrices of adapters, and
    `is_values` is that of `mrs.quantization.storage`.
    """

    role: Role
    shape: tuple[int, ...]
    formats: tuple[Format, ...]
    scheme: str
    file_bytes: int
    is_permuted: bool
    is_transposed: bool
    update_bytes: int
    is_values: bool

    @classmethod
    def of(cls, parameter: Parameter, checkpoint: Checkpoint) -> _ParameterKind:
        tensors, formats = checkpoint.tensors, []
        scheme, file_bytes, is_permuted, is_transposed = "", 0, False, False
        for piece in parameter.pieces:
            rows = parameter.rows if piece.rows is None else len(piece.rows)
            if piece.packed is None:
                format = tensors[piece.tensor].format
                file_bytes += rows * parameter.columns * format.block_bytes // format.block_elements
            else:
                layout = piece.packed.layout(tensors, parameter.columns)
                format = layout.format
                scheme = piece.packed.scheme.label(layout.bits)
                part_bytes = piece.packed.file_bytes(tensors) * rows // layout.rows
                all_columns = piece.packed.all_columns or parameter.columns
                file_bytes += part_bytes * parameter.columns // all_columns
                is_permuted |= layout.is_permuted and not parameter.updates
            formats.append(_as_read(format, parameter))
            is_transposed |= piece.transposed
        ranks = sum(update.rank for update in parameter.updates)
        return cls(
            parameter.role,
            parameter.shape,
            tuple(formats),
            scheme,
            file_bytes,
            is_permuted,
            is_transposed,
            update_bytes=8 * ranks * (parameter.rows + parameter.columns),
            is_values=is_values(parameter),
        )

    def load_scratch_bytes(self, target: Storage, *, is_cpu: bool) -> int:
        """Temporary bytes on the device while a parameter is loaded and stored as `target`.

        A CPU needs a chunk of the file, its values in the target format, and the temporaries of
        coding. An accelerator needs memory only if it quantizes blocks itself, some at a time.
        """
        threads = cpu_threads()
        weights = min(prod(self.shape), load_chunk_weights(threads))
        file_bytes = max(weights * f.block_bytes // f.block_elements for f in self.formats)
        if not is_cpu:
            return BLOCK_LOAD_SCRATCH_BYTES if target.form == "blocks" else 0
        plain = not self.scheme and not self.update_bytes
        if plain and all(format == target.format for format in self.formats):
            return file_bytes
        target_bytes = weights * target.format.block_bytes // target.format.block_elements
        coded = CODING_BYTES * min(weights, threads * CODED_WEIGHTS)
        if self.scheme:
            coded += SCALED_BYTES * min(weights, SCALED_CHUNK_WEIGHTS)
        if self.is_transposed:
            coded += TRANSPOSED_BYTES * weights
        if self.update_bytes:
            coded += UPDATED_BYTES * weights + self.update_bytes
        return file_bytes + target_bytes + coded


def _as_read(format: Format, parameter: Parameter) -> Format:
    """The format of a piece as it is stored: weights that adapters change are quantized anew."""
    is_kept = not parameter.updates or not format.is_quantized or format.name in ENCODABLE
    return format if is_kept else FORMATS["F32"]
