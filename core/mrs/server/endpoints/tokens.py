"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from mrs.request import Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.server.http.errors import ApiError, errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw, raw_json
from mrs.server.schemas.chat_message import MOST_MESSAGES, MOST_TOOLS, ChatMessage, conversation
from mrs.server.schemas.completion_request import TokenId
from mrs.server.schemas.structure import refuse
from mrs.server.service import Service
from mrs.tools.tool_request import read_tools


class TokenizeRequest(Struct, kw_only=True):
    """A text as vLLM (`prompt`) or llama.cpp (`content`) has it, or a conversation.

    add_special_tokens    whether a prompt gets the tokens that prompts begin with, as by default
    add_special           the same of a content, by default not
    parse_special         whether control tokens are recognized in the text, as by default
    with_pieces           return each token with its text, or its bytes if that is none
    return_token_strs     return the texts of the tokens beside them
    tools                 those of a conversation
    chat_template_kwargs  further variables of the chat template
    """

    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage], Meta(max_length=MOST_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    model: str | None = None

    @property
    def text(self) -> str:
        """Raises ApiError if it is missing."""
        text = self.prompt if self.content is None else self.content
        if text is None:
            raise ApiError(400, "there is no text: give prompt or messages", "prompt", "missing")
        return text

    @property
    def begins_prompt(self) -> bool:
        """Whether the tokens that prompts begin with are added."""
        given = self.add_special if self.add_special_tokens is None else self.add_special_tokens
        return self.content is None if given is None else given

    def check(self) -> None:
        """Raises ApiError for what is not supported, and for fields that contradict each other."""
        refuse("add_generation_prompt", "a false one", self.add_generation_prompt is False)
        refuse("continue_final_message", "continue_final_message", self.continue_final_message)
        refuse("chat_template", "a chat_template", self.chat_template is not None)
        sources = [each for each in (self.prompt, self.content, self.messages) if each is not None]
        if len(sources) > 1:
            message = "prompt, content and messages exclude each other: give one of them"
            raise ApiError(400, message, "prompt", "invalid_value")


class TokenPiece(Struct, frozen=True, kw_only=True):
    """A token with its text; with its bytes if these are only a part of a character."""

    id: int
    piece: str | list[int]


class Tokens(Struct, frozen=True, kw_only=True):
    """Token ids; `max_model_len` is the model's context."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(Struct, kw_only=True):
    """Token ids."""

    tokens: list[TokenId]
    model: str | None = None


class Text(Struct, frozen=True, kw_only=True):
    """A text; `content` is the same."""

    prompt: str
    content: str


async def tokenize(service: Service, exchange: Exchange, request: TokenizeRequest) -> Raw:
    """The token ids of a text or a conversation."""
    model = await service.use(exchange, service.slot_of(exchange, request.model))
    request.check()
    field = "messages" if request.messages is not None else "prompt"
    with errors_of(field, variables="chat_template_kwargs"):
        return await service.in_thread(exchange, lambda: _tokens(model, request))


def _tokens(model: LoadedModel, request: TokenizeRequest) -> Raw:
    """The JSON, which may be long, of Tokens."""
    ids = _ids(model, request)
    tokens: list[int | TokenPiece] = [*ids]
    texts: list[str] | UnsetType = UNSET
    if request.with_pieces:
        tokens = [TokenPiece(id=id, piece=_shown(model.tokenizer.label(id))) for id in ids]
    if request.return_token_strs:
        texts = [model.tokenizer.label(id).decode("utf-8", "replace") for id in ids]
    return raw_json(
        Tokens(tokens=tokens, count=len(ids), max_model_len=model.context_tokens, token_strs=texts)
    )


def _ids(model: LoadedModel, request: TokenizeRequest) -> list[int]:
    if request.messages is not None:
        messages = conversation(
            request.messages, allow_image_urls=False, check_media=model.prompts.check_media
        )
        variables, tools = request.chat_template_kwargs, read_tools(request.tools)
        prompt = model.prompts.chat(
            messages, Sampling(), variables=variables, tools=tools, must_fit=False
        )
        return list(prompt.ids)
    model.prompts.text_limit.check(request.text, must_fit=False)
    is_parsed = request.parse_special is not False
    if request.begins_prompt and is_parsed:
        return model.tokenizer.encode_prompt(request.text)
    ids = model.tokenizer.encode(request.text, allow_special=is_parsed)
    return [*model.tokenizer.encode_prompt(""), *ids] if request.begins_prompt else ids


def _shown(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(service: Service, exchange: Exchange, request: DetokenizeRequest) -> Raw:
    """The text of token ids, control tokens included."""
    model = await service.use(exchange, service.slot_of(exchange, request.model))
    return await service.in_thread(exchange, lambda: _text(model, request))


def _text(model: LoadedModel, request: DetokenizeRequest) -> Raw:
    """The JSON, which may be long, of Text."""
    text = model.tokenizer.decode(model.prompts.known_ids(request.tokens), show_control=True)
    return raw_json(Text(prompt=text, content=text))
