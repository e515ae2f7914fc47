"""An MLP apart from the layers of a decoder: an expert, or a part of a vision tower."""

from __future__ import annotations

from torch import Tensor

from mrs.graph.feed_forward_operations import transform
from mrs.graph.operations import STREAM, Graph
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm
from mrs.model.model_weights import ModelWeights
from mrs.model.torch_operations import TorchOperations


class MlpModule:
    """Its weights are named `slot.gate`, `slot.up` and `slot.down`; `slot.norm` if it has a `norm`.

    The norm of its input is freed as soon as it is multiplied.
    """

    def __init__(
        self, config: Mlp, weights: ModelWeights, slot: str = "ffn", norm: Norm | None = None
    ) -> None:
        graph = Graph(weights.matrix(f"{slot}.down").shape[0])
        x = STREAM if norm is None else graph.normed(STREAM, f"{slot}.norm", norm)
        out = transform(graph, config, x, slot)
        self._operations = TorchOperations(graph.operations, graph, weights, result=out)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        return self._operations(x)
