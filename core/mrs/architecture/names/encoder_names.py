"""Names of the tensors of encoders whose norms come after each sum."""

from __future__ import annotations

from collections.abc import Mapping

#: Modules for training, and the pooler, which only classifiers use.
UNUSED_OF_ENCODERS = ("pooler.", "cls.", "embeddings.position_ids")

GGUF_ENCODER: Mapping[str, str] = {
    "token_types": "token_types",
    "mixer.post_norm": "attn_output_norm",
    "ffn.post_norm": "layer_output_norm",
}


def encoder_names(model: str) -> Mapping[str, str]:
    """The names in a file that calls the encoder `model`."""
    return {
        "embedding": f"{model}.embeddings.word_embeddings",
        "positions": f"{model}.embeddings.position_embeddings",
        "token_types": f"{model}.embeddings.token_type_embeddings",
        "input_norm": f"{model}.embeddings.LayerNorm",
        "layer": f"{model}.encoder.layer.{{layer}}.",
        "mixer.q": "attention.self.query",
        "mixer.k": "attention.self.key",
        "mixer.v": "attention.self.value",
        "mixer.o": "attention.output.dense",
        "mixer.post_norm": "attention.output.LayerNorm",
        "ffn.up": "intermediate.dense",
        "ffn.down": "output.dense",
        "ffn.post_norm": "output.LayerNorm",
    }


def unused_of_encoder(model: str) -> tuple[str, ...]:
    """Prefixes of tensor names that inference does not need, alone or in such a file."""
    return (*UNUSED_OF_ENCODERS, *(f"{model}.{name}" for name in UNUSED_OF_ENCODERS))
