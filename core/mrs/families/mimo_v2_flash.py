"""MiMo V2 Flash: narrow heads of values, sinks and more keys in windows, DeepSeek V3's experts."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.draft_head import NEXTN, HeadFiles
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, every, layer_count, of_layers, windows
from mrs.layers.attention.config import read_attention, read_head_rope
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm

#: Unless the config lists them, every sixth layer and the first attend to all tokens.
_PERIOD = 6
#: Keys of the published config: layers with a window, and layers with experts, have a 1.
_PATTERNS = {
    "hybrid_layer_pattern": ("layer_types", (FULL, SLIDING)),
    "moe_layer_freq": ("mlp_layer_types", ("dense", "sparse")),
}
#: Keys of layers with a window, which must be those of the others.
_SAME = {
    "swa_num_attention_heads": "num_attention_heads",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
}
#: Config key -> metadata key of GGUF files.
VALUE_HEADS_GGUF_KEYS = {
    "v_head_dim": "attention.value_length",
    "attention_value_scale": "attention.value_scale",
}


def read(config: Config) -> ModelSpec:
    config.require_off("n_shared_experts")
    config = with_listed_kinds(config.renamed({"layernorm_epsilon": "rms_norm_eps"}))
    norm, moe = read_norm(config, default=1e-5), read_grouped_moe(config)
    feed_forward = mixed_layers(config, moe, read_mlp(config), first=1)
    layers = stack_layers(read_value_heads(config), feed_forward, norm)
    return decoder(config, "mimo_v2_flash", layers, norm)


def with_listed_kinds(config: Config) -> Config:
    """The config with the kinds of layers as transformers lists them."""
    listed = {}
    for key, (usual, kinds) in _PATTERNS.items():
        if config.has(key) and not config.has(usual):
            listed[usual] = [kinds[flag == 1] for flag in of_layers(config, key)]
    return config.without(*_PATTERNS).changed(listed)


def read_value_heads(config: Config) -> list[Attention]:
    """The attention of each layer; those with a window have more heads of keys, and sinks."""
    for key, equal in _SAME.items():
        config.allow_only(key, config.values.get(equal))
    if config.has("sliding_window_size"):  # as published, without the token itself
        size = config.integer("sliding_window_size")
        config = config.changed({"sliding_window": size + 1})
    local, heads = _windows(config), config.positive("num_key_value_heads")
    more = config.positive("swa_num_key_value_heads", 2 * heads)
    counts = [heads if window is None else more for window in local]
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files
        counts = [*of_layers(config, "num_key_value_heads_by_layer")]
    return [
        _read_attention(config.changed({"num_key_value_heads": count}), window)
        for count, window in zip(counts, local, strict=True)
    ]


def _windows(config: Config) -> list[int | None]:
    if config.has("layer_types"):
        return windows(config)
    whole = [is_last or not layer for layer, is_last in enumerate(every(config, _PERIOD))]
    kinds = [FULL if is_full else SLIDING for is_full in whole[: layer_count(config)]]
    return windows(config.changed({"layer_types": kinds}))


def _read_attention(config: Config, window: int | None) -> Attention:
    is_local = window is not None
    rope = read_head_rope(config, default_base=5e6, layer_type=FULL)
    if is_local and SLIDING in config.mapping("rope_parameters"):
        rope = read_head_rope(config, layer_type=SLIDING)
    elif is_local:
        key = config.spelling("rope_local_base_freq", "swa_rope_theta")
        rope = replace(rope, scaling=None, base=config.positive_number(key, 1e4, above=1))
    return read_attention(
        config,
        rope=rope,
        window=window,
        qkv_bias=config.flag("attention_bias", False),
        sinks=config.flag(f"add_{'swa' if is_local else 'full'}_attention_sink_bias", is_local),
        value_head_dim=config.positive("v_head_dim"),
        value_scale=config.number("attention_value_scale", 1.0),
    )


def _head_layer(target: ModelSpec, config: Config) -> Layer | None:
    """A layer with a window, and an MLP in place of experts."""
    local = (
        layer
        for layer in reversed(target.layers)
        if isinstance(layer.mixer, Attention) and layer.mixer.window is not None
    )
    layer = next(local, None)
    return None if layer is None else replace(layer, feed_forward=read_mlp(config))


FAMILY = Family(
    "mimo_v2_flash",
    read,
    gguf_arch="mimo2",
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "attention_value_scale": 0.707,
        "partial_rotary_factor": 0.334,
        "sliding_window": 129,
        "max_position_embeddings": 131_072,
        "scoring_func": "sigmoid",
        "n_routed_experts": 256,
        "moe_intermediate_size": 2048,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    safetensors={"mixer.sinks": "self_attn.attention_sink_bias"},
    gguf_keys={**GROUPED_MOE_GGUF_KEYS, **VALUE_HEADS_GGUF_KEYS},
    # Older files lack the factor of values, which the published model has.
    gguf_defaults={"norm_topk_prob": True, "attention_value_scale": 0.707},
    # Three heads, which all read the target's state before its final norm, as SGLang has them.
    head=HeadFiles(
        {
            **NEXTN.safetensors,
            "layer": "model.mtp.layers.{head}.",
            "ffn.norm": "pre_mlp_layernorm",
            "norm": "{layer}final_layernorm",
        },
        {**NEXTN.gguf, "norm": "{layer}layer_output_norm"},
        layer=_head_layer,
        reads_normed=False,
        feeds_normed=False,
        chained=False,
    ),
    ignored=("model.mtp.",),
)
