"""Lists the models in the hub library's cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mrs.errors import MrsError
from mrs.request import ModelSource
from mrs.source.find import TOWERS, Selector, read_checkpoint, wanted_files
from mrs.source.folder import LocalFolder, read_json
from mrs.source.weights_files import complete_shards, gguf_models, safetensors_files

_PREFIX = "models--"


@dataclass(frozen=True)
class CachedModel:
    """One model in one revision of a repository; a repository may contain several GGUF models.

    `revision` is the name of a branch or tag, or a commit that has none. `files` are the files of
    weights; `size_bytes` is the size of all files that a run reads.
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
    """All completely downloaded models by name; none if the cache is unreadable."""
    for repository in _entries(cache_path):
        if not repository.name.startswith(_PREFIX):
            continue
        model_id = repository.name[len(_PREFIX) :].replace("--", "/")
        names = _revisions(repository / "refs")
        for snapshot in _entries(repository / "snapshots"):
            with suppress(MrsError):  # a snapshot that cannot be listed
                yield from _models(model_id, names.get(snapshot.name, snapshot.name), snapshot)


def runnable(model: CachedModel) -> CachedModel | None:
    """The model with the selector that can run it, by its headers; None if none can."""
    # Slow to import, and not needed to complete names.
    from mrs.architecture.describe import describe

    folder = LocalFolder(model.path, label=model.model_id)
    # The language model of a vision model may be supported when its tower is not.
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
        cached = CachedModel(model_id, revision, snapshot, selector, files, 0)
        sizes = (folder.open(name).size_bytes for name in wanted_files(cached.source, folder))
        return replace(cached, size_bytes=sum(sizes))

    # Incomplete weights raise an error: then there is no model.
    if folder.has("config.json"):
        with suppress(MrsError):
            files = safetensors_files(folder)[0]
            has_tower = not TOWERS.isdisjoint(read_json(folder, "config.json") or {})
            yield model("vision-plain" if has_tower else "plain", files)
    for name in gguf_models(folder):
        with suppress(MrsError):
            yield model("gguf", complete_shards(folder, name))


def _revisions(refs: Path) -> dict[str, str]:
    """The name of a branch or tag by its commit."""
    revisions = {}
    for path in sorted(refs.rglob("*"), reverse=True):
        try:
            revisions[path.read_text("utf-8").strip()] = path.relative_to(refs).as_posix()
        except (OSError, UnicodeDecodeError):
            continue
    return revisions


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
