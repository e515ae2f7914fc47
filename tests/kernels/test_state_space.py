"""The recurrence of a state space on each CPU path against the recurrence itself in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mrs.kernels.selective_scan import SelectedInput, selective_scan
from mrs.kernels.state_space import StateSpaceInput, scan
from mrs.kernels.workspace.state_space import CHUNK_TOKENS

TOKENS, HEADS, GROUPS = CHUNK_TOKENS + 21, 4, 2
SIZES = ((6, 5), (40, 24), (16, 128))  # of a head's values and of its state

pytestmark = [
    pytest.mark.usefixtures("any_path"),
    pytest.mark.parametrize("sizes", SIZES, ids=str),
]


def random_input(sizes: tuple[int, int]) -> tuple[StateSpaceInput, Tensor, Tensor, Tensor]:
    """Inputs, decay, skip and state; x, b and c are columns of one tensor, as in a model."""
    generator = torch.Generator().manual_seed(0)
    size, state_dim = sizes
    columns = [HEADS * size, GROUPS * state_dim, GROUPS * state_dim]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x, b, c = torch.split(normal(TOKENS, sum(columns)), columns, dim=-1)
    x = x.unflatten(1, (HEADS, size))
    b, c = (part.unflatten(1, (GROUPS, state_dim)) for part in (b, c))
    inputs = StateSpaceInput(x, b, c, normal(TOKENS, HEADS).abs())
    return inputs, -normal(HEADS).abs(), normal(HEADS), normal(HEADS, *sizes)


def token_by_token(
    inputs: StateSpaceInput, decay: Tensor, skip: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and the last state, in float64."""
    x, b, c, step = (part.double() for part in inputs)
    state, outs = state.double(), []
    b, c = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (b, c))
    for t in range(len(x)):
        kept = torch.exp(decay.double() * step[t])[:, None, None] * state
        state = kept + step[t][:, None, None] * x[t][:, :, None] * b[t][:, None, :]
        outs.append((state * c[t][:, None, :]).sum(-1) + skip.double()[:, None] * x[t])
    return torch.stack(outs), state


def test_it_is_the_recurrence(sizes: tuple[int, int]) -> None:
    inputs, decay, skip, state = random_input(sizes)
    expected, last = token_by_token(inputs, decay, skip, state)
    out = scan(inputs, decay, skip, state, 0)
    assert torch.allclose(out.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(state.double(), last, rtol=1e-4, atol=1e-4)


def test_chunks_end_at_fixed_positions(any_path: str, sizes: tuple[int, int]) -> None:
    """The same tokens in one call and in two; natively the border is anywhere."""
    inputs, decay, skip, state = random_input(sizes)
    whole_state = state.clone()
    expected = scan(inputs, decay, skip, whole_state, 3)
    border = CHUNK_TOKENS - 3 if any_path == "torch" else 10
    parts = [
        scan(StateSpaceInput(*(part[rows] for part in inputs)), decay, skip, state, first)
        for rows, first in ((slice(0, border), 3), (slice(border, None), 3 + border))
    ]
    assert torch.equal(torch.cat(parts), expected)
    assert torch.equal(state, whole_state)


def test_decays_of_each_value(sizes: tuple[int, int]) -> None:
    """The first Mamba: heads of one value; in one call and in two."""
    channels, size = sizes
    generator = torch.Generator().manual_seed(0)
    x, step, b, c, decay, skip, state = (
        torch.randn(*shape, generator=generator)
        for shape in [(TOKENS, channels)] * 2 + [(TOKENS, size)] * 2 + [sizes, (channels,), sizes]
    )
    inputs, decay = SelectedInput(x, step.abs(), b, c), -decay.abs()
    expected, last = [], state.double()
    for token in zip(*(part.double() for part in inputs), strict=True):
        x_t, step_t, b_t, c_t = token
        last = (step_t[:, None] * decay).exp() * last + (step_t * x_t)[:, None] * b_t
        expected.append(last @ c_t + skip * x_t)
    parts = [SelectedInput(*(part[rows] for part in inputs)) for rows in (slice(9), slice(9, None))]
    by_parts = state.clone()
    out = selective_scan(inputs, decay, skip, state)
    assert torch.allclose(out.double(), torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert torch.allclose(state.double(), last, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cat([selective_scan(x, decay, skip, by_parts) for x in parts]), out)
    assert torch.equal(by_parts, state)
