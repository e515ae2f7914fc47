"""Models of a few layers, of any settings, with random packed weights."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.model_spec import ModelSpec
from mrs.formats import FORMATS
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.layers.layer import Layer
from mrs.layers.norm.spec import Norm
from mrs.model.model_weights import ModelWeights
from mrs.quantization.gguf import encode
from mrs.quantization.matrix import Matrix

HIDDEN, VOCABULARY = 64, 48
_LONG_ROWS, _ROWS = ("Q4_K", "Q8_0", "BF16"), ("Q8_0", "BF16", "Q4_0")


def spec_of(layer: Layer, count: int) -> ModelSpec:
    """A model of `count` such layers."""
    return ModelSpec(
        "made_up",
        VOCABULARY,
        HIDDEN,
        (layer,) * count,
        Norm(1e-5),
        tied_head=True,
        context_tokens=512,
    )


def weights_of(spec: ModelSpec, name: str | None = None) -> ModelWeights:
    """Random weights, the matrices packed in the format of that name, or in several."""
    chooser = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chooser) * 0.3

    matrices: dict[str, Matrix] = {"embedding.weight": packed(numbers(VOCABULARY, HIDDEN), 2, name)}
    vectors = {"norm.weight": numbers(HIDDEN)}
    slots = {f"layers.{index}.": layer.slots(HIDDEN) for index, layer in enumerate(spec.layers)}
    if spec.layer_inputs is not None:
        slots[""] = spec.layer_inputs.slots(HIDDEN, len(spec.layers))
    for index, (prefix, each) in enumerate(slots.items()):
        for n, slot in enumerate(each):
            for expert in range(slot.experts or 1):
                own = prefix + slot.name.format(expert=expert)
                if slot.role in ("matrix", "embedding"):
                    values = numbers(*slot.shape)
                    matrices[own + slot.suffix] = packed(values, n + index + expert, name)
                else:
                    made = 1 + numbers(*slot.shape)
                    made = made.bfloat16() if slot.role == "dense" else made
                    vectors[own + slot.suffix] = -made.abs() if slot.kind == "decay" else made
                if slot.bias:
                    vectors[f"{own}.bias"] = numbers(slot.rows)
    return ModelWeights(matrices, vectors)


def packed(numbers: Tensor, which: int, name: str | None = None) -> PackedMatrix:
    """In the format of that name, or in one of several."""
    rows, columns = numbers.shape
    name = name or (_ROWS if columns % 256 else _LONG_ROWS)[which % 3]
    matrix = PackedMatrix(name, rows, columns)
    matrix.fill(encode(numbers, FORMATS[name]))
    return matrix
