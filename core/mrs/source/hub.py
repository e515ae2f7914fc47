"""Model repositories on the hub: file names, sizes and byte ranges, or a cached copy."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from mrs.errors import NotReadable
from mrs.request import ModelSource
from mrs.source.folder import Folder, LocalFolder
from mrs.source.header_cache import HeaderCache
from mrs.source.http_client import HttpClient, HttpReply, Unreachable
from mrs.source.hub_settings import HubSettings, cached_snapshot, hub_settings

MAX_LISTING_BYTES = 32 * 1024**2
#: The most bytes to skip in a response of a server that ignores ranges.
MAX_SKIPPED_BYTES = 16 * 1024**2
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: The listing's name in the header cache; no file has an empty name.
_LISTING = ""
#: How long a listing is reused in this process: a command opens a model several times.
RECENT_S = 30.0


@dataclass(frozen=True)
class Repository:
    """One commit of a repository: a `Folder` that reads over HTTP.

    `hashes` are the SHA-256 of files that the hub lists, those of weights.
    """

    model_id: str
    revision: str
    commit: str
    sizes: Mapping[str, int]
    hashes: Mapping[str, str]
    settings: HubSettings
    client: HttpClient
    known: HeaderCache
    path: None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.model_id} on {self.settings.endpoint}"

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.sizes))

    def has(self, name: str) -> bool:
        return name in self.sizes

    def open(self, name: str) -> HubFile:
        return HubFile(self, name)

    def open_weights(self, name: str) -> HubFile:
        return HubFile(self, name, is_stored=False)

    def keep_headers(self) -> None:
        self.known.save()

    def forget_headers(self) -> bool:
        _recent.clear()
        return self.known.forget()

    def cached(self, wanted: tuple[str, ...]) -> Folder:
        return self.cached_copy(wanted) or self

    def cached_copy(self, wanted: tuple[str, ...]) -> LocalFolder | None:
        """The cached folder of this commit if it has all wanted files."""
        snapshot = cached_snapshot(self.settings.cache_path, self.model_id, self.commit)
        if snapshot is None:
            return None
        folder = LocalFolder(snapshot, label=self.model_id)
        complete = all(
            folder.has(name) and folder.open(name).size_bytes == self.sizes[name] for name in wanted
        )
        return folder if complete else None


class HubFile:
    """A file of a repository: a `ByteReader` that requests byte ranges."""

    def __init__(self, repository: Repository, name: str, *, is_stored: bool = True) -> None:
        self.repository = repository
        self.name = name
        self._is_stored = is_stored
        self.size_bytes = repository.sizes[name]
        base = f"{repository.settings.endpoint}/{repository.model_id}/resolve"
        self.address = f"{base}/{repository.commit}/{quote(name)}"
        self._final_address = self.address

    def read(self, offset: int, length: int) -> bytes:
        known = self.repository.known
        data = known.get(self.name, offset, length)
        if data is None:
            data = self._fetch(offset, length)
            if self._is_stored:
                known.put(self.name, data, offset)
        return data

    def _fetch(self, offset: int, length: int) -> bytes:
        reply = self._get(self._final_address, offset, length)
        if reply.status >= 400 and self._final_address != self.address:
            # The redirect target is a signed address that expires: request a new one.
            reply = self._get(self.address, offset, length)
        self._final_address = reply.url
        return self._body(reply, offset, length)

    def _get(self, address: str, offset: int, length: int) -> HttpReply:
        end = offset + length
        most_bytes = length if offset > MAX_SKIPPED_BYTES else end
        return self.repository.client.get(address, most_bytes=most_bytes, byte_range=(offset, end))

    def _body(self, reply: HttpReply, offset: int, length: int) -> bytes:
        where = f"{self.name} of {self.repository.label}"
        if reply.status == 206:
            begins = reply.headers.get("content-range", "").startswith(f"bytes {offset}-")
            if not begins or len(reply.body) != length:
                raise NotReadable("the hub sent a different byte range than requested", where=where)
            return reply.body
        if reply.status == 200 and len(reply.body) >= offset + length:
            return reply.body[offset : offset + length]
        if reply.status == 200 and offset > MAX_SKIPPED_BYTES:
            raise NotReadable("the server does not serve ranges of bytes", where=where)
        if reply.status in (200, 416):
            raise NotReadable(f"shorter than its listed {self.size_bytes} bytes", where=where)
        raise refused(reply, self.repository.model_id, self.repository.settings, self.name)


#: The repository that was listed last, and when.
_recent: dict[tuple[str, str, HubSettings], tuple[Repository, float]] = {}


def open_repository(source: ModelSource) -> Repository | LocalFolder:
    """The repository of a hub model, or its cached copy if the hub is unreachable.

    NotReadable says whether the model does not exist, is not accessible, or there is no network.
    """
    settings = hub_settings(source)
    if settings.is_offline:
        return _cache_folder(source, settings, "HF_HUB_OFFLINE is set")
    try:
        return _listed(source, settings)
    except Unreachable as error:
        return _cache_folder(source, settings, f"{error.what}: {error.where}")


def _cache_folder(source: ModelSource, settings: HubSettings, why: str) -> LocalFolder:
    snapshot = cached_snapshot(settings.cache_path, source.model_id, source.revision)
    if snapshot is None:
        raise NotReadable(
            f"{source.model_id} is not downloaded", where=why, hint=_what_is_there(source, settings)
        )
    note = f"{why}: using the copy of {source.model_id} in the cache"
    notes = () if settings.is_offline else (note,)
    return LocalFolder(snapshot, label=source.model_id, notes=notes)


def _what_is_there(source: ModelSource, settings: HubSettings) -> str:
    """What else is in the cache than a model that was asked for."""
    from difflib import get_close_matches

    folders = settings.cache_path.glob("models--*")
    names = [folder.name.removeprefix("models--").replace("--", "/") for folder in folders]
    near = get_close_matches(source.model_id, names, n=1)
    question = f"did you mean {near[0]}?" if near else "check the name and the network;"
    return f"{question} mrs list shows the models in {settings.cache_path}"


def _listed(source: ModelSource, settings: HubSettings) -> Repository:
    """The repository with its listing: recent, cached for a commit, or from the hub."""
    key = source.model_id, source.revision, settings
    repository, asked_s = _recent.get(key, (None, -math.inf))
    if repository is not None and time.monotonic() - asked_s < RECENT_S:
        return repository
    client = HttpClient(settings.token, settings.endpoint)
    if _COMMIT.fullmatch(source.revision):
        known = HeaderCache(settings.endpoint, source.model_id, source.revision)
        with suppress(NotReadable):
            listed = _read_listing(known.get(_LISTING) or b"", "header cache")
            return _repository(source, listed, settings, client, known)
    repository = _asked(source, settings, client)
    _recent.clear()
    _recent[key] = repository, time.monotonic()
    return repository


def _asked(source: ModelSource, settings: HubSettings, client: HttpClient) -> Repository:
    revision = quote(source.revision, safe="")
    address = f"{settings.endpoint}/api/models/{source.model_id}/revision/{revision}?blobs=true"
    reply = client.get(address, most_bytes=MAX_LISTING_BYTES)
    if reply.status != 200:
        raise refused(reply, source.model_id, settings, f"revision {source.revision}")
    listed = _read_listing(reply.body, address)
    known = HeaderCache(settings.endpoint, source.model_id, listed.commit)
    listing = _written_listing(listed)
    if known.get(_LISTING) != listing:
        known.forget()
        known.put(_LISTING, listing)
    return _repository(source, listed, settings, client, known)


class _Listing(NamedTuple):
    """Commit, sizes in bytes of files, and the hashes that are known, by names."""

    commit: str
    sizes: dict[str, int]
    hashes: dict[str, str]


def _repository(
    source: ModelSource,
    listed: _Listing,
    settings: HubSettings,
    client: HttpClient,
    known: HeaderCache,
) -> Repository:
    return Repository(source.model_id, source.revision, *listed, settings, client, known)


def _read_listing(body: bytes, where: str) -> _Listing:
    try:
        listing = json.loads(body)
        commit = str(listing["sha"])
        sizes = dict(_size(entry) for entry in listing["siblings"])
        hashes = {entry["rfilename"]: _hash(entry) for entry in listing["siblings"]}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotReadable("the hub's answer is not a list of files", where=where) from error
    if not _COMMIT.fullmatch(commit):
        raise NotReadable(f"the hub names {commit!r}, which is not a commit", where=where)
    return _Listing(commit, sizes, {name: each for name, each in hashes.items() if each})


def _written_listing(listed: _Listing) -> bytes:
    siblings = [
        {"rfilename": name, "size": size, "lfs": {"sha256": listed.hashes.get(name, "")}}
        for name, size in listed.sizes.items()
    ]
    return json.dumps({"sha": listed.commit, "siblings": siblings}).encode()


def _hash(entry: Mapping[str, Any]) -> str:
    """The SHA-256 of a file that is in large file storage; empty if there is none."""
    stored = entry.get("lfs")
    digest = stored.get("sha256") if isinstance(stored, dict) else None
    return digest if isinstance(digest, str) and _SHA256.fullmatch(digest) else ""


def _size(entry: Mapping[str, Any]) -> tuple[str, int]:
    name, size_bytes = entry["rfilename"], entry["size"]
    if type(name) is not str or type(size_bytes) is not int or size_bytes < 0:
        raise ValueError("an entry without name and size")
    if name.startswith("/") or "\\" in name or ".." in name.split("/"):
        raise ValueError("a name outside the repository")
    return name, size_bytes


def refused(reply: HttpReply, model_id: str, settings: HubSettings, what: str) -> NotReadable:
    """The error for an unsuccessful status, by the hub's error codes."""
    code, where = reply.headers.get("x-error-code", ""), f"{settings.endpoint}/{model_id}"
    if code == "GatedRepo":
        return NotReadable(
            f"{model_id} is gated",
            where=where,
            hint="accept its terms there and give that account's token: HF_TOKEN, --token-source",
        )
    if code == "RevisionNotFound":
        return NotReadable(f"{model_id} has no {what}", where=where)
    if code == "EntryNotFound":
        return NotReadable(f"{model_id} has no file {what}", where=where)
    if code == "RepoNotFound" or reply.status in (401, 403, 404):
        token = "a token was sent" if settings.token else "no token was sent, see HF_TOKEN"
        return NotReadable(
            f"there is no model {model_id}, neither on this machine nor on the hub",
            where=where,
            hint=f"check the name; if it is private, a token with access is needed ({token})",
        )
    return NotReadable(f"the hub answered {reply.status} for {what}", where=where, hint="try later")
