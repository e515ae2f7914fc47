"""Which tensors of a model go to UQFF files: layers, each with its format, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from mrs.errors import Unsupported
from mrs.formats import Format
from mrs.quantization.isq import isq_format
from mrs.quantization.storage import StorageRules
from mrs.source.checkpoint import Checkpoint, TensorInfo
from mrs.topology import is_expert
from mrs.weights.binding import Parameter, Piece

_WEIGHT, _BIAS = ".weight", ".bias"
_EXPERTS = ".experts."
#: Parameters of these roles are quantized.
_ROLES = ("matrix", "embedding", "head")


@dataclass
class UqffLayer:
    """One layer: the name of its weight, its shape in the file, and its rows piece by piece.

    `parameters` has the name of a parameter for each piece. `reason` says why its `format` is
    another than the one that was asked for.
    """

    weight: str
    stored: Format
    format: Format
    columns: int
    rows: int
    reason: str | None
    pieces: list[Piece] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    experts: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        if self.experts:
            return self.experts, self.rows // self.experts, self.columns
        return self.rows, self.columns

    @property
    def size_bytes(self) -> int:
        return self.format.size_bytes(self.shape)


@dataclass(frozen=True)
class UqffContents:
    """The layers by the names of their weights, their biases, and tensors that are not layers'."""

    layers: Sequence[UqffLayer]
    biases: Sequence[TensorInfo]
    residual: Sequence[TensorInfo]


def uqff_contents(
    checkpoint: Checkpoint, parameters: Sequence[Parameter], rules: StorageRules
) -> UqffContents:
    """What a model's files are under these rules. Raises Unsupported if it is quantized already."""
    layers: dict[str, UqffLayer] = {}
    others: dict[str, TensorInfo] = {}
    for parameter in parameters:
        for piece in parameter.pieces:
            info = _unquantized(piece, checkpoint)
            weight = _layer_name(parameter, piece)
            if weight is None:
                others[piece.tensor] = info
            elif weight not in layers:
                layers[weight] = _layer(weight, parameter, piece, info, rules)
            elif is_expert(parameter.name):
                _add_expert(layers[weight], parameter, piece)
    biases = {name.removesuffix(_WEIGHT) + _BIAS for name in layers}
    return UqffContents(
        sorted(layers.values(), key=lambda layer: layer.weight),
        [info for name, info in others.items() if name in biases],
        [info for name, info in others.items() if name not in biases],
    )


def _unquantized(piece: Piece, checkpoint: Checkpoint) -> TensorInfo:
    if piece.packed is not None or checkpoint.tensors[piece.tensor].format.is_quantized:
        raise Unsupported(
            f"the tensor {piece.tensor!r} is quantized already",
            where=checkpoint.model_id,
            hint="UQFF files are written from a model that is not quantized",
        )
    return checkpoint.tensors[piece.tensor]


def _layer_name(parameter: Parameter, piece: Piece) -> str | None:
    """The name of the weight of a layer; None for a tensor that stays as it is."""
    if parameter.role not in _ROLES:
        return None
    if is_expert(parameter.name):
        module, matrix = piece.tensor.partition(_EXPERTS)[0], parameter.name.split(".")[-2]
        return f"{module}{_EXPERTS}{matrix}_proj{_WEIGHT}"
    return None if piece.transposed or not piece.tensor.endswith(_WEIGHT) else piece.tensor


def _layer(
    weight: str, parameter: Parameter, piece: Piece, info: TensorInfo, rules: StorageRules
) -> UqffLayer:
    isq = rules.of(parameter).isq
    format, reason = info.format, None
    if isq is not None:
        format, reason = isq_format(parameter.role, parameter.shape, isq, info.format)
    layer = UqffLayer(weight, info.format, format, parameter.columns, 0, reason)
    if is_expert(parameter.name):
        _add_expert(layer, parameter, piece)
    else:
        layer.pieces.append(Piece(piece.tensor))
        layer.parameters.append(parameter.name)
        layer.rows = prod(info.shape) // parameter.columns
    return layer


def _add_expert(layer: UqffLayer, parameter: Parameter, piece: Piece) -> None:
    layer.pieces.append(piece)
    layer.parameters.append(parameter.name)
    layer.rows += parameter.rows if piece.rows is None else len(piece.rows)
    layer.experts = layer.rows // parameter.rows
