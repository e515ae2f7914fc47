"""What a worker may load because a coordinator asks: names are judged before a file is touched.

A coordinator names the model, and maybe adapters and an importance file. A name is allowed if the
worker's own command line has it, if it is a hub id that matches a pattern, or if it is a path in an
allowed folder. A refusal has the same words whether there is such a file or not.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import NamedTuple

from mrs.errors import MrsError, NotReadable, UsageError
from mrs.request import AdapterRequest, ModelSource, RunRequest
from mrs.source.address import is_path_like, parse_address, split_names
from mrs.source.locate import DEMOS

FLAG = "--allow-model"
#: Every model of the hub.
ANY_OF_THE_HUB = "*"
_REVISION = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


class NotAllowed(MrsError):
    """The coordinator names what this worker may not load."""

    exit_code = UsageError.exit_code


class ModelDiffers(NotReadable):
    """The worker has another model than the coordinator."""


class Access(NamedTuple):
    """The limits of coordinators.

    `model_id` is loaded instead of the model that a coordinator names. `allowed` are patterns of
    hub ids, and folders and files of this machine. The hub gets the token of `token_source`.
    """

    model_id: str | None = None
    allowed: Sequence[str] = (ANY_OF_THE_HUB,)
    token_source: str = "cache"

    @classmethod
    def of(cls, request: RunRequest) -> Access:
        """The access of a worker with the coordinator's command line: only what that names."""
        source = request.source
        adapters = (_parsed(ModelSource(a.model_id, "safetensors")) for a in request.adapters)
        names = (source.model_id, request.imatrix, *(adapter.model_id for adapter in adapters))
        return cls(source.model_id, tuple(filter(None, names)), source.token_source)

    def checked(self, request: RunRequest) -> RunRequest:
        """The coordinator's request with names of this worker, and without what it need not read.

        Raises NotAllowed.
        """
        source = _parsed(request.source)
        _require_inside(source)
        model = _own(self.model_id) if self.model_id is not None else self._name(source.model_id)
        return replace(
            without_coordinator_files(request),
            source=replace(
                source,
                model_id=model,
                token_source=self.token_source,
                cache_path=None,
                tokenizer_json=None,
                tokenizer_model_id=None,
                prefers_hub=True,
            ),
            imatrix=None if request.imatrix is None else self._name(request.imatrix, is_file=True),
            adapters=tuple(map(self._adapter, request.adapters)),
        )

    def _adapter(self, adapter: AdapterRequest) -> AdapterRequest:
        asked = ModelSource(adapter.model_id, "safetensors", revision=adapter.revision)
        source = _parsed(asked)
        return replace(adapter, model_id=self._name(source.model_id), revision=source.revision)

    def _name(self, name: str, *, is_file: bool = False) -> str:
        """A name that a coordinator may use, as an absolute path if it is none of the hub."""
        if not is_file and name in DEMOS:
            return name
        places = [allowed for allowed in self.allowed if _is_place(allowed)]
        if "\0" not in name:
            path = _absolute(name)
            if any(path.is_relative_to(_absolute(place)) for place in places):
                return str(path)
        patterns = [allowed for allowed in self.allowed if allowed not in places]
        is_hub_id = not is_file and not is_path_like(name)
        if is_hub_id and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return name
        raise _refusal(name)


def without_coordinator_files(request: RunRequest) -> RunRequest:
    """The request without settings and files that only a coordinator uses."""
    return replace(
        request,
        calibration_file=None,
        layer_map=None,
        prefix_cache_dir=None,
        chat_template=None,
        jinja_explicit=None,
        draft_model=None,
        plan_file=None,
        write_uqff=None,
        cluster=None,
    )


def _require_inside(source: ModelSource) -> None:
    """Raises NotAllowed if files of the model are named that are outside its folder."""
    files = (*source.filenames, *source.uqff, *filter(None, [source.mmproj]))
    for name in (part for file in files for part in (file, *split_names(file))):
        path = PureWindowsPath(name)  # which takes both kinds of slashes, and drives
        if path.anchor or ".." in path.parts or "\0" in name:
            raise _refusal(name)


def _parsed(source: ModelSource) -> ModelSource:
    """`source` with what is in its web address, if it has one.

    Raises NotAllowed, also for a revision that is none: revisions are parts of paths.
    """
    try:
        parsed = parse_address(source)
    except UsageError:
        raise _refusal(source.model_id) from None
    if not _REVISION.fullmatch(parsed.revision):
        raise _refusal(parsed.revision)
    return parsed


def _refusal(name: str) -> NotAllowed:
    return NotAllowed(
        f"this worker may not load {name}",
        hint=f"start it with {FLAG} NAME, or with -m for its own copy of the model",
    )


def _own(name: str) -> str:
    """A name of this worker's own command line: as everywhere, paths come before hub ids."""
    path = _absolute(name)
    return str(path) if name not in DEMOS and path.exists() else name


def _is_place(allowed: str) -> bool:
    return allowed.startswith((".", "~", os.sep)) or _absolute(allowed).exists()


def _absolute(name: str) -> Path:
    """By its letters alone: unlike Path.resolve, this reads no links, and removes each `..`."""
    return Path(os.path.abspath(os.path.expanduser(name)))  # noqa: PTH100, PTH111
