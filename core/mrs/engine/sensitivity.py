"""How much the errors of each tensor matter: the divergence that noise in its products adds.

An error of a weight W is seen as noise in its products. For small noise, the divergence of Kullback
and Leibler grows with the noise's energy (measured slopes are the same for 1 % and 10 % of the
energy of the products), and that of several tensors adds up. So one forward pass with noise of a
known size gives the slope for all formats of a tensor. Neighbouring layers are much alike except at
both ends of a model: between these, a pass disturbs the same matrix of several layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mrs.engine.column_importance import Observed
from mrs.model.batch import SequenceInput, forward_batch
from mrs.plan.memory.cache_size import CacheSize

#: The text is probed in sequences of so many tokens, apart from each other.
SEQUENCES, TOKENS = 4, 32
#: The energy of noise, relative to that of the products.
_NOISE = 0.03
#: Layers at each end of a model that are disturbed together, from outside in, and those between.
_ENDS, _BETWEEN = (1, 2), 6


class Group(NamedTuple):
    """Tensors with errors of the same slope: the parameters of each by its name.

    With `rows` those are meant that are looked up, otherwise products.
    """

    tensors: Mapping[str, Sequence[str]]
    rows: bool


def windows(names: Sequence[str]) -> list[Sequence[str]]:
    """Neighbours among matrices of one kind, in the order of their layers."""
    first, last, before, after = 0, len(names), [], []
    for size in _ENDS:
        stop = min(first + size, last)
        before.append(names[first:stop])
        first = stop
        start = max(first, last - size)
        after.append(names[start:last])
        last = start
    between = [names[at : min(at + _BETWEEN, last)] for at in range(first, last, _BETWEEN)]
    return [each for each in (*before, *between, *reversed(after)) if each]


@torch.inference_mode()
def sensitivities(
    model: Observed, groups: Sequence[Group], on_pass: Callable[[], None]
) -> list[float]:
    """Nats of divergence for each unit of relative error energy in a tensor of each group.

    Memory is needed for the logits of all tokens. `on_pass` is called once for each group.
    """
    observation = model.observation
    observation.stop()
    sequences = _sequences(model.tokens, model.bos)
    exact = _reference(model, sequences)

    def slope(group: Group) -> float:
        divergences: list[Tensor] = []

        def compare(piece: slice, logits: Tensor) -> None:
            wanted = exact[piece]
            divergences.append((wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1))

        names = [name for parameters in group.tensors.values() for name in parameters]
        with observation.disturbed(names, _NOISE**0.5, rows=group.rows):
            _forward(model, sequences, compare)
        on_pass()
        found = torch.cat(divergences).double().mean().item()
        return max(0.0, found / _NOISE / len(group.tensors))

    return [slope(group) for group in groups]


def _reference(model: Observed, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Log probabilities (N, vocab) after all tokens, without noise."""
    pieces: list[Tensor] = []
    _forward(model, sequences, lambda piece, logits: pieces.append(logits.log_softmax(-1)))
    return torch.cat(pieces)


def _sequences(tokens: Sequence[int], bos: Sequence[int]) -> list[list[int]]:
    """Parts of a text, as far from each other as it allows."""
    apart = max(1, (len(tokens) - TOKENS) // max(1, SEQUENCES - 1))
    starts = range(0, max(1, len(tokens) - TOKENS + 1), apart)
    return [[*bos, *tokens[start : start + TOKENS]] for start in starts[:SEQUENCES]]


def _forward(
    model: Observed, sequences: Sequence[Sequence[int]], score: Callable[[slice, Tensor], None]
) -> None:
    """Compute all sequences at once; `score` gets the logits after each token, piece by piece."""
    longest, count = max(map(len, sequences)), len(sequences)
    space = model.decoder.new_space(CacheSize(longest, count, longest))
    caches = [space.new() for _ in sequences]
    inputs = [
        SequenceInput(cache, ids, scored_rows=range(len(ids)))
        for cache, ids in zip(caches, sequences, strict=True)
    ]
    model.decoder.forward(forward_batch(inputs), caches, score=score)
