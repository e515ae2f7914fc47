"""EmbeddingGemma in GGUF files, which give it an architecture of its own: Gemma 3 both ways."""

from __future__ import annotations

from dataclasses import replace

from mrs.families.gemma3_text import FAMILY as GEMMA3

FAMILY = replace(
    GEMMA3,
    name="gemma_embedding",
    gguf_arch="gemma-embedding",
    aliases=(),
    gguf_defaults={"use_bidirectional_attention": True},
)
