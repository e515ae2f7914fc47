"""Planned bytes of layers with states bound what torch allocates, also for several sequences."""

from __future__ import annotations

import pytest
import torch
from test_native_parts import STATES
from torch import Tensor

from mrs.cache.cache_space import CacheBuilder, CacheConfig
from mrs.engine.profile.peak_memory import peak_bytes
from mrs.formats import FORMATS
from mrs.layers.empty.spec import NoFeedForward
from mrs.layers.forward_pass import ForwardShape
from mrs.layers.layer import Layer
from mrs.layers.norm.spec import Norm
from mrs.model.batch import SequenceInput, forward_batch
from mrs.model.layer_stack import LayerStack
from mrs.model.model_weights import ModelWeights
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.layer_activations import layer_activation_bytes
from mrs.quantization.matrix import DenseMatrix, Matrix
from mrs.quantization.storage import Storage
from support.packed_layers import spec_of

pytestmark = pytest.mark.usefixtures("one_thread")
HIDDEN, CONTEXT_TOKENS = 64, 512
#: What small layers may take less: the native workspace is not measured, nor small vectors planned.
SLACK = 64 << 10
#: New tokens of each sequence.
LENGTHS = ((300,), (40, 70, 200), (1, 1, 1))
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def layer_of(name: str) -> Layer:
    return Layer(STATES[name], NoFeedForward(), Norm(1e-5))


def weights_of(layer: Layer) -> ModelWeights:
    """Dense ones in float32, all of the same small value."""
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, Tensor] = {}
    for slot in layer.slots(HIDDEN):
        values = torch.full(slot.shape, -0.01 if slot.kind == "decay" else 0.01)
        if slot.role == "matrix":
            matrices[f"layers.0.{slot.name}{slot.suffix}"] = DenseMatrix(values)
        else:
            vectors[f"layers.0.{slot.name}{slot.suffix}"] = values
        if slot.bias:
            vectors[f"layers.0.{slot.name}.bias"] = torch.zeros(slot.rows)
    return ModelWeights(matrices, vectors)


def measured_and_planned(
    name: str, activation: str, lengths: tuple[int, ...], path: str
) -> tuple[int, int]:
    cpu, layer, dtype = torch.device("cpu"), layer_of(name), DTYPES[activation]
    stack = LayerStack(spec_of(layer, 1), weights_of(layer), [cpu], dtype)
    builder = CacheBuilder(CacheConfig(CacheSize(CONTEXT_TOKENS, len(lengths), 512), dtype))
    stack.add_caches(builder)
    space = builder.build()
    caches = [space.new() for _ in lengths]
    fed = [SequenceInput(cache, range(n)) for cache, n in zip(caches, lengths, strict=True)]
    batch, x = forward_batch(fed), torch.ones(sum(lengths), HIDDEN, dtype=dtype)
    (cache,) = stack.by_layer(list(zip(*(each.layers for each in caches), strict=True)))
    (built,) = stack.layers
    with torch.inference_mode():
        built(x, batch, cache)
        measured = x.nbytes + peak_bytes(lambda: built(x, batch, cache), cpu)
    format, stored = FORMATS[activation], Storage(FORMATS["F32"], 0)
    shape = ForwardShape(len(x), max(lengths), max(lengths), format, format, 1, path)
    return measured, layer_activation_bytes(layer, HIDDEN, shape, lambda slot: stored)


@pytest.mark.few(6)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", STATES)
def test_in_float32(name: str, lengths: tuple[int, ...], path: str) -> None:
    measured, planned = measured_and_planned(name, "F32", lengths, path)
    assert measured <= planned <= 1.15 * measured + SLACK


@pytest.mark.few(3)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("path", ["torch"], indirect=True)
def test_in_16_bits(name: str, lengths: tuple[int, ...], path: str) -> None:
    """As on a GPU, where what is convolved is in float32, and all else in 16 bits."""
    measured, planned = measured_and_planned(name, "BF16", lengths, path)
    assert measured <= planned <= 1.15 * measured + SLACK
