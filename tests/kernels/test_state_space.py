"""The chunked recurrence of a state space is the recurrence token by token."""

from __future__ import annotations

import torch

from mrs.kernels.state_space import StateSpaceInput, scan
from mrs.sizes.state_space_workspace import CHUNK_TOKENS

TOKENS, HEADS, SIZE, GROUPS, STATE = CHUNK_TOKENS + 21, 4, 6, 2, 5


def random_input() -> tuple[StateSpaceInput, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    inputs = StateSpaceInput(
        normal(TOKENS, HEADS, SIZE),
        normal(TOKENS, GROUPS, STATE),
        normal(TOKENS, GROUPS, STATE),
        normal(TOKENS, HEADS).abs(),
    )
    return inputs, -normal(HEADS).abs(), normal(HEADS, SIZE, STATE)


def token_by_token(
    inputs: StateSpaceInput, decay: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and the last state, in float64."""
    x, b, c, step = (part.double() for part in inputs)
    state, outs = state.double(), []
    b, c = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (b, c))
    for t in range(TOKENS):
        kept = torch.exp(decay.double() * step[t])[:, None, None] * state
        state = kept + step[t][:, None, None] * x[t][:, :, None] * b[t][:, None, :]
        outs.append((state * c[t][:, None, :]).sum(-1))
    return torch.stack(outs), state


def test_chunks_are_the_recurrence() -> None:
    inputs, decay, state = random_input()
    expected, last = token_by_token(inputs, decay, state)
    out = scan(inputs, decay, state, 0)
    assert torch.allclose(out.double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.allclose(state.double(), last, rtol=1e-4, atol=1e-4)


def test_chunks_end_at_fixed_positions() -> None:
    """The same tokens in one call and in two, all of which begin within a chunk or at its end."""
    inputs, decay, state = random_input()
    whole_state = state.clone()
    expected = scan(inputs, decay, whole_state, 3)
    border = CHUNK_TOKENS - 3
    parts = [
        scan(StateSpaceInput(*(part[rows] for part in inputs)), decay, state, first)
        for rows, first in ((slice(0, border), 3), (slice(border, None), CHUNK_TOKENS))
    ]
    assert torch.equal(torch.cat(parts), expected)
    assert torch.equal(state, whole_state)
