"""Names of OPT's tensors: norms have the same names before and after the sums."""

from __future__ import annotations

from collections.abc import Mapping

OPT: Mapping[str, str] = {
    "embedding": "model.decoder.embed_tokens",
    "positions": "model.decoder.embed_positions",
    "embedding_in": "model.decoder.project_in",
    "embedding_out": "model.decoder.project_out",
    "norm": "model.decoder.final_layer_norm",
    "layer": "model.decoder.layers.{layer}.",
    "mixer.norm": "self_attn_layer_norm",
    "mixer.post_norm": "self_attn_layer_norm",
    "mixer.o": "self_attn.out_proj",
    "ffn.norm": "final_layer_norm",
    "ffn.post_norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
}
