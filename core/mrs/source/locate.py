"""From what a person names to the folder that holds it: a demo, path, or hub id."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mrs.errors import NotReadable
from mrs.request import ModelSource
from mrs.source.folder import Folder, LocalFolder
from mrs.source.reader import expanded, kind_of

DEMOS = {"demo": "model", "demo-vision": "vision_model"}
DEMO_FOLDER = Path(__file__).parent.parent / "demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


def locate(source: ModelSource) -> tuple[ModelSource, Folder]:
    """The folder of a model, and the source with the file name that `model_id` implied.

    `DEMOS` are the models inside the package; then a local folder or `.gguf` file; then the hub.
    """
    if source.model_id in DEMOS:
        return _demo(source)
    path = expanded(source.model_id)
    kind = kind_of(path)
    if kind == "file" and path.suffix == ".gguf":
        return replace(source, filenames=(path.name,)), LocalFolder(path.parent)
    if kind == "folder":
        return source, LocalFolder(path)
    if kind is not None:
        raise NotReadable("neither a folder nor a .gguf file", where=str(path))
    if is_path_like(source.model_id):
        raise NotReadable("no such folder or file", where=source.model_id, hint="check the path")
    from mrs.source.hub import open_repository

    return source, open_repository(source)


def locate_tokenizer(source: ModelSource) -> Folder | None:
    """The folder of the model that `tokenizer_model_id` names, if it names one."""
    if source.tokenizer_model_id is None:
        return None
    return locate(replace(source, model_id=source.tokenizer_model_id, revision="main"))[1]


def is_path_like(model_id: str) -> bool:
    """Whether a name can only be meant as a path: no hub id looks like it."""
    return model_id.endswith(".gguf") or not _HUB_ID.fullmatch(model_id)


def _demo(source: ModelSource) -> tuple[ModelSource, Folder]:
    name = source.model_id
    folder = LocalFolder(DEMO_FOLDER / DEMOS[name], label=name)
    if not folder.path.is_dir():
        raise NotReadable("the demo model is not part of this installation", where=str(folder.path))
    if source.container == "gguf" and not source.filenames:
        source = replace(source, filenames=(f"{name}.gguf",))
    return source, folder
