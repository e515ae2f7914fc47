"""Read what most families share (norms, attention, MLP) from the usual config keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.encoder_attention_spec import EncoderAttention
from mrs.architecture.mixers.mixer import FeedForward, Mixer
from mrs.architecture.mixers.mlp_spec import Activation, Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm, Rope
from mrs.architecture.readers.layer_kinds_reader import FULL, SLIDING, windows
from mrs.architecture.readers.rope_reader import read_rope
from mrs.errors import NotReadable


def read_norm(config: Config, key: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    return Norm(eps=config.number(key, default))


def read_layer_norm(
    config: Config, key: str = "layer_norm_eps", *, default: float = 1e-5, bias: bool = True
) -> Norm:
    return Norm(eps=config.number(key, default), kind="layer", bias=bias)


def read_heads(config: Config) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim); head_dim defaults to hidden_size // heads."""
    heads = config.positive("num_attention_heads")
    head_dim = config.positive("head_dim", config.positive("hidden_size") // heads)
    kv_heads = config.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise NotReadable(
            f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}",
            where=config.where,
        )
    return heads, kv_heads, head_dim


def read_head_rope(config: Config, **options: Any) -> Rope:
    """The rotary embedding of a head of the usual size; `options` are those of `read_rope`."""
    return read_rope(config, read_heads(config)[2], **options)


def read_ropes(config: Config) -> dict[str, Rope]:
    """The rope of layers with full attention, and that of layers with a window."""
    full = read_head_rope(config, default_base=1e6, layer_type=FULL)
    if SLIDING in config.mapping("rope_parameters"):
        return {FULL: full, SLIDING: read_head_rope(config, layer_type=SLIDING)}
    base = config.number("rope_local_base_freq", 1e4)
    return {FULL: full, SLIDING: Rope(read_heads(config)[2], base)}


def ropes_and_windows(config: Config, period: int) -> list[tuple[Rope, int | None]]:
    """The rope and the window of each layer; every `period`-th has no window and another rope."""
    ropes = read_ropes(config)
    return [(ropes[SLIDING if window else FULL], window) for window in windows(config, period)]


def read_biases(config: Config) -> dict[str, bool]:
    """Whether all projections of attention have a bias: as changes of `read_attention`."""
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias}


def read_attention(config: Config, **changes: Any) -> Attention:
    """Grouped-query attention scaled by 1/sqrt(head_dim); `changes` override its fields."""
    return Attention(**_attention_fields(config, changes))


def biased_attention(config: Config, **changes: Any) -> Attention:
    """The same, with a bias in all projections if the config's `attention_bias` says so."""
    return read_attention(config, **read_biases(config), **changes)


def read_encoder_attention(
    config: Config, *, window: int | None = None, **changes: Any
) -> EncoderAttention:
    """The same in both directions; half of the config's `window` is on either side of a token."""
    if window is not None:
        changes["window"] = window // 2 + 1
    return EncoderAttention(**_attention_fields(config, changes))


def _attention_fields(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    heads, kv_heads, head_dim = read_heads(config)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    fields: dict[str, Any] = {**sizes, **changes}
    if "rope" not in fields:
        fields["rope"] = read_rope(config, head_dim)
    return fields


def read_gelu(config: Config) -> Activation:
    """The activation of models that have GELU, approximated by tanh, unless they say otherwise."""
    return config.activation("gelu_pytorch_tanh", "hidden_activation")


def read_mlp(config: Config, key: str = "intermediate_size", **changes: Any) -> Mlp:
    """An MLP, or that of an expert, of the size `key`; `changes` override its fields."""
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive(key), **fields)


def read_relu2_mlp(config: Config, *, bias: bool) -> Mlp:
    """An MLP of squared ReLUs, without a gate; `bias` is what a config without `mlp_bias` means."""
    activation = config.activation("relu2")
    return read_mlp(config, activation=activation, gated=False, bias=config.flag("mlp_bias", bias))


def stack_layers(
    mixers: Sequence[Mixer], feed_forward: Sequence[FeedForward], norm: Norm, **changes: Any
) -> list[Layer]:
    """The layers of these modules; `changes` override fields of all layers."""
    return [
        Layer(mixer, each, norm, **changes)
        for mixer, each in zip(mixers, feed_forward, strict=True)
    ]


def decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm | None, **changes: Any
) -> ModelSpec:
    """The spec of a model with these layers; `changes` override its fields."""
    fields: dict[str, Any] = {
        "tied_head": config.flag("tie_word_embeddings", False),
        "context_tokens": read_context_tokens(config, layers),
        **changes,
    }
    return ModelSpec(
        family=family,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        **fields,
    )


def read_context_tokens(config: Config, layers: Sequence[Layer]) -> int:
    """The trained length, or that up to which the layers' rope is scaled."""
    ropes = {layer.mixer.rope for layer in layers}
    scaled = [rope.scaling.scaled_tokens for rope in ropes if rope is not None and rope.scaling]
    return max(config.positive("max_position_embeddings", 2048), *scaled, 0)


def scaled_decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm, **changes: Any
) -> ModelSpec:
    """The same with embeddings times sqrt(hidden_size), and with capped logits if it says so."""
    scale = config.positive("hidden_size") ** 0.5
    softcap = config.optional_number("final_logit_softcapping")
    fields = {"embedding_scale": scale, "logit_softcap": softcap, **changes}
    return decoder(config, family, layers, norm, **fields)
