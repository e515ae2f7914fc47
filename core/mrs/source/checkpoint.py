"""A model's configuration and tensor headers, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mrs.errors import NotReadable
from mrs.formats import Format
from mrs.request import AdapterRequest, Container, ModelSource
from mrs.source.folder import Folder, decode_text, read_bytes
from mrs.source.reader import LocalFile, expanded, kind_of
from mrs.source.sentence_files import SentenceFiles
from mrs.source.tokenizer_files import MERGES, TOKENIZER_JSON


class TensorInfo(NamedTuple):
    """One tensor in a file.

    `shape` is row-major as in torch, also for GGUF: the last dimension is contiguous.
    `offset_bytes` counts from the start of `file`.
    """

    name: str
    shape: tuple[int, ...]
    format: Format
    file: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True)
class WeightsFile:
    """One file of tensors; its name is relative to the model's folder."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class AdapterFiles:
    """A LoRA adapter: adapter_config.json as parsed, and its tensors by the names in its `file`."""

    request: AdapterRequest
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    file: WeightsFile
    folder: Folder

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def is_merged(self) -> bool:
        return self.request.is_merged

    @property
    def where(self) -> str:
        """What errors call the adapter."""
        return self.request.model_id

    @property
    def path(self) -> str:
        """The name of its file in a model's checkpoint: the full path, if it is on this machine."""
        folder = self.folder.path
        return (
            f"{self.folder.label}/{self.file.name}"
            if folder is None
            else str(folder / self.file.name)
        )


@dataclass(frozen=True)
class Checkpoint:
    """The headers of a model's files, local or on the hub.

    `config` is config.json as parsed, or the metadata of the (first) GGUF file; long GGUF arrays
    are decoded on first access; `image_config` is preprocessor_config.json, or the image part of
    processor_config.json; `video_config` is the same for videos. `sentence` are the files of
    sentence-transformers. `notes` are remarks for the user. The tensors and files of `adapters` are
    among those of the model.
    """

    source: ModelSource
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    files: tuple[WeightsFile, ...]
    folder: Folder
    tokenizer_folder: Folder | None
    notes: tuple[str, ...] = ()
    image_config: Mapping[str, Any] = field(default_factory=dict)
    video_config: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[AdapterFiles, ...] = ()
    sentence: SentenceFiles = field(default_factory=SentenceFiles)

    @property
    def model_id(self) -> str:
        return self.source.model_id

    @property
    def container(self) -> Container:
        return self.source.container

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    @property
    def is_local(self) -> bool:
        """Whether all files that a run needs are on this machine."""
        model_folders = (self.folder, self.tokenizer_folder or self.folder)
        folders = (*model_folders, *(adapter.folder for adapter in self.adapters))
        return all(folder.path is not None for folder in folders)

    def local_path(self, file: str) -> Path:
        """The path of a weights file. Raises NotReadable if it has not been downloaded."""
        if self.folder.path is None:
            raise NotReadable(f"{file} has not been downloaded", where=self.folder.label)
        return self.folder.path / file  # an adapter's file has its full path

    def read_text(self, name: str) -> str | None:
        """The text of a file such as `tokenizer.json`; None if the model has no such file.

        A GGUF file contains its tokenizer and template, so that other files in its folder are
        ignored: only `tokenizer_model_id` provides such files for it.
        """
        data = self.read_bytes(name)
        return None if data is None else decode_text(data, name, self.label_of(name))

    def read_bytes(self, name: str) -> bytes | None:
        """The bytes of a file, as `read_text` finds it.

        `tokenizer_json` of the source replaces `tokenizer.json`, and the files beside it those that
        belong to it.
        """
        given = self._given(name)
        if given is not None:
            reader = LocalFile(given)
            return reader.read(0, reader.size_bytes)
        return read_bytes(self.tokenizer_folder, name) if self.tokenizer_folder else None

    def label_of(self, name: str) -> str:
        """What errors call a file."""
        given = self._given(name)
        return name if given is None else str(given)

    def _given(self, name: str) -> Path | None:
        """The file that the user named, or one that belongs to it, instead of the model's."""
        if self.source.tokenizer_json is None:
            return None
        path = expanded(self.source.tokenizer_json)
        if name == TOKENIZER_JSON:
            return path
        beside = path.with_name(name)
        return beside if name == MERGES and kind_of(beside) == "file" else None
