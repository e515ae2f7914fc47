"""Download a model's files into the hub library's cache."""

from __future__ import annotations

import shutil
from typing import Any

from mrs.errors import MrsError, NotReadable
from mrs.source.folder import LocalFolder, Progress
from mrs.source.http_client import Reply
from mrs.source.hub import Repository, refused
from mrs.source.hub_settings import cached_snapshot
from mrs.units import human_bytes


def download(
    repository: Repository, wanted: tuple[str, ...], progress: Progress | None
) -> LocalFolder:
    """The folder with all wanted files; finished files of an earlier try are not sent again.

    `progress` is called, from several threads, with the bytes that are there and the bytes
    wanted. Without it the hub library shows its own bars on a terminal.
    """
    from huggingface_hub import snapshot_download

    total_bytes = sum(repository.sizes[name] for name in wanted)
    present_bytes = _present_bytes(repository, wanted)
    _check_space(repository, total_bytes - present_bytes)
    bars: dict[str, Any] = {}
    if progress is not None:
        bars["tqdm_class"] = _bar_class(progress, present_bytes, total_bytes)
    try:
        snapshot_download(
            repository.model_id,
            revision=repository.revision,
            cache_dir=repository.settings.cache_path,
            endpoint=repository.settings.endpoint,
            token=repository.settings.token or False,
            allow_patterns=list(wanted),
            **bars,
        )
    except Exception as error:  # the library's own, and those of whatever transport it uses
        raise _broken_off(error, repository) from error
    folder = repository.cached_copy(wanted)
    if folder is None:
        raise NotReadable(
            f"{repository.model_id} has changed while it was downloaded", hint="run it again"
        )
    if progress is not None:
        progress(total_bytes, total_bytes)
    return folder


def _present_bytes(repository: Repository, wanted: tuple[str, ...]) -> int:
    cache = repository.settings.cache_path
    snapshot = cached_snapshot(cache, repository.model_id, repository.commit)
    if snapshot is None:
        return 0
    return sum(repository.sizes[name] for name in wanted if (snapshot / name).is_file())


def _check_space(repository: Repository, needed_bytes: int) -> None:
    path = repository.settings.cache_path.absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        raise NotReadable(
            f"{repository.model_id} takes {human_bytes(needed_bytes)} to download and "
            f"{human_bytes(free_bytes)} are free",
            where=str(path),
            hint="make room, or name another folder with HF_HUB_CACHE or --hf-cache-path",
        )


def _broken_off(error: Exception, repository: Repository) -> MrsError:
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        headers = {name.lower(): value for name, value in error.response.headers.items()}
        reply = Reply(str(error.response.url), error.response.status_code, headers, b"")
        return refused(reply, repository.model_id, repository.settings, "its files")
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return NotReadable(
        f"the download of {repository.model_id} broke off",
        where=reason,
        hint="run it again: finished files are kept",
    )


def _bar_class(progress: Progress, present_bytes: int, total_bytes: int) -> type[Any]:
    """A bar for the hub library that draws nothing and passes counts of bytes on.

    The library counts the same bytes in more than one bar, as received and as written: the
    furthest one is told, and never less than before.
    """
    from huggingface_hub.utils.tqdm import tqdm

    furthest = [0]

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes and self.n > furthest[0]:
                furthest[0] = int(self.n)
                progress(min(present_bytes + furthest[0], total_bytes), total_bytes)

    return Bar
