"""The perceiver of Idefics 2."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.architecture.vision_spec import ImageShape
from mrs.families.vision.idefics2 import PerceiverProjector
from mrs.layers.known_fields import Known, require_only
from mrs.layers.mlp.module import MlpModule
from mrs.model.model_weights import ModelWeights
from mrs.model.vision.encoder import attend_in_windows

_KNOWN: Known = {"Attention": "heads kv_heads head_dim scale rope"}


class PerceiverProjectorModule:
    """Learned vectors attend to the patches of a view, which an MLP has widened."""

    def __init__(self, projector: PerceiverProjector, weights: ModelWeights) -> None:
        self._widen = MlpModule(projector.widen, weights, "projector")
        self._latents = weights.vector("latents")
        layers = range(projector.layers)
        self._layers = [_Layer(projector, weights.under(f"perceiver.{n}.")) for n in layers]
        self._norm = weights.norm("perceiver.norm", projector.norm)

    def __call__(self, features: Tensor, shape: ImageShape) -> Tensor:
        """features (patches of all views, tower's width) to (rows, hidden)."""
        parts = torch.split(features, [rows * columns for rows, columns in shape.views])
        return torch.cat([self._rows(part) for part in parts])

    def _rows(self, part: Tensor) -> Tensor:
        context = self._widen(part)
        x = self._latents.to(part.dtype)
        for layer in self._layers:
            x = layer(x, context)
        return self._norm(x)


class _Layer:
    """x + attention(norm(x), [norm(context), norm(x)]), then x + mlp(norm(x))."""

    def __init__(self, projector: PerceiverProjector, weights: ModelWeights) -> None:
        require_only(projector.attention, _KNOWN, "attention of a perceiver")
        self._config = projector.attention
        self._norm, self._context_norm, self._mlp_norm = (
            weights.norm(name, projector.norm) for name in ("norm", "context_norm", "ffn.norm")
        )
        self._q, self._k, self._v, self._o = map(weights.linear, "qkvo")
        self._mlp = MlpModule(projector.mlp, weights, "ffn")

    def __call__(self, x: Tensor, context: Tensor) -> Tensor:
        """x (rows, hidden) and context (patches, hidden) to (rows, hidden)."""
        queries = self._norm(x)
        keys = torch.cat((self._context_norm(context), queries))
        x = x + self._attend(queries, keys)
        return x + self._mlp(self._mlp_norm(x))

    def _attend(self, queries: Tensor, keys: Tensor) -> Tensor:
        config = self._config
        q = self._q(queries).view(-1, config.heads, config.head_dim)
        k, v = (
            each(keys)
            .view(-1, config.kv_heads, config.head_dim)
            .repeat_interleave(config.heads // config.kv_heads, dim=1)
            for each in (self._k, self._v)
        )
        return self._o(attend_in_windows(q, k, v, config.scale))
