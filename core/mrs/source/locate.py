"""Finds the folder of a model by its name: a demo, a path, or a hub id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mrs.errors import NotReadable
from mrs.request import ModelSource
from mrs.source.address import is_path_like, naming, parse_address
from mrs.source.folder import Folder, LocalFolder
from mrs.source.reader import expanded, kind_of
from mrs.source.tokenizer_files import VOCABULARY_FILES

DEMOS = {"demo": "model", "demo-vision": "vision_model"}
DEMO_FOLDER = Path(__file__).parent.parent / "demo"


def locate(source: ModelSource) -> tuple[ModelSource, Folder]:
    """The folder of a model, and `source` with the file name if `model_id` contains one.

    Tries the package's `DEMOS` first, then local folders and `.gguf` files, then the hub. Raises
    UsageError if `model_id` and `filenames` name different files.
    """
    source = parse_address(source)
    if source.model_id in DEMOS:
        return _demo(source)
    path = expanded(source.model_id)
    is_hub_id = source.prefers_hub and not is_path_like(source.model_id)
    kind = None if is_hub_id else kind_of(path)
    if kind == "file" and path.suffix == ".gguf":
        return naming(source, path.name), LocalFolder(path.parent)
    if kind == "folder":
        return source, LocalFolder(path)
    if kind is not None:
        raise NotReadable("neither a folder nor a .gguf file", where=str(path))
    if is_path_like(source.model_id):
        raise NotReadable("no such folder or file", where=source.model_id, hint="check the path")
    from mrs.source.hub import open_repository

    return source, open_repository(source)


def locate_tokenizer(source: ModelSource) -> Folder | None:
    """The folder of the model `tokenizer_model_id`; None without one.

    Raises NotReadable for a model without a tokenizer.
    """
    if source.tokenizer_model_id is None:
        return None
    model = replace(source, model_id=source.tokenizer_model_id, revision="main", filenames=())
    folder = locate(model)[1]
    if not any(map(folder.has, VOCABULARY_FILES)):
        raise NotReadable(
            "no tokenizer, which --tok-model-id asks for",
            where=folder.label,
            hint=f"it would have {', '.join(VOCABULARY_FILES)}",
        )
    return folder


def _demo(source: ModelSource) -> tuple[ModelSource, Folder]:
    name = source.model_id
    folder = LocalFolder(DEMO_FOLDER / DEMOS[name], label=name)
    if not folder.path.is_dir():
        raise NotReadable("the demo model is not part of this installation", where=str(folder.path))
    if source.container == "gguf" and not source.filenames:
        source = replace(source, filenames=(f"{name}.gguf",))
    return source, folder
