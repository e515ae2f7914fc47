"""The routes of the server: one table, for the application and its OpenAPI document."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from mrs.server.endpoints.adapters import (
    LoadAdapterRequest,
    UnloadAdapterRequest,
    load_adapter,
    unload_adapter,
)
from mrs.server.endpoints.batches import (
    add_batch,
    add_file,
    batch,
    batches,
    cancel_batch,
    delete_file,
    file,
    file_content,
    files,
)
from mrs.server.endpoints.chat import chat
from mrs.server.endpoints.classify import ClassifyRequest, ClassifyResponse, classify
from mrs.server.endpoints.completions import complete
from mrs.server.endpoints.embeddings import EmbeddingList, EmbeddingRequest, embed
from mrs.server.endpoints.messages import count_tokens, messages
from mrs.server.endpoints.models import ModelRequest, load, reload, unload
from mrs.server.endpoints.models import status as model_status
from mrs.server.endpoints.page import chat_page, page_file, plan
from mrs.server.endpoints.requantize import Requantized, RequantizeRequest, requantize
from mrs.server.endpoints.rerank import RerankRequest, RerankResponse, rerank
from mrs.server.endpoints.responses import (
    delete_response,
    input_items,
    input_tokens,
    respond,
    response,
)
from mrs.server.endpoints.score import ScoreList, ScoreRequest, score
from mrs.server.endpoints.status import (
    Health,
    ModelBody,
    ModelList,
    Readiness,
    Version,
    health,
    metrics,
    model,
    models,
    ready,
    version,
)
from mrs.server.endpoints.tokens import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
    detokenize,
    tokenize,
)
from mrs.server.endpoints.transcriptions import transcribe, translate
from mrs.server.http.exchange import Exchange
from mrs.server.http.style import ANTHROPIC, OPENAI, Style
from mrs.server.http.wire import Raw
from mrs.server.routes.endpoint import Endpoint
from mrs.server.routes.openapi import document, page
from mrs.server.routes.route import Route
from mrs.server.schemas.batch import (
    BatchList,
    BatchObject,
    BatchRequest,
    DeletedFile,
    FileList,
    FileObject,
    FileRequest,
)
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.chat_response import ChatChunk, ChatCompletion
from mrs.server.schemas.completion_request import CompletionRequest
from mrs.server.schemas.completion_response import Completion
from mrs.server.schemas.messages_request import CountTokensRequest, MessagesRequest
from mrs.server.schemas.messages_response import MessageBody, MessageEvent, TokenCount
from mrs.server.schemas.responses_request import ResponsesRequest
from mrs.server.schemas.responses_response import (
    DeletedResponse,
    InputTokens,
    ItemList,
    ResponseBody,
    ResponseEvent,
)
from mrs.server.schemas.transcription import (
    TranscriptEvent,
    Transcription,
    TranscriptionRequest,
    TranslationRequest,
)
from mrs.server.service import Service


async def openapi(service: Service, exchange: Exchange, _: Any) -> dict[str, Any]:
    """This document."""
    return await asyncio.to_thread(_document)


async def docs(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A page that lists all paths and fields."""
    return await asyncio.to_thread(_page)


@cache
def _document() -> dict[str, Any]:
    """The document, which takes a tenth of a second to make."""
    return document(ROUTES)


@cache
def _page() -> Raw:
    return Raw(page(_document()).encode(), "text/html; charset=utf-8")


class _Name(PathConvertor):
    """The rest of a path, which may have slashes, as a hub id does, but is not empty."""

    regex = ".+"


register_url_convertor("name", _Name())

ROUTES = (
    Route("POST", "/v1/chat/completions", chat, ChatCompletion, ChatRequest, ChatChunk),
    Route("POST", "/v1/completions", complete, Completion, CompletionRequest, Completion),
    Route(
        "POST",
        "/v1/messages",
        messages,
        MessageBody,
        MessagesRequest,
        MessageEvent,
        style=ANTHROPIC,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        TokenCount,
        CountTokensRequest,
        style=ANTHROPIC,
    ),
    Route("POST", "/v1/responses", respond, ResponseBody, ResponsesRequest, ResponseEvent),
    Route("POST", "/v1/responses/input_tokens", input_tokens, InputTokens, ResponsesRequest),
    Route("GET", "/v1/responses/{response_id}/input_items", input_items, ItemList),
    Route("GET", "/v1/responses/{response_id}", response, ResponseBody),
    Route("DELETE", "/v1/responses/{response_id}", delete_response, DeletedResponse),
    Route("POST", "/v1/embeddings", embed, EmbeddingList, EmbeddingRequest),
    Route(
        "POST",
        "/v1/audio/transcriptions",
        transcribe,
        Transcription,
        TranscriptionRequest,
        TranscriptEvent,
        takes_form=True,
    ),
    Route(
        "POST",
        "/v1/audio/translations",
        translate,
        Transcription,
        TranslationRequest,
        TranscriptEvent,
        takes_form=True,
    ),
    Route("POST", "/v1/rerank", rerank, RerankResponse, RerankRequest),
    Route("POST", "/v1/classify", classify, ClassifyResponse, ClassifyRequest),
    Route("POST", "/v1/score", score, ScoreList, ScoreRequest),
    Route("POST", "/v1/files", add_file, FileObject, FileRequest, takes_form=True),
    Route("GET", "/v1/files", files, FileList),
    Route("GET", "/v1/files/{file_id}", file, FileObject),
    Route("DELETE", "/v1/files/{file_id}", delete_file, DeletedFile),
    Route(
        "GET",
        "/v1/files/{file_id}/content",
        file_content,
        Raw,
        media_type="application/jsonl",
    ),
    Route("POST", "/v1/batches", add_batch, BatchObject, BatchRequest),
    Route("GET", "/v1/batches", batches, BatchList),
    Route("GET", "/v1/batches/{batch_id}", batch, BatchObject),
    Route("POST", "/v1/batches/{batch_id}/cancel", cancel_batch, BatchObject),
    Route("POST", "/tokenize", tokenize, Tokens, TokenizeRequest),
    Route("POST", "/detokenize", detokenize, Text, DetokenizeRequest),
    Route("GET", "/v1/models", models, ModelList),
    Route("POST", "/v1/models/load", load, ModelBody, ModelRequest, manages=True),
    Route("POST", "/v1/models/unload", unload, ModelBody, ModelRequest, manages=True),
    Route("POST", "/v1/models/reload", reload, ModelBody, ModelRequest, manages=True),
    Route("POST", "/v1/models/status", model_status, ModelBody, ModelRequest),
    Route("GET", "/v1/models/{model_id:name}", model, ModelBody),
    Route("POST", "/v1/load_lora_adapter", load_adapter, Raw, LoadAdapterRequest, manages=True),
    Route(
        "POST", "/v1/unload_lora_adapter", unload_adapter, Raw, UnloadAdapterRequest, manages=True
    ),
    Route("GET", "/health", health, Health),
    Route("GET", "/ready", ready, Readiness),
    Route("GET", "/version", version, Version),
    Route("GET", "/metrics", metrics, Raw),
    Route("POST", "/re_isq", requantize, Requantized, RequantizeRequest, manages=True),
    Route("GET", "/openapi.json", openapi, dict[str, Any]),
    Route("GET", "/docs", docs, Raw, media_type="text/html"),
    Route("GET", "/", chat_page, Raw, media_type="text/html"),
    Route("GET", "/page/{name:name}", page_file, Raw, media_type="text/javascript"),
    Route("GET", "/plan", plan, dict[str, Any]),
)


class _ByMethod:
    """What answers at one path, by method: one route, so that a 405 can name all methods."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self.endpoints[method](scope, receive, send)


def starlette_routes(service: Service) -> list[StarletteRoute]:
    paths: dict[str, _ByMethod] = {}
    for each in ROUTES:
        answering = paths.setdefault(each.path, _ByMethod()).endpoints
        answering[each.method] = Endpoint(
            service,
            each.template,
            each.handle,
            each.request,
            each.style,
            takes_form=each.takes_form,
        )
    return [
        StarletteRoute(path, answering, methods=list(answering.endpoints))
        for path, answering in paths.items()
    ]


#: Paths on which a client changes what all others get.
MANAGING = frozenset(each.path for each in ROUTES if each.manages)


def style_of(path: str) -> Style:
    """The style of the errors of a path; that of OpenAI for a path that there is not."""
    return next((each.style for each in ROUTES if each.path == path), OPENAI)
