"""The model that the server answers with, while it is loaded, ready, or exchanged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from mrs.events import LoadProgress
from mrs.server.http.errors import ApiError
from mrs.source.address import model_name

if TYPE_CHECKING:
    from mrs.loaded_model import LoadedModel
    from mrs.request import RunRequest

SlotState = Literal["loading", "ready", "stopping"]


class ModelSlot:
    """Holds one model by the name that clients use; loading reports its progress here."""

    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.name = model_name(request.source.model_id)
        self.created = int(time.time())
        self.state: SlotState = "loading"
        self._model: LoadedModel | None = None
        self._progress: dict[str, LoadProgress] = {}

    @property
    def model(self) -> LoadedModel:
        """The loaded model. Raises ApiError while there is none."""
        if self.state == "stopping":
            raise _unavailable("the server is shutting down: try another one", "shutting_down")
        if self._model is None:
            done = f"{self.progress:.0%}"
            raise _unavailable(
                f"the model is loading, {done} is done: try again later", "model_loading"
            )
        return self._model

    @property
    def progress(self) -> float:
        """The share of the bytes that are loaded."""
        total_bytes = sum(each.total_bytes for each in self._progress.values())
        done_bytes = sum(each.done_bytes for each in self._progress.values())
        return done_bytes / total_bytes if total_bytes else 0.0

    def report(self, progress: LoadProgress) -> None:
        """Called by the thread that loads the model."""
        self._progress = {**self._progress, progress.device: progress}

    def fill(self, model: LoadedModel) -> None:
        self._model, self.state = model, "ready"

    def empty(self) -> LoadedModel | None:
        """Take the model out, to be closed; requests wait until there is another."""
        model, self._model = self._model, None
        self._progress = {}
        self.state = "loading"
        return model

    def check_name(self, name: str | None) -> None:
        """Raises ApiError for the name of another model; None and `default` are any."""
        if name not in (None, "default", self.name, self.request.source.model_id):
            raise ApiError(
                404, f"there is no model {name!r}: ask for {self.name}", "model", "model_not_found"
            )

    def named(self, name: str | None) -> LoadedModel:
        """The loaded model if it has this name. Raises ApiError."""
        self.check_name(name)
        return self.model


def _unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"retry-after": "5"})
