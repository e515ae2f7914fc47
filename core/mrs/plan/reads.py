"""What one decoded token reads of the weights: of experts the chosen ones, of the rest all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrs.families.spec import ModelSpec, Moe, Parameter
from mrs.plan.storage import Storage


def decoded_share(parameter: Parameter, spec: ModelSpec) -> float:
    """The part of a parameter that takes part in one token, on average.

    An embedding gives one row, next to nothing, unless it is the head too. What sees is done
    before a token is decoded.
    """
    if parameter.name.startswith("vision."):
        return 0.0
    if parameter.layer is None:
        return 0.0 if parameter.role == "embedding" and not spec.tied_head else 1.0
    feed_forward = spec.layers[parameter.layer].feed_forward
    if isinstance(feed_forward, Moe) and ".ffn.experts." in parameter.name:
        return feed_forward.router.chosen / feed_forward.router.experts
    return 1.0


def decoded_layer_bytes(
    parameters: Sequence[Parameter], spec: ModelSpec, storage: Mapping[str, Storage]
) -> list[int]:
    """Bytes of weights that one decoded token reads in each layer."""
    totals = [0.0] * len(spec.layers)
    for parameter in parameters:
        if parameter.layer is not None:
            share = decoded_share(parameter, spec)
            totals[parameter.layer] += share * storage[parameter.name].size_bytes
    return [round(total) for total in totals]


def decoded_weight_bytes(
    parameters: Sequence[Parameter], spec: ModelSpec, storage: Mapping[str, Storage]
) -> int:
    """Bytes of weights that one decoded token reads in all."""
    sizes = (decoded_share(p, spec) * storage[p.name].size_bytes for p in parameters)
    return round(sum(sizes))
