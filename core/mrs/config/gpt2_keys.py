"""GPT-2's spelling of config keys, which some later models have, too."""

from __future__ import annotations

from mrs.config.config import Config

#: Their spelling -> the usual one.
GPT2_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}

#: What transformers assumes for keys that a config lacks.
GPT2_DEFAULTS = {
    "vocab_size": 50_257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "tie_word_embeddings": True,
}


def usual_config(config: Config) -> Config:
    """The config under the usual keys; its MLP is four times as wide as x if it does not say."""
    if not config.has("n_embd"):  # from a GGUF file
        return config
    usual = config.renamed(GPT2_KEYS)
    sizes = {
        "intermediate_size": config.positive("n_inner", 4 * config.positive("n_embd")),
        "num_key_value_heads": config.positive("n_head"),
    }
    return usual.changed(sizes)
