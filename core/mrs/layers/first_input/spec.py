"""What the first layer reads, if it is not the embedding alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class FirstInput:
    """norm(token + position + token type), where each addend is a row of a learned table.

    There may be no `norm`, or no table of positions or of token types: one with 0 rows.

    The table of positions has `positions` rows, of which a sequence begins with row
    `first_position`; that of token types, which say to which of two texts a token belongs, has
    `token_types` rows.
    """

    norm: Norm | None = None
    positions: int = 0
    first_position: int = 0
    token_types: int = 0

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""
        if self.positions:
            yield Slot("positions", (self.positions, hidden_size), "dense")
        if self.token_types:
            yield Slot("token_types", (self.token_types, hidden_size), "dense")
        if self.norm is not None:
            yield from norm_slots("input_norm", hidden_size, self.norm)
