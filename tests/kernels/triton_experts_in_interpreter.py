"""Mixtures of experts in Triton against float64, in Triton's interpreter.

`test_triton.py` runs this file with `TRITON_INTERPRET=1`, which must be set before Triton is
imported.
"""

from __future__ import annotations

import pytest
import torch
from packed_blocks import random_blocks, reference_values
from torch import Tensor
from triton_in_interpreter import in_planes

from mrs.kernels.nonlinearities import gated
from mrs.kernels.triton.expert_blocks import ExpertMatrices, GroupedExperts
from mrs.kernels.triton.plane_matrix import PlaneMatrix

CHANCE = torch.Generator().manual_seed(4)
EXPERTS, HIDDEN, INNER = 4, 256, 32


def random(*size: int) -> Tensor:
    return torch.randn(size, generator=CHANCE)


def matrices(
    name: str, rows: int, columns: int, has_bias: bool
) -> tuple[ExpertMatrices, list[Tensor], list[Tensor | None]]:
    """Those of all experts, in memory in any order: their values in float64, and biases."""
    made: list[PlaneMatrix | Tensor] = []
    values = []
    for _ in range(EXPERTS):
        if name == "F32":
            made.append(random(rows, columns) / columns**0.5)
            values.append(made[-1].double())
        else:
            blocks = random_blocks(name, rows, columns)
            made.append(in_planes(name, blocks))
            values.append(reference_values(name, blocks).double())
    biases = [random(rows) if has_bias else None for _ in range(EXPERTS)]
    found = ExpertMatrices.of(made, biases)
    assert found is not None
    # The tensors have to live as long as their addresses are used.
    found.moves.owners = made  # type: ignore[attr-defined]
    return found, values, biases


@pytest.mark.parametrize(
    ("names", "tokens", "top_k", "activation", "has_bias"),
    [
        (("F32", "F32", "F32"), 3, 2, "silu", False),
        (("Q4_K", "Q6_K", "Q4_0"), 1, 3, "gelu_tanh", False),
        (("Q8_0", "Q8_0", "Q8_0"), 3, 1, "quick_gelu", True),
        (("MXFP4", "MXFP4", "MXFP4"), 2, 2, "clamped_swiglu", True),
        (("Q5_K", "Q3_K", "Q5_0"), 1, 2, "silu", False),
    ],
)
def test_sums_of_chosen_experts(
    names: tuple[str, str, str], tokens: int, top_k: int, activation: str, has_bias: bool
) -> None:
    shapes = ((INNER, HIDDEN), (INNER, HIDDEN), (3, INNER))
    made = [matrices(name, *shape, has_bias) for name, shape in zip(names, shapes, strict=True)]
    grouped = GroupedExperts(*(each[0] for each in made), activation, 7.0)
    x, weights = random(tokens, HIDDEN) * 0.1, random(tokens, top_k).abs()
    indices = torch.stack(
        [torch.randperm(EXPERTS, generator=CHANCE)[:top_k] for _ in range(tokens)]
    )
    found = grouped(x, weights, indices)
    for token in range(tokens):
        expected = torch.zeros(3, dtype=torch.float64)
        for slot, expert in enumerate(indices[token].tolist()):
            (gate, up, down), (gate_bias, up_bias, down_bias) = (
                [each[n][expert] for each in made] for n in (1, 2)
            )
            row = x[token].double()
            inner = gated(
                activation,
                *(w @ row + (0 if b is None else b) for w, b in ((gate, gate_bias), (up, up_bias))),
            )
            out = down @ inner + (0 if down_bias is None else down_bias)
            expected += weights[token, slot] * out
        assert (found[token] - expected).norm() < 2e-5 * expected.norm()


def test_experts_of_different_kinds_are_not_grouped() -> None:
    assert ExpertMatrices.of([random(4, 32), random(4, 32).half()], [None, None]) is None
    assert ExpertMatrices.of([random(4, 32), random(5, 32)], [None, None]) is None


def test_experts_that_begin_anywhere_are_not_grouped() -> None:
    """Kernels load 16 bytes at once from addresses that they believe to be multiples of that."""
    assert ExpertMatrices.of([*random(2, 3, 4)], [None, None]) is None
    assert ExpertMatrices.of([*random(2, 4, 32)], [None, None]) is not None
