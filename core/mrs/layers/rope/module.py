"""Rotation of queries and keys, and what else depends on their positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mrs.layers.rope.memory import grown_rows
from mrs.layers.rope.spec import QueryScale, Rope, RopeScaling
from mrs.model.native_program import Angles

if TYPE_CHECKING:
    from mrs.model.batch import ForwardBatch
    from mrs.model.model_weights import ModelWeights


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
    return unscaled / factor * ramp + unscaled * (1 - ramp), scaling.magnitude


def _longrope(
    unscaled: Tensor, scaling: RopeScaling, total_tokens: int, file_factors: Mapping[str, Tensor]
) -> tuple[Tensor, float]:
    if scaling.file_slots:
        short, long = (file_factors[slot] for slot in scaling.file_slots)
    else:
        short, long = torch.tensor(scaling.factors), torch.tensor(scaling.long_factors)
    is_long = total_tokens > scaling.trained_tokens
    # Phi 3.5 MoE's config gives a magnitude for each of the two lengths.
    mscale = scaling.get("long_mscale" if is_long else "short_mscale", 0.0)
    factors = long if is_long else short
    return unscaled / factors, mscale or scaling.magnitude


def file_factors(weights: ModelWeights) -> dict[str, Tensor]:
    """The rope factors that the checkpoint stores as tensors, by slot, on the CPU."""
    slots = ("rope.factors", "rope.short_factors", "rope.long_factors")
    factors = {slot: weights.optional_vector(f"{slot}.weight") for slot in slots}
    return {slot: tensor.cpu() for slot, tensor in factors.items() if tensor is not None}


class RopeTable:
    """cos and sin by position on one device, shared by all layers with the same rope."""

    def __init__(
        self, rope: Rope, device: torch.device, file_factors: Mapping[str, Tensor]
    ) -> None:
        self.rope = rope
        self._device = device
        self._file_factors = file_factors
        #: Whether angles depend on the position alone.
        self.is_fixed = rope.scaling is None or not rope.scaling.depends_on_length
        self._cos = self._sin = torch.empty(0, rope.dim // 2, device=device)
        self._axes = torch.tensor(rope.axes, dtype=torch.long, device=device)
        self._pairs = torch.arange(len(rope.axes), device=device)
        self._angles_positions: Tensor | None = None
        self._native_positions: Tensor | None = None
        self._angles = self._cos, self._sin

    def angles(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """cos and sin (N, pairs) of a batch's tokens, computed once for all layers.

        With positions (3, N) in time, height and width, each rotates its own section of the pairs.
        """
        if self._angles_positions is not batch.positions:
            self._angles = self._look_up(batch) if self.is_fixed else self._compute_by_length(batch)
            self._angles_positions = batch.positions
        return self._angles

    def native_angles(self, batch: ForwardBatch) -> Angles:
        """The `angles` for a native program, which reads the table itself if it can."""
        if not self.is_fixed or batch.positions.dim() > 1:
            cos, sin = self.angles(batch)
            return Angles(cos.contiguous(), sin.contiguous())
        if self._native_positions is not batch.positions:
            self.reserve(max(batch.positions.tolist()) + 1)
            self._native_positions = batch.positions
        return Angles(self._cos, self._sin, batch.positions)

    @property
    def rows(self) -> int:
        """Positions that the table has angles of."""
        return self._cos.shape[0]

    def reserve(self, count: int) -> None:
        """Have the angles of the first `count` positions, unless they depend on the length."""
        if self.is_fixed and count > self._cos.shape[0]:
            rows = grown_rows(count, self._cos.shape[0])
            self._cos, self._sin = self._tabulate(torch.arange(rows), 0)

    def _look_up(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """From the table, which grows to the largest position that the host knows."""
        positions = batch.positions
        if positions.is_cpu and positions.numel() == 1:  # a view is faster than a copy
            end = int(positions) + 1
            self.reserve(end)
            return self._cos[end - 1 : end], self._sin[end - 1 : end]
        if positions.is_cpu:
            self.reserve(max(positions.flatten().tolist()) + 1)
        positions = positions.to(self._device)
        if positions.dim() == 1:
            return self._cos[positions], self._sin[positions]
        pair_positions = positions[self._axes].T  # (N, pairs)
        return self._cos[pair_positions, self._pairs], self._sin[pair_positions, self._pairs]

    def _compute_by_length(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Sequence by sequence: the angles depend on the sequence's length."""
        tables = [
            self._tabulate(batch.positions[rows], length)
            for (rows, _), length in zip(batch.queries, batch.rope_lengths, strict=True)
        ]
        if len(tables) == 1:
            return tables[0]
        return torch.cat([cos for cos, _ in tables]), torch.cat([sin for _, sin in tables])

    def _tabulate(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """cos and sin (P, pairs) of `positions` (P,) in a sequence of `length` tokens."""
        pair_frequencies, magnitude = frequencies(self.rope, length, self._file_factors)
        angles = positions.float()[:, None] * pair_frequencies[None, :]
        cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
        sin = -sin if self.rope.backwards else sin
        return cos.to(self._device), sin.to(self._device)


def query_factors(scale: QueryScale, batch: ForwardBatch) -> Tensor:
    """The factors (N) of the tokens' positions, in float32."""
    positions = batch.positions if batch.positions.dim() == 1 else batch.positions[0]
    steps = ((positions + scale.offset) / scale.length).floor()
    return 1 + scale.beta * steps.log1p()
