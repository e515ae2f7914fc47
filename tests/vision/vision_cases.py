"""The tiny models of the parity tests, made by transformers' classes; one list a family."""

from __future__ import annotations

from audio_cases import AUDIO
from gemma3_cases import GEMMA3
from gemma4_image_cases import GEMMA4
from glm_cases import GLM_V
from idefics2_cases import IDEFICS2
from idefics3_cases import IDEFICS3
from internvl_cases import INTERNVL
from lfm2_vl_cases import LFM2_VL
from lfm3_vl_cases import LFM3_VL
from lighton_cases import LIGHTON
from llama4_image_cases import LLAMA4
from llava_cases import LLAVA, LLAVA_NEXT
from minicpm_cases import MINICPM_V
from mistral3_cases import MISTRAL3
from mllama_cases import MLLAMA
from muse_glimmer_cases import MUSE_GLIMMER
from paddleocr_cases import PADDLEOCR_VL
from phi3_cases import PHI3_V
from phi4_cases import PHI4_MULTIMODAL
from qwen3_cases import QWEN3_VL
from qwen_cases import QWEN_VL
from vision_case import VisionCase

#: A configuration for each kind of tower: the core suite runs every check of these.
REPRESENTATIVES = (
    "llava-default",
    "gemma3-default",
    "gemma4-small",
    "idefics2-split",
    "llama4-default",
    "minicpmv4_6-default",
    "mllama-default",
    "phi3_v-published",
    "qwen2_5_vl-default",
    "qwen3_5-default",
    "qwen3_asr-default",
)

SEEING: tuple[VisionCase, ...] = (
    *GEMMA3,
    *GEMMA4,
    *GLM_V,
    *IDEFICS2,
    *IDEFICS3,
    *INTERNVL,
    *LFM2_VL,
    *LFM3_VL,
    *LIGHTON,
    *LLAMA4,
    *LLAVA,
    *LLAVA_NEXT,
    *MINICPM_V,
    *MISTRAL3,
    *MLLAMA,
    *MUSE_GLIMMER,
    *PADDLEOCR_VL,
    *PHI3_V,
    *PHI4_MULTIMODAL,
    *QWEN_VL,
    *QWEN3_VL,
)
CASES = (*SEEING, *AUDIO)
