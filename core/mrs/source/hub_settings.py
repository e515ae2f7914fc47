"""Settings of the hub from flags and environment, read as the hub library reads them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mrs.errors import UsageError
from mrs.request import ModelSource
from mrs.source.reader import expanded, kind_of

_TRUE = ("1", "ON", "YES", "TRUE")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class HubSettings:
    """`cache_path` is the folder that contains the `models--…` folders."""

    endpoint: str
    cache_path: Path
    token: str | None
    is_offline: bool


def hub_settings(source: ModelSource) -> HubSettings:
    """Settings for one model. Raises UsageError for an invalid or empty token source."""
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return HubSettings(
        endpoint=hub_endpoint(),
        cache_path=expanded(source.cache_path) if source.cache_path else default_cache_path(),
        token=find_token(source.token_source),
        is_offline=offline.upper() in _TRUE,
    )


def find_token(token_source: str) -> str | None:
    """The token from `literal:<v>`, `env:<name>`, `path:<file>`, `cache` or `none`.

    `cache` is the hub library's choice: HF_TOKEN, or else the file that a login wrote. Errors
    never contain the token.
    """
    kind, _, value = token_source.partition(":")
    if token_source == "none":
        return None
    if token_source == "cache":
        token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        token = token.strip() or _stored_token()
    elif kind == "literal" and value:
        token = value
    elif kind == "env" and value:
        token = _token_of_variable(value)
    elif kind == "path" and value:
        token = _token_in_file(expanded(value))
    else:
        raise UsageError(
            "--token-source is not a known source",
            hint="use literal:<token>, env:<name>, path:<file>, cache or none",
        )
    if not re.fullmatch(r"[!-~]*", token):
        raise UsageError("the hub token contains spaces or other invalid characters", where=kind)
    return token or None


def cached_snapshot(cache_path: Path, model_id: str, revision: str) -> Path | None:
    """The folder of a revision in the hub library's cache, maybe incomplete."""
    repository = cache_path / f"models--{model_id.replace('/', '--')}"
    try:
        commit = (repository / "refs" / revision).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    snapshot = repository / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and kind_of(snapshot) == "folder" else None


def hub_endpoint() -> str:
    """The hub's address without a final slash. Raises UsageError if HF_ENDPOINT is invalid."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not re.fullmatch(r"https?://[\w.:\[\]-]+(/[!-~]*)?", endpoint, re.ASCII):
        raise UsageError("HF_ENDPOINT is not a web address", where=endpoint)
    return endpoint


def _home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return _expanded(os.environ.get("HF_HOME", f"{cache}/huggingface"))


def default_cache_path() -> Path:
    """The hub library's default download folder."""
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", f"{_home()}/hub")
    return _expanded(os.environ.get("HF_HUB_CACHE", older))


def _expanded(path: str) -> Path:
    return expanded(os.path.expandvars(path))


def _stored_token() -> str:
    path = _expanded(os.environ.get("HF_TOKEN_PATH", f"{_home()}/token"))
    try:
        return path.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _token_of_variable(name: str) -> str:
    token = os.environ.get(name, "").strip()
    if not token:
        raise UsageError(f"--token-source env:{name}", hint=f"{name} is not set")
    return token


def _token_in_file(path: Path) -> str:
    try:
        token = path.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-source path:{path}", hint="cannot read the file") from error
    if not token:
        raise UsageError(f"--token-source path:{path}", hint="the file is empty")
    return token
