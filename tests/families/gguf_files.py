"""Write a saved model of the parity tests as a GGUF file."""

from __future__ import annotations

from pathlib import Path

from reference import Reference
from safetensors.torch import load_file

from support.gguf_writer import write_text_model


def write_gguf(truth: Reference, path: Path) -> None:
    assert truth.case.gguf is not None
    tensors = load_file(truth.folder / "model.safetensors")
    # All have the names of a text model.
    text = {name.replace("model.language_model.", "model."): t for name, t in tensors.items()}
    write_text_model(path, truth.case.gguf, truth.config.to_dict(), text)
