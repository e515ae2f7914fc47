"""The tiny models of the parity tests, made by transformers' classes; one list a family."""

from __future__ import annotations

from gemma3_cases import GEMMA3
from idefics3_cases import IDEFICS3
from llava_cases import LLAVA, LLAVA_NEXT
from mistral3_cases import MISTRAL3
from mllama_cases import MLLAMA
from phi3_cases import PHI3_V
from qwen_cases import QWEN_VL
from vision_case import VisionCase

CASES: tuple[VisionCase, ...] = (
    *GEMMA3,
    *IDEFICS3,
    *LLAVA,
    *LLAVA_NEXT,
    *MISTRAL3,
    *MLLAMA,
    *PHI3_V,
    *QWEN_VL,
)
