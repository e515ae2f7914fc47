"""The usual tensor names of a decoder in safetensors files: slot -> module name.

A slot is this project's name of a weight. The tensor name is the module name plus `.weight` or
`.bias`, or the table's entry for the slot with that suffix. Names of slots inside a layer follow
the table's `layer` entry. A fused slot (`mixer.qkv`) names a tensor whose rows are those of
several slots. With `{expert}` in a name every expert has its own tensor; without it one tensor
stacks all experts. With `{row}` every row of the weight is a tensor of its own. `^T` at the end of
a name means that the file stores the transposed matrix.
"""

from __future__ import annotations

TRANSPOSED, ROW = "^T", "{row}"

SAFETENSORS: dict[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "rope.factors": "rope_freqs",
    "rope.short_factors": "rope_factors_short",
    "rope.long_factors": "rope_factors_long",
    "altup.into.{expert}": "model.altup_projections.{expert}",
    "altup.out.{expert}": "model.altup_unembed_projections.{expert}",
    "layer_inputs.table": "model.embed_tokens_per_layer",
    "layer_inputs.projection": "model.per_layer_model_projection",
    "layer_inputs.norm": "model.per_layer_projection_norm",
    "layer": "model.layers.{layer}.",
    "mixer.norm": "input_layernorm",
    "mixer.q": "self_attn.q_proj",
    "mixer.k": "self_attn.k_proj",
    "mixer.v": "self_attn.v_proj",
    "mixer.o": "self_attn.o_proj",
    "mixer.q_norm": "self_attn.q_norm",
    "mixer.k_norm": "self_attn.k_norm",
    "mixer.sinks": "self_attn.sinks",
    "mixer.gate": "self_attn.gate_proj",
    "mixer.q_a": "self_attn.q_a_proj",
    "mixer.q_a_norm": "self_attn.q_a_layernorm",
    "mixer.q_b": "self_attn.q_b_proj",
    "mixer.kv_a": "self_attn.kv_a_proj_with_mqa",
    "mixer.kv_a_norm": "self_attn.kv_a_layernorm",
    "mixer.kv_b": "self_attn.kv_b_proj",
    "cross.q": "cross_attn.q_proj",
    "cross.k": "cross_attn.k_proj",
    "cross.v": "cross_attn.v_proj",
    "cross.o": "cross_attn.o_proj",
    "cross.q_norm": "cross_attn.q_norm",
    "cross.k_norm": "cross_attn.k_norm",
    "mixer.qkvz": "linear_attn.in_proj_qkvz",
    "mixer.beta_step": "linear_attn.in_proj_ba",
    "mixer.step_bias": "linear_attn.dt_bias",
    "mixer.decay": "linear_attn.A_log",
    "mixer.head_norm": "linear_attn.norm",
    "mixer.in": "conv.in_proj",
    "mixer.conv": "conv.conv",
    "mixer.out": "conv.out_proj",
    "mixer.post_norm": "post_attention_layernorm",
    "ffn.norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
    "ffn.post_norm": "post_feedforward_layernorm",
    "ffn.norm_1": "post_feedforward_layernorm_1",
    "ffn.norm_in": "pre_feedforward_layernorm_2",
    "ffn.norm_2": "post_feedforward_layernorm_2",
    "ffn.alpha_p": "mlp.act_fn.alpha_p",
    "ffn.alpha_n": "mlp.act_fn.alpha_n",
    "ffn.beta": "mlp.act_fn.beta",
    "ffn.eps": "mlp.act_fn.eps",
    "output_scale": "layer_scalar",
    "altup.norm": "altup.router_norm",
    "altup.router": "altup.modality_router",
    "altup.prediction": "altup.prediction_coefs",
    "altup.correction": "altup.correction_coefs",
    "altup.scale": "altup.correct_output_scale",
    "laurel.left": "laurel.linear_left",
    "laurel.right": "laurel.linear_right",
    "laurel.norm": "laurel.post_laurel_norm",
    "input.gate": "per_layer_input_gate",
    "input.projection": "per_layer_projection",
    "input.norm": "post_per_layer_input_norm",
    "ffn.router": "mlp.gate",
    "ffn.router.input_norm": "router.scale",
    "ffn.router.expert_scale": "router.per_expert_scale",
    "ffn.router.correction": "mlp.gate.e_score_correction_bias",
    "ffn.experts.{expert}.gate": "mlp.experts.{expert}.gate_proj",
    "ffn.experts.{expert}.up": "mlp.experts.{expert}.up_proj",
    "ffn.experts.{expert}.down": "mlp.experts.{expert}.down_proj",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared_gate": "mlp.shared_expert_gate",
    "ffn.latent_in": "mlp.fc1_latent_proj",
    "ffn.latent_out": "mlp.fc2_latent_proj",
}

#: Tensors that are never read, without a warning: buffers that follow from the config, the copy of
#: the embedding that some files store as the head of a model with tied embeddings, and scales of a
#: quantized KV cache.
DERIVED_SUFFIXES = (
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
    ".attn.masked_bias", ".attn.bias", ".attention.masked_bias",
    ".attention.bias", "embeddings.position_ids", "lm_head.weight", ".k_scale", ".v_scale",
)  # fmt: skip
