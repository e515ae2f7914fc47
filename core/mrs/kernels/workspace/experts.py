"""Memory of the native choice of experts, as in native/experts.h."""

from __future__ import annotations


def choice_floats(top_k: int) -> int:
    """Values of a token's choice: numbers of experts, and their weights."""
    return 2 * top_k


def rank_floats(experts: int, groups: int, top_groups: int) -> int:
    """Values in which a token's experts are ranked, with room to rank groups if some are left."""
    return experts + (experts // groups + groups if top_groups < groups else 0)


def order_floats(experts: int, top_k: int) -> int:
    """Values for each token in which pairs of a token and an expert are sorted by expert."""
    return top_k + experts
