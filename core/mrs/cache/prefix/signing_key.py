"""The secret key with which a user's prefix cache files are signed."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from mrs.process.files import replace_file

KEY_BYTES = 32
_logger = logging.getLogger(__name__)


def prefix_key(file: Path | None = None) -> bytes:
    """The user's key, made when first needed, in a file that only the user may read.

    If it cannot be stored, the key is for this process only.
    """
    path = file or _key_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read(path) or _made(path)
    except OSError as error:
        reason = error.strerror or error
        _logger.warning(
            "the prefix cache is lost after this run, because its key cannot be stored in %s: %s",
            path,
            reason,
        )
        return secrets.token_bytes(KEY_BYTES)


def _key_file() -> Path:
    from platformdirs import user_state_path

    return user_state_path("mrs") / "prefix-key"


def _read(path: Path) -> bytes | None:
    """The key; None if there is none, or if other users can read it."""
    try:
        with path.open("rb") as file:
            shared = hasattr(os, "getuid") and os.fstat(file.fileno()).st_mode & 0o077
            key = file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    return None if shared or len(key) != KEY_BYTES else key


def _made(path: Path) -> bytes:
    """A new key, or that of a process that made one at the same time."""
    key = secrets.token_bytes(KEY_BYTES)
    replace_file(path, [key])
    return _read(path) or key
