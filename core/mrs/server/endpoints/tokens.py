"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from msgspec import Struct

from mrs.request import Sampling
from mrs.server.http.errors import ApiError, api_error
from mrs.server.http.exchange import Exchange
from mrs.server.schemas.chat_message import ChatMessage, conversation
from mrs.server.schemas.completion_request import TokenId
from mrs.server.service import Service


class TokenizeRequest(Struct, kw_only=True):
    """A text, in which control tokens are recognized, or a conversation for the chat template.

    `content` means the same as `prompt`.
    """

    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    model: str | None = None


class Tokens(Struct, frozen=True, kw_only=True):
    """Token ids; `max_model_len` is the model's context."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeRequest(Struct, kw_only=True):
    """Token ids."""

    tokens: list[TokenId]
    model: str | None = None


class Text(Struct, frozen=True, kw_only=True):
    """A text; `content` is the same."""

    prompt: str
    content: str


async def tokenize(service: Service, exchange: Exchange, request: TokenizeRequest) -> Tokens:
    """The token ids of a text or a conversation."""
    model = await service.use(exchange, service.slot_of(exchange, request.model))
    text = request.prompt if request.content is None else request.content

    def ids() -> list[int]:
        if request.messages is not None:
            messages = conversation(request.messages, allow_image_urls=False)
            return list(model.chat_prompt(messages, Sampling()).ids)
        if text is None:
            raise ApiError(400, "there is no text: give prompt or messages", "prompt", "missing")
        if request.add_special_tokens is not False:
            return model.tokenizer.encode_prompt(text)
        return model.tokenizer.encode(text, allow_special=True)

    try:
        found = await service.in_thread(ids)
    except Exception as error:
        raise api_error(error, "messages" if request.messages is not None else "prompt") from error
    return Tokens(tokens=found, count=len(found), max_model_len=model.context_tokens)


async def detokenize(service: Service, exchange: Exchange, request: DetokenizeRequest) -> Text:
    """The text of token ids, control tokens included."""
    model = await service.use(exchange, service.slot_of(exchange, request.model))
    text = await service.in_thread(
        lambda: model.tokenizer.decode(request.tokens, show_control=True)
    )
    return Text(prompt=text, content=text)
