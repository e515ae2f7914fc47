"""The routes of the server: one table, for the application and its OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.routing import Route as StarletteRoute

from mrs.server.chat import chat
from mrs.server.chat_request import ChatRequest
from mrs.server.chat_response import ChatChunk, ChatCompletion
from mrs.server.completion_request import CompletionRequest
from mrs.server.completion_response import Completion
from mrs.server.completions import complete
from mrs.server.embeddings import EmbeddingList, EmbeddingRequest, embed
from mrs.server.endpoint import Endpoint, Handler
from mrs.server.service import Service
from mrs.server.status import ModelBody, ModelList, Readiness, health, metrics, model, models, ready
from mrs.server.tokens import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
    detokenize,
    tokenize,
)
from mrs.server.wire import Raw


@dataclass(frozen=True)
class Route:
    """A path, and what it takes and gives; `events` are those of a streamed response."""

    method: str
    path: str
    handle: Handler
    response: type
    request: type[msgspec.Struct] | None = None
    events: type[msgspec.Struct] | None = None


ROUTES = (
    Route("POST", "/v1/chat/completions", chat, ChatCompletion, ChatRequest, ChatChunk),
    Route("POST", "/v1/completions", complete, Completion, CompletionRequest, Completion),
    Route("POST", "/v1/embeddings", embed, EmbeddingList, EmbeddingRequest),
    Route("POST", "/tokenize", tokenize, Tokens, TokenizeRequest),
    Route("POST", "/detokenize", detokenize, Text, DetokenizeRequest),
    Route("GET", "/v1/models", models, ModelList),
    Route("GET", "/v1/models/{model_id:path}", model, ModelBody),
    Route("GET", "/health", health, Raw),
    Route("GET", "/ready", ready, Readiness),
    Route("GET", "/metrics", metrics, Raw),
)


def starlette_routes(service: Service) -> list[StarletteRoute]:
    return [
        StarletteRoute(
            each.path,
            Endpoint(service, each.path, each.handle, each.request),
            methods=[each.method],
        )
        for each in ROUTES
    ]
