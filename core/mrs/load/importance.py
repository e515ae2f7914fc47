"""The importance of columns of each matrix, by the names of our parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mrs.architecture.description import Description
from mrs.architecture.family_registry import family_by_name
from mrs.architecture.fused_names import FUSED
from mrs.architecture.gguf_names import GGUF
from mrs.architecture.tensor_names import TRANSPOSED
from mrs.errors import NotReadable
from mrs.source.importance_file import Importance
from mrs.weights.binding import Parameter

#: The least importance, of a mean of 1: a column that was 0 in a calibration may not stay 0.
LEAST = 1e-6
_EXPERT = re.compile(r"\.experts\.([0-9]+)\.")
#: Roles of parameters that may be quantized.
_ROLES = ("matrix", "embedding", "head")


def relative_importance(squares: Tensor) -> Tensor | None:
    """Sums of squares (C,) as float32 with a mean of 1; None if all are 0."""
    mean = squares.double().mean()
    if mean == 0:
        return None
    return (squares.double() / mean).clamp_(min=LEAST).float()


def importance_by_parameter(
    measured: Importance, description: Description, path: str
) -> dict[str, Tensor]:
    """The importance (columns,) of each parameter that has an entry, with a mean of 1.

    Entries have the names of GGUF files, or of the model's own tensors. Raises NotReadable for an
    entry of a wrong size or with values that are no sums of squares, and if no entry fits.
    """
    names = _Names(description)
    result = {}
    for parameter in description.parameters:
        if parameter.role not in _ROLES:
            continue
        name = names.entry(parameter, measured)
        if name is not None:
            squares = _squares(measured, name, parameter, path)
            if (relative := relative_importance(squares)) is not None:
                result[parameter.name] = relative
    if not result:
        raise NotReadable(
            "the importance matrix has no entry for this model",
            where=path,
            hint=f"its first entry is {next(iter(measured))}",
        )
    return result


def _squares(importance: Importance, name: str, parameter: Parameter, path: str) -> Tensor:
    values, columns = importance[name], parameter.columns
    expert = _EXPERT.search(parameter.name)
    matrices, rest = divmod(len(values), columns)
    index = int(expert[1]) if expert and matrices > 1 else 0
    if rest or index >= matrices or (matrices > 1 and expert is None):
        raise NotReadable(
            f"the entry {name} has {len(values)} values for a matrix of {columns} columns",
            where=path,
            hint="it belongs to another model",
        )
    squares = torch.tensor(values[index * columns : (index + 1) * columns])
    if not torch.isfinite(squares).all() or (squares < 0).any():
        raise NotReadable(f"the entry {name} has values below 0 or not finite", where=path)
    return squares


class _Names:
    """The names that entries for a parameter may have."""

    def __init__(self, description: Description) -> None:
        spec = description.spec
        self._layers = spec.file_layer_indices
        self._table: Mapping[str, str] = {**GGUF, **family_by_name(spec.family).gguf}

    def entry(self, parameter: Parameter, importance: Importance) -> str | None:
        """The name of a parameter's entry; None if it has none."""
        for name in self._of(parameter):
            if name in importance:
                return name
        # The parts of a fused tensor have the same inputs, unless one is transposed (kv_b).
        for name in self._fused(parameter):
            if name in importance and len(importance[name]) % parameter.columns == 0:
                return name
        return None

    def _of(self, parameter: Parameter) -> Iterator[str]:
        for piece in parameter.pieces:
            yield piece.tensor
            yield piece.tensor.removesuffix(".weight")
        yield from self._in_gguf(parameter, _slot(parameter))

    def _fused(self, parameter: Parameter) -> Iterator[str]:
        slot = _slot(parameter)
        for fused, slots in FUSED.items():
            if slot in slots:
                yield from self._in_gguf(parameter, fused)

    def _in_gguf(self, parameter: Parameter, slot: str) -> Iterator[str]:
        prefix = ""
        if parameter.layer is not None:
            prefix = self._table["layer"].format(layer=self._layers[parameter.layer])
        if (module := self._table.get(slot)) is not None:
            yield f"{prefix}{module.removesuffix(TRANSPOSED)}.weight"


def _slot(parameter: Parameter) -> str:
    """The name of a parameter inside its layer, without its suffix and the index of an expert."""
    slot = parameter.name.removesuffix(".weight").removeprefix(f"layers.{parameter.layer}.")
    return _EXPERT.sub(".experts.{expert}.", slot)
