"""The one spelling of a path that programs write in several ways."""

from __future__ import annotations

import re
from collections.abc import Collection

_VERSION = "/v1"
#: Paths of other programs for the same.
_OTHERS = {"/v2/rerank": "/v1/rerank"}


class Spellings:
    """Knows the paths of the server, of which those under `/v1` may be written without it.

    Slashes may be doubled, or stand at the end: a base address often ends with one. The case of
    letters counts.
    """

    def __init__(self, paths: Collection[str]) -> None:
        firsts = {_first(each) for each in paths if not each.startswith(f"{_VERSION}/")}
        versioned = (each for each in paths if each.startswith(f"{_VERSION}/"))
        self._versioned = {_first(each.removeprefix(_VERSION)) for each in versioned} - firsts

    def __call__(self, path: str) -> str:
        """The path as the table of routes has it."""
        path = re.sub("//+", "/", path)
        if path != "/":
            path = path.removesuffix("/")
        path = f"{_VERSION}{path}" if _first(path) in self._versioned else path
        return _OTHERS.get(path, path)


def _first(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
