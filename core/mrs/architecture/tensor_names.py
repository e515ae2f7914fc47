"""The usual tensor names of a decoder in safetensors and GGUF files: slot -> module name.

A slot is this project's name of a weight. The tensor name is the module name plus `.weight` or
`.bias`, or the table's entry for the slot with that suffix. Names of slots inside a layer follow
the table's `layer` entry. A fused slot (`mixer.qkv`) names a tensor whose rows are those of
several slots. With `{expert}` in a name every expert has its own tensor; without it one tensor
stacks all experts. `^T` at the end of a name means that the file stores the transposed matrix.
"""

from __future__ import annotations

TRANSPOSED = "^T"

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
    "ffn.router.correction": "mlp.gate.e_score_correction_bias",
    "ffn.experts.{expert}.gate": "mlp.experts.{expert}.gate_proj",
    "ffn.experts.{expert}.up": "mlp.experts.{expert}.up_proj",
    "ffn.experts.{expert}.down": "mlp.experts.{expert}.down_proj",
    "ffn.shared.gate": "mlp.shared_expert.gate_proj",
    "ffn.shared.up": "mlp.shared_expert.up_proj",
    "ffn.shared.down": "mlp.shared_expert.down_proj",
    "ffn.shared_gate": "mlp.shared_expert_gate",
}

#: Names of families whose files may have all experts of a layer in two tensors.
STACKED_EXPERTS: dict[str, str] = {
    "ffn.experts.{expert}.gate_up.weight": "mlp.experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "mlp.experts.down_proj",
}

GGUF: dict[str, str] = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "rope.factors": "rope_freqs",
    "rope.short_factors": "rope_factors_short",
    "rope.long_factors": "rope_factors_long",
    "layer_inputs.table": "per_layer_token_embd",
    "layer_inputs.projection": "per_layer_model_proj",
    "layer_inputs.norm": "per_layer_proj_norm",
    "layer": "blk.{layer}.",
    "mixer.norm": "attn_norm",
    "mixer.q": "attn_q",
    "mixer.qkv": "attn_qkv",
    "mixer.k": "attn_k",
    "mixer.v": "attn_v",
    "mixer.o": "attn_output",
    "mixer.q_norm": "attn_q_norm",
    "mixer.k_norm": "attn_k_norm",
    "mixer.sinks": "attn_sinks.weight",
    "mixer.q_a": "attn_q_a",
    "mixer.q_a_norm": "attn_q_a_norm",
    "mixer.q_b": "attn_q_b",
    "mixer.kv_a": "attn_kv_a_mqa",
    "mixer.kv_a_norm": "attn_kv_a_norm",
    "mixer.kv_b": "attn_kv_b",
    "mixer.k_b": "attn_k_b^T",
    "mixer.v_b": "attn_v_b",
    "mixer.qkvz": "ssm_in",
    "mixer.z": "attn_gate",
    "mixer.beta_step": "ssm_ba",
    "mixer.step_bias": "ssm_dt.bias",
    "mixer.decay": "ssm_a",
    "mixer.head_norm": "ssm_norm",
    "mixer.in": "shortconv.in_proj",
    "mixer.conv": "shortconv.conv",
    "mixer.out": "shortconv.out_proj",
    "mixer.post_norm": "post_attention_norm",
    "ffn.norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn.post_norm": "post_ffw_norm",
    "input.gate": "inp_gate",
    "input.projection": "proj",
    "input.norm": "post_norm",
    "ffn.router": "ffn_gate_inp",
    "ffn.router.correction": "exp_probs_b.bias",
    "ffn.experts.{expert}.gate": "ffn_gate_exps",
    "ffn.experts.{expert}.up": "ffn_up_exps",
    "ffn.experts.{expert}.down": "ffn_down_exps",
    "ffn.experts.{expert}.gate_up": "ffn_gate_up_exps",
    "ffn.shared.gate": "ffn_gate_shexp",
    "ffn.shared.up": "ffn_up_shexp",
    "ffn.shared.down": "ffn_down_shexp",
    "ffn.shared_gate": "ffn_gate_inp_shexp",
}

#: Slots that a file may store fused in one tensor: fused slot -> its slots, in row order.
FUSED: dict[str, tuple[str, ...]] = {
    "mixer.qkv": ("mixer.q", "mixer.k", "mixer.v"),
    "mixer.qkvz": ("mixer.q", "mixer.k", "mixer.v", "mixer.z"),
    "mixer.beta_step": ("mixer.beta", "mixer.step"),
    "mixer.kv_b": ("mixer.k_b", "mixer.v_b"),
    "ffn.gate_up": ("ffn.gate", "ffn.up"),
    "ffn.experts.{expert}.gate_up": ("ffn.experts.{expert}.gate", "ffn.experts.{expert}.up"),
    "ffn.shared.gate_up": ("ffn.shared.gate", "ffn.shared.up"),
    "ffn.experts.{expert}.gate_up_pairs": ("ffn.experts.{expert}.gate", "ffn.experts.{expert}.up"),
}

#: Fused slots whose rows are interleaved in groups (`Slot.interleave_groups`).
INTERLEAVED = frozenset(
    {"mixer.kv_b", "mixer.qkvz", "mixer.beta_step", "ffn.experts.{expert}.gate_up_pairs"}
)

#: Tensors of files that are never read: buffers that follow from the config, the copy of the
#: embedding that some files store as the head of a model with tied embeddings, and scales of a
#: quantized KV cache.
IGNORED_SUFFIXES = (
    ".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias", "lm_head.weight", ".k_scale",
    ".v_scale", ".lora_A.vision.weight", ".lora_B.vision.weight", ".lora_A.speech.weight",
    ".lora_B.speech.weight",
)  # fmt: skip
