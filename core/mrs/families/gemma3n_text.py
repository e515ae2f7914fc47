"""Gemma 3n, text: several residual streams, per-layer embeddings, shared keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import NormalDist

from mrs.architecture.decoder_config import SHARED_LAYERS_GGUF_KEYS, per_layer_decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, of_layers
from mrs.errors import NotReadable
from mrs.layers.altup.spec import AltUp
from mrs.layers.attention.config import biased_attention, ropes_and_windows, share_kv
from mrs.layers.laurel.spec import Laurel
from mrs.layers.mlp.config import read_gelu
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm

#: Bound on residual streams; a broken config must not make a huge list.
MOST_STREAMS = 64
#: Config key -> metadata key of GGUF files.
ALTUP_GGUF_KEYS = {
    "altup_active_idx": "altup.active_idx",
    "altup_num_inputs": "altup.num_inputs",
}
#: Number and sparsity of the layers with a sparse gate, where the config has neither; models with
#: no more layers than that have none.
_SPARSE_LAYERS, _SPARSITY = 10, 0.95
_CUTOFFS = "activation_sparsity_scale"
#: Config key -> metadata key of GGUF files.
SPARSE_MLP_GGUF_KEYS = {_CUTOFFS: _CUTOFFS}


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    fields = {"scale": 1.0, "qk_norm": norm, "value_norm": norm}
    attention = [
        biased_attention(config, rope=rope, window=window, **fields)
        for rope, window in ropes_and_windows(config, period=5)
    ]
    mixers, mlps = share_kv(config, attention), read_sparse_mlps(config)
    altup, laurel = read_altup(config, norm), read_laurel(config, norm)
    return per_layer_decoder(config, "gemma3n_text", mixers, mlps, norm, altup=altup, laurel=laurel)


def read_altup(config: Config, norm: Norm) -> AltUp:
    streams, active = config.positive("altup_num_inputs", 4), config.integer("altup_active_idx", 0)
    if not 2 <= streams <= MOST_STREAMS or active >= streams:
        raise NotReadable(
            f"altup_active_idx = {active} is not one of {streams} streams", where=config.where
        )
    return AltUp(streams, active, config.flag("altup_correct_scale", True), norm)


def read_laurel(config: Config, norm: Norm) -> Laurel:
    return Laurel(config.positive("laurel_rank", 64), norm)


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


FAMILY = Family(
    "gemma3n_text",
    read,
    gguf_arch="gemma3n",
    aliases=("gemma3n",),
    defaults={
        "vocab_size": 262_400,
        "hidden_size": 2048,
        "intermediate_size": 16_384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "num_kv_shared_layers": 15,
    },
    safetensors={"ffn.norm": "pre_feedforward_layernorm"},
    gguf_keys={**SHARED_LAYERS_GGUF_KEYS, **ALTUP_GGUF_KEYS, **SPARSE_MLP_GGUF_KEYS},
)
