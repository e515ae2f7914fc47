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
    `token_types` rows. Embeddings, tables and norm may have another `width` than the hidden size:
    then a linear map with a bias comes after the norm.
    """

    norm: Norm | None = None
    positions: int = 0
    first_position: int = 0
    token_types: int = 0
    width: int | None = None

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""
        width = self.width or hidden_size
        if self.positions:
            yield Slot("positions", (self.positions, width), "dense")
        if self.token_types:
            yield Slot("token_types", (self.token_types, width), "dense")
        if self.norm is not None:
            yield from norm_slots("input_norm", width, self.norm)
        if self.width is not None:
            yield Slot("input_map", (hidden_size, width), bias=True)
