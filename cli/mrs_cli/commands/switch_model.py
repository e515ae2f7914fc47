"""`\\model`: another model goes on with a conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mrs.errors import Unsupported
from mrs.request import RunRequest
from mrs.request.sampling import SETTINGS
from mrs.source.address import model_name
from mrs_cli.chat.chat_settings import completed
from mrs_cli.chat.screens.screen import Screen
from mrs_cli.chat.session import Session
from mrs_cli.chat.session_commands import unseen_images
from mrs_cli.commands.loading import load_model
from mrs_cli.environment import Environment, Model


class ModelSwitch:
    """Replaces the model of a session, which `request` has loaded, by those that `find` finds."""

    def __init__(
        self,
        environment: Environment,
        session: Session,
        request: RunRequest,
        find: Callable[[str], RunRequest],
        screen: Screen,
    ) -> None:
        self._environment = environment
        self._session = session
        self._request = request
        self._find = find
        self._screen = screen

    def __call__(self, name: str) -> str:
        """Loads the model of this name, and describes it.

        The old one leaves first if both do not fit, and comes back if the new one cannot be
        loaded. What cannot be planned leaves all as it is. Raises MrsError.
        """
        session, before = self._session, self._request
        if before.cluster is not None:
            raise Unsupported(
                "several processes compute this model", hint="start mrs with another one"
            )
        request = self._find(name)
        must_leave = self._environment.must_unload(request, session.model)
        if must_leave:
            names = model_name(name), model_name(session.model_id)
            self._screen.note("{} does not fit beside {}, which is unloaded first".format(*names))
            self._unload()
        try:
            model = self._loaded(request)
        except BaseException:
            if must_leave:
                session.model = load_model(self._environment, before, quiet=True)
            raise
        if not must_leave:
            self._unload()
        self._use(model, request)
        return "\n".join(filter(None, [f"model is now {model.summary}", unseen_images(session)]))

    def _loaded(self, request: RunRequest) -> Model:
        """The loaded model, if it can chat."""
        model = load_model(self._environment, request, quiet=True)
        try:
            model.require_replies()
            if not model.has_chat_template:
                raise Unsupported("the model has no chat template", hint="choose another one")
        except BaseException:
            model.close()
            raise
        return model

    def _unload(self) -> None:
        from mrs.server.models.memory import return_memory

        self._session.model.close()
        return_memory()

    def _use(self, model: Model, request: RunRequest) -> None:
        session = self._session
        # What the old model suggested is not for the new one.
        unset: dict[str, Any] = {
            setting: SETTINGS[setting].default
            for setting in session.model.suggested_sampling
            if setting not in session.chosen_by
        }
        session.sampling = completed(
            replace(session.sampling, adapter=None, **unset),
            model.suggested_sampling,
            session.chosen_by,
        )
        session.model, session.model_id = model, request.source.model_id
        session.vision, session.usage = request.vision, None
        self._request = request
