"""Vision models as llama.cpp's converter writes them give what the safetensors files give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gemma4_image_cases import GEMMA4_PUBLISHED
from gguf_tensors import MMPROJ, MODEL, check_prompt
from gguf_towers import (
    write_gemma4,
    write_gemma4_unified,
    write_glm,
    write_lfm2,
    write_llama4,
    write_llava,
    write_muse,
    write_paddleocr,
    write_pair,
)
from glm_cases import GLM_V
from lfm2_vl_cases import LFM2_VL_PUBLISHED
from llama4_image_cases import LLAMA4_PUBLISHED
from llava_cases import LLAVA, LLAVA_NEXT
from muse_glimmer_cases import MUSE_PUBLISHED
from paddleocr_cases import PADDLEOCR_VL
from vision_case import VisionCase
from vision_reference import VisionReference

from mrs.architecture.describe import describe
from mrs.request import ModelSource
from mrs.source.find import open_checkpoint

#: Family -> the architecture of its language model, and the writer of its projector.
FORMS: dict[str, tuple[str, Callable[..., None]]] = {
    "gemma4": ("gemma4", write_gemma4),
    "gemma4_unified": ("gemma4", write_gemma4_unified),
    "glm4v": ("glm4", write_glm),
    "glm4v_moe": ("glm4moe", write_glm),
    "glm_ocr": ("glm4", write_glm),
    "lfm2_vl": ("lfm2", write_lfm2),
    "paddleocr_vl": ("paddleocr", write_paddleocr),
    "llama4": ("llama4", write_llama4),
    "llava": ("llama", write_llava),
    "llava_next": ("llama", write_llava),
    "muse_glimmer": ("muse-glimmer", write_muse),
}
CASES = (
    *GEMMA4_PUBLISHED,
    *(case for case in GLM_V if case.name == "default" and case.family in FORMS),
    LFM2_VL_PUBLISHED,
    LLAMA4_PUBLISHED,
    LLAVA[0],
    LLAVA_NEXT[0],
    MUSE_PUBLISHED,
    PADDLEOCR_VL[0],
)


#: Core has one of those of which there are several.
_ALIKE = ("gemma4", "glm4v_moe", "glm_ocr", "llava_next")
_PARAMS = [
    pytest.param(case, marks=pytest.mark.full if case.family in _ALIKE else ()) for case in CASES
]


@pytest.fixture(scope="module", params=_PARAMS, ids=lambda case: case.id)
def truth(request: pytest.FixtureRequest, vision_references: Any) -> VisionReference:
    case: VisionCase = request.param
    reference: VisionReference = vision_references(case)
    write_pair(reference.folder, *FORMS[case.family])
    return reference


@pytest.mark.few(3)
@pytest.mark.table("GGUF")
@pytest.mark.values
@pytest.mark.parametrize("images", [2, 1, 0])
def test_prompts(truth: VisionReference, images: int) -> None:
    check_prompt(truth, images)


def test_images_are_laid_out_as_for_the_safetensors_files(truth: VisionReference) -> None:
    folder = str(truth.folder)
    pair = ModelSource(folder, "gguf", filenames=(MODEL,), mmproj=MMPROJ)
    own, found = (
        describe(open_checkpoint(source), with_vision=True).spec.vision
        for source in (ModelSource(folder, "safetensors"), pair)
    )
    assert own is not None
    assert found is not None
    for height, width in ((30, 40), (400, 90), (1500, 2000)):
        assert found.layout.shape(height, width) == own.layout.shape(height, width)
    assert found.is_bidirectional == own.is_bidirectional
