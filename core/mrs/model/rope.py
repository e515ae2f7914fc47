"""Rotary position embedding: tables of cos and sin by position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mrs.architecture.norm_rope import Rope
from mrs.kernels.rotate import rotate
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights
from mrs.model.native_program import Angles
from mrs.model.rope_frequencies import frequencies
from mrs.sizes.rope_table import grown_rows


def file_factors(weights: ModelWeights) -> dict[str, Tensor]:
    """The rope factors that the checkpoint stores as tensors, by slot, on the CPU."""
    slots = ("rope.factors", "rope.short_factors", "rope.long_factors")
    found = {slot: weights.optional_vector(f"{slot}.weight") for slot in slots}
    return {slot: tensor.cpu() for slot, tensor in found.items() if tensor is not None}


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

    def rotate(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Rotate x (N, H, D) by the batch's positions.

        With positions (3, N) in time, height and width, each rotates its own section of the pairs.
        """
        cos, sin = self.angles(batch)
        return rotate(x, cos, sin, interleaved=self.rope.interleaved)

    def angles(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """cos and sin (N, pairs) of a batch's tokens, computed once for all layers."""
        if self._angles_positions is not batch.positions:
            self._angles = self._look_up(batch) if self.is_fixed else self._compute_by_length(batch)
            self._angles_positions = batch.positions
        return self._angles

    def native_angles(self, batch: ForwardBatch) -> Angles:
        """Those of `angles` for a native program, which reads the table itself if it can."""
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
