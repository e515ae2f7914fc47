"""Read the factor of attention scores where a number in place of the head size gives it."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.readers.layer_reader import read_heads


def read_score_scale(config: Config, layers_of_largest: int) -> float:
    """The factor of attention scores: 1/sqrt(query_pre_attn_scalar).

    GGUF files lack that key: then it is 1/sqrt(head_dim), and 1/sqrt(hidden_size / heads) in the
    largest model, which is known by its number of layers.
    """
    is_largest = config.positive("num_hidden_layers") == layers_of_largest
    heads, _, head_dim = read_heads(config)
    per_head = config.positive("hidden_size") // heads if is_largest else head_dim
    return float(config.positive_number("query_pre_attn_scalar", per_head) ** -0.5)
