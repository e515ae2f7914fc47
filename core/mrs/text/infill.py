"""Prompts that ask a model for the text between a beginning and an end (fill in the middle)."""

from __future__ import annotations

from mrs.errors import Unsupported
from mrs.text.tokenizer import Tokenizer

#: The tokens before the beginning, before the end, and before the reply, of each published format.
_FORMATS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|fim_pre|>", "<|fim_suf|>", "<|fim_mid|>"),  # LFM2
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)


def infill_ids(tokenizer: Tokenizer, beginning: str | list[int], end: str) -> list[int]:
    """The prompt for a reply between two texts, in which no control token is recognized.

    Raises Unsupported for a vocabulary without such a format.
    """
    for texts in _FORMATS:
        markers = [i for text in texts if (i := tokenizer.backend.token_to_id(text)) is not None]
        if len(markers) == len(texts):
            before, after, middle = markers
            bos = tokenizer.encode_prompt("")
            return [*bos, before, *_ids(tokenizer, beginning), after, *_ids(tokenizer, end), middle]
    raise Unsupported(
        "the model has no tokens for filling in the middle", hint="leave the suffix out"
    )


def _ids(tokenizer: Tokenizer, text: str | list[int]) -> list[int]:
    return tokenizer.encode(text, allow_special=False) if isinstance(text, str) else text
