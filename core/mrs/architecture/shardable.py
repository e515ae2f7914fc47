"""Which models several processes can share: the fields that have been thought of.

A scalar of a field is in each process. What has a value for each head or column must be cut in
`with_shard` of its spec, as a slot with fewer rows in each rank is; and what reads all values of a
token, as a norm of them does, must add up those of all ranks.
"""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.errors import Unsupported
from mrs.layers.attention.spec import Attention
from mrs.layers.empty.spec import NoFeedForward, NoMixer
from mrs.layers.known_fields import SETTLED, Known, require_only, with_fields

#: Further fields are named like this: with_fields(SETTLED, Attention="first second").
SHARDABLE: Known = with_fields(SETTLED, FirstInput="width", Mlp="down_bias")


def require_shardable(spec: ModelSpec, flag: str, pipeline: str) -> None:
    """Raise Unsupported for what cannot be shared; hints are `flag`, and `pipeline` instead."""
    if spec.vision is not None and spec.vision.enters != "embeddings":
        what = "images that enter between layers"
        raise Unsupported(f"{what} cannot be in several processes", hint=f"leave out {flag}")
    others = ("layers", "vision", "pooler", "ranking")
    require_only(spec, SHARDABLE, flag, apart=others, hint=f"leave out {flag}")
    for layer in set(spec.layers):
        require_only(layer, SHARDABLE, flag, hint=pipeline, path="shared")
        for module in (layer.mixer, layer.feed_forward):
            if not module.shard_axes and not isinstance(module, NoMixer | NoFeedForward):
                what = f"{flag} cannot share out {type(module).__name__!r}, which has no shard axes"
                raise Unsupported(what, hint=pipeline)
        mixer = layer.mixer
        norm = mixer.qk_norm if isinstance(mixer, Attention) and mixer.qk_norm_whole else None
        if norm is not None and norm.kind != "rms":
            raise Unsupported(f"{flag} cannot compute a LayerNorm of all heads", hint=pipeline)
