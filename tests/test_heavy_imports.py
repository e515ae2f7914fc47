"""The heavy imports of loading are done where Ctrl-C waits for them."""

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
    for name in ("engine.model_engine", "engine.reply", "load.load", "media.media_loader"):
        print(name, f"mrs.{name}" in sys.modules)

mrs.process.interrupts.interrupts_held = held
from mrs.run.model_loader import ModelLoader
from mrs.request import ModelSource, RunRequest
ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).load().close()
print("vision", any(name.startswith("mrs.families.vision.") for name in sys.modules))
"""


@pytest.mark.full
def test_loading_imports_all_while_interrupts_wait() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    *loaded, vision = [line.split()[1] for line in ran.stdout.splitlines()]
    assert loaded[:4] == ["True"] * 4
    assert vision == "False"  # a model of texts needs no towers
