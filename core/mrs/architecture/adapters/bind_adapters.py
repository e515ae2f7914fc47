"""Add LoRA adapters to the description of a model: to its weights, or beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mrs.architecture.adapters.adapter_headers import (
    AdapterHeaders,
    adapter_tensor,
    is_adapter_tensor,
)
from mrs.architecture.adapters.hf_names import AdaptedModule, BoundParameter, modules_of, plain_name
from mrs.architecture.adapters.lora_config import read_lora_config
from mrs.architecture.adapters.lora_modules import LoraModule, LoraModules, read_lora_modules
from mrs.architecture.description import CheckpointHeaders, Description
from mrs.architecture.unmerged_adapter import UnmergedAdapter, down_name, up_name
from mrs.errors import NotReadable, Unsupported
from mrs.layers.attention.spec import Attention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.latent_attention.spec import LatentAttention
from mrs.topology import is_expert
from mrs.weights.binding import LowRankUpdate, Parameter, Piece

_MERGE = "add it to the weights with: mrs lora -m ID -a ADAPTER"
#: Slots that latent attention multiplies by head, into queries and results.
_ABSORBED = ("mixer.k_b.weight", "mixer.v_b.weight")


def with_adapters(
    description: Description,
    checkpoint: CheckpointHeaders,
    adapters: Sequence[AdapterHeaders],
    arch: str | None = None,
) -> Description:
    """The same model with these adapters; `checkpoint` has the model's tensors without them.

    Raises NotReadable for tensors of an adapter that do not fit the model, Unsupported for what
    cannot be merged or chosen.
    """
    read = [_read(adapter) for adapter in adapters]
    wanted = {plain_name(name) for each in read for name in (*each.modules, *each.whole)}
    if description.spec.tied_head and wanted & {"embed_tokens", "lm_head"}:
        description = _with_own_head(description)
    modules = dict(modules_of(description, checkpoint, arch, wanted))
    binding = _Binding(description, checkpoint, modules)
    for index, (adapter, each) in enumerate(zip(adapters, read, strict=True)):
        binding.add(index, adapter, each)
    parameters = (*binding.parameters, *binding.added)
    return replace(description, parameters=parameters, adapters=tuple(binding.unmerged))


def _read(adapter: AdapterHeaders) -> LoraModules:
    config = read_lora_config(adapter.config, adapter.where)
    return read_lora_modules(config, adapter.tensors, adapter.where)


def _with_own_head(description: Description) -> Description:
    """The same model with a copy of the embedding as its head, so that one of them can change."""
    spec = description.spec
    (embedding,) = (each for each in description.parameters if each.name == "embedding.weight")
    if spec.extra_tokens:
        raise Unsupported("an adapter of an embedding that is also the head is not supported")
    head = embedding._replace(name="head.weight", role="head")
    return replace(
        description,
        spec=replace(spec, tied_head=False),
        parameters=(*description.parameters, head),
    )


class _Binding:
    """The parameters of a model while adapters are bound to them, and those that are added."""

    def __init__(
        self,
        description: Description,
        checkpoint: CheckpointHeaders,
        modules: Mapping[str, AdaptedModule],
    ) -> None:
        self.parameters = list(description.parameters)
        self.added: list[Parameter] = []
        self.unmerged: list[UnmergedAdapter] = []
        self._spec = description.spec
        self._is_gguf = checkpoint.container == "gguf"
        self._modules = modules
        self._stored = {plain_name(name.removesuffix(".weight")) for name in checkpoint.tensors}

    def add(self, index: int, adapter: AdapterHeaders, lora_modules: LoraModules) -> None:
        scales: dict[str, float] = {}
        for name, tensor in lora_modules.whole.items():
            self._replace(name, tensor, index, adapter)
        for lora in lora_modules.modules.values():
            module = self._module(lora.name, adapter.where)
            if module is None:
                continue
            _check(lora, module, adapter)
            for part in module.parts:
                self._require_known_rows(lora, part, adapter)
                update = _update(lora, part, index)
                if adapter.is_merged:
                    parameter = self.parameters[part.number]
                    updates = (*parameter.updates, update)
                    self.parameters[part.number] = parameter._replace(updates=updates)
                else:
                    slot = self._slot(lora, part, adapter)
                    self.added += _matrices(slot, part.parameter, update, adapter.name)
                    scales[slot] = lora.scale
        if not adapter.is_merged:
            rank = max((lora.rank for lora in lora_modules.modules.values()), default=0)
            self.unmerged.append(UnmergedAdapter(adapter.name, rank, scales))

    def _module(self, name: str, where: str) -> AdaptedModule | None:
        """The module of that name; None if the file has it and this model does not use it."""
        module = self._modules.get(plain_name(name))
        if module is None and plain_name(name) not in self._stored:
            raise NotReadable(
                f"the adapter changes {name!r}, which the model does not have",
                where=where,
                hint="it belongs to another model",
            )
        return module

    def _replace(self, name: str, tensor: str, index: int, adapter: AdapterHeaders) -> None:
        """Read a whole weight from the adapter."""
        where = adapter.where
        if not adapter.is_merged:
            raise Unsupported(f"requests cannot choose {name!r}", where=where, hint=_MERGE)
        module = self._module(name, where)
        if module is None:
            return
        shape = (module.rows, module.columns) if module.columns > 1 else (module.rows,)
        _require_shape(adapter, tensor, shape)
        for part in module.parts:
            parameter = self.parameters[part.number]
            if self._is_gguf and parameter.role not in ("embedding", "head"):
                raise Unsupported(
                    f"a whole {name!r} cannot replace that of a GGUF file", where=where
                )
            if parameter.updates or is_adapter_tensor(parameter.pieces[0].tensor):
                raise Unsupported(f"two adapters change {name!r}, one wholly", where=where)
            pieces = tuple(
                piece._replace(tensor=adapter_tensor(index, tensor), packed=None)
                for piece in part.pieces
            )
            self.parameters[part.number] = parameter._replace(pieces=pieces)

    def _require_known_rows(
        self, lora: LoraModule, part: BoundParameter, adapter: AdapterHeaders
    ) -> None:
        """Raise Unsupported for a mixer whose rows a GGUF file has in another order."""
        parameter = part.parameter
        if not self._is_gguf or parameter.layer is None or ".mixer." not in parameter.name:
            return
        if not isinstance(self._spec.layers[parameter.layer].mixer, (Attention, LatentAttention)):
            raise Unsupported(
                f"an adapter of {lora.name!r} does not fit a GGUF file",
                where=adapter.where,
                hint="use the model's safetensors files",
            )

    def _slot(self, lora: LoraModule, part: BoundParameter, adapter: AdapterHeaders) -> str:
        """The slot that an adapter changes while it stays apart from the weights."""
        parameter = part.parameter
        if lora.magnitude is not None:
            raise Unsupported("requests cannot choose DoRA", where=adapter.where, hint=_MERGE)
        if not self._is_choosable(parameter):
            raise Unsupported(
                f"requests cannot choose an adapter of {lora.name!r}",
                where=adapter.where,
                hint=_MERGE,
            )
        return parameter.name.removesuffix(".weight")

    def _is_choosable(self, parameter: Parameter) -> bool:
        """Whether a matrix multiplies each token of a batch, and nothing else."""
        if parameter.role != "matrix" or parameter.layer is None or is_expert(parameter.name):
            return False
        mixer = self._spec.layers[parameter.layer].mixer
        return not isinstance(mixer, CrossAttention) and not parameter.name.endswith(_ABSORBED)


def _check(lora: LoraModule, module: AdaptedModule, adapter: AdapterHeaders) -> None:
    """Raise NotReadable unless the shapes of A, B and the magnitude are those of the module."""
    if lora.is_embedding:
        _require_shape(adapter, lora.a, (lora.rank, module.rows))
        _require_shape(adapter, lora.b, (module.columns, lora.rank))
        return
    _require_shape(adapter, lora.a, (lora.rank, module.columns))
    _require_shape(adapter, lora.b, (module.rows, lora.rank))
    if lora.magnitude is not None:
        _require_shape(adapter, lora.magnitude, (module.rows,))


def _require_shape(adapter: AdapterHeaders, tensor: str, shape: tuple[int, ...]) -> None:
    stored = adapter.tensors[tensor].shape
    if stored != shape:
        raise NotReadable(
            f"the tensor {tensor!r} has shape {list(stored)}, expected {list(shape)}",
            where=adapter.where,
            hint="the adapter belongs to another model",
        )


def _update(lora: LoraModule, part: BoundParameter, index: int) -> LowRankUpdate:
    def rows_of(tensor: str, *, transposed: bool = False) -> tuple[Piece, ...]:
        name = adapter_tensor(index, tensor)
        return tuple(
            Piece(name, piece.rows, transposed=transposed, paired_heads=piece.paired_heads)
            for piece in part.pieces
        )

    down, up = (lora.b, lora.a) if lora.is_embedding else (lora.a, lora.b)
    return LowRankUpdate(
        lora.rank,
        lora.scale,
        (Piece(adapter_tensor(index, down), transposed=lora.is_embedding),),
        rows_of(up, transposed=lora.is_embedding),
        rows_of(lora.magnitude) if lora.magnitude is not None else (),
    )


def _matrices(
    slot: str, parameter: Parameter, update: LowRankUpdate, name: str
) -> tuple[Parameter, Parameter]:
    """The matrices of an adapter that stays apart, in float32 as peft computes with them."""
    layer = parameter.layer
    down_shape, up_shape = (update.rank, parameter.columns), (parameter.rows, update.rank)
    return (
        Parameter(down_name(slot, name), down_shape, "vector", layer, update.down),
        Parameter(up_name(slot, name), up_shape, "vector", layer, update.up),
    )
