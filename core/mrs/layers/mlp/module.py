"""An MLP apart from the layers of a decoder: an expert, or a part of a vision tower."""

from __future__ import annotations

from torch import Tensor

from mrs.graph.feed_forward_operations import transform
from mrs.graph.operations import STREAM, Graph
from mrs.layers.mlp.spec import Mlp
from mrs.model.model_weights import ModelWeights
from mrs.model.torch_operations import TorchOperations


class MlpModule:
    """Its weights are named `slot.gate`, `slot.up` and `slot.down`."""

    def __init__(self, config: Mlp, weights: ModelWeights, slot: str = "ffn") -> None:
        graph = Graph(weights.matrix(f"{slot}.down").shape[0])
        out = transform(graph, config, STREAM, slot)
        self._operations = TorchOperations(graph.operations, graph, weights, result=out)

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        return self._operations(x)
