"""The tiny models of the parity tests, made by transformers' classes; one list a family."""

from __future__ import annotations

from llava_cases import LLAVA, LLAVA_NEXT
from vision_case import VisionCase

CASES: tuple[VisionCase, ...] = (*LLAVA, *LLAVA_NEXT,)
