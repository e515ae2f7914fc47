"""Activation bytes of a mixer, an MLP or experts, by the class of its spec."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from mrs.layers.forward_pass import ForwardShape, StorageOf

#: Class of a spec -> file and function. A file is imported when a model needs it, because each
#: lengthens the start of every command that plans.
FUNCTIONS = {
    "Attention": ("attention", "attention_bytes"),
    "BorrowedChoiceAttention": ("latent_attention", "borrowed_choice_bytes"),
    "CrossAttention": ("cross_attention", "cross_attention_bytes"),
    "EncoderAttention": ("attention", "attention_bytes"),
    "GatedDeltaNet": ("gated_delta_net", "delta_net_bytes"),
    "IndexedAttention": ("latent_attention", "indexed_attention_bytes"),
    "KimiDeltaAttention": ("kda", "kda_bytes"),
    "LatentAttention": ("latent_attention", "latent_attention_bytes"),
    "Mamba": ("mamba", "mamba_bytes"),
    "Mamba2": ("mamba2", "mamba2_bytes"),
    "Mlp": ("mlp", "mlp_bytes"),
    "MlpAndMoe": ("moe", "mlp_and_moe_bytes"),
    "Moe": ("moe", "moe_bytes"),
    "ParallelMixers": ("parallel_mixers", "parallel_mixers_bytes"),
    "SharedAttention": ("attention", "shared_attention_bytes"),
    "ShortConvolution": ("short_convolution", "short_convolution_bytes"),
}

#: Mixers of vision towers alone: `mrs.plan.memory.vision_sizes` counts their bytes.
IN_TOWERS = {"GridConvolution"}
#: Specs of modules that compute nothing.
EMPTY = {"NoFeedForward", "NoMixer"}


def module_bytes(
    module: object, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak bytes of a mixer, an MLP or experts, without the input (T, h)."""
    name = type(module).__name__
    if name in EMPTY:
        return 0
    return function_of(name)(module, shape, hidden_size, storage_of)


@cache
def function_of(spec_name: str) -> Callable[[Any, ForwardShape, int, StorageOf], int]:
    """The function that counts the bytes of a class of specs; TypeError if there is none."""
    if spec_name not in FUNCTIONS:
        raise TypeError(f"no activations are known for {spec_name}")
    file, function = FUNCTIONS[spec_name]
    found: Callable[[Any, ForwardShape, int, StorageOf], int] = getattr(
        import_module(f"mrs.layers.{file}.memory"), function
    )
    return found
