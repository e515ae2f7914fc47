"""Names of the tensors of gated delta nets, with one tensor of several projections or separate."""

from __future__ import annotations

from collections.abc import Mapping

DELTA_NET: Mapping[str, str] = {
    "mixer.conv": "linear_attn.conv1d",
    "mixer.out": "linear_attn.out_proj",
}
SEPARATE_DELTA_NET: Mapping[str, str] = {
    **DELTA_NET,
    "mixer.qkv": "linear_attn.in_proj_qkv",
    "mixer.z": "linear_attn.in_proj_z",
    "mixer.beta": "linear_attn.in_proj_b",
    "mixer.step": "linear_attn.in_proj_a",
}
#: Projections beside those of attention in other layers, and three convolutions.
OLMO_DELTA_NET: Mapping[str, str] = {
    **{f"mixer.{part}.weight": f"linear_attn.{part}_proj.weight" for part in "qkv"},
    **{f"mixer.conv_{part}": f"linear_attn.{part}_conv1d" for part in "qkv"},
    "mixer.z": "linear_attn.g_proj",
    "mixer.beta": "linear_attn.b_proj",
    "mixer.step": "linear_attn.a_proj",
    "mixer.head_norm": "linear_attn.o_norm",
    "mixer.out": "linear_attn.o_proj",
}
GGUF_DELTA_NET: Mapping[str, str] = {
    "mixer.conv": "ssm_conv1d",
    "mixer.out": "ssm_out",
    "ffn.norm": "post_attention_norm",
}
GGUF_SEPARATE_DELTA_NET: Mapping[str, str] = {
    **GGUF_DELTA_NET,
    "mixer.beta": "ssm_beta",
    "mixer.step": "ssm_alpha",
}
