"""A layer of a decoder: token mixer and feed-forward block with their norms."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mixer import NoFeedForward, NoMixer
from mrs.kernels.cpu.fused_layer import NativeMlpBlock
from mrs.model.batch import ForwardBatch
from mrs.model.fused_blocks import FusedAttentionBlock, fuse_attention, fuse_feed_forward
from mrs.model.fused_chain import FusedLayer
from mrs.model.laurel import LaurelModule
from mrs.model.layer_inputs import GatedInputModule
from mrs.model.model_weights import ModelWeights, NormModule
from mrs.model.modules import build_feed_forward, build_mixer
from mrs.model.rope import RopeTable


class DecoderLayer:
    """Token mixer and feed-forward block, of any style but `gated`.

    `index` is that of the layer in the batch's `layer_inputs`. If several processes share its
    weights, it adds up what each computes.
    """

    def __init__(
        self,
        layer: Layer,
        index: int,
        weights: ModelWeights,
        rope: RopeTable | None,
    ) -> None:
        self._index = index
        self._scale = layer.residual_scale
        self._sum_of_ranks = weights.sum_of_ranks
        self._adds_up = layer.feed_forward.adds_up
        self._is_parallel = layer.is_parallel
        self._norms_sum = layer.style == "post_sum"
        self.mixer = build_mixer(layer.mixer, weights, rope)
        self._feed_forward = build_feed_forward(layer.feed_forward, weights)
        self._mixer_norm = self._norm = self._mixer_post_norm = self._post_norm = None
        self._has_mixer = not isinstance(layer.mixer, NoMixer)
        self._has_feed_forward = not isinstance(layer.feed_forward, NoFeedForward)
        if layer.has_mixer_norm:
            self._mixer_norm = weights.norm("mixer.norm", layer.norm)
        if layer.has_feed_forward_norm:
            self._norm = weights.norm("ffn.norm", layer.norm)
        if layer.has_post_norms:
            self._mixer_post_norm = weights.norm("mixer.post_norm", layer.added_norm)
            self._post_norm = weights.norm("ffn.post_norm", layer.added_norm)
        self._gated_input = None
        if layer.gated_input is not None:
            self._gated_input = GatedInputModule(layer.gated_input, weights)
        self._laurel = LaurelModule(layer.laurel, weights) if layer.laurel else None
        self._output_scale = weights.vector("output_scale") if layer.output_scale else None
        is_whole = weights.sum_of_ranks is None
        self._fused_mixer = fuse_attention(layer, weights, rope) if is_whole else None
        self._fused_feed_forward = fuse_feed_forward(layer, weights) if is_whole else None

    @property
    def has_host_choices(self) -> bool:
        """Whether the host chooses what is computed: the experts of a mixture."""
        return not getattr(self._feed_forward, "is_grouped", True)

    @property
    def fused(self) -> FusedLayer | None:
        """Both blocks, if the native library computes them."""
        mixer, feed_forward = self._fused_mixer, self._fused_feed_forward
        if isinstance(mixer, FusedAttentionBlock) and isinstance(feed_forward, NativeMlpBlock):
            return FusedLayer(mixer, feed_forward)
        return None

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""
        if self._is_parallel:
            normed = maybe_norm(self._mixer_norm, x)
            mixed = x + self._summed(self.mixer(normed, batch, cache))
            if self._norm is not None:
                normed = self._norm(x)
            return mixed + self._transformed(normed)
        x = self.compute(x, batch, cache)
        added = self.own_input(x, batch)
        if added is not None:
            x = x + added
        return x if self._output_scale is None else x.mul_(self._output_scale)

    def compute(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) after mixer and feed-forward module."""
        if self._has_mixer:
            x = self._mix(x, batch, cache)
        return self._transform(x) if self._has_feed_forward else x

    def own_input(self, x: Tensor, batch: ForwardBatch) -> Tensor | None:
        """What the layer's own input adds, (N, hidden), if it has one."""
        if self._gated_input is None or batch.layer_inputs is None:
            return None
        return self._gated_input(x, batch.layer_inputs[:, self._index])

    def _mix(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        if self._fused_mixer is not None and self._fused_mixer.supports(x):
            return self._fused_mixer(x, batch, cache)
        if self._laurel is not None:
            normed = maybe_norm(self._mixer_norm, x)
            out = self._summed(self.mixer(normed, batch, cache))
            out = maybe_norm(self._mixer_post_norm, out)
            return (x + out).add_(self._laurel(normed)).mul_(math.sqrt(0.5))
        out = self._summed(self.mixer(maybe_norm(self._mixer_norm, x), batch, cache))
        if self._norms_sum:
            return maybe_norm(self._mixer_post_norm, out.add_(x))
        out = maybe_norm(self._mixer_post_norm, out)
        return x + out * self._scale if self._scale != 1.0 else x + out

    def _transform(self, x: Tensor) -> Tensor:
        if self._fused_feed_forward is not None and self._fused_feed_forward.supports(x):
            return self._fused_feed_forward(x)
        out = self._transformed(maybe_norm(self._norm, x))
        if self._norms_sum:
            return maybe_norm(self._post_norm, out.add_(x))
        out = maybe_norm(self._post_norm, out)
        return x + out * self._scale if self._scale != 1.0 else x + out

    def _transformed(self, x: Tensor) -> Tensor:
        out = self._feed_forward(x)
        return out if self._adds_up else self._summed(out)

    def _summed(self, out: Tensor) -> Tensor:
        return out if self._sum_of_ranks is None else self._sum_of_ranks(out)


def maybe_norm(norm: NormModule | None, x: Tensor) -> Tensor:
    """x after `norm`, or x without one."""
    return x if norm is None else norm(x)
