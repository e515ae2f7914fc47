"""Read Kimi Delta Attention, and the latent attention that some layers have in its place."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.mixers.kda_spec import KimiDeltaAttention
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_kinds_reader import FULL, LINEAR, attention_layers, layer_count
from mrs.architecture.readers.mla_reader import read_latent_attention
from mrs.errors import NotReadable

_NESTED = "linear_attn_config"
#: Keys of the nested config, and the same in flat ones.
_KEYS = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
KDA_DEFAULTS = {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4}
#: Config key -> metadata key of GGUF files.
KDA_GGUF_KEYS = {
    "linear_head_dim": "kda.head_dim",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}


def read_kda_mixers(config: Config, norm: Norm) -> list[Mixer]:
    """The mixer of each layer: KDA, or MLA without rope.

    KDA has as many heads as MLA if the config has no number of its own.
    """
    config.allow_only("hidden_act", "silu", "swish")
    nested = config.mapping(_NESTED)
    config = config.changed({new: nested[key] for key, new in _KEYS.items() if key in nested})
    latent = read_latent_attention(config, rotates=False)
    linear = KimiDeltaAttention(
        config.positive("linear_num_heads", config.positive("num_attention_heads")),
        config.positive("linear_head_dim"),
        config.positive("linear_conv_kernel_dim"),
        norm,
    )
    return [latent if has_softmax else linear for has_softmax in _softmax_layers(config)]


def _softmax_layers(config: Config) -> Sequence[bool]:
    """Whether each layer has softmax attention; lists in the nested config count from one."""
    listed, count = attention_layers(config, FULL, LINEAR), layer_count(config)
    if listed is not None:
        return listed
    nested = Config(config.mapping(_NESTED), config.where)
    if not nested.has("full_attn_layers"):
        return [layer > 0 and layer % 4 == 0 for layer in range(count)]
    full = nested.sequence("full_attn_layers")
    if not all(isinstance(layer, int) and 0 < layer <= count for layer in full):
        raise NotReadable(f"full_attn_layers = {full!r} are not layers", where=config.where)
    return [layer + 1 in full for layer in range(count)]
