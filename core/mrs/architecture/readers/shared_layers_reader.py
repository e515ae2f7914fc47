"""Read what Gemma's small models share: keys and values of layers, and per-layer embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.layer_inputs import GatedInput, LayerInputs
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import Mixer
from mrs.architecture.mixers.mlp_spec import Activation
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.norm_rope import Norm
from mrs.errors import NotReadable

#: Metadata keys of both, and of what both have in addition.
GGUF_KEYS = {
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "rope_local_base_freq": "rope.freq_base_swa",
    "final_logit_softcapping": "final_logit_softcapping",
}


def share_kv(config: Config, mixers: Sequence[Attention]) -> list[Mixer]:
    """The mixers, of which the last `num_kv_shared_layers` read the cache of the last one alike."""
    own = len(mixers) - config.integer("num_kv_shared_layers", 0)
    owners = {mixer: layer for layer, mixer in enumerate(mixers[: max(own, 0)])}
    if own < 1 or any(mixer not in owners for mixer in mixers[own:]):
        raise NotReadable(
            f"num_kv_shared_layers = {len(mixers) - own}, but no other layer is like the last ones",
            where=config.where,
        )
    return [*mixers[:own], *(SharedAttention(mixer, owners[mixer]) for mixer in mixers[own:])]


def read_layer_inputs(config: Config, norm: Norm) -> LayerInputs | None:
    """The per-layer embeddings; None for a model without them."""
    size = config.integer("hidden_size_per_layer_input", 0)
    if not size:
        return None
    rows, pad = config.positive("vocab_size_per_layer_input"), config.integer("pad_token_id", 0)
    return LayerInputs(rows, size, norm, pad if pad < rows else 0)


def read_gated_input(config: Config, activation: Activation, norm: Norm) -> GatedInput | None:
    """What a layer does with its embedding; None for a model without them."""
    size = config.integer("hidden_size_per_layer_input", 0)
    return GatedInput(size, activation, norm) if size else None
