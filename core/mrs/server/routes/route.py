"""A path of the server, and what it takes and gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from mrs.server.http.style import OPENAI, Style
from mrs.server.routes.endpoint import Handler


@dataclass(frozen=True)
class Route:
    """`events` are those of a streamed response; `media_type` is that of one that is no JSON.

    Events that have names are listed in a union. A route that `manages` changes what all clients
    get. One that `takes_form` reads its request from a form, too, with files in it.
    """

    method: str
    path: str
    handle: Handler
    response: type
    request: type[msgspec.Struct] | None = None
    events: Any = None
    media_type: str = "text/plain"
    style: Style = OPENAI
    manages: bool = False
    takes_form: bool = False

    @property
    def template(self) -> str:
        """The path with the names of its parameters, without their kinds."""
        return re.sub(r":\w+}", "}", self.path)
