"""The models that the hub library's cache holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mrs.errors import MrsError
from mrs.request import ModelSource
from mrs.source.find import Selector, read_checkpoint, wanted_files
from mrs.source.folder import LocalFolder, read_json
from mrs.source.weights_files import complete_shards, gguf_models, safetensors_files

_PREFIX = "models--"


@dataclass(frozen=True)
class CachedModel:
    """One model in one revision of a repository; a repository may hold several GGUF models.

    `revision` is the name of a branch or tag, or the commit where none leads to it. `files` are
    those of the weights, `size_bytes` counts everything that a run reads.
    """

    model_id: str
    revision: str
    path: Path
    selector: Selector
    files: tuple[str, ...]
    size_bytes: int

    @property
    def source(self) -> ModelSource:
        if self.selector == "gguf":
            return ModelSource(self.model_id, "gguf", filenames=self.files)
        return ModelSource(self.model_id, "safetensors")


def cached_models(cache_path: Path) -> Iterator[CachedModel]:
    """Every model whose weights are all there, by name; an unreadable cache holds none."""
    for repository in _entries(cache_path):
        if not repository.name.startswith(_PREFIX):
            continue
        model_id = repository.name[len(_PREFIX) :].replace("--", "/")
        names = _revisions(repository / "refs")
        for snapshot in _entries(repository / "snapshots"):
            with suppress(MrsError):  # a snapshot that cannot be listed
                yield from _models(model_id, names.get(snapshot.name, snapshot.name), snapshot)


def runnable(model: CachedModel) -> CachedModel | None:
    """The model with a selector that runs it, found from its headers; None if there is none."""
    from mrs.architecture.describe import (  # slow to import, and not needed to complete names
        describe,
    )

    folder = LocalFolder(model.path, label=model.model_id)
    # The text part of a model that sees may run where its tower does not.
    selectors: tuple[Selector, ...] = (model.selector,)
    for selector in (*selectors, "plain") if model.selector == "vision-plain" else selectors:
        try:
            checkpoint = read_checkpoint(model.source, folder, None)
            describe(checkpoint, with_vision=selector == "vision-plain")
        except MrsError:
            continue
        return replace(model, selector=selector)
    return None


def _models(model_id: str, revision: str, snapshot: Path) -> Iterator[CachedModel]:
    folder = LocalFolder(snapshot, label=model_id)

    def model(selector: Selector, files: tuple[str, ...]) -> CachedModel:
        found = CachedModel(model_id, revision, snapshot, selector, files, 0)
        sizes = (folder.open(name).size_bytes for name in wanted_files(found.source, folder))
        return replace(found, size_bytes=sum(sizes))

    # Weights that are not all there make an error, and no model.
    if folder.has("config.json"):
        with suppress(MrsError):
            files = safetensors_files(folder)[0]
            sees = "vision_config" in (read_json(folder, "config.json") or {})
            yield model("vision-plain" if sees else "plain", files)
    for name in gguf_models(folder):
        with suppress(MrsError):
            yield model("gguf", complete_shards(folder, name))


def _revisions(refs: Path) -> dict[str, str]:
    """The name of a branch or tag by the commit that it leads to."""
    found = {}
    for path in sorted(refs.rglob("*"), reverse=True):
        try:
            found[path.read_text("utf-8").strip()] = path.relative_to(refs).as_posix()
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
