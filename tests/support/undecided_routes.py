"""Tokens of a mixture whose experts are chosen within rounding.

Two experts whose scores for a token are nearly equal may change places in bf16, on one processor
and not on another; then the token gets other values, however right the arithmetic is. Such tokens
say nothing about it, so tests of rounding avoid them or leave them out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: What the classes of routers are called.
_ROUTERS = ("Router", "Gate")
#: How far the inputs of routers are moved, and how often.
_NOISE, _TRIES = 0.02, 32


def has_routers(model: torch.nn.Module) -> bool:
    return any(map(_is_router, model.modules()))


def route_changes(model: torch.nn.Module, run: Callable[[], object]) -> Tensor:
    """How often each token (T) of `run` goes to other experts when routers get noise.

    Empty for a model without routers.
    """
    routers = [part for part in model.modules() if _is_router(part)]
    inputs: list[tuple[Tensor, ...]] = []
    hooks = [
        router.register_forward_pre_hook(lambda _, given: inputs.append(given))
        for router in routers
    ]
    run()
    for hook in hooks:
        hook.remove()
    changes = torch.zeros(0)
    for router, (x, *rest) in zip(routers, inputs, strict=True):
        weights, chosen = _routed(router(x, *rest))
        for _ in range(_TRIES):
            changed = router(x * (1 + _NOISE * torch.randn_like(x)), *rest)
            new_weights, new_chosen = _routed(changed)
            moved = (new_chosen != chosen) | ((new_weights - weights).abs() > 0.1)
            by_token = moved.flatten(0, -2).sum(-1).float()
            changes = by_token if not len(changes) else changes + by_token
    return changes


def _is_router(part: torch.nn.Module) -> bool:
    name = type(part).__name__
    return name.endswith(_ROUTERS) and not name.endswith("ForgetGate")


def _routed(results: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The weights of the chosen experts, and which these are, from what a router returns."""
    if len(results) == 2:  # Llama 4's has a weight for each expert, 0 for those not chosen
        return results[0], results[0] > 0
    _, weights, chosen = (result.sort(-1).values for result in results)
    return weights, chosen
