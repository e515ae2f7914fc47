"""The folder of the history and the last chats, which only its owner may read."""

from __future__ import annotations

from pathlib import Path


def state_folder() -> Path:
    """The folder, created if it is missing. Raises OSError."""
    from platformdirs import user_state_path

    path = Path(user_state_path("mrs", appauthor=False))
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
