"""How many rows of a step are computed together."""

from __future__ import annotations

#: Up to this many rows pass several layers in one call of the native library. More take so long
#: that Ctrl-C should not have to wait for several layers.
FEW_TOKENS = 16
#: The most rows of a step of sequences that decode, drafts included, each with logits. Up to there,
#: native kernels compute a further row in less than a quarter of a step's time.
MAX_DRAFT_ROWS = FEW_TOKENS


def scored_pieces(count: int) -> list[slice]:
    """`count` rows whose logits score a prompt, in pieces for which memory is planned."""
    firsts = range(0, count, MAX_DRAFT_ROWS)
    return [slice(first, min(first + MAX_DRAFT_ROWS, count)) for first in firsts]
