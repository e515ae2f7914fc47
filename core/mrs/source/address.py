"""Parses web addresses of models on the hub, and gives models short names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mrs.errors import UsageError
from mrs.request import ModelSource
from mrs.source.hub_settings import hub_endpoint

_WEB = re.compile(r"https?://", re.IGNORECASE)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
#: An address that begins with the hub's name.
_HOST_FIRST = re.compile(rf"(?:{'|'.join(map(re.escape, _HOSTS))})/", re.IGNORECASE)
#: A hub id with a quantization, as other programs write it.
_TAGGED = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)", re.ASCII)
#: The tag that means no file in particular.
_NO_TAG = "latest"
#: Between the names of several files: names themselves may have spaces.
_BETWEEN_NAMES = re.compile(r";|(?<=\.gguf|\.uqff)\s+")
_CACHED = re.compile(r"/models--([^/]+)/snapshots/[^/]+$")
_VIEWS = ("tree", "blob", "resolve", "raw")
#: First parts of addresses of pages that are not models.
_NO_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "api")


def parse_address(source: ModelSource) -> ModelSource:
    """`source` with the id, revision and file of its web address; unchanged without an address.

    An address is `https://HUB/ORG/NAME` or `HUB/ORG/NAME`, optionally with `/tree/REVISION` or
    `/blob/REVISION/FILE`. After it, or after a hub id, `:Q4_K_M` names the GGUF file of that
    quantization. Raises UsageError for the address of something else.
    """
    if _HOST_FIRST.match(source.model_id) and not _exists(source.model_id):
        source = replace(source, model_id=f"https://{source.model_id}")
    if not _WEB.match(source.model_id):
        return _without_tag(source)
    model_id, view, rest = _parts(source.model_id)
    if not view and (tagged := _TAGGED.fullmatch(model_id)):
        return _without_tag(replace(source, model_id=tagged[0]))
    if not _HUB_ID.fullmatch(model_id) or (view and (view not in _VIEWS or not rest)):
        raise _no_model(source.model_id)
    source = replace(source, model_id=model_id, revision=rest[0] if rest else source.revision)
    if view in ("", "tree") and len(rest) <= 1:
        return source
    return naming(source, "/".join(rest[1:]))


def _without_tag(source: ModelSource) -> ModelSource:
    """`source` with the quantization after its hub id as the name of a file."""
    tagged = _TAGGED.fullmatch(source.model_id)
    if tagged is None or _exists(source.model_id):
        return source
    untagged = replace(source, model_id=tagged[1])
    return untagged if tagged[2] == _NO_TAG else naming(untagged, tagged[2])


def _exists(path: str) -> bool:
    # That of pathlib raises OSError for a name that is too long.
    return os.path.exists(path)  # noqa: PTH110


def naming(source: ModelSource, file: str) -> ModelSource:
    """`source` with the file in its `model_id`. Raises UsageError if -f names another one."""
    if source.filenames not in ((), (file,)):
        raise UsageError(
            f"-f {' '.join(source.filenames)} is not the file that -m names",
            where=source.model_id,
            hint="omit -f, or give -m the folder or hub id",
        )
    return replace(source, filenames=(file,))


def split_names(text: str) -> tuple[str, ...]:
    """The names of files in `text`: after each, white space or a semicolon follows."""
    names = (name.strip() for name in _BETWEEN_NAMES.split(text))
    return tuple(name for name in names if name)


def all_names(given: Iterable[str] | None) -> tuple[str, ...]:
    """The names of files in the values of a flag that may be given several times."""
    return tuple(name for text in given or () for name in split_names(text))


def is_path_like(model_id: str) -> bool:
    """Whether a name can only be a path, because it is not a valid hub id."""
    return model_id.endswith(".gguf") or not _HUB_ID.fullmatch(model_id)


def model_name(model_id: str) -> str:
    """A short name of a model: its hub id, or the last part of its path.

    All spellings of a path have the same name; a folder of the hub's cache has the hub id.
    """
    if _WEB.match(model_id) or _HOST_FIRST.match(model_id) or _TAGGED.fullmatch(model_id):
        model_id = parse_address(ModelSource(model_id, "gguf")).model_id
    # Unlike those of pathlib, these take any text, and leave links as they are.
    whole = Path(os.path.abspath(os.path.expanduser(model_id)))  # noqa: PTH100, PTH111
    if not is_path_like(model_id) and not whole.exists():
        return model_id
    cached = _CACHED.search(whole.as_posix())
    return cached[1].replace("--", "/") if cached else whole.name or model_id


def _parts(address: str) -> tuple[str, str, list[str]]:
    """Hub id, view (such as `tree`), and the unquoted rest of an address."""
    try:
        parts, hub = urlsplit(address), urlsplit(hub_endpoint())
    except ValueError as error:
        raise _no_model(address) from error
    path = parts.path
    if parts.netloc.lower() == hub.netloc.lower():
        path = path.removeprefix(hub.path)
    elif parts.netloc.lower() not in _HOSTS:
        raise _no_model(address)
    words = [unquote(word) for word in path.split("/") if word]
    if not words or words[0] in _NO_MODELS:
        raise _no_model(address)
    length = 1 if len(words) > 1 and words[1] in _VIEWS else 2
    return "/".join(words[:length]), "".join(words[length : length + 1]), words[length + 1 :]


def _no_model(address: str) -> UsageError:
    return UsageError(
        f"-m {address} is not a model's address on the hub",
        hint=f"a model's address is {hub_endpoint()}/ORG/NAME",
    )
