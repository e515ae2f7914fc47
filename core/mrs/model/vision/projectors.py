"""From what a tower saw to rows as wide as the decoder's."""

from __future__ import annotations

from torch import Tensor

from mrs.families.spec import Mlp
from mrs.families.vision.projectors import MlpProjector
from mrs.families.vision.spec import ImageShape
from mrs.model.feed_forward import MlpPart
from mrs.model.weights import ModelWeights


class MlpProjectorPart:
    """Two layers, each row on its own."""

    def __init__(self, projector: MlpProjector, weights: ModelWeights) -> None:
        mlp = Mlp(0, projector.activation, gated=False, bias=projector.bias)
        self._mlp = MlpPart(mlp, weights, "projector")

    def __call__(self, seen: Tensor, shape: ImageShape) -> Tensor:
        """seen (rows, tower's width) to (rows, hidden)."""
        return self._mlp(seen)
