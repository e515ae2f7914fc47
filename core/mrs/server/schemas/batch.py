"""Requests and responses of `/v1/files` and `/v1/batches`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
#: The states in which a batch stays.
ENDED: tuple[BatchStatus, ...] = ("failed", "completed", "expired", "cancelled")
_Name = Annotated[str, Meta(max_length=64)]
_Value = Annotated[str, Meta(max_length=512)]


class FileRequest(Struct, kw_only=True):
    """A file of requests: a form with it, or JSON with it in base64."""

    file: bytes
    purpose: Literal["batch"]


class FileObject(Struct, kw_only=True):
    """A file that the server keeps until `expires_at`, in seconds since 1970."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    object: str = "file"
    status: str = "processed"


class FileList(Struct, frozen=True, kw_only=True):
    """The files of a key, the newest first."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedFile(Struct, frozen=True):
    """A file that is gone."""

    id: str
    object: str = "file"
    deleted: bool = True


class BatchRequest(Struct, kw_only=True):
    """Asks for the answers to the lines of a file, all of which name `endpoint`."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_Name, _Value], Meta(max_length=16)] | None = None


class LineError(Struct, frozen=True):
    """What is wrong with a line of the file, counted from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineErrors(Struct, frozen=True):
    """The first lines with problems."""

    data: list[LineError]
    object: str = "list"


class RequestCounts(Struct):
    """The lines of a batch."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(Struct, kw_only=True):
    """A batch; times are in seconds since 1970."""

    id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    input_file_id: str
    created_at: int
    expires_at: int
    completion_window: str = "24h"
    status: BatchStatus = "validating"
    errors: LineErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: str = "batch"


class BatchList(Struct, frozen=True, kw_only=True):
    """The batches of a key, the newest first."""

    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
