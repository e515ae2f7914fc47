"""What is planned for layers with states bounds what torch allocates, for several sequences, too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_native_parts import STATES

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
from mrs.quantization.matrix import DenseMatrix
from mrs.quantization.storage import Storage
from support.packed_layers import spec_of

pytestmark = pytest.mark.usefixtures("one_thread")
HIDDEN, CONTEXT_TOKENS = 64, 512
#: What small layers may take less: the native workspace is not measured, nor small vectors planned.
SLACK = 64 << 10
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def layer_of(name: str) -> Layer:
    return Layer(STATES[name], NoFeedForward(), Norm(1e-5))


def weights_of(layer: Layer) -> ModelWeights:
    """Dense ones in float32, all of the same small value."""
    matrices, vectors = {}, {}
    for slot in layer.slots(HIDDEN):
        values = torch.full(slot.shape, -0.01 if slot.kind == "decay" else 0.01)
        if slot.role == "matrix":
            matrices[f"layers.0.{slot.name}{slot.suffix}"] = DenseMatrix(values)
        else:
            vectors[f"layers.0.{slot.name}{slot.suffix}"] = values
        if slot.bias:
            vectors[f"layers.0.{slot.name}.bias"] = torch.zeros(slot.rows)
    return ModelWeights(matrices, vectors)


@pytest.mark.few(6)
@pytest.mark.parametrize("lengths", [(300,), (40, 70, 200), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("activation", ["BF16", "F32"])
@pytest.mark.parametrize("name", STATES)
def test_a_layer(name: str, activation: str, lengths: tuple[int, ...], path: str) -> None:
    """In 16 bits torch alone computes, as on a GPU: there what is convolved is in float32."""
    if activation == "BF16" and path != "torch":
        pytest.skip("the native library computes in float32")
    cpu, layer, dtype = torch.device("cpu"), layer_of(name), DTYPES[activation]
    spec = spec_of(layer, 1)
    stack = LayerStack(replace(spec, hidden_size=HIDDEN), weights_of(layer), [cpu], dtype)
    builder = CacheBuilder(CacheConfig(CacheSize(CONTEXT_TOKENS, len(lengths), 512), dtype))
    stack.add_caches(builder)
    space = builder.build()
    caches = [space.new() for _ in lengths]
    fed = [SequenceInput(cache, range(count)) for cache, count in zip(caches, lengths, strict=True)]
    batch, x = forward_batch(fed), torch.ones(sum(lengths), HIDDEN, dtype=dtype)
    (cache,) = stack.by_layer(list(zip(*(each.layers for each in caches), strict=True)))
    (built,) = stack.layers
    with torch.inference_mode():
        built(x, batch, cache)
        measured = x.nbytes + peak_bytes(lambda: built(x, batch, cache), cpu)
    format = FORMATS[activation]
    shape = ForwardShape(len(x), max(lengths), max(lengths), format, format, 1, path)
    stored = Storage(FORMATS["F32"], 0, "dense")
    planned = layer_activation_bytes(layer, HIDDEN, shape, lambda slot: stored)
    assert measured <= planned <= 1.15 * measured + SLACK
