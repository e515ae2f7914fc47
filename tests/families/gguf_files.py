"""Write a saved model of the parity tests as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reference import Reference
from safetensors.torch import load_file

from support.gguf_writer import write_text_model

if TYPE_CHECKING:
    from saved_models import SavedModel


def write_gguf(model: Reference | SavedModel, path: Path) -> None:
    case = model.case
    assert case.gguf is not None
    tensors = load_file(model.folder / "model.safetensors")
    # All have the names of a text model.
    text = {name.replace("model.language_model.", "model."): t for name, t in tensors.items()}
    config = model.config if isinstance(model.config, dict) else model.config.to_dict()
    write_text_model(path, case.gguf, config, text, **case.gguf_options)
