"""Names of the tensors of Kimi Delta Attention."""

from __future__ import annotations

from collections.abc import Mapping

KDA: Mapping[str, str] = {
    "mixer.conv_q": "self_attn.q_conv1d",
    "mixer.conv_k": "self_attn.k_conv1d",
    "mixer.conv_v": "self_attn.v_conv1d",
    "mixer.decay_in": "self_attn.f_a_proj",
    "mixer.decay_out": "self_attn.f_b_proj",
    "mixer.step_bias": "self_attn.dt_bias",
    "mixer.decay": "self_attn.A_log",
    "mixer.beta": "self_attn.b_proj",
    "mixer.gate_in": "self_attn.g_a_proj",
    "mixer.gate_out": "self_attn.g_b_proj",
    "mixer.head_norm": "self_attn.o_norm",
    "mixer.out": "self_attn.o_proj",
}
GGUF_KDA: Mapping[str, str] = {
    "mixer.conv_q": "ssm_conv1d_q",
    "mixer.conv_k": "ssm_conv1d_k",
    "mixer.conv_v": "ssm_conv1d_v",
    "mixer.decay_in": "ssm_f_a",
    "mixer.decay_out": "ssm_f_b",
    "mixer.beta": "ssm_beta",
    "mixer.gate_in": "ssm_g_a",
    "mixer.gate_out": "ssm_g_b",
    "mixer.out": "attn_output",
}
