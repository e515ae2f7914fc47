"""The score of a text by the logits after it: of a token for yes, and of one for no."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.pooler import TokenScore


class LogitDifference:
    """Makes a vector with one score from the logits after a prompt."""

    def __init__(self, tokens: TokenScore) -> None:
        self._tokens = tokens
        #: The score, after the last chunk.
        self.values: list[float] = []

    def take(self, logits: Sequence[float]) -> None:
        """Make the score of the logits (V,) after the last token."""
        yes, no = self._tokens.yes_id, self._tokens.no_id
        self.values = [float(logits[yes]) - (0.0 if no is None else float(logits[no]))]
