"""`/v1/responses`: OpenAI's Responses interface, whose conversations are items."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from mrs.request import Sampling
from mrs.server.endpoints.chat import chat_prompt, start_chat
from mrs.server.endpoints.identity import Identity, new_identity
from mrs.server.http.errors import ApiError, api_error
from mrs.server.http.exchange import Exchange
from mrs.server.http.json_pieces import whole_json
from mrs.server.http.pages import page_of
from mrs.server.http.unread_fields import unread_fields
from mrs.server.http.wire import Raw, raw_json
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.reader import ChoiceEnd, ReplyReader
from mrs.server.replies.response_items import ResponseItems
from mrs.server.replies.response_store import StoredResponse
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.responses_conversation import read_items
from mrs.server.schemas.responses_items import InputItem
from mrs.server.schemas.responses_request import ResponsesRequest
from mrs.server.schemas.responses_response import (
    DeletedResponse,
    Incomplete,
    InputTokens,
    ItemEvent,
    ItemList,
    ResponseBody,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseFailure,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseUsage,
)
from mrs.server.service import Service


async def respond(
    service: Service, exchange: Exchange, request: ResponsesRequest
) -> Raw | AsyncIterator[ResponseEvent]:
    """The next items of a conversation, or the events of their making."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    exchange.note_ignored(request.ignored)
    items, chat = await service.in_thread(exchange, lambda: _chat(service, exchange, request))
    exchange.kept.append(items)
    chat.check()
    identity = new_identity("resp_", exchange, slot)
    await service.use(exchange, slot)
    with _input_errors():
        reader = await start_chat(service, exchange, slot, chat)
    new_response = _NewResponse(reader, _begun(identity, request, chat, reader.sampling))
    if request.stream:
        return _stored(service, exchange, request, new_response, items)
    reader.keep()
    async for _ in new_response.events():
        pass
    if new_response.failure is not None:
        raise new_response.failure
    whole = partial(StoredResponse.of, new_response.body, items)
    # Twenty candidates for each token take so long that others would wait.
    response = await service.in_thread(exchange, whole) if chat.logprobs else whole()
    if request.is_stored:
        service.responses.add(exchange.salt, new_response.body.id, response)
    return Raw(response.body, "application/json")


async def _stored(
    service: Service,
    exchange: Exchange,
    request: ResponsesRequest,
    new_response: _NewResponse,
    items: bytes,
) -> AsyncIterator[ResponseEvent]:
    """The events of a response, which is stored then."""
    async for event in new_response.events():
        yield event
    if request.is_stored and new_response.failure is None:
        response = StoredResponse.of(new_response.body, items)
        service.responses.add(exchange.salt, new_response.body.id, response)


async def response(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A response that is stored."""
    response_id = exchange.path_params["response_id"]
    body = service.responses.body(exchange.salt, response_id)
    if body is None:
        raise _not_stored(404, response_id)
    return Raw(body, "application/json")


async def input_items(service: Service, exchange: Exchange, _: Any) -> Raw:
    """The items of the conversation that a stored response has answered, the newest first."""
    return await service.in_thread(exchange, lambda: _items_page(service, exchange))


def _items_page(service: Service, exchange: Exchange) -> Raw:
    """The JSON, which may be long, of an ItemList."""
    response_id = exchange.path_params["response_id"]
    items = service.responses.input_items(exchange.salt, response_id)
    if items is None:
        raise _not_stored(404, response_id)
    items = items if exchange.query.get("order") == "asc" else items[::-1]
    page = page_of(items, [each["id"] for each in items], exchange.query)
    return raw_json(ItemList(**page._asdict()))


async def input_tokens(
    service: Service, exchange: Exchange, request: ResponsesRequest
) -> InputTokens:
    """The tokens of a conversation as the chat template writes it."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    exchange.note_ignored(request.ignored)
    _, chat = await service.in_thread(exchange, lambda: _chat(service, exchange, request))
    model = await service.use(exchange, slot)
    with _input_errors():
        prompt = await service.in_thread(
            exchange, lambda: chat_prompt(service, model, chat, Sampling(), must_fit=False)
        )
    return InputTokens(input_tokens=len(prompt.ids))


async def delete_response(service: Service, exchange: Exchange, _: Any) -> DeletedResponse:
    """Delete a response that is stored."""
    response_id = exchange.path_params["response_id"]
    if not service.responses.delete(exchange.salt, response_id):
        raise _not_stored(404, response_id)
    return DeletedResponse(id=response_id)


class _NewResponse:
    """Makes a response from a reply; `body` is what it is so far, and `failure` why it ended."""

    def __init__(self, reader: ReplyReader, body: ResponseBody) -> None:
        self._reader = reader
        self.body = body
        self.failure: ApiError | None = None

    async def events(self) -> AsyncIterator[ResponseEvent]:
        number = 0
        async for event in self._events():
            yield msgspec.structs.replace(event, sequence_number=number)
            number += 1

    async def _events(self) -> AsyncIterator[ResponseEvent]:
        yield ResponseCreated(response=self.body)
        yield ResponseInProgress(response=self.body)
        items, is_cut = ResponseItems(), False
        try:
            async for _, event in self._reader.read():
                is_cut = isinstance(event, ChoiceEnd) and event.reason == "length"
                for change in _changes(items, event, is_cut=is_cut):
                    yield change
        except Exception as error:  # noqa: BLE001 - the client reads it from the response
            self.failure = api_error(error)
            detail = self.failure.body.error
            failure = ResponseFailure(code=detail.code or "server_error", message=detail.message)
            self._end(items, status="failed", error=failure)
            yield ResponseFailed(response=self.body)
            return
        usage = ResponseUsage.of(self._reader.usage)
        if is_cut:
            reason = Incomplete(reason="max_output_tokens")
            self._end(items, status="incomplete", incomplete_details=reason, usage=usage)
            yield ResponseIncomplete(response=self.body)
        else:
            self._end(items, status="completed", completed_at=int(time.time()), usage=usage)
            yield ResponseCompleted(response=self.body)

    def _end(self, items: ResponseItems, **changes: Any) -> None:
        self.body = msgspec.structs.replace(self.body, output=items.output, **changes)


def _changes(
    items: ResponseItems, event: ReplyPiece | ChoiceEnd, *, is_cut: bool
) -> Iterator[ItemEvent]:
    if isinstance(event, ChoiceEnd):
        return items.finish("incomplete" if is_cut else "completed")
    return items.add(event)


def _begun(
    identity: Identity, request: ResponsesRequest, chat: ChatRequest, sampling: Sampling
) -> ResponseBody:
    """The response to a request before its first token, with the settings that are used."""
    return ResponseBody(
        id=identity.id,
        created_at=identity.created,
        model=identity.model,
        status="in_progress",
        output=[],
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        max_output_tokens=request.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        text={"format": request.text_format or {"type": "text"}},
        reasoning={"effort": chat.effort, "summary": None},
        truncation=request.truncation or "disabled",
        store=request.is_stored,
        metadata=request.metadata or {},
    )


def _chat(
    service: Service, exchange: Exchange, request: ResponsesRequest
) -> tuple[bytes, ChatRequest]:
    """The JSON of the whole conversation's items if it is to be stored, and a chat request with
    them.

    The request has them no longer.
    """
    items = _conversation(service, exchange, request)
    request.input = []
    return whole_json(items if request.is_stored else []), request.for_chat(items)


def _conversation(
    service: Service, exchange: Exchange, request: ResponsesRequest
) -> list[InputItem]:
    """The items of the whole conversation, of which stored ones may be references."""
    given = request.input
    if not isinstance(given, str):
        stored: dict[str, dict[str, Any]] = {}
        given = [
            _referred(service, exchange, stored, each, f"input[{index}]")
            for index, each in enumerate(given)
        ]
    added = read_items(given)
    exchange.note_ignored(list(unread_fields(given, added, "input")))
    return [*_earlier(service, exchange, request), *added]


def _referred(
    service: Service,
    exchange: Exchange,
    stored: dict[str, dict[str, Any]],
    item: dict[str, Any],
    where: str,
) -> dict[str, Any]:
    """An item, or the stored one that it names. Raises ApiError for one that is not stored.

    `stored` collects the items of responses, each of which is decoded once.
    """
    if item.get("type", "item_reference" if item.keys() == {"id"} else None) != "item_reference":
        return item
    item_id = str(item.get("id"))
    if item_id not in stored:
        stored.update(service.responses.made_with(exchange.salt, item_id))
    if (referred := stored.get(item_id)) is None:
        raise ApiError(
            400,
            f"no stored response has the item {item.get('id')!r}: send the item itself",
            f"{where}.id",
            "item_not_found",
        )
    return referred


def _earlier(service: Service, exchange: Exchange, request: ResponsesRequest) -> list[InputItem]:
    """The conversation that the request goes on from. Raises ApiError if it is not stored."""
    if request.previous_response_id is None:
        return []
    earlier = service.responses.items(exchange.salt, request.previous_response_id)
    if earlier is None:
        raise _not_stored(400, request.previous_response_id, "previous_response_id")
    return earlier


def _not_stored(status: int, response_id: str, param: str | None = None) -> ApiError:
    return ApiError(
        status,
        f"no response {response_id[:100]!r} is stored: it was deleted, is too old, was made with "
        "store false or with another key; send the whole conversation",
        param,
        "response_not_found",
    )


@contextmanager
def _input_errors() -> Iterator[None]:
    """Errors of the messages that items were turned into are errors of the input."""
    try:
        yield
    except ApiError as error:
        if error.param is not None and error.param.startswith("messages"):
            raise replace(error, param="input") from error
        raise
