"""What is known of a model in a checkpoint, and what it is read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from mrs.architecture.draft_head import HeadModel
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.unmerged_adapter import UnmergedAdapter
from mrs.weights.binding import Parameter
from mrs.weights.weight_scheme import TensorHeader

TowerKey = Literal["vision_config", "img_processor", "embd_layer", "audio_config"]
#: A config without any of these keys is not that of a model with a tower.
TOWER_KEYS: tuple[TowerKey, ...] = get_args(TowerKey)


@dataclass(frozen=True)
class Description:
    """What planner and loader know of a model: its architecture and all of its parameters.

    `adapters` are those that requests choose; their matrices are among the parameters. `warnings`
    say what of the files is not used, one line each. `head` describes the model's own draft head.
    """

    spec: ModelSpec
    parameters: tuple[Parameter, ...]
    adapters: tuple[UnmergedAdapter, ...] = ()
    warnings: tuple[str, ...] = ()
    head: Description | None = None


class CheckpointHeaders(Protocol):
    """The fields of `mrs.source.Checkpoint` that are read here."""

    @property
    def container(self) -> str: ...
    @property
    def model_id(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def image_config(self) -> Mapping[str, Any]: ...
    @property
    def video_config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorHeader]: ...
    @property
    def sentence(self) -> SentenceFilesLike: ...


class ReadModel(NamedTuple):
    """A model as read from a checkpoint, before its tensors are checked.

    All of its tensor names start with `prefix`. Names that go on with one of `ignored` are of
    another purpose; on those that go on with one of `unread`, no result depends.
    `warnings` are for the user, one line each. `head` is the model's own draft head.
    """

    spec: ModelSpec
    parameters: list[Parameter]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    head: HeadModel | None = None


class SentenceModuleLike(Protocol):
    """The fields of `mrs.source.sentence_files.SentenceModule`."""

    @property
    def kind(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


class SentenceFilesLike(Protocol):
    """The fields of `mrs.source.sentence_files.SentenceFiles`."""

    @property
    def modules(self) -> Sequence[SentenceModuleLike]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def transformer(self) -> Mapping[str, Any]: ...
