"""Read a mixture of experts from its usual config keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mrs.config.config import Config
from mrs.config.layer_kinds import every, layer_count, layer_types
from mrs.errors import NotReadable
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import Mlp
from mrs.layers.moe.spec import Moe, Router

#: Bound on the experts of all layers together; a broken config must not make a huge list.
MOST_EXPERTS = 100_000

#: The key of a list with the kind of each layer's feed-forward network.
_TYPES_KEY = "mlp_layer_types"

#: The first key that is present counts; a family's defaults may add a later one.
_COUNT_KEYS = ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts")
_SHARED_KEYS = ("num_shared_experts", "moe_num_shared_experts", "n_shared_experts")
_FIRST_KEYS = ("num_dense_layers", "moe_layer_start_index", "first_k_dense_replace")
_STEP_KEYS = ("moe_layer_interval", "interleave_moe_layer_step", "decoder_sparse_step")
_NORM_KEYS = ("route_norm", "norm_topk_prob")
_SCALE_KEYS = (
    "route_scale",
    "moe_routed_scaling_factor",
    "router_scaling_factor",
    "routed_scaling_factor",
)
_CHOSEN_KEYS = ("moe_k", "moe_topk", "top_k_experts", "num_experts_per_tok")


def expert_count(config: Config) -> int:
    """The number of experts in a layer; 0 for a model without experts."""
    key = config.spelling(*_COUNT_KEYS)
    count = config.integer(key, 0)
    if count * layer_count(config) > MOST_EXPERTS:
        raise NotReadable(f"{key} = {count} is out of range", where=config.where)
    return count


def read_router(config: Config, **changes: Any) -> Router:
    """The router of a layer; `changes` override its fields."""
    experts = expert_count(config)
    key = config.spelling(*_CHOSEN_KEYS)
    top_k = config.positive(key, 2)
    if top_k > experts:
        raise NotReadable(f"{key} = {top_k}, but a layer has {experts} experts", where=config.where)
    router = Router(experts, top_k, **changes)
    _check_groups(router, config)
    return router


def _check_groups(router: Router, config: Config) -> None:
    size, rest = divmod(router.experts, router.n_group)
    enough = router.topk_group <= router.n_group and router.top_k <= size * router.topk_group
    if rest or not enough or (router.n_group > 1 and size < router.group_score_experts):
        raise NotReadable(
            f"n_group = {router.n_group} and topk_group = {router.topk_group} do not fit "
            f"{router.experts} experts, of which {router.top_k} are chosen",
            where=config.where,
        )


def read_expert(config: Config, key: str = "moe_intermediate_size", **changes: Any) -> Mlp:
    """The MLP of one expert; `changes` override its fields."""
    return read_mlp(config, key, **changes)


def read_shared_expert(
    config: Config, key: str = "moe_intermediate_size", default: int = 0, **changes: Any
) -> Mlp | None:
    """An MLP as wide as all shared experts (`default` of them if not given); None without any.

    One of them has the size `key`; `changes` override fields.
    """
    expert = read_expert(config, key, **changes)
    count = config.integer(config.spelling(*_SHARED_KEYS), default)
    return replace(expert, intermediate=expert.intermediate * count) if count else None


def read_sigmoid_router(config: Config, **changes: Any) -> Router:
    """A router by sigmoid scores with a learned bias for the choice; `changes` override fields."""
    fields: dict[str, Any] = {
        "scoring": "sigmoid",
        "score_correction_bias": True,
        "norm_topk_prob": config.flag(config.spelling(*_NORM_KEYS), True),
        "scale": config.number(config.spelling(*_SCALE_KEYS), 1.0),
        **changes,
    }
    return read_router(config, **fields)


def read_sigmoid_moe(config: Config, shared: Mlp | None, **changes: Any) -> Moe:
    """Experts with such a router, and a shared one; `changes` override fields of the router."""
    return Moe(read_sigmoid_router(config, **changes), read_expert(config), shared=shared)


def read_gated_moe(config: Config, *, norm_topk_prob: bool) -> Moe:
    """Experts, and a shared one with a gate."""
    return Moe(
        read_router(config, norm_topk_prob=norm_topk_prob),
        read_expert(config),
        shared=read_expert(config, "shared_expert_intermediate_size"),
        shared_gate=True,
    )


def mixed_layers(config: Config, moe: Moe | None, mlp: Mlp, first: int = 0) -> list[Mlp | Moe]:
    """The feed-forward network of each layer, as `expert_layers` says."""
    has_experts = expert_layers(config, first)
    return [moe if each and moe is not None else mlp for each in has_experts]


def expert_layers(config: Config, first: int = 0) -> list[bool]:
    """Whether each layer is a mixture of experts.

    The config lists the kinds of all layers or those with experts. Otherwise it is the last one of
    every so many layers, from a first one (by default `first`) to a last one, except those in
    `mlp_only_layers`.
    """
    count = layer_count(config)
    if config.has(_TYPES_KEY):
        return [kind == "sparse" for kind in layer_types(config, "dense", "sparse", key=_TYPES_KEY)]
    if config.has("moe_layers"):
        listed = config.sequence("moe_layers")
        return [layer in listed for layer in range(count)]
    first = config.integer(config.spelling(*_FIRST_KEYS), first)
    is_open = config.values.get("moe_layer_end_index") in (None, -1)
    last = count if is_open else config.integer("moe_layer_end_index")
    dense = config.sequence("mlp_only_layers", ())
    is_last_of_step = every(config, config.positive(config.spelling(*_STEP_KEYS), 1))
    return [
        has_experts and first <= layer <= last and layer not in dense
        for layer, has_experts in enumerate(is_last_of_step)
    ]


#: Config key -> metadata key of GGUF files.
GROUPED_MOE_GGUF_KEYS = {
    "first_k_dense_replace": "leading_dense_block_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "scoring_func": "expert_gating_func",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
#: GGUF's ids of the two scoring functions.
_SCORING = {1: "softmax", 2: "sigmoid"}


def read_scoring(config: Config) -> str:
    """Whether scores are a `softmax` or `sigmoid`."""
    config.allow_only("scoring_func", *_SCORING, *_SCORING.values())
    # Some GGUF files leave it to the reader.
    usual = "sigmoid" if config.flag("has_score_correction", False) else "softmax"
    scoring = config.values.get("scoring_func") or usual
    return _SCORING[scoring] if isinstance(scoring, int) else str(scoring)


def read_grouped_router(config: Config, **changes: Any) -> Router:
    """The router; `changes` override its fields."""
    config.allow_only("topk_method", "greedy", "group_limited_greedy", "noaux_tc")
    scoring = read_scoring(config)
    is_sigmoid = scoring == "sigmoid"
    fields: dict[str, Any] = {
        "scoring": scoring,
        "score_correction_bias": is_sigmoid,
        "norm_topk_prob": config.flag("norm_topk_prob", False),
        "scale": config.number("routed_scaling_factor", 1.0),
        "group_score_experts": 2 if is_sigmoid else 1,
    }
    if config.values.get("topk_method") != "greedy":
        n_group = config.positive("n_group", 1)
        fields |= {"n_group": n_group, "topk_group": config.positive("topk_group", n_group)}
    return read_router(config, **{**fields, **changes})


def read_grouped_moe(config: Config, **changes: Any) -> Moe:
    """Routed experts and shared ones; `changes` override fields of the router."""
    config.allow_only("moe_layer_freq", 1)
    shared = read_shared_expert(config, bias=config.flag("mlp_bias", False))
    return Moe(read_grouped_router(config, **changes), read_expert(config), shared=shared)
