"""What a model asks of a device: weights, KV cache and activations of each layer, in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from mrs.cpu import cpu_path, torch_units
from mrs.families.spec import Layer
from mrs.formats import FORMATS, Format
from mrs.plan.activations import head_activation_bytes, layer_activation_bytes, standing_bytes
from mrs.plan.device import Device
from mrs.plan.forward_pass import Pass
from mrs.plan.kept import KeptWeights, ModelFiles
from mrs.plan.kv import layer_kv_bytes
from mrs.plan.processor import cpu_threads
from mrs.plan.storage import Storage, StorageRules
from mrs.plan.vision import Pictures, VisionTerms, vision_terms
from mrs.request import PREFILL_CHUNK_TOKENS
from mrs.sizes.blocks import BLOCK_TOKENS


@dataclass(frozen=True)
class Sizes:
    """A whole model as one device would hold it, one entry a layer.

    `layer_act_bytes` is what lives while a layer runs, `head_act_bytes` while embedding and head
    run, `standing_bytes` what stays beside both. `vision` is part of the non-mapped weights, and
    of what embedding and head take.
    """

    kept: KeptWeights
    kv_bytes: Sequence[int]
    layer_act_bytes: Sequence[int]
    head_act_bytes: int
    standing_bytes: int
    vision: VisionTerms | None = None

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
        return max(self.layer_act_bytes, default=0) + self.standing_bytes

    @property
    def non_mapped_act_bytes(self) -> int:
        return self.head_act_bytes + self.standing_bytes + self.feature_bytes

    @property
    def feature_bytes(self) -> int:
        """What was seen of pictures and waits for its place in the prompt."""
        return self.vision.feature_bytes if self.vision else 0


@dataclass(frozen=True)
class Load:
    """What is planned for: `batch` sequences of `context_tokens`, prompts in chunks."""

    context_tokens: int
    batch: int
    chunk_tokens: int = PREFILL_CHUNK_TOKENS

    def passes(
        self, cache: Format, *, on_cpu: bool, native: bool, shown: Pictures | None = None
    ) -> tuple[Pass, Pass]:
        """A whole chunk at the end of the context, and one new token of every sequence.

        All pictures that are `shown` stand in the chunk.
        """
        chunk = min(self.chunk_tokens, self.context_tokens)
        make = partial(
            Pass,
            context_tokens=self.context_tokens,
            activation=FORMATS["F32"] if on_cpu else cache,
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

    `dense` is the type of what is not quantized and of the KV cache, `level` that of `--isq`.
    """

    def __init__(
        self,
        files: ModelFiles,
        load: Load,
        dense: Format,
        level: Format | None,
        *,
        cpu_packs: bool,
        shown: Pictures | None = None,
    ) -> None:
        self.spec = files.spec
        self.parameters = files.parameters
        self.load = load
        self.dense = dense
        self._files = files
        self._level = level
        self._cpu_packs = cpu_packs
        self._shown = shown
        self.image_keys = shown.keys if shown else 0
        self.kv_bytes = tuple(_kv_bytes(self.spec.layers, load, dense, self.image_keys))
        now, later = (
            sum(_kv_bytes(self.spec.layers, Load(tokens, 1, load.chunk_tokens), dense, 0, 1))
            for tokens in (load.context_tokens, load.context_tokens + 1)
        )
        self.kv_bytes_per_token = now // load.context_tokens
        self.kv_bytes_per_further_token = later - now
        self._sizes: dict[bool, Sizes] = {}

    def on(self, device: Device) -> Sizes:
        """The sizes on a device."""
        is_cpu = device.torch_device == "cpu"
        if is_cpu not in self._sizes:
            self._sizes[is_cpu] = self._make(is_cpu)
        return self._sizes[is_cpu]

    def _make(self, is_cpu: bool) -> Sizes:
        rules = StorageRules(self.dense, self._level, is_cpu and self._cpu_packs)
        kept = self._files.kept(rules, is_cpu=is_cpu)
        storage = kept.storage
        passes = self.load.passes(self.dense, on_cpu=is_cpu, native=rules.packs, shown=self._shown)
        vision = None
        if self._shown is not None:
            vision = vision_terms(
                self.spec, self.parameters, storage, self._shown, passes[0], self.load.batch
            )
        head = storage["embedding.weight" if self.spec.tied_head else "head.weight"]
        return Sizes(
            kept=kept,
            kv_bytes=self.kv_bytes,
            layer_act_bytes=self._layer_activations(kept, passes),
            head_act_bytes=max(
                vision.activation_bytes if vision else 0,
                *(head_activation_bytes(self.spec, run, head, self.load.batch) for run in passes),
            ),
            standing_bytes=max(standing_bytes(self.spec, run, self.load.batch) for run in passes),
            vision=vision,
        )

    def _layer_activations(self, weights: KeptWeights, passes: Sequence[Pass]) -> list[int]:
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


def _kv_bytes(
    layers: Sequence[Layer],
    load: Load,
    cache_format: Format,
    image_keys: int = 0,
    block_tokens: int = BLOCK_TOKENS,
) -> list[int]:
    @cache
    def of(layer: Layer) -> int:
        return layer_kv_bytes(
            layer,
            load.context_tokens,
            cache_format,
            batch=load.batch,
            chunk_tokens=load.chunk_tokens,
            block_tokens=block_tokens,
            image_keys=image_keys,
        )

    return [of(layer) for layer in layers]
