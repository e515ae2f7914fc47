"""The files of sentence-transformers: which modules follow a model to embed texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.source.folder import Folder, parse_json, read_json, read_text

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
#: Bound on the number of modules; published models have up to five.
_MOST_MODULES = 64
_LENGTH = "max_seq_length"
#: Tokenizers without a length say so by a larger one.
_NO_LENGTH = 10**9
_FOLDER = re.compile(r"[\w.-]*")
_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True)
class SentenceModule:
    """A module: its class without its package, its folder (empty for that of the model itself)
    and its config. Tensors of a module have the names of its file after `folder/`.
    """

    kind: str
    folder: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class SentenceFiles:
    """All modules in order, the model's settings, and those of its first module."""

    modules: tuple[SentenceModule, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    transformer: Mapping[str, Any] = field(default_factory=dict)


def read_sentence_files(folder: Folder) -> SentenceFiles:
    """The files in a model's folder; without any modules if it has no modules.json."""
    modules = tuple(
        SentenceModule(kind, name, read_json(folder, f"{name}/config.json") or {} if name else {})
        for kind, name in _modules(folder)
    )
    if not modules:
        return SentenceFiles()
    return SentenceFiles(modules, read_json(folder, SETTINGS) or {}, _transformer(folder))


def _transformer(folder: Folder) -> Mapping[str, Any]:
    """The settings of the first module; the length that they leave out is the tokenizer's."""
    settings = read_json(folder, TRANSFORMER) or {}
    if settings.get(_LENGTH) is None:
        length = (read_json(folder, "tokenizer_config.json") or {}).get("model_max_length")
        if type(length) is int and 0 < length < _NO_LENGTH:
            settings = {**settings, _LENGTH: length}
    return settings


def sentence_weights(folder: Folder) -> tuple[str, ...]:
    """The weights files of modules after the first. Raises Unsupported for pickled ones."""
    names = [name for _, name in _modules(folder) if name]
    for name in names:
        has_pickle = folder.has(f"{name}/{_PICKLE}")
        if has_pickle and not folder.has(f"{name}/{_SAFETENSORS}"):
            raise Unsupported(
                f"only pickled weights, which could execute code: {name}/{_PICKLE}",
                where=folder.label,
                hint="convert them to safetensors",
            )
    files = (f"{name}/{_SAFETENSORS}" for name in names)
    return tuple(file for file in files if folder.has(file))


def sentence_side_files(folder: Folder) -> tuple[str, ...]:
    """The other files of sentence-transformers that a run reads."""
    configs = [f"{name}/config.json" for _, name in _modules(folder) if name]
    return tuple(name for name in (MODULES, SETTINGS, TRANSFORMER, *configs) if folder.has(name))


def _modules(folder: Folder) -> Iterator[tuple[str, str]]:
    """(class, folder) of each module. Raises NotReadable."""
    text = read_text(folder, MODULES)
    if text is None:
        return
    try:
        entries = parse_json(text)
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
        if len(entries) > _MOST_MODULES:
            raise ValueError(f"it has {len(entries)} entries")
        for entry in entries:
            kind, name = entry["type"], entry["path"]
            if not isinstance(kind, str) or not _FOLDER.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"an entry has the type {kind!r} and the path {name!r}")
            yield kind.rpartition(".")[2], name
    except (ValueError, TypeError, KeyError) as error:
        raise NotReadable(
            f"{MODULES} is no list of modules", where=folder.label, hint=str(error)
        ) from error
