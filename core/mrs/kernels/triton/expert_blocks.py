"""The experts of a layer for a few tokens on an NVIDIA GPU, in two launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.kernels.triton.bit_planes import ALIGNMENT_BYTES, PlaneLayout, Planes
from mrs.kernels.triton.decode_blocks import current_device
from mrs.kernels.triton.plane_matrix import FEW_ROWS, FEW_WORDS, ONE, PlaneMatrix

#: Of more tokens, most experts are chosen by several: then products of many tokens are faster.
MOST_TOKENS = 64

#: Activations that the kernels know.
ACTIVATIONS = ("silu", "gelu_tanh", "quick_gelu", "clamped_swiglu")


@dataclass(frozen=True)
class ExpertMatrices:
    """One matrix of each expert, all of the same kind; `bias` (experts, rows) float32."""

    first: Planes | Tensor
    layout: PlaneLayout | None
    element_bytes: int
    moves: Tensor
    rows: int
    columns: int
    bias: Tensor | None

    @classmethod
    def of(
        cls, matrices: Sequence[PlaneMatrix | Tensor], biases: Sequence[Tensor | None]
    ) -> ExpertMatrices | None:
        """None if the kernels cannot read them: not all are alike, or they begin anywhere."""
        first = matrices[0]
        rows, columns = first.shape
        kinds = {
            (each.layout if isinstance(each, PlaneMatrix) else each.dtype, *each.shape)
            for each in matrices
        }
        if len(kinds) > 1:
            return None
        distances = [each.data_ptr() - first.data_ptr() for each in matrices]
        if any(distance % ALIGNMENT_BYTES for distance in distances):
            return None
        moves = torch.tensor(distances, device=first.device)
        known = [bias for bias in biases if bias is not None]
        bias = torch.stack(known).float() if known else None
        if isinstance(first, PlaneMatrix):
            layout, planes = first.layout, first.planes
            return cls(planes, layout, planes.d.element_size(), moves, rows, columns, bias)
        return cls(first, None, first.element_size(), moves, rows, columns, bias)


@dataclass(frozen=True)
class GroupedExperts:
    """The weighted sum of down(activation(gate(x)) * up(x)) of each token's experts."""

    gate: ExpertMatrices
    up: ExpertMatrices
    down: ExpertMatrices
    activation: str
    clamp: float

    def __call__(self, x: Tensor, weights: Tensor, indices: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden); weights and indices (N, top_k) of the chosen experts."""
        from mrs.kernels.triton import expert_products

        x, weights, indices = x.contiguous(), weights.contiguous(), indices.contiguous()
        tokens, top_k = indices.shape
        gate, up, down = self.gate, self.up, self.down
        inner = x.new_empty(tokens * top_k, gate.rows)
        out = x.new_empty(tokens, down.rows)
        tile = {"TOP_K": top_k, "ROWS": FEW_ROWS, "WORDS": FEW_WORDS, "num_warps": 1}
        with current_device(x):
            expert_products.expert_gates[(tokens * top_k, -(-gate.rows // FEW_ROWS))](
                x,
                indices,
                gate.first,
                gate.moves,
                up.first,
                up.moves,
                x if gate.bias is None else gate.bias,
                x if up.bias is None else up.bias,
                inner,
                gate.rows,
                gate.columns,
                self.clamp,
                ONE,
                GATE=gate.layout,
                GATE_BYTES=gate.element_bytes,
                UP=up.layout,
                UP_BYTES=up.element_bytes,
                ACTIVATION=self.activation,
                HAS_BIAS=gate.bias is not None,
                **tile,
            )
            expert_products.expert_sums[(tokens, -(-down.rows // FEW_ROWS))](
                inner,
                indices,
                weights,
                down.first,
                down.moves,
                x if down.bias is None else down.bias,
                out,
                down.rows,
                down.columns,
                ONE,
                DOWN=down.layout,
                DOWN_BYTES=down.element_bytes,
                HAS_BIAS=down.bias is not None,
                **tile,
            )
        return out
