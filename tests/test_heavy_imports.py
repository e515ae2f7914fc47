"""Heavy imports of loading are done where Ctrl-C waits for them, and only those of the model."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, sys
import mrs.process.interrupts

@contextlib.contextmanager
def held():
    yield
    print(*(name for name in sys.modules if name.startswith("mrs.")))

mrs.process.interrupts.interrupts_held = held
from mrs.run.model_loader import ModelLoader
from mrs.request import ModelSource, RunRequest, VisionRequest
vision = VisionRequest() if sys.argv[1] == "demo-vision" else None
source = ModelSource(sys.argv[1], "safetensors")
ModelLoader(RunRequest(source, cpu=True, vision=vision)).load().close()
print(*(name for name in sys.modules if name.startswith("mrs.")))
"""
TEXT = {"mrs.engine.model_engine", "mrs.engine.reply", "mrs.load.load"}
VISION = {"mrs.media.media_loader", "mrs.model.vision.vision_module", "mrs.families.vision.llava"}


@pytest.mark.full
@pytest.mark.parametrize("model", ["demo", "demo-vision"])
def test_loading_imports_all_while_interrupts_wait(model: str) -> None:
    command = [sys.executable, "-c", PROGRAM, model]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    first, *_, last = (set(line.split()) for line in ran.stdout.splitlines())
    assert first >= TEXT | (VISION if model == "demo-vision" else set())
    if model == "demo":
        assert not last & VISION
