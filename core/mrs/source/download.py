"""Downloads a model's files into the hub library's cache."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrs.errors import MrsError, NotReadable
from mrs.source.folder import Folder, LocalFolder, Progress
from mrs.source.http_client import HttpReply
from mrs.source.hub import Repository, refused
from mrs.source.hub_settings import cached_snapshot
from mrs.units import human_bytes

#: How long to wait for the threads of an interrupted download.
GRACE_S = 2.0
REPORT_EVERY_S = 0.1
_CHUNK_BYTES = 1 << 20


def download(folder: Folder, wanted: tuple[str, ...], progress: Progress | None) -> Folder:
    """The local folder with all wanted files; a local `folder` is returned unchanged.

    Files that an earlier download completed are not downloaded again. A file whose hash is not that
    of the hub is removed and downloaded once more; NotReadable is raised if that is damaged, too.
    `progress` is called with
    the bytes that are present and the bytes of all wanted files.
    """
    return _download(folder, wanted, progress) if isinstance(folder, Repository) else folder


def _download(
    repository: Repository, wanted: tuple[str, ...], progress: Progress | None
) -> LocalFolder:
    total_bytes = sum(repository.sizes[name] for name in wanted)
    missing = [name for name in wanted if _present(repository, name) is None]
    present_bytes = total_bytes - sum(repository.sizes[name] for name in missing)
    _check_space(repository, total_bytes - present_bytes)
    transfer = _Transfer()

    def report() -> None:
        if progress is not None:
            progress(min(present_bytes + transfer.received_bytes, total_bytes), total_bytes)

    report()
    try:
        _watch(lambda: _verified(repository, wanted, missing, transfer), transfer, report)
    except MrsError:
        raise
    except Exception as error:  # the library raises its transport's exceptions, too
        raise _download_error(error, repository) from error
    folder = repository.cached_copy(wanted)
    if folder is None:
        raise NotReadable(f"{repository.model_id} changed during the download", hint="run it again")
    transfer.received_bytes = total_bytes
    report()
    return folder


class _Transfer:
    """Shared state of the downloading threads and the waiting one."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.is_stopped = False

    def check(self) -> None:
        """Raises InterruptedError after a stop."""
        if self.is_stopped:
            raise InterruptedError("the download was interrupted")


def _watch(work: Callable[[], None], transfer: _Transfer, report: Callable[[], None]) -> None:
    """Run `work` in a thread, report meanwhile, and stop it if this thread is interrupted.

    The library by itself delays an interrupt until the files in progress are complete, which takes
    minutes for large ones.
    """
    failures: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            failures.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(REPORT_EVERY_S)
            report()
    except BaseException:
        transfer.is_stopped = True
        thread.join(GRACE_S)
        raise
    if failures:
        raise failures[0]


def _snapshot(repository: Repository, wanted: tuple[str, ...], transfer: _Transfer) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        repository.model_id,
        revision=repository.revision,
        cache_dir=repository.settings.cache_path,
        endpoint=repository.settings.endpoint,
        token=repository.settings.token or False,
        allow_patterns=list(wanted),
        tqdm_class=_bar_class(transfer),
    )


def _verified(
    repository: Repository, wanted: tuple[str, ...], missing: list[str], transfer: _Transfer
) -> None:
    """Download all wanted files; those that were `missing` have the hub's hashes afterwards."""
    _snapshot(repository, wanted, transfer)
    if damaged := _remove_damaged(repository, missing, transfer):
        _snapshot(repository, wanted, transfer)
        if damaged := _remove_damaged(repository, damaged, transfer):
            raise NotReadable(
                f"{damaged[0]} of {repository.model_id} was damaged twice on its way",
                where=f"its SHA-256 is not that of {repository.settings.endpoint}",
                hint="it is removed: try another network, or ask whoever runs the hub or the proxy",
            )


def _remove_damaged(repository: Repository, names: list[str], transfer: _Transfer) -> list[str]:
    """Remove those of the named files whose hash is not that of the hub; returns their names."""
    damaged = []
    for name in names:
        path, expected = _present(repository, name), repository.hashes.get(name)
        if path is None or expected is None or _sha256(path, transfer) == expected:
            continue
        path.resolve().unlink()  # the content, to which the library's snapshot has a link
        path.unlink(missing_ok=True)
        damaged.append(name)
    return damaged


def _sha256(path: Path, transfer: _Transfer) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            transfer.check()
            digest.update(chunk)
    return digest.hexdigest()


def _present(repository: Repository, name: str) -> Path | None:
    """The file in the cache, if it is there."""
    cache = repository.settings.cache_path
    snapshot = cached_snapshot(cache, repository.model_id, repository.commit)
    return snapshot / name if snapshot is not None and (snapshot / name).is_file() else None


def _check_space(repository: Repository, needed_bytes: int) -> None:
    path = repository.settings.cache_path.absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        raise NotReadable(
            f"the download of {repository.model_id} needs {human_bytes(needed_bytes)}, but only "
            f"{human_bytes(free_bytes)} are free",
            where=str(path),
            hint="free some space, or choose another folder with HF_HUB_CACHE or --hf-cache-path",
        )


def _download_error(error: Exception, repository: Repository) -> MrsError:
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        headers = {name.lower(): value for name, value in error.response.headers.items()}
        reply = HttpReply(str(error.response.url), error.response.status_code, headers, b"")
        return refused(reply, repository.model_id, repository.settings, "its files")
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return NotReadable(
        f"the download of {repository.model_id} failed",
        where=reason,
        hint="run it again: completed files are not downloaded again",
    )


def _bar_class(transfer: _Transfer) -> type[Any]:
    """A progress bar for the hub library that draws nothing and counts the received bytes.

    The library counts the same bytes in several bars, as received and as written: the highest
    count is used. After a stop, counting raises an error, which ends the download's thread.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            transfer.check()
            self.n += n or 0
            if self.counts_bytes:
                transfer.received_bytes = max(transfer.received_bytes, int(self.n))

    return Bar
