"""Find the keys of a config.json that no reader has looked up and that may shape results."""

from __future__ import annotations

import re
from collections.abc import Collection

from mrs.config.config import Config

#: Keys that do not shape logits, by parts of their names: of training, of tokens and generation,
#: of what transformers returns, of how it computes the same, of the file itself, and of classifiers
#: and other heads of encoders, which whoever reads one looks up.
_OF_OTHER_THINGS = re.compile(
    r"^_|drop|init|loss|jitter|_coef$|label|finetun|pretrain|gradient|problem_type|task"
    r"|token_id|tokens?_ids$|temperature$|^(top_[kp]|do_sample|num_beam|diversity|early_stop)"
    r"|^(min_length|max_length|typical_p|length_penalty|repetition_penalty|no_repeat|bad_words)"
    r"|^(exponential_decay|encoder_no_repeat|num_return|forced_|suppress_|begin_suppress)"
    r"|^(remove_invalid|prefix$|cross_attention_hidden|tie_encoder|is_encoder|is_decoder|add_cross)"
    r"|^(output_|return_|use_cache|use_return|num_logits_to_keep|keys_to_ignore|summary_)"
    r"|implementation|kernels|^ep_size$|fp32|float32|upcast|dtype|flash|bfloat16|^use_bf|sdpa"
    r"|associative_scan|mambapy|chunk_size|overlap|slow_but_exact|cache_(dtype|implementation)"
    r"|version|architectures|auto_map|name_or_path|model_type|unsloth|_time$|date|license"
    r"|torchscript|pruned_heads|tokenizer_class|processor_class|model_max_length|max_batch"
    r"|^classifier_|^pooler_|^decoder_bias$|^sparse_pred|^legacy$"
    r"|time_step_(floor|max|min|scale|rank)|dt_(min|max)|a_log_m|mtp|nextn"
)
#: Keys whose values follow from other ones, or that are of a part which other keys switch off.
_FOLLOWING = (
    *("_sliding_window_pattern", "altup_coef_clip", "attn_scale", "block_ffn_dim_multiplier"),
    *("block_multiple_of", "enable_moe_fp32_combine", "expand", "first_k_dense_replace"),
    *("floor_scale", "full_attn_idxs", "interleave_moe_layer_step", "intermediate_size"),
    *("layer_norm_eps", "layer_types", "learned_pos_emb", "mamba_expand", "mamba_hidden_act"),
    *("mamba_norm_before_gate", "max_window_layers", "moe_intermediate_size", "moe_norm_min"),
    *("moe_shared_expert_intermediate_size", "n_group", "n_routed_experts"),
    *("n_shared_experts", "no_rope_layer_interval", "norm_topk_prob", "norm_type"),
    *("num_attention_heads", "num_experts_per_tok", "num_key_value_heads", "num_kv_heads"),
    *("original_max_position_embeddings", "rescale_prenorm_residual", "rope_parameters"),
    *("rope_parameters.factor", "rope_parameters.rope_type", "rope_theta"),
    *("rope_scaling.type", "rope_scaling.factor", "rope_scaling.interleaved", "embedding_fraction"),
    *("rope_parameters.sliding_attention", "rope_scaling.finetuned", "routed_scaling_factor"),
    *("sliding_window", "sliding_window_pattern", "topk_group", "vocab_size_per_layer_input"),
)


def unused_config_keys(read: Config, given: Collection[str]) -> list[str]:
    """The keys of a model's config that were `given` in its file and shaped nothing.

    Those that are off, and those that are known to shape no results, are left out.
    """
    return sorted(
        key
        for key, value in read.unread()
        if key.partition(".")[0] in given
        and key not in _FOLLOWING
        and not _OF_OTHER_THINGS.search(key.rpartition(".")[2])
        and value not in (None, False, 0, "", "none", [], {}, ())
    )
