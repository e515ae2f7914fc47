"""Gemma 3n, text: several residual streams, per-layer embeddings, shared keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from statistics import NormalDist

from mrs.architecture.altup import AltUp
from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.laurel import Laurel
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm, Rope
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_heads,
    read_norm,
    windows,
)
from mrs.architecture.readers.rope_reader import read_rope
from mrs.architecture.readers.shared_layers_reader import (
    GGUF_KEYS,
    read_gated_input,
    read_layer_inputs,
    share_kv,
)
from mrs.errors import NotReadable
from mrs.families.gemma3_text import local_rope

#: Of the layers with a sparse gate, if the config does not name them; smaller models have none.
SPARSE_LAYERS, SPARSITY = 10, 0.95
#: Bound on residual streams; a broken config must not make a huge list.
MOST_STREAMS = 64


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    rope = read_rope(config, read_heads(config)[2], default_base=1e6, layer_type="full_attention")
    local = local_rope(config, read_heads(config)[2])
    kinds = windows(config, period=5)
    mixers = share_kv(config, [_read_attention(config, local if w else rope, w) for w in kinds])
    altup = _read_altup(config, norm)
    activation = config.activation("gelu_pytorch_tanh", "hidden_activation")
    gated_input = read_gated_input(config, activation, norm)
    laurel = Laurel(config.positive("laurel_rank", 64), norm)
    layers = [
        Layer(
            mixer,
            Mlp(size, activation, cutoff=cutoff),
            norm,
            style="sandwich",
            gated_input=gated_input,
            laurel=laurel,
            altup=altup,
        )
        for mixer, size, cutoff in zip(
            mixers, _intermediate_sizes(config), _cutoffs(config), strict=True
        )
    ]
    return decoder(
        config,
        "gemma3n_text",
        layers,
        norm,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=config.optional_number("final_logit_softcapping"),
        layer_inputs=read_layer_inputs(config, norm),
        altup=altup,
    )


def _read_attention(config: Config, rope: Rope, window: int | None) -> Attention:
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    return read_attention(
        config,
        scale=1.0,
        rope=rope,
        window=window,
        qk_norm=norm,
        value_norm=norm,
        qkv_bias=bias,
        out_bias=bias,
    )


def _read_altup(config: Config, norm: Norm) -> AltUp:
    streams, active = config.positive("altup_num_inputs", 4), config.integer("altup_active_idx", 0)
    if not 2 <= streams <= MOST_STREAMS or active >= streams:
        raise NotReadable(
            f"altup_active_idx = {active} is not one of {streams} streams", where=config.where
        )
    return AltUp(streams, active, config.flag("altup_correct_scale", True), norm)


def _intermediate_sizes(config: Config) -> Sequence[int]:
    if config.has("intermediate_size_by_layer"):  # in GGUF files
        return config.sequence("intermediate_size_by_layer")
    sizes, count = config.values.get("intermediate_size"), layer_count(config)
    if not isinstance(sizes, (list, tuple)):
        return [config.positive("intermediate_size")] * count
    return [int(size) for size in config.numbers("intermediate_size", count, above=0.5)]


def _cutoffs(config: Config) -> Sequence[float | None]:
    """By how many standard deviations each layer's gate is cut; None for a layer that is dense."""
    key = "activation_sparsity_scale"
    if config.has(key):  # in GGUF files, negative and infinite for dense layers
        scales = config.sequence(key)
        if len(scales) != layer_count(config) or not all(type(scale) is float for scale in scales):
            what = f"{key} = {scales!r} must have a number for each layer"
            raise NotReadable(what, where=config.where)
        return [scale if isfinite(scale) else None for scale in scales]
    normal = NormalDist()
    return [normal.inv_cdf(share) if share else None for share in _sparsities(config)]


def _sparsities(config: Config) -> Sequence[float]:
    """The share of each layer's gate that is zero, in a normal distribution."""
    count, key = layer_count(config), "activation_sparsity_pattern"
    if not config.has(key):
        sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
        return [SPARSITY] * sparse + [0.0] * (count - sparse)
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
    gguf={
        "altup.into.{expert}": "altup_proj",
        "altup.out.{expert}": "altup_unembd_proj",
        "altup.norm": "altup_router_norm",
        "altup.router": "altup_router",
        "altup.prediction": "altup_predict_coef",
        "altup.correction": "altup_correct_coef",
        "altup.scale": "altup_correct_scale.weight",
        "laurel.left": "laurel_l",
        "laurel.right": "laurel_r",
        "laurel.norm": "laurel_post_norm",
    },
    gguf_keys={
        **GGUF_KEYS,
        "altup_active_idx": "altup.active_idx",
        "altup_num_inputs": "altup.num_inputs",
        "activation_sparsity_scale": "activation_sparsity_scale",
    },
)
