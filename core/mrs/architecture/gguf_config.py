"""Read the metadata of GGUF files as a config."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from mrs.architecture.pooler_config import GGUF_DENSE, POOLING_KEY
from mrs.config.config import Config
from mrs.config.layer_kinds import MOST_LAYERS
from mrs.errors import NotReadable, Unsupported

#: How many of the last layers predict tokens after the next one; `num_hidden_layers` is without.
PREDICTING = "num_nextn_predict_layers"

#: The key of the layers that have a window.
PATTERN = "attention.sliding_window_pattern"

#: config key -> GGUF key after the architecture's prefix. Families add theirs (`Family.gguf_keys`).
KEYS: dict[str, str] = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    PREDICTING: "nextn_predict_layers",
    "max_position_embeddings": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "rotary_dim": "rope.dimension_count",
    "dimension_sections": "rope.dimension_sections",
    "final_logit_softcapping": "final_logit_softcapping",
    "vocab_size": "vocab_size",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "type_vocab_size": "tokenizer.ggml.token_type_count",
    POOLING_KEY: "pooling_type",
    "classifier_labels": "classifier.output_labels",
}

#: config key -> the tensor whose number of rows it is.
_ROWS: dict[str, str] = {
    "vocab_size": "token_embd.weight",
    "type_vocab_size": "token_types.weight",
    "vocab_size_per_layer_input": "per_layer_token_embd.weight",
    "laurel_rank": "blk.0.laurel_l.weight",
    "attention_gates": "blk.0.attn_gate.weight",
    "classes": "cls.output.weight",
    "classes_bias": "cls.output.bias",
    "classifier_size": "cls.weight",
    **{key: f"{tensor}.weight" for key, tensor in GGUF_DENSE.items()},
    "classifier_bias": "cls.bias",
    "classifier_norm": "cls.norm.weight",
}

#: config key -> tensors; the key is true if any layer has one of them.
_FLAGS: dict[str, tuple[str, ...]] = {
    "has_qk_norm": ("attn_q_norm.weight",),
    "has_second_norm": ("attn_norm_2.weight",),
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"),
    "mlp_bias": ("ffn_up.bias",),
    "mamba_rms_norm": ("ssm_norm.weight",),
    "mamba_conv_bias": ("ssm_conv1d.bias",),
    "has_score_correction": ("exp_probs_b.bias",),
}

#: What some files give for each layer. The largest value counts as that of the model, and the list
#: is under the key with `_by_layer`.
_BY_LAYER = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def architecture(metadata: Mapping[str, Any], where: str) -> str:
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise NotReadable("the metadata lacks 'general.architecture'", where=where)
    return arch


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    family_keys: Mapping[str, str],
    where: str,
) -> dict[str, Any]:
    """The config that a family reads; some of its values follow from tensor names and shapes."""
    prefix = f"{architecture(metadata, where)}."
    keys = {**KEYS, **family_keys}.items()
    # A few keys lack the prefix.
    named_values = {key: metadata.get(prefix + name, metadata.get(name)) for key, name in keys}
    config = {key: value for key, value in named_values.items() if value is not None}
    sized = {key: tensor_shapes.get(name) for key, name in _ROWS.items()}
    config |= {key: shape[0] for key, shape in sized.items() if shape}
    if sized["type_vocab_size"] is None and "type_vocab_size" in config:
        config["type_vocab_size"] = 0  # DistilBERT is converted to a BERT without the table
    _leave_out_predicting_layers(config)
    _spread_lists(config, where)
    _layer_types(config, metadata.get(prefix + PATTERN), where)
    _head_sizes(config)
    endings = {name.partition(".")[2].partition(".")[2] for name in tensor_shapes}
    config |= {key: not endings.isdisjoint(names) for key, names in _FLAGS.items()}
    config["tie_word_embeddings"] = "output.weight" not in tensor_shapes
    config["lm_head_bias"] = "output.bias" in tensor_shapes
    config["attention_k_eq_v"] = any(
        name.endswith(".attn_k.weight") and name.replace("attn_k", "attn_v") not in tensor_shapes
        for name in tensor_shapes
    )
    scaling = gguf_rope_scaling(metadata, prefix, tensor_shapes, where)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def _leave_out_predicting_layers(config: dict[str, Any]) -> None:
    predicting, blocks = config.get(PREDICTING), config.get("num_hidden_layers")
    if type(predicting) is not int or type(blocks) is not int or not 0 < predicting < blocks:
        return
    config["num_hidden_layers"] = blocks - predicting
    for key in _BY_LAYER:
        values = config.get(key)
        if isinstance(values, (list, tuple)) and len(values) == blocks:
            config[key] = values[: blocks - predicting]


def _spread_lists(config: dict[str, Any], where: str) -> None:
    """What is given for each layer, as `_BY_LAYER` says."""
    for key in _BY_LAYER:
        values, count = config.get(key), config.get("num_hidden_layers")
        if not isinstance(values, (list, tuple)):
            continue
        if not values or len(values) != count or not all(type(value) is int for value in values):
            raise NotReadable(
                f"{key} = {values!r} must have one integer for each of {count} layers", where=where
            )
        config |= {key: max(values), f"{key}_by_layer": values}


def _layer_types(config: dict[str, Any], pattern: Any, where: str) -> None:
    """Add the kinds of layers by a list that says whether each has a window, or by a period.

    The last layer of every period has no window; a period of 0 leaves windows to all layers.
    """
    kinds, count = ("full_attention", "sliding_attention"), config.get("num_hidden_layers")
    if type(pattern) is int and type(count) is int and 0 <= count <= MOST_LAYERS:
        period = pattern or count + 1
        pattern = [(layer + 1) % period != 0 for layer in range(count)]
    if isinstance(pattern, (list, tuple)):
        config["layer_types"] = [kinds[bool(sliding)] for sliding in pattern]
    elif pattern is not None:
        raise NotReadable(f"{PATTERN} = {pattern!r} is neither a list nor a period", where=where)


def _head_sizes(config: dict[str, Any]) -> None:
    """Fill in what every GGUF reader assumes if the file does not say it, for all families."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        config.setdefault("head_dim", hidden // heads)
        config.setdefault("num_key_value_heads", heads)


_SCALING = "rope.scaling."
#: The key of the factor in older files.
_LINEAR = "rope.scale_linear"
_KEYS: dict[str, str] = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "yarn_log_multiplier": "yarn_log_multiplier",
}
#: What is read here, after the architecture's prefix.
ROPE_NAMES = (
    _LINEAR,
    *(_SCALING + name for name in ("type", "factor", "attn_factor", "yarn_ext_factor")),
    *(_SCALING + name for name in _KEYS.values()),
)
#: Architectures whose base of rope is raised by `alpha`.
_WITH_ALPHA = ("hunyuan-dense.", "hunyuan_vl.")


def gguf_rope_scaling(
    metadata: Mapping[str, Any], prefix: str, tensor_names: Collection[str], where: str
) -> dict[str, Any] | None:
    """The rope scaling; factors that are tensors of the file are left out.

    A factor without a type is linear, and a factor of 0 is none. Raises Unsupported.
    """
    start = prefix + _SCALING
    given = Config(
        {key.removeprefix(start): v for key, v in metadata.items() if key.startswith(start)}, where
    )
    factor = given.number("factor", metadata.get(prefix + _LINEAR, 0)) or 1.0
    if prefix in _WITH_ALPHA and given.number("alpha", 0) > 0:
        return {"alpha": given.number("alpha")}
    stated = given.values.get("type", "linear")
    kind = _kind_by_tensors(tensor_names) or stated
    if kind in ("factors", "longrope") and stated != "none" and factor != 1:
        raise _unsupported(f"{start}factor = {factor} with factors of single pairs", where)
    magnitude = given.number("attn_factor", 0) or 1.0
    if kind in ("none", "linear", "factors") and magnitude != 1:
        raise _unsupported(f"{start}attn_factor = {magnitude} without yarn or longrope", where)
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    values = {key: given.values[name] for key, name in _KEYS.items() if name in given.values}
    if kind == "yarn":
        _check_extension(given, start)
        if magnitude != 1 and given.has("yarn_log_multiplier"):
            raise _unsupported(f"{start}attn_factor = {magnitude} with yarn_log_multiplier", where)
        usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        values |= {"attention_factor": magnitude * usual} if magnitude != 1 else {}
    elif magnitude != 1:
        values["attention_factor"] = magnitude
    if kind in ("linear", "yarn"):
        values["factor"] = factor
    return {"rope_type": kind, **values}


def _kind_by_tensors(tensor_names: Collection[str]) -> str | None:
    if "rope_freqs.weight" in tensor_names:
        return "factors"
    return "longrope" if "rope_factors_long.weight" in tensor_names else None


def _check_extension(given: Config, start: str) -> None:
    """Raises Unsupported unless frequencies are extended in full; a negative factor says nothing"""
    extension = given.number("yarn_ext_factor", 1.0)
    if 0 <= extension != 1:
        raise _unsupported(f"{start}yarn_ext_factor = {extension}", given.where)


def _unsupported(what: str, where: str) -> Unsupported:
    return Unsupported(
        f"{what} is not supported", where=where, hint="convert the model again, or give another"
    )
