"""The caches of transformers' models, which were renamed in its version 5."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast

#: The name of the argument and of the field.
NAME = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


def cache_of(output: Any) -> Any:
    """The cache that an output of a model or of `generate` holds."""
    return getattr(output, NAME)


def read_on(model: Any, ids: Tensor, before: Any, **more: Any) -> Any:
    """What a model computes for ids (1, N) after an output `before` of it; None for none."""
    cache = None if before is None else cache_of(before)
    return model(ids, **{NAME: cache}, **more)
