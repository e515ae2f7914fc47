"""The environment of a command: streams, variables, and the function that loads models."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from mrs.request import AdapterRequest, Message, RunRequest, Sampling

if TYPE_CHECKING:
    from mrs.events import DeviceMemoryUsage, Event, OnProgress
    from mrs.plan.plan import Plan
    from mrs.run.request_memory import RequestMemory
    from mrs.tools.tool_request import ToolRequest


class Embedding(Protocol):
    """The embedding of a text of `tokens` tokens."""

    @property
    def values(self) -> Sequence[float]: ...
    @property
    def tokens(self) -> int: ...


class Classified(Protocol):
    """The best class of a text, and what is said of each."""

    @property
    def label(self) -> str: ...
    @property
    def probabilities(self) -> Mapping[str, float]: ...


class ChatModel(Protocol):
    """A model that replies, loaded in this process or by a server of this user.

    A stream of events ends with one `Finished`. Closing it, or a KeyboardInterrupt in it, stops the
    reply; the model stays usable.
    """

    @property
    def summary(self) -> str: ...
    @property
    def adapters(self) -> Sequence[AdapterRequest]:
        """The LoRA adapters; requests choose those that are not merged."""
        ...

    @property
    def has_chat_template(self) -> bool: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def suggested_sampling(self) -> Mapping[str, float]:
        """Sampling settings that the model's files suggest, by name."""
        ...

    @property
    def plan(self) -> Plan | None:
        """The plan of a model that is loaded in this process."""
        ...

    def memory(self) -> Sequence[DeviceMemoryUsage]:
        """The memory in use and free on each of the plan's devices."""
        ...

    def prompt_tokens(
        self, messages: Sequence[Message], *, tools: ToolRequest | None = None
    ) -> int:
        """The tokens of a conversation, with the tools that it describes."""
        ...

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those of its videos included."""
        ...

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        tools: ToolRequest | None = None,
    ) -> Iterator[Event]: ...
    def stream_completion(self, prompt: str, sampling: Sampling) -> Iterator[Event]: ...
    def require_replies(self) -> None:
        """Raise Unsupported if the model makes none."""

    def close(self) -> None: ...


class Model(ChatModel, Protocol):
    """A model that is loaded in this process."""

    @property
    def plan(self) -> Plan: ...
    def require_embeddings(self, dimensions: int | None = None) -> None:
        """Raise Unsupported if the model makes none, or none of so many values."""

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        truncate: bool = False,
        dimensions: int | None = None,
    ) -> Sequence[Embedding]: ...
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate: bool = False,
    ) -> Sequence[tuple[int, float, int]]:
        """(index, score from 0 to 1, tokens) of the documents, best first."""
        ...

    def require_classes(self) -> object:
        """Raise Unsupported if the model does not classify texts."""

    def classify(
        self, texts: Sequence[str], *, text_pair: str | None = None, truncate: bool = False
    ) -> Sequence[Classified]: ...


class LoadFunction(Protocol):
    def __call__(
        self,
        request: RunRequest,
        on_progress: OnProgress | None = None,
        memory: RequestMemory | None = None,
    ) -> Model: ...


def _load(
    request: RunRequest,
    on_progress: OnProgress | None = None,
    memory: RequestMemory | None = None,
) -> Model:
    from mrs.run.model_loader import ModelLoader

    return ModelLoader(request, memory).load(on_progress)


def _must_unload(request: RunRequest, loaded: ChatModel) -> bool:
    from mrs.run.planned_model import PlannedModel
    from mrs.server.models.room import models_to_unload

    plans = [] if loaded.plan is None else [loaded.plan]
    return models_to_unload(request, plans, lambda each: PlannedModel(each).plan) > 0


@dataclass(frozen=True)
class Environment:
    """Everything outside the program that a command uses; tests replace it.

    `must_unload` plans another model: whether a loaded one has to make room for it. It raises
    MrsError for one that cannot be loaded or does not fit alone.

    With `json_errors` an error is a JSON object on standard output, too. `words` are those of the
    command, without the program's name and with what presets stand for.
    """

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)
    load: LoadFunction = _load
    json_errors: bool = False
    must_unload: Callable[[RunRequest, ChatModel], bool] = _must_unload
    words: Sequence[str] = ()

    @classmethod
    def of_process(cls, load: LoadFunction = _load) -> Environment:
        """The streams of the process; a closed one reads or writes nothing."""
        return cls(
            stdin=_tolerant(sys.stdin or Path(os.devnull).open(encoding="utf-8")),
            stdout=_tolerant(sys.stdout or Path(os.devnull).open("w", encoding="utf-8")),
            stderr=_tolerant(sys.stderr or Path(os.devnull).open("w", encoding="utf-8")),
            variables=os.environ,
            load=load,
        )

    @property
    def can_chat(self) -> bool:
        """Whether a person uses a terminal that can move its cursor."""
        return self.stdin.isatty() and self.can_animate(self.stdout)

    def can_animate(self, stream: TextIO) -> bool:
        """Whether `stream` is a terminal that can move its cursor."""
        return stream.isatty() and self.variables.get("TERM", "dumb") != "dumb"

    def columns(self, stream: TextIO) -> int | None:
        """The columns of a terminal; None for anything else."""
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError, AttributeError):
            return None

    def has_colour(self, stream: TextIO) -> bool:
        return self.can_animate(stream) and not self.variables.get("NO_COLOR")


def _tolerant(stream: TextIO) -> TextIO:
    """`stream`, which now replaces characters that its encoding lacks instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream
