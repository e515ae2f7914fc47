"""The layers of a decoder and what they consist of, as small frozen values.

A layer mixes tokens (attention, convolution, …) and then transforms each token (an MLP or a
mixture of experts). Layers with the same settings compare equal, so a plan can count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "clamped_swiglu"]


@dataclass(frozen=True)
class Norm:
    """RMSNorm or LayerNorm over the last dimension, always computed in float32."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are scaled for contexts beyond the trained length.

    `kind` names the rule; `values` are its parameters as the config spells them, sorted by name.
    Each frequency is divided by its entry in `factors`; longrope uses `long_factors` instead for
    sequences beyond the trained length. Both are empty if a GGUF file has them as tensors.
    """

    kind: Literal["linear", "llama3", "yarn", "dynamic", "longrope", "factors"]
    values: tuple[tuple[str, float], ...] = ()
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def get(self, name: str, default: float) -> float:
        return dict(self.values).get(name, default)

    @property
    def depends_on_length(self) -> bool:
        """Whether the rotation at a position depends on the length of the sequence."""
        return self.kind in ("dynamic", "longrope")

    @property
    def switch_tokens(self) -> int | None:
        """The sequence length beyond which longrope uses `long_factors`; None for other kinds."""
        return int(self.trained_tokens) if self.kind == "longrope" else None

    @property
    def trained_tokens(self) -> float:
        """The context length that the model was trained on before scaling."""
        return self.get(
            "original_max_position_embeddings", self.get("max_position_embeddings", 2048)
        )

    @property
    def file_slots(self) -> tuple[str, ...]:
        """The slots of the factors that are tensors of the checkpoint."""
        if self.kind == "longrope" and not self.factors:
            return ("rope.short_factors", "rope.long_factors")
        return ("rope.factors",) if self.kind == "factors" else ()


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` values of each head.

    Pairs are (i, i + dim/2), or (2i, 2i + 1) if `interleaved`. `sections` is set for multimodal
    rope (arXiv 2409.12191): the numbers of pairs that rotate by a token's position in time, by its
    row and by its column.
    """

    dim: int
    base: float
    scaling: RopeScaling | None = None
    interleaved: bool = False
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class Attention:
    """Grouped-query softmax attention.

    `window` is the sliding window: a query attends to itself and the `window - 1` tokens before it.
    `softcap` caps scores: softcap * tanh(score / softcap). `sinks` adds one learned score per head
    to the denominator of the softmax. `qk_norm` is applied before rope to each head, or with
    `qk_norm_whole` to the concatenation of all heads. `gated`: q_proj also yields a gate of the
    same size, and the output is multiplied by sigmoid(gate).
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: Rope | None
    window: int | None = None
    softcap: float | None = None
    qk_norm: Norm | None = None
    qk_norm_whole: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    gated: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention, MLA (arXiv 2405.04434).

    The KV cache stores `kv_lora_rank + rope.dim` values per token: the latent vector, from which
    linear maps give the keys and values of all heads, and the rotated key that all heads share.
    A head's query and key have `qk_nope_head_dim` further values without rope, its value has
    `v_head_dim`. Queries come from a latent vector of `q_lora_rank` values, or directly from the
    hidden state if that is None. `norm` normalizes both latent vectors; `bias` is that of the maps
    to them and of the output projection.
    """

    heads: int
    qk_nope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    q_lora_rank: int | None
    scale: float
    rope: Rope
    norm: Norm
    bias: bool = False


@dataclass(frozen=True)
class CrossAttention:
    """Softmax attention of text tokens to image features, from which keys and values are computed.

    A token attends to the last image at or before its position, and to the images directly before
    that one (with no other token in between). The layer leaves tokens before the first image
    unchanged. `norm` is applied to every head of queries and keys.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    norm: Norm
    rope: None = None


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention with the gated delta rule (arXiv 2412.06464).

    Queries and keys (`key_heads` of `key_dim`) and values (`value_heads` of `value_dim`) go through
    a causal convolution over the last `kernel_tokens` tokens. Each value head has a recurrent state
    of shape (`key_dim`, `value_dim`). `norm` is applied to the output of each head, which is then
    gated.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel_tokens: int
    norm: Norm
    rope: None = None

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class ShortConvolution:
    """Gated depthwise causal convolution over the last `kernel_tokens` tokens (LFM 2).

    b, c, x = split(in(h)), each of `channels` values; the output is out(c * convolution(b * x)).
    """

    channels: int
    kernel_tokens: int
    bias: bool = False
    rope: None = None


@dataclass(frozen=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) if not `gated`.

    `clamped_swiglu` is a function of both gate and up, which it clamps to `clamp`.
    """

    intermediate: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    clamp: float = 7.0


@dataclass(frozen=True)
class Router:
    """Chooses `top_k` of `experts` for a token and weighs them.

    Scores are the softmax or sigmoid of a linear map (with `bias`).
    score_correction_bias  a learned value added to each score for the choice only (DeepSeek V3)
    n_group, topk_group    experts are chosen from the `topk_group` best of `n_group` groups
    group_score_experts    the score of a group is the sum of that many of its best scores
    norm_topk_prob         divide the weights of the chosen experts by their sum
    scale                  multiplies the weights
    sparsemixer            (scoring) chooses experts one by one; the weight of each is its softmax
                           among the remaining experts whose scores lie within a
                           relative distance of `2 * jitter` from the best one
    """

    experts: int
    top_k: int
    scoring: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    bias: bool = False
    score_correction_bias: bool = False
    n_group: int = 1
    topk_group: int = 1
    group_score_experts: int = 1
    norm_topk_prob: bool = False
    scale: float = 1.0
    jitter: float = 0.0


@dataclass(frozen=True)
class Moe:
    """Mixture of experts: the weighted sum of the outputs of the experts that the router chose.

    The `shared` expert runs for every token; with `shared_gate` its output is multiplied by the
    sigmoid of a linear map of the token.
    """

    router: Router
    expert: Mlp
    shared: Mlp | None = None
    shared_gate: bool = False


Mixer = Attention | LatentAttention | CrossAttention | GatedDeltaNet | ShortConvolution
FeedForward = Mlp | Moe


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    style       x becomes
    `pre`       x + mixer(norm(x)), then x + feed_forward(norm(x))
    `sandwich`  as `pre`, with a further norm on what is added
    `gated`     as `pre`, with what is added multiplied by the tanh of a learned scalar
    `parallel`  x + mixer(norm(x)) + feed_forward(norm(x)), with one norm

    `residual_scale` multiplies what is added.
    """

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    style: Literal["pre", "sandwich", "gated", "parallel"] = "pre"
    residual_scale: float = 1.0
