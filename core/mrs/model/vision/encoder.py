"""The layers that towers share: attention without a mask, then a feed-forward part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from mrs.architecture.layers import Attention, Layer, Mlp
from mrs.model.mlp import MlpModule
from mrs.model.weights import ModelWeights

#: Turns queries or keys (T, heads, head_dim) by their place in the picture.
Turn = Callable[[Tensor], Tensor]


class EncoderLayer:
    """x + attention(norm(x)), then x + feed_forward(norm(x)), with every patch seeing all others.

    In `gated` layers a learned number multiplies what is added.
    """

    def __init__(self, layer: Layer, weights: ModelWeights) -> None:
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.feed_forward, Mlp)
        self._part = layer.mixer
        self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        self._q, self._k = weights.linear("mixer.q"), weights.linear("mixer.k")
        self._v, self._o = weights.linear("mixer.v"), weights.linear("mixer.o")
        self._norm = weights.norm("ffn.norm", layer.norm)
        self._feed_forward = MlpModule(layer.feed_forward, weights)
        self._mixer_gate = self._gate = 1.0
        if layer.style == "gated":
            self._mixer_gate = weights.residual_gate("mixer")
            self._gate = weights.residual_gate("ffn")

    def __call__(
        self,
        x: Tensor,
        *,
        cuts: Sequence[int] = (),
        turn: Turn | None = None,
        blank: Tensor | None = None,
    ) -> Tensor:
        """x (T, hidden) to (T, hidden).

        `cuts` are the rows at which a new stretch begins: patches see only their own stretch.
        `blank` (T,) is True for rows that show nothing: these see the others alone, and are seen by
        them.
        """
        x = x.add(self._attend(self._mixer_norm(x), cuts, turn, blank), alpha=self._mixer_gate)
        return x.add(self._feed_forward(self._norm(x)), alpha=self._gate)

    def _attend(
        self, x: Tensor, cuts: Sequence[int], turn: Turn | None, blank: Tensor | None
    ) -> Tensor:
        part = self._part
        q = self._q(x).view(-1, part.heads, part.head_dim)
        k = self._k(x).view(-1, part.kv_heads, part.head_dim)
        v = self._v(x).view(-1, part.kv_heads, part.head_dim)
        if turn is not None:
            q, k = turn(q), turn(k)
        if blank is not None:
            return self._o(_look_beside_blanks(q, k, v, blank, part.scale))
        mixed = [
            look(q[rows], k[rows], v[rows], part.scale, count)
            for rows, count in _equal_stretches(cuts, len(x))
        ]
        return self._o(torch.cat(mixed) if len(mixed) > 1 else mixed[0])


def _equal_stretches(cuts: Sequence[int], rows: int) -> Iterator[tuple[slice, int]]:
    """Neighbouring stretches of one length: the rows of all of them, and how many there are."""
    lengths = [end - start for start, end in zip([0, *cuts], [*cuts, rows], strict=True)]
    start = 0
    for length, equal in groupby(lengths):
        count = len(list(equal))
        yield slice(start, start + count * length), count
        start += count * length


def look(q: Tensor, k: Tensor, v: Tensor, scale: float, count: int = 1) -> Tensor:
    """Attention of all queries (T, heads, D) over all keys (S, heads, D): (T, heads * D).

    Where they are `count` stretches of one length, each looks at its own keys alone.
    """
    q, k, v = (x.reshape(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed.transpose(1, 2).flatten(2).flatten(0, 1)


def _look_beside_blanks(q: Tensor, k: Tensor, v: Tensor, blank: Tensor, scale: float) -> Tensor:
    """`look`, but what is blank does not see what is blank."""
    mixed, shown = torch.empty_like(q.flatten(1)), ~blank
    mixed[shown] = look(q[shown], k, v, scale)
    mixed[blank] = look(q[blank], k[shown], v[shown], scale)
    return mixed


def build_layers(layers: Sequence[Layer], weights: ModelWeights, key: str) -> list[EncoderLayer]:
    """A tower's stack of layers, whose weights are named `key.0.…`, `key.1.…`."""
    return [
        EncoderLayer(layer, weights.under(f"{key}.{index}.")) for index, layer in enumerate(layers)
    ]
