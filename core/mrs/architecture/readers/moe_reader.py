"""Read a mixture of experts from its usual config keys."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Mlp, Moe, Router
from mrs.architecture.readers.layer_reader import layer_count
from mrs.errors import NotReadable

#: More experts than the layers of any model have together: a broken number must not make a list.
MOST_EXPERTS = 100_000

#: Where a file has the first, the last may still stand beside it as a family's default.
_COUNT_KEYS = ("num_local_experts", "n_routed_experts", "num_experts")


def expert_count(config: Config) -> int:
    """Experts of a layer, 0 where the layers have none."""
    key = next((key for key in _COUNT_KEYS if config.has(key)), None)
    count = 0 if key is None else config.whole(key)
    if count * layer_count(config) > MOST_EXPERTS:
        raise NotReadable(f"{key} = {count} is no model's", where=config.where)
    return count


def read_router(config: Config, **changes: Any) -> Router:
    """A router; `changes` are fields that differ."""
    experts = expert_count(config)
    chosen = config.positive("num_experts_per_tok", 2)
    if chosen > experts:
        raise NotReadable(f"{chosen} of {experts} experts cannot be chosen", where=config.where)
    router = Router(experts, chosen, **changes)
    _check_groups(router, config)
    return router


def _check_groups(router: Router, config: Config) -> None:
    size, rest = divmod(router.experts, router.n_group)
    enough = router.topk_group <= router.n_group and router.top_k <= size * router.topk_group
    if rest or not enough or (router.n_group > 1 and size < router.group_score_experts):
        what = f"{router.top_k} experts of {router.topk_group} in {router.n_group} groups"
        raise NotReadable(f"{what} of {router.experts} cannot be chosen", where=config.where)


def read_expert(config: Config, key: str = "moe_intermediate_size", **changes: Any) -> Mlp:
    """The feed-forward part that every expert is; `changes` are fields that differ."""
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive(key), **fields)


def mixed_layers(config: Config, moe: Moe | None, mlp: Mlp) -> list[Mlp | Moe]:
    """Each layer's feed-forward part: the mixture in every `decoder_sparse_step`-th layer.

    Layers that `mlp_only_layers` lists have none.
    """
    step = config.positive("decoder_sparse_step", 1)
    dense = config.sequence("mlp_only_layers", ())
    return [
        moe if moe is not None and (layer + 1) % step == 0 and layer not in dense else mlp
        for layer in range(layer_count(config))
    ]
