"""GLM-OCR: a small GLM-4.1V without learned positions of patches, and with norms of their keys."""

from __future__ import annotations

from mrs.families.vision.glm4v import HAS_QK_NORM, glm_family

FAMILY = glm_family(
    "glm_ocr",
    "glm_ocr_text",
    token=59_280,
    tower={
        HAS_QK_NORM: True,
        "hidden_size": 1024,
        "num_heads": 16,
        "out_hidden_size": 1536,
        "intermediate_size": 4096,
        "attention_bias": True,
    },
)
