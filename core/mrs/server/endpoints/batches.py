"""`/v1/files` and `/v1/batches`, for a server that keeps them in a folder."""

from __future__ import annotations

from typing import Any

from mrs.server.batches.queue import BatchQueue
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.http.pages import page_of
from mrs.server.http.wire import FileBody
from mrs.server.schemas.batch import (
    BatchList,
    BatchObject,
    BatchRequest,
    DeletedFile,
    FileList,
    FileObject,
    FileRequest,
)
from mrs.server.service import Service


def _queue(service: Service) -> BatchQueue:
    """Raises ApiError if the server has no folder."""
    if service.batches is None:
        raise ApiError(
            403, "this server keeps no files: start it with --batch-dir", code="batches_off"
        )
    return service.batches


def _owner(exchange: Exchange) -> str:
    return exchange.salt.hex()


async def add_file(service: Service, exchange: Exchange, request: FileRequest) -> FileObject:
    """Keep a file of requests, for a server that was started with --batch-dir."""
    folder, owner = _queue(service).folder, _owner(exchange)
    return await service.in_thread(exchange, lambda: folder.add_file(owner, request.file))


async def files(service: Service, exchange: Exchange, _: Any) -> FileList:
    """The files of this key."""
    found = _queue(service).folder.files(_owner(exchange))
    if (purpose := exchange.query.get("purpose")) is not None:
        found = [each for each in found if each.purpose == purpose]
    if exchange.query.get("order") == "asc":
        found.reverse()
    page = page_of(found, [each.id for each in found], exchange.query)
    return FileList(**page._asdict())


async def file(service: Service, exchange: Exchange, _: Any) -> FileObject:
    """A file of this key."""
    return _queue(service).folder.file(_owner(exchange), exchange.path_params["file_id"])


async def file_content(service: Service, exchange: Exchange, _: Any) -> FileBody:
    """The lines of a file."""
    folder = _queue(service).folder
    found = folder.file(_owner(exchange), exchange.path_params["file_id"])
    return FileBody(str(folder.path(found.id)), "application/jsonl")


async def delete_file(service: Service, exchange: Exchange, _: Any) -> DeletedFile:
    """Delete a file that no batch reads."""
    folder, owner = _queue(service).folder, _owner(exchange)
    file_id = exchange.path_params["file_id"]
    await service.in_thread(exchange, lambda: folder.delete_file(owner, file_id))
    return DeletedFile(file_id)


async def add_batch(service: Service, exchange: Exchange, request: BatchRequest) -> BatchObject:
    """Answer the lines of a file beside other requests, also after the server was started anew."""
    queue, owner = _queue(service), _owner(exchange)
    made = await service.in_thread(exchange, lambda: queue.folder.add_batch(owner, request))
    queue.wake()
    return made


async def batches(service: Service, exchange: Exchange, _: Any) -> BatchList:
    """The batches of this key."""
    found = _queue(service).folder.batches(_owner(exchange))
    page = page_of(found, [each.id for each in found], exchange.query)
    return BatchList(**page._asdict())


async def batch(service: Service, exchange: Exchange, _: Any) -> BatchObject:
    """A batch of this key, and how far it is."""
    return _queue(service).folder.batch(_owner(exchange), exchange.path_params["batch_id"])


async def cancel_batch(service: Service, exchange: Exchange, _: Any) -> BatchObject:
    """Stop a batch; its answers so far are kept."""
    queue = _queue(service)
    return await queue.cancel(_owner(exchange), exchange.path_params["batch_id"])
