"""Muse Glimmer's text model with a head, as it is in transformers' model for images and text."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import (
    MuseGlimmerPreTrainedModel,
    MuseGlimmerTextModel,
)

from support.library_cache import NAME, cache_of


class MuseGlimmerForText(MuseGlimmerPreTrainedModel, GenerationMixin):
    """transformers has the text model without a head only; the head's three steps are restated."""

    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}
    config: MuseGlimmerTextConfig

    def __init__(self, config: MuseGlimmerTextConfig) -> None:
        super().__init__(config)
        self.model = MuseGlimmerTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, *args: Any, logits_to_keep: int = 0, **inputs: Any) -> CausalLMOutputWithPast:
        output, cap = self.model(*args, **inputs), self.config.final_logit_softcapping
        logits = self.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        logits = (logits * self.config.output_multiplier / cap).tanh() * cap
        return CausalLMOutputWithPast(logits=logits, **{NAME: cache_of(output)})
