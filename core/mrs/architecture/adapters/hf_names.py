"""The parameters that each module of the model in transformers consists of.

Adapters name modules as transformers does, whatever the file of the model calls its tensors.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mrs.architecture.description import CheckpointHeaders, Description
from mrs.architecture.family import Family
from mrs.architecture.family_registry import family_by_gguf_arch, family_by_name
from mrs.architecture.gguf_config import architecture
from mrs.architecture.parameters import list_parameters
from mrs.architecture.tensor_names import SAFETENSORS
from mrs.layers.attention.spec import Attention
from mrs.weights.binding import Parameter, Piece

#: Modules around the language model, which adapters of other releases name differently.
_WRAPPERS = re.compile(r"^((model|language_model)\.)+")


class BoundParameter(NamedTuple):
    """A parameter, the `number` of it in the model, and its rows of a module's weight."""

    number: int
    parameter: Parameter
    pieces: tuple[Piece, ...]


class AdaptedModule(NamedTuple):
    """A module of a model: the parameters that its weight (rows, columns) has the rows of."""

    rows: int
    columns: int
    parts: Sequence[BoundParameter]


def plain_name(module: str) -> str:
    """A module's name without the modules around the language model, and the adapter around it."""
    return _WRAPPERS.sub("", module).removesuffix(".base_layer")


def modules_of(
    description: Description,
    checkpoint: CheckpointHeaders,
    arch: str | None,
    wanted: Collection[str],
) -> Mapping[str, AdaptedModule]:
    """The modules of a model by their `plain_name`; in a GGUF file, `wanted` ones are found."""
    parameters = description.parameters
    pieces = [parameter.pieces for parameter in parameters]
    if checkpoint.container == "gguf":
        pieces = _hf_pieces(description, _gguf_family(checkpoint, arch), wanted)
    parts: dict[str, list[BoundParameter]] = defaultdict(list)
    for number, (parameter, own_pieces) in enumerate(zip(parameters, pieces, strict=True)):
        if own_pieces and own_pieces[0].tensor.endswith(".weight"):
            # The head may be a copy of the embedding, from the same tensor.
            is_head = parameter.name == "head.weight"
            name = (
                "lm_head" if is_head else plain_name(own_pieces[0].tensor.removesuffix(".weight"))
            )
            parts[name].append(BoundParameter(number, parameter, own_pieces))
    return {name: _module(bound) for name, bound in parts.items()}


def _module(parts: Sequence[BoundParameter]) -> AdaptedModule:
    ends = (
        part.parameter.rows if piece.rows is None else piece.rows[-1] + 1
        for part in parts
        for piece in part.pieces
    )
    return AdaptedModule(max(ends), parts[0].parameter.columns, parts)


def _gguf_family(checkpoint: CheckpointHeaders, arch: str | None) -> Family:
    if arch is not None:
        return family_by_name(arch)
    return family_by_gguf_arch(architecture(checkpoint.config, checkpoint.model_id))


def _hf_pieces(
    description: Description, family: Family, wanted: Collection[str]
) -> list[tuple[Piece, ...]]:
    """The pieces of each parameter of a GGUF model as a file of transformers has them."""
    names = {**SAFETENSORS, **family.safetensors}
    tensors = [f"{'' if name == 'lm_head' else 'model.'}{name}.weight" for name in wanted]
    text = list_parameters(description.spec, names, tensors)
    pieces = {parameter.name: parameter.pieces for parameter in text}
    return [
        _paired(each, pieces.get(each.name, ()), description, family)
        for each in description.parameters
    ]


def _paired(
    parameter: Parameter, pieces: tuple[Piece, ...], description: Description, family: Family
) -> tuple[Piece, ...]:
    """llama.cpp's converter permutes the rows of q and k of some families, head by head."""
    slot = parameter.name.partition("mixer.")[2]
    if parameter.layer is None or slot not in ("q.weight", "k.weight"):
        return pieces
    mixer = description.spec.layers[parameter.layer].mixer
    if not family.gguf_rope_interleaved or not isinstance(mixer, Attention):
        return pieces
    heads = mixer.heads if slot == "q.weight" else mixer.kv_heads
    return tuple(piece._replace(paired_heads=heads) for piece in pieces)
