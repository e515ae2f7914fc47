"""The layers of a decoder and their parts, as small frozen values.

A layer mixes tokens (attention, a convolution, …) and then transforms each token (an MLP or a
mixture of experts). Two layers of one kind compare equal, so a plan can count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "quick_gelu", "clamped_swiglu"]


@dataclass(frozen=True)
class Norm:
    """`rms` or `layer` normalization over the last dimension, always computed in float32."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained length.

    `kind` names the rule; `values` are its parameters as the config spells them, sorted by name.
    `factors` and `long_factors` divide the frequencies one by one (longrope: up to the trained
    length, and beyond it). Where a GGUF file has them as tensors they are empty here.
    """

    kind: Literal["linear", "llama3", "yarn", "dynamic", "longrope", "factors"]
    values: tuple[tuple[str, float], ...] = ()
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def get(self, name: str, default: float) -> float:
        return dict(self.values).get(name, default)

    @property
    def depends_on_length(self) -> bool:
        """Whether the same position turns differently in a longer sequence."""
        return self.kind in ("dynamic", "longrope")

    @property
    def switch_tokens(self) -> int | None:
        """The length beyond which every position turns by other factors (longrope)."""
        return int(self.trained_tokens) if self.kind == "longrope" else None

    @property
    def trained_tokens(self) -> float:
        """The length that the model was trained on before its rope was stretched."""
        return self.get(
            "original_max_position_embeddings", self.get("max_position_embeddings", 2048)
        )

    @property
    def file_slots(self) -> tuple[str, ...]:
        """The slots of the factors that the checkpoint keeps as tensors."""
        if self.kind == "longrope" and not self.factors:
            return ("rope.short_factors", "rope.long_factors")
        return ("rope.factors",) if self.kind == "factors" else ()


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` numbers of each head.

    Pairs are (i, i + dim/2); with `interleaved`, (2i, 2i + 1). Where tokens stand in time, height
    and width, as many pairs as `sections` says turn by each of the three.
    """

    dim: int
    base: float
    scaling: RopeScaling | None = None
    interleaved: bool = False
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class Attention:
    """Softmax attention with grouped heads.

    `window` limits a query to itself and the `window - 1` tokens before it. `softcap` squashes
    scores, `sinks` adds one learned score a head to the softmax's denominator. `qk_norm` is
    applied to every head, or with `qk_norm_whole` to all heads' numbers at once, before rope.
    With `gated` each head's result is multiplied by the sigmoid of as many further numbers that
    the map of its query gives.
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
    """Multi-head latent attention (arXiv 2405.04434).

    Keys and values of all heads are linear maps of one vector of `kv_lora_rank` numbers a token,
    which is all that is remembered, with the `rope.dim` numbers of a key that is rotated and
    shared. Each head has `qk_nope_head_dim` more of its own. Queries come from `q_lora_rank` numbers,
    or directly from the token where that is None. `norm` is that of both latent vectors; `bias`
    belongs to the maps onto them and to the one back.
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
    """Softmax attention of tokens to pictures: keys and values are maps of their features.

    A token sees the last picture that stands at or before its own place, and those that stand
    right before that one without a token in between. One that sees none passes the whole layer as
    it is. `norm` is that of every head's query and key.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    norm: Norm
    rope: None = None


@dataclass(frozen=True)
class GatedDeltaNet:
    """Linear attention whose state every token decays and corrects (arXiv 2412.06464).

    Queries and keys of `key_heads` and values of `value_heads` go through a convolution over the
    last `kernel_tokens` tokens. What is read of a head's state, `key_dim` by `value_dim`, is
    normalized and gated.
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
        """Numbers of a token that go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class ShortConvolution:
    """Gated convolution over the last `kernel_tokens` tokens, each channel on its own (LFM 2).

    A token gives three vectors of `channels` numbers: the first two times each other go through
    the convolution, and its result times the third is mapped back.
    """

    channels: int
    kernel_tokens: int
    bias: bool = False
    rope: None = None


@dataclass(frozen=True)
class Mlp:
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).

    `clamped_swiglu` is a function of gate and up, whose numbers it limits to `clamp`.
    """

    intermediate: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    clamp: float = 7.0


@dataclass(frozen=True)
class Router:
    """Scores every expert for a token, chooses some, and weighs them.

    Scores are the softmax or the sigmoid of a linear map, with a `bias` if it has one. While
    experts are chosen, `score_correction_bias` adds a learned number to each score. With `n_group`, only
    experts of the `topk_group` best groups can be chosen; a group is worth the sum of its
    `group_score_experts` best scores. The chosen weigh their scores, divided by their sum if `norm_topk_prob`,
    times `scale`. `sparsemixer` chooses one after another, each weighing its softmax among the
    experts left whose scores come within `2 * jitter` of the best one's.
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
    """A mixture of experts: the weighted sum of what a router's chosen ones make of a token.

    `shared` sees every token, and its result is multiplied by the sigmoid of a linear map with
    `shared_gate`.
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

    `pre`: x + mixer(norm(x)), then x + feed_forward(norm(x)). `sandwich` also normalizes what is
    added, `gated` multiplies it by the tanh of a learned number. `parallel` adds both parts of one
    norm(x). `residual_scale` multiplies what is added.
    """

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    style: Literal["pre", "sandwich", "gated", "parallel"] = "pre"
    residual_scale: float = 1.0
