"""Mixers with recurrent states, with random packed weights, in sizes that exercise every switch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mrs.architecture.mixers.delta_net_spec import GatedDeltaNet
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.norm_rope import Norm
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.formats import FORMATS
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.kernels.paged import Queries
from mrs.model.batch import ForwardBatch
from mrs.model.delta_net import DeltaNetModule
from mrs.model.kda import KimiDeltaAttentionModule
from mrs.model.mamba2 import Mamba2Module
from mrs.model.model_weights import ModelWeights
from mrs.quants import encode

HIDDEN = 64
_NORM = Norm(1e-3)
_DELTA_NET = GatedDeltaNet(2, 4, 24, 40, 4, _NORM)
_MAMBA2 = Mamba2(4, 40, 24, 2, 4, _NORM)
MIXERS: dict[str, GatedDeltaNet | KimiDeltaAttention | Mamba2] = {
    "delta net": _DELTA_NET,
    "tiled heads": replace(_DELTA_NET, tiled=True),
    "as many keys": GatedDeltaNet(3, 3, 32, 32, 2, _NORM),
    "channel decays": KimiDeltaAttention(2, 32, 4, _NORM),
    "state space": _MAMBA2,
    "norm before gate": replace(_MAMBA2, norm_before_gate=True, least_step=0.5, most_step=0.8),
    "no norm": replace(_MAMBA2, norm=None, convolution_bias=False),
}
_MODULES = {
    GatedDeltaNet: DeltaNetModule,
    KimiDeltaAttention: KimiDeltaAttentionModule,
    Mamba2: Mamba2Module,
}
StateModule = DeltaNetModule | KimiDeltaAttentionModule | Mamba2Module


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def state_module(kind: str) -> StateModule:
    """The module of a spec; its matrices are packed as Q8_0."""
    spec = MIXERS[kind]
    matrices, vectors = {}, {}
    for seed, slot in enumerate(spec.slots(HIDDEN)):
        name = f"{slot.name}{slot.suffix}"
        numbers = normal(*slot.shape, seed=seed)
        if slot.role == "vector":
            vectors[name] = -numbers.abs() if name == "mixer.decay" else numbers
            if slot.bias:
                vectors[f"{slot.name}.bias"] = normal(slot.shape[0], seed=100 + seed)
            continue
        matrices[name] = PackedMatrix("Q8_0", *slot.shape)
        matrices[name].fill(encode(0.2 * numbers, FORMATS["Q8_0"]))
    module: StateModule = _MODULES[type(spec)](spec, ModelWeights(matrices, vectors), None)
    return module


def state_cache(kind: str, seed: int) -> RecurrentStateCache:
    """A state after some tokens."""
    spec = MIXERS[kind]
    if isinstance(spec, GatedDeltaNet):
        channels, state = spec.channels, (spec.value_heads, spec.key_dim, spec.value_dim)
    elif isinstance(spec, Mamba2):
        channels, state = spec.channels, (spec.heads, spec.head_dim, spec.state_dim)
    else:
        channels, state = 3 * spec.values, (spec.heads, spec.head_dim, spec.head_dim)
    recent = (channels, spec.kernel_tokens - 1)
    cache = RecurrentStateCache(recent, state, device=torch.device("cpu"))
    for number, tensor in enumerate(cache.tensors):
        tensor.copy_(normal(*tensor.shape, seed=10 * seed + number))
    return cache


def batch_of(*lengths: int) -> ForwardBatch:
    """So many new tokens of each sequence, after five."""
    ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
    queries = [
        Queries(slice(end - length, end), length + 5)
        for end, length in zip(ends, lengths, strict=True)
    ]
    none = torch.zeros(0, dtype=torch.int64)
    return ForwardBatch(none, none, queries, [], (), [])
