"""Bytes for fields of specs that no formula of activations counts.

A field that is not named here may be computed with any number of tensors. The plan then has room
for some as wide as the widest of the layer, so that it does not fall short in silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.architecture.known_fields import Known, unknown_fields
from mrs.plan.memory.forward_pass import ForwardShape

if TYPE_CHECKING:
    from mrs.architecture.layers import Layer
    from mrs.architecture.model_spec import ModelSpec

#: Float32 tensors of all new tokens for each such field.
_TENSORS = 4
_ATTENTION = (
    "heads kv_heads head_dim scale rope window chunk softcap qk_norm qk_norm_whole qk_norm_by_head "
    "qk_norm_after_rope clip value_norm values_are_keys query_scale qkv_bias out_bias sinks "
    "always_causal gated output_gate gates_heads value_head_dim value_scale alibi"
)
_MLA = "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale rope norm bias query_scale"
#: What the formulas of this folder count, by the name of the spec.
COUNTED: Known = {
    "ModelSpec": "family vocab_size hidden_size layers norm tied_head context_tokens "
    "embedding_scale embedding_norm logit_scale logit_softcap head_bias vision extra_tokens "
    "file_layers layer_inputs altup input readout ranking embedding_size",
    "FirstInput": "norm positions first_position token_types",
    "LayerInputs": "vocab_size size norm image_row",
    "Layer": "mixer feed_forward norm style residual_scale output_scale mixer_norm post_norm "
    "gated_input laurel altup",
    "GatedInput": "size activation norm",
    "Laurel": "rank norm",
    "AltUp": "streams active scaled norm",
    "Norm": "eps kind bias learned",
    "Rope": "dim base scaling interleaved sections interleaved_sections backwards",
    "RopeScaling": "kind values factors long_factors",
    "QueryScale": "beta length offset",
    "Attention": _ATTENTION,
    "EncoderAttention": _ATTENTION,
    "SharedAttention": "attention layer",
    "CrossAttention": "heads kv_heads head_dim scale norm rope",
    "LatentAttention": _MLA,
    "IndexedAttention": f"{_MLA} indexer lends_choice",
    "BorrowedChoiceAttention": f"{_MLA} top_k",
    "Indexer": "heads head_dim top_k interleaved norm",
    "GatedDeltaNet": "key_heads value_heads key_dim value_dim kernel_tokens norm tiled beta_scale "
    "rope",
    "KimiDeltaAttention": "heads head_dim kernel_tokens norm rope",
    "Mamba": "channels state_dim step_rank kernel_tokens norm bias convolution_bias rope",
    "Mamba2": "heads head_dim state_dim groups kernel_tokens norm least_step most_step bias "
    "out_bias convolution_bias norm_before_gate multipliers shares_group rope",
    "ShortConvolution": "channels kernel_tokens bias rope",
    "ParallelMixers": "attention state attention_in attention_out state_in state_out",
    "NoMixer": "rope",
    "Mlp": "intermediate activation gated bias clamp cutoff gate_scale out_scale xielu_values",
    "Router": "experts top_k scoring bias score_correction_bias n_group topk_group "
    "group_score_experts norm_topk_prob scale jitter input_norm expert_scale",
    "Moe": "router expert shared shared_gate latent latent_bias weighs_input",
    "MlpAndMoe": "mlp moe norm",
    "NoFeedForward": "",
}
#: Parts of a model with bytes of their own.
_APART = ("layers", "vision", "readout", "ranking")


def uncounted_layer_bytes(layer: Layer, hidden_size: int, shape: ForwardShape) -> int:
    """Room for the fields of a layer and its modules that no formula counts."""
    unknown = len(list(unknown_fields(layer, COUNTED)))
    if not unknown:
        return 0
    sizes = [max(slot.rows, slot.shape[-1]) for slot in layer.slots(hidden_size)]
    return unknown * _TENSORS * 4 * shape.tokens * max(hidden_size, *sizes)


def uncounted_model_bytes(spec: ModelSpec, shape: ForwardShape) -> int:
    """Room for the fields of a model outside of its layers that no formula counts."""
    unknown = len(list(unknown_fields(spec, COUNTED, apart=_APART)))
    return unknown * _TENSORS * 4 * shape.tokens * spec.hidden_size
