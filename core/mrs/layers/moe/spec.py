"""A mixture of experts and its router, alone or beside an MLP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mrs.layers.known_fields import Known, require_only
from mrs.layers.mixer import Code, FeedForward, Routing, ShardAxis
from mrs.layers.mlp.spec import Mlp, mlp_slots
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

#: Its scores are weights already, which nothing else changes.
_SPARSEMIXER: Known = {"Router": "experts top_k scoring bias jitter input_norm"}


@dataclass(frozen=True)
class Router:
    """Chooses `top_k` of `experts` for a token and weighs them.

    Scores are the softmax or sigmoid of a linear map (with `bias`).
    score_correction_bias  a learned value added to each score for the choice only (DeepSeek V3)
    n_group, topk_group    experts are chosen from the `topk_group` best of `n_group` groups
    group_score_experts    the score of a group is the sum of that many of its best scores
    norm_topk_prob         divide the weights of the chosen experts by their sum
    scale                  multiplies the weights
    input_norm             an RMS norm of the input, whose learned weights are multiplied by
                           1/sqrt(hidden size) (Gemma 4)
    expert_scale           a learned factor of each expert's weight
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
    input_norm: Norm | None = None
    expert_scale: bool = False

    def __post_init__(self) -> None:
        if self.scoring == "sparsemixer":
            require_only(self, _SPARSEMIXER, "sparsemixer", apart=("input_norm",))


@dataclass(frozen=True)
class Moe(FeedForward):
    """Mixture of experts: the weighted sum of the outputs of the experts that the router chose.

    The `shared` expert runs for every token; with `shared_gate` its output is multiplied by the
    sigmoid of a linear map of the token. With a `latent` size a linear map before the experts
    makes vectors of this size, on which they work, and one after them those of the hidden size.
    With `weighs_input` an expert's weight multiplies its input instead of its output.
    """

    code = Code(
        "mrs.layers.moe.module:MoeModule",
        operations="mrs.graph.feed_forward_operations:mix",
    )

    router: Router
    expert: Mlp
    shared: Mlp | None = None
    shared_gate: bool = False
    latent: int | None = None
    latent_bias: bool = False
    weighs_input: bool = False

    @property
    def routing(self) -> Routing:
        return Routing(self.router.top_k, self.router.experts)

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        router = self.router
        yield Slot("ffn.router", (router.experts, hidden_size), "vector", router.bias)
        if router.score_correction_bias:
            yield Slot("ffn.router.correction", (router.experts,), "vector", suffix="")
        if router.input_norm is not None:
            yield Slot("ffn.router.input_norm", (hidden_size,), "vector", suffix="")
        if router.expert_scale:
            yield Slot("ffn.router.expert_scale", (router.experts,), "vector", suffix="")
        if self.latent is not None:
            bias = self.latent_bias
            yield Slot("ffn.latent_in", (self.latent, hidden_size), bias=bias)
            yield Slot("ffn.latent_out", (hidden_size, self.latent), bias=bias, is_summed=True)
        width = self.latent or hidden_size
        yield from mlp_slots("ffn.experts.{expert}", self.expert, width, router.experts)
        if self.shared is not None:
            yield from mlp_slots("ffn.shared", self.shared, hidden_size)
        if self.shared_gate:
            yield Slot("ffn.shared_gate", (hidden_size,), "vector")

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        """Columns of each expert, and those of the shared one."""
        return (*self.expert.shard_axes, *(self.shared.shard_axes if self.shared else ()))

    def with_shard(self, ranges: Sequence[range]) -> Moe:
        expert, shared = self.expert.with_shard(ranges[:1]), self.shared
        if shared is not None:
            shared = shared.with_shard(ranges[1:])
        return replace(self, expert=expert, shared=shared)


@dataclass(frozen=True)
class MlpAndMoe(FeedForward):
    """norm_1(mlp(norm(x))) + norm_2(experts(norm_in(x))), each norm with its own weights.

    The router reads x itself.
    """

    code = Code(
        "mrs.layers.moe.module:MoeModule",
        operations="mrs.graph.feed_forward_operations:transform_and_mix",
    )

    mlp: Mlp
    moe: Moe
    norm: Norm
    has_own_norm = True
    adds_up = True

    @property
    def routing(self) -> Routing:
        return self.moe.routing

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        for name in ("norm", "norm_1", "norm_in", "norm_2"):
            yield from norm_slots(f"ffn.{name}", hidden_size, self.norm)
        yield from self.mlp.slots(hidden_size)
        yield from self.moe.slots(hidden_size)

    @property
    def shard_axes(self) -> tuple[ShardAxis, ...]:
        return (*self.mlp.shard_axes, *self.moe.shard_axes)

    def with_shard(self, ranges: Sequence[range]) -> MlpAndMoe:
        mlp_axes = len(self.mlp.shard_axes)
        return replace(
            self,
            mlp=self.mlp.with_shard(ranges[:mlp_axes]),
            moe=self.moe.with_shard(ranges[mlp_axes:]),
        )
