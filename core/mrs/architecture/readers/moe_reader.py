"""Read a mixture of experts from its usual config keys."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe, Router
from mrs.architecture.readers.layer_reader import layer_count
from mrs.errors import NotReadable

#: Bound on the experts of all layers together; a broken config must not make a huge list.
MOST_EXPERTS = 100_000

#: The first key that is present counts; a family's defaults may add a later one.
_COUNT_KEYS = ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts")
_CHOSEN_KEYS = ("moe_k", "moe_topk", "top_k_experts", "num_experts_per_tok")


def expert_count(config: Config) -> int:
    """The number of experts in a layer; 0 for a model without experts."""
    key = next((key for key in _COUNT_KEYS if config.has(key)), None)
    count = 0 if key is None else config.integer(key)
    if count * layer_count(config) > MOST_EXPERTS:
        raise NotReadable(f"{key} = {count} is out of range", where=config.where)
    return count


def read_router(config: Config, **changes: Any) -> Router:
    """The router of a layer; `changes` override its fields."""
    experts = expert_count(config)
    key = next((key for key in _CHOSEN_KEYS if config.has(key)), _CHOSEN_KEYS[-1])
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
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive(key), **fields)


def mixed_layers(config: Config, moe: Moe | None, mlp: Mlp) -> list[Mlp | Moe]:
    """The feed-forward network of each layer.

    Every `decoder_sparse_step`-th layer is a mixture of experts, except those in `mlp_only_layers`.
    """
    step = config.positive("decoder_sparse_step", 1)
    dense = config.sequence("mlp_only_layers", ())
    return [
        moe if moe is not None and (layer + 1) % step == 0 and layer not in dense else mlp
        for layer in range(layer_count(config))
    ]
