"""Read MLPs of which each layer has its own size, and a gate that is mostly 0 in some."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import NormalDist

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.readers.layer_kinds_reader import layer_count, of_layers
from mrs.architecture.readers.layer_reader import read_gelu
from mrs.errors import NotReadable

#: Of the layers with a sparse gate, if the config does not name them; smaller models have none.
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
_CUTOFFS = "activation_sparsity_scale"
#: Config key -> metadata key of GGUF files.
SPARSE_MLP_GGUF_KEYS = {_CUTOFFS: _CUTOFFS}


def read_sparse_mlps(config: Config) -> list[Mlp]:
    """The MLP of each layer."""
    activation = read_gelu(config)
    sizes, cutoffs = _intermediate_sizes(config), _cutoffs(config)
    return [
        Mlp(size, activation, cutoff=cutoff) for size, cutoff in zip(sizes, cutoffs, strict=True)
    ]


def _intermediate_sizes(config: Config) -> Sequence[int]:
    if config.has("intermediate_size_by_layer"):  # in GGUF files
        return of_layers(config, "intermediate_size_by_layer")
    sizes, count = config.values.get("intermediate_size"), layer_count(config)
    if not isinstance(sizes, (list, tuple)):
        return [config.positive("intermediate_size")] * count
    return [int(size) for size in config.numbers("intermediate_size", count, above=0.5)]


def _cutoffs(config: Config) -> Sequence[float | None]:
    """By how many standard deviations each layer's gate is cut; None for a layer that is dense."""
    if config.has(_CUTOFFS):  # in GGUF files, negative and infinite for dense layers
        scales = config.sequence(_CUTOFFS)
        if len(scales) != layer_count(config) or not all(type(scale) is float for scale in scales):
            what = f"{_CUTOFFS} = {scales!r} must have a number for each layer"
            raise NotReadable(what, where=config.where)
        return [scale if isfinite(scale) else None for scale in scales]
    normal = NormalDist()
    return [normal.inv_cdf(share) if share else None for share in _sparsities(config)]


def _sparsities(config: Config) -> Sequence[float]:
    """The share of each layer's gate that is zero, in a normal distribution."""
    count, key = layer_count(config), "activation_sparsity_pattern"
    if not config.has(key):
        sparse = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        return [_SPARSITY] * sparse + [0.0] * (count - sparse)
    shares = config.numbers(key, count)
    if not all(0 <= share < 1 for share in shares):
        raise NotReadable(f"{key} = {list(shares)} must be below 1", where=config.where)
    return shares
