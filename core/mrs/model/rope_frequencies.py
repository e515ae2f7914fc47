"""Frequencies of rotary position embedding under each scaling rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from mrs.architecture.norm_rope import Rope, RopeScaling


def frequencies(
    rope: Rope, total_tokens: int, file_factors: Mapping[str, Tensor]
) -> tuple[Tensor, float]:
    """Frequency of each pair, (dim / 2,) float32, and the factor on cos and sin.

    `total_tokens` is the length of the whole sequence, which `dynamic` and `longrope` depend on.
    `file_factors` are factors that the checkpoint stores as tensors, by slot.
    Sources: linear and dynamic (kaiokendev, bloc97), yarn (arXiv 2309.00071), longrope
    (arXiv 2402.13753), llama3 (Llama 3.1's reference code).
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    unscaled = 1.0 / (rope.base**exponents)
    scaling = rope.scaling
    if scaling is None:
        return unscaled, 1.0
    match scaling.kind:
        case "linear":
            return unscaled / scaling.get("factor", 1.0), 1.0
        case "dynamic":
            return _dynamic(rope, exponents, scaling, total_tokens), 1.0
        case "llama3":
            return _llama3(unscaled, scaling), 1.0
        case "yarn":
            return _yarn(unscaled, rope, scaling)
        case "longrope":
            return _longrope(unscaled, scaling, total_tokens, file_factors)
        case "proportional":
            rotated = torch.arange(len(unscaled)) < scaling.get("rotated_pairs", 0)
            return unscaled / scaling.get("factor", 1.0) * rotated, 1.0
        case "factors":
            return unscaled / file_factors["rope.factors"], 1.0


def _dynamic(rope: Rope, exponents: Tensor, scaling: RopeScaling, total_tokens: int) -> Tensor:
    trained = scaling.get("max_position_embeddings", 2048)
    factor, length = scaling.get("factor", 1.0), max(total_tokens, trained)
    base = rope.base * (factor * length / trained - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    return 1.0 / (torch.tensor(base, dtype=torch.float32) ** exponents)


def _llama3(unscaled: Tensor, scaling: RopeScaling) -> Tensor:
    factor = scaling.get("factor", 8.0)
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    trained = scaling.trained_tokens
    wavelength = 2 * math.pi / unscaled
    smooth = ((trained / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * unscaled / factor + smooth * unscaled


def _yarn(unscaled: Tensor, rope: Rope, scaling: RopeScaling) -> tuple[Tensor, float]:
    factor = scaling.get("factor", 1.0)
    trained = scaling.trained_tokens

    def pair_with(rotations: float) -> float:
        """The index of the pair that rotates `rotations` times over the trained length."""
        log_ratio = math.log(trained / (rotations * 2 * math.pi))
        return rope.dim * log_ratio / (2 * math.log(rope.base))

    low, high = pair_with(scaling.get("beta_fast", 32)), pair_with(scaling.get("beta_slow", 1))
    if scaling.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    pairs = torch.arange(rope.dim // 2, dtype=torch.float32)
    ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return unscaled / factor * ramp + unscaled * (1 - ramp), _yarn_magnitude(scaling, factor)


def _yarn_magnitude(scaling: RopeScaling, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    attention_factor = scaling.get("attention_factor", 0.0)
    if attention_factor:
        return attention_factor
    mscale, all_dims = scaling.get("mscale", 0.0), scaling.get("mscale_all_dim", 0.0)
    return magnitude(mscale) / magnitude(all_dims) if mscale and all_dims else magnitude(1.0)


def _longrope(
    unscaled: Tensor, scaling: RopeScaling, total_tokens: int, file_factors: Mapping[str, Tensor]
) -> tuple[Tensor, float]:
    trained = scaling.trained_tokens
    factor = scaling.get("factor", scaling.get("max_position_embeddings", trained) / trained)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    if scaling.file_slots:
        short, long = (file_factors[slot] for slot in scaling.file_slots)
    else:
        short, long = torch.tensor(scaling.factors), torch.tensor(scaling.long_factors)
    is_long = total_tokens > trained
    # Phi 3.5 MoE's config gives a magnitude for each of the two lengths.
    mscale = scaling.get("long_mscale" if is_long else "short_mscale", 0.0)
    factors = long if is_long else short
    return unscaled / factors, mscale or scaling.get("attention_factor", magnitude)
