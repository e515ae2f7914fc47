"""A decoder layer as a frozen value.

A layer mixes tokens (attention, convolution, …) and then transforms each token (an MLP or a
mixture of experts), or does only one of both. Layers with the same settings compare equal, so a
plan can count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mrs.errors import Unsupported
from mrs.layers.empty.spec import NoMixer
from mrs.layers.known_fields import require_only
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

if TYPE_CHECKING:
    from mrs.layers.altup.spec import AltUp
    from mrs.layers.laurel.spec import Laurel
    from mrs.layers.layer_inputs.spec import GatedInput


Style = Literal[
    "pre",
    "sandwich",
    "half_sandwich",
    "post",
    "post_sum",
    "gated",
    "scaled",
    "parallel",
    "parallel_norms",
]

#: The fields of a layer that are computed in a style; every field in styles that are not named.
_BY_STYLE = {
    "post_sum": "mixer feed_forward norm style post_norm mixer_norm",
    "gated": "mixer feed_forward norm style",
    "scaled": "mixer feed_forward norm style",
    "parallel": "mixer feed_forward norm style mixer_norm",
    "parallel_norms": "mixer feed_forward norm style mixer_norm",
}


@dataclass(frozen=True)
class Layer:
    """One decoder layer.

    style       x becomes
    `pre`       x + mixer(norm(x)), then x + feed_forward(norm(x))
    `sandwich`  as `pre`, with a further norm on what is added
    `half_sandwich`  as `pre`, with a further norm on what the feed-forward module adds
    `post`      x + norm(mixer(x)), then x + norm(feed_forward(x))
    `post_sum`  norm(x + mixer(x)), then norm(x + feed_forward(x))
    `gated`     as `pre`, with what is added multiplied by the tanh of a learned scalar
    `scaled`    as `pre`, with what is added multiplied by a learned vector (in vision towers only)
    `parallel`  x + mixer(norm(x)) + feed_forward(norm(x)), with one norm
    `parallel_norms`  the same with a norm each

    `residual_scale` multiplies what is added. Without a `mixer_norm`, the mixer of a `pre` layer
    reads x itself. Norms on what is added are `post_norm` if that is set. With `laurel` the sum
    after the mixer has a low-rank term, too. After that x may get a `gated_input`. With
    `output_scale` a learned scalar multiplies the layer's output. With `altup` all this is one of
    several streams.
    """

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    style: Style = "pre"
    residual_scale: float = 1.0
    output_scale: bool = False
    mixer_norm: bool = True
    post_norm: Norm | None = None
    gated_input: GatedInput | None = None
    laurel: Laurel | None = None
    altup: AltUp | None = None

    def __post_init__(self) -> None:
        """Raises Unsupported for settings that would be ignored beside others."""
        apart = ("mixer", "feed_forward", "norm", "post_norm")
        if self.style in _BY_STYLE:
            known = {"Layer": _BY_STYLE[self.style]}
            require_only(self, known, f"a layer of the style {self.style!r}", apart=apart)
        if self.laurel is not None and self.residual_scale != 1.0:
            raise Unsupported("a layer with LAuReL cannot compute 'residual_scale'")
        if self.altup is not None and self.output_scale:
            raise Unsupported("a layer of several streams cannot compute 'output_scale'")

    @property
    def is_parallel(self) -> bool:
        """Whether mixer and feed-forward module both read x as it enters the layer."""
        return self.style in ("parallel", "parallel_norms")

    @property
    def has_pre_norms(self) -> bool:
        """Whether mixer and feed-forward module read the norm of x."""
        return self.style not in ("post", "post_sum")

    @property
    def has_mixer_norm(self) -> bool:
        """Whether the mixer reads a norm of x."""
        return self.has_pre_norms and self.mixer_norm and not isinstance(self.mixer, NoMixer)

    @property
    def has_feed_forward_norm(self) -> bool:
        """Whether the feed-forward module reads another norm of x than the mixer."""
        return (
            self.has_pre_norms and self.style != "parallel" and not self.feed_forward.has_own_norm
        )

    @property
    def has_mixer_post_norm(self) -> bool:
        """Whether there is a norm on what the mixer adds, or on the sum."""
        return self.style in ("sandwich", "post", "post_sum")

    @property
    def has_feed_forward_post_norm(self) -> bool:
        """Whether there is a norm on what the feed-forward module adds, or on the sum."""
        return self.has_mixer_post_norm or self.style == "half_sandwich"

    @property
    def added_norm(self) -> Norm:
        """The norm on what is added, or on the sum."""
        return self.post_norm or self.norm

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in a model of `hidden_size`."""
        if self.has_mixer_norm:
            yield from norm_slots("mixer.norm", hidden_size, self.norm)
        yield from self.mixer.slots(hidden_size)
        if self.has_mixer_post_norm:
            yield from norm_slots("mixer.post_norm", hidden_size, self.added_norm)
        if self.style == "gated":
            yield Slot("mixer.residual_gate", (1,), "vector", suffix="")
            yield Slot("ffn.residual_gate", (1,), "vector", suffix="")
        if self.style == "scaled":
            yield Slot("mixer.scale", (hidden_size,), "vector", suffix="")
            yield Slot("ffn.scale", (hidden_size,), "vector", suffix="")
        if self.has_feed_forward_norm:
            yield from norm_slots("ffn.norm", hidden_size, self.norm)
        yield from self.feed_forward.slots(hidden_size)
        if self.has_feed_forward_post_norm:
            yield from norm_slots("ffn.post_norm", hidden_size, self.added_norm)
        if self.gated_input is not None:
            yield from self.gated_input.slots(hidden_size)
        if self.laurel is not None:
            yield from self.laurel.slots(hidden_size)
        if self.altup is not None:
            yield from self.altup.layer_slots(hidden_size)
        if self.output_scale:
            yield Slot("output_scale", (1,), "vector", suffix="")
