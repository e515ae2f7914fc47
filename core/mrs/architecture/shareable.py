"""Which models several processes can share: the fields that have been thought of.

A scalar of a field is in each process. What has a value for each head or column must be cut in
`with_units` of its spec, as a slot with fewer rows in each rank is; and what reads all values of a
token, as a norm of them does, must add up those of all ranks.
"""

from __future__ import annotations

from mrs.architecture.known_fields import Known, require_only
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.model_spec import ModelSpec
from mrs.errors import Unsupported

_ATTENTION = (
    "heads kv_heads head_dim scale rope window chunk softcap qk_norm qk_norm_whole qk_norm_by_head "
    "qk_norm_after_rope clip value_norm values_are_keys query_scale qkv_bias out_bias sinks "
    "always_causal gated output_gate gates_heads value_head_dim value_scale alibi"
)
_MLA = "heads qk_nope_head_dim v_head_dim kv_lora_rank q_lora_rank scale rope norm bias query_scale"
SHAREABLE: Known = {
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


def require_shareable(spec: ModelSpec, flag: str, pipeline: str) -> None:
    """Raise Unsupported for what cannot be shared; hints are `flag`, and `pipeline` instead."""
    if spec.vision is not None and spec.vision.enters != "embeddings":
        what = "images that enter between layers"
        raise Unsupported(f"{what} cannot be in several processes", hint=f"leave out {flag}")
    others = ("layers", "vision", "readout", "ranking")
    require_only(spec, SHAREABLE, flag, apart=others, hint=f"leave out {flag}")
    for layer in set(spec.layers):
        require_only(layer, SHAREABLE, flag, hint=pipeline)
        mixer = layer.mixer
        norm = mixer.qk_norm if isinstance(mixer, Attention) and mixer.qk_norm_whole else None
        if norm is not None and norm.kind != "rms":
            raise Unsupported(f"{flag} cannot compute a LayerNorm of all heads", hint=pipeline)
