"""`/v1/messages` and `/v1/messages/count_tokens`, in the form of Anthropic's interface."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator

from mrs.request import Sampling
from mrs.server.endpoints.chat import chat_prompt, start_chat
from mrs.server.endpoints.identity import Identity, new_identity
from mrs.server.http.exchange import Exchange
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.message_blocks import BlockEvent, MessageBlocks, end_of
from mrs.server.replies.reader import ChoiceEnd, ReplyReader
from mrs.server.schemas.messages_request import CountTokensRequest, MessagesRequest
from mrs.server.schemas.messages_response import (
    MessageBody,
    MessageDelta,
    MessageEnd,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    TokenCount,
)
from mrs.server.service import Service


async def messages(
    service: Service, exchange: Exchange, request: MessagesRequest
) -> MessageBody | AsyncIterator[MessageEvent]:
    """The next message of a conversation, or its events."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    exchange.note_ignored(request.ignored)
    identity = new_identity("msg_", exchange, slot)
    chat = await service.in_thread(exchange, request.for_chat)
    chat.check()
    await service.use(exchange, slot)
    reader = await start_chat(service, exchange, slot, chat)
    return _events(reader, identity) if request.stream else await _whole(reader, identity)


async def count_tokens(
    service: Service, exchange: Exchange, request: CountTokensRequest
) -> TokenCount:
    """The tokens of a conversation as the chat template writes it."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    exchange.note_ignored(request.ignored)
    model = await service.use(exchange, slot)
    prompt = await service.in_thread(
        exchange,
        lambda: chat_prompt(service, model, request.for_chat(), Sampling(), must_fit=False),
    )
    return TokenCount(input_tokens=len(prompt.ids))


async def _events(reader: ReplyReader, identity: Identity) -> AsyncIterator[MessageEvent]:
    prompt = MessagesUsage(
        input_tokens=reader.prompt_tokens, cache_read_input_tokens=0, output_tokens=0
    )
    yield MessageStart(message=_body(identity, MessageBlocks(), None, prompt))
    blocks = MessageBlocks()
    async for _, event in reader.read():
        for change in _changes(blocks, event):
            yield change
        if isinstance(event, ChoiceEnd):
            yield MessageDelta(delta=end_of(event), usage=MessagesUsage.of(reader.usage))
    yield MessageStop()


async def _whole(reader: ReplyReader, identity: Identity) -> MessageBody:
    blocks, end = MessageBlocks(), None
    reader.keep()
    async for _, event in reader.read():
        deque(_changes(blocks, event), maxlen=0)
        if isinstance(event, ChoiceEnd):
            end = end_of(event)
    return _body(identity, blocks, end, MessagesUsage.of(reader.usage))


def _changes(blocks: MessageBlocks, event: ReplyPiece | ChoiceEnd) -> Iterator[BlockEvent]:
    return blocks.finish() if isinstance(event, ChoiceEnd) else blocks.add(event)


def _body(
    identity: Identity, blocks: MessageBlocks, end: MessageEnd | None, usage: MessagesUsage
) -> MessageBody:
    return MessageBody(
        id=identity.id,
        model=identity.model,
        content=blocks.content,
        stop_reason=None if end is None else end.stop_reason,
        stop_sequence=None if end is None else end.stop_sequence,
        usage=usage,
    )
