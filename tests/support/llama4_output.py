"""Lets transformers' Llama 4 with a vision tower run where its own output class lacks a field."""

from __future__ import annotations

from transformers.modeling_outputs import MoeCausalLMOutputWithPast


def complete_llama4_output() -> None:
    """Give the text model's output the images' outputs, None, if it has none.

    Llama4ForConditionalGeneration of transformers 5.24.0 reads them there, and fails without.
    """
    if not hasattr(MoeCausalLMOutputWithPast, "image_outputs"):
        MoeCausalLMOutputWithPast.image_outputs = None  # type: ignore[attr-defined]
