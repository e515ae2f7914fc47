"""Rotary angles of a model: frequencies under every scaling rule, tabulated by position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mrs.families.spec import Rope, RopeScaling
from mrs.kernels.rope import rotate


def frequencies(
    rope: Rope, total_tokens: int, file_factors: Tensor | None = None
) -> tuple[Tensor, float]:
    """Angle per position of each pair, (dim / 2,) float32, and the factor on cos and sin.

    `total_tokens` is the length of the whole sequence: `dynamic` and `longrope` depend on it.
    Sources: linear and dynamic (kaiokendev, bloc97), yarn (arXiv 2309.00071), longrope
    (arXiv 2402.13753), llama3 (Llama 3.1's reference code).
    """
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    plain = 1.0 / (rope.base**exponents)
    scaling = rope.scaling
    if scaling is None:
        return plain, 1.0
    match scaling.kind:
        case "linear":
            return plain / scaling.get("factor", 1.0), 1.0
        case "dynamic":
            return _dynamic(rope, exponents, scaling, total_tokens), 1.0
        case "llama3":
            return _llama3(plain, scaling), 1.0
        case "yarn":
            return _yarn(plain, rope, scaling)
        case "longrope":
            return _longrope(plain, scaling, total_tokens)
        case "factors":
            assert file_factors is not None
            return plain / file_factors.cpu().float(), 1.0


def _dynamic(rope: Rope, exponents: Tensor, scaling: RopeScaling, total_tokens: int) -> Tensor:
    trained = scaling.get("max_position_embeddings", 2048)
    factor, length = scaling.get("factor", 1.0), max(total_tokens, trained)
    base = rope.base * (factor * length / trained - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    return 1.0 / (torch.tensor(base, dtype=torch.float32) ** exponents)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    factor = scaling.get("factor", 8.0)
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    trained = scaling.get("original_max_position_embeddings", 8192)
    wavelength = 2 * math.pi / plain
    smooth = ((trained / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * plain / factor + smooth * plain


def _yarn(plain: Tensor, rope: Rope, scaling: RopeScaling) -> tuple[Tensor, float]:
    factor = scaling.get("factor", 1.0)
    trained = scaling.get(
        "original_max_position_embeddings", scaling.get("max_position_embeddings", 2048)
    )

    def pair_with(rotations: float) -> float:
        """The pair that turns `rotations` times over the trained length."""
        turns = math.log(trained / (rotations * 2 * math.pi))
        return rope.dim * turns / (2 * math.log(rope.base))

    low, high = pair_with(scaling.get("beta_fast", 32)), pair_with(scaling.get("beta_slow", 1))
    if scaling.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    pairs = torch.arange(rope.dim // 2, dtype=torch.float32)
    stretched = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * stretched + plain * (1 - stretched), _yarn_magnitude(scaling, factor)


def _yarn_magnitude(scaling: RopeScaling, factor: float) -> float:
    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = scaling.get("attention_factor", 0.0)
    if given:
        return given
    mscale, all_dims = scaling.get("mscale", 0.0), scaling.get("mscale_all_dim", 0.0)
    return magnitude(mscale) / magnitude(all_dims) if mscale and all_dims else magnitude(1.0)


def _longrope(plain: Tensor, scaling: RopeScaling, total_tokens: int) -> tuple[Tensor, float]:
    longest = scaling.get("max_position_embeddings", 4096)
    trained = scaling.get("original_max_position_embeddings", longest)
    factors = scaling.long_factors if total_tokens > trained else scaling.factors
    stretch = scaling.get("factor", longest / trained)
    magnitude = math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 else 1.0
    return plain / torch.tensor(factors), scaling.get("attention_factor", magnitude)


class RopeTable:
    """cos and sin of every position so far, on one device; shared by all layers with one rope."""

    def __init__(self, rope: Rope, device: torch.device, file_factors: Tensor | None) -> None:
        self._rope = rope
        self._device = device
        self._file_factors = file_factors
        self._frequencies: Tensor | None = None
        self._cos = self._sin = torch.empty(0, rope.dim // 2, device=device)

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """Rotate x (T, H, D), whose tokens stand at `start`, `start + 1`, …"""
        end = start + x.shape[0]
        self._reach(end)
        cos, sin = self._cos[start:end], self._sin[start:end]
        return rotate(x, cos, sin, interleaved=self._rope.interleaved)

    def _reach(self, total_tokens: int) -> None:
        """Make the table hold `total_tokens` positions, with the frequencies of that length."""
        depends_on_length = self._rope.scaling is not None and self._rope.scaling.kind in (
            "dynamic",
            "longrope",
        )
        if total_tokens <= self._cos.shape[0] and not depends_on_length:
            return
        angles, magnitude = frequencies(self._rope, total_tokens, self._file_factors)
        is_same = self._frequencies is not None and torch.equal(angles, self._frequencies)
        if is_same and total_tokens <= self._cos.shape[0]:
            return
        self._frequencies = angles
        positions = torch.arange(max(total_tokens, 2 * self._cos.shape[0], 256))
        table = positions.float()[:, None] * angles[None, :]
        self._cos = (table.cos() * magnitude).to(self._device)
        self._sin = (table.sin() * magnitude).to(self._device)
