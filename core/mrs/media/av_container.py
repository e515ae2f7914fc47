"""Opens a stranger's video or audio file with PyAV: few formats, and errors of one line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.media.image_source import singular, unreadable
from mrs.request import Media


@contextmanager
def av_container(
    media: Media, containers: str, decoders: str, options: Mapping[str, str]
) -> Iterator[Any]:
    """The opened file; errors of the library while it is used become NotReadable.

    `containers` and `decoders` are the only ones that may read it, by FFmpeg's names. `options` are
    further ones of FFmpeg. Raises Unsupported without PyAV.
    """
    try:
        import av
    except ImportError as error:
        reason = f"{singular(media.kind)}s need the package av"
        raise Unsupported(reason, hint="pip install av") from error
    try:
        # Before version 19, PyAV decoded a file's metadata, which need not be UTF-8, and failed.
        more: Any = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
        allowed = {"format_whitelist": containers, "codec_whitelist": decoders}
        with av.open(io.BytesIO(media.content), options={**allowed, **options}, **more) as opened:
            yield opened
    except NotReadable:
        raise
    except MemoryError as error:
        raise unreadable(media.name, "it does not fit into memory", kind=media.kind) from error
    except (av.FFmpegError, ValueError, RuntimeError, OverflowError) as error:
        reason = "it is damaged, or of an unknown format"
        raise unreadable(media.name, reason, kind=media.kind) from error
