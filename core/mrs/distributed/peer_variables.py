"""The variables by which mistral.rs is told of several processes, under the names it uses."""

from __future__ import annotations

from collections.abc import Mapping

from mrs.errors import UsageError

NO_SHARES = "MISTRALRS_NO_NCCL"
LOCAL_RANKS = "MISTRALRS_MN_LOCAL_WORLD_SIZE"


def shares_allowed(variables: Mapping[str, str]) -> bool:
    """Whether processes may share layers; otherwise each gets whole layers."""
    return variables.get(NO_SHARES) != "1"


def local_ranks(variables: Mapping[str, str]) -> int | None:
    """The processes of this machine that share layers, if a variable says so. Raises UsageError."""
    text = variables.get(LOCAL_RANKS)
    if text is None or not text.strip():
        return None
    if not text.strip().isascii() or not text.strip().isdigit() or not int(text):
        raise UsageError(
            f"{LOCAL_RANKS}={text!r} is not a number of processes",
            hint=f"unset {LOCAL_RANKS}, or set it to 1 or more",
        )
    return int(text)
