"""The routes of the server: one table, for the application and its OpenAPI document."""

from __future__ import annotations

from typing import Any

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import Route as StarletteRoute

from mrs.server.endpoints.chat import chat
from mrs.server.endpoints.completions import complete
from mrs.server.endpoints.embeddings import EmbeddingList, EmbeddingRequest, embed
from mrs.server.endpoints.models import ModelRequest, load, reload, unload
from mrs.server.endpoints.models import status as model_status
from mrs.server.endpoints.page import chat_page, page_file, plan
from mrs.server.endpoints.requantize import Requantized, RequantizeRequest, requantize
from mrs.server.endpoints.rerank import Ranking, RerankRequest, rerank
from mrs.server.endpoints.status import (
    ModelBody,
    ModelList,
    Readiness,
    health,
    metrics,
    model,
    models,
    ready,
)
from mrs.server.endpoints.tokens import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
    detokenize,
    tokenize,
)
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.routes.endpoint import Endpoint
from mrs.server.routes.openapi import document, page
from mrs.server.routes.route import Route
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.chat_response import ChatChunk, ChatCompletion
from mrs.server.schemas.completion_request import CompletionRequest
from mrs.server.schemas.completion_response import Completion
from mrs.server.service import Service


async def openapi(service: Service, exchange: Exchange, _: Any) -> dict[str, Any]:
    """This document."""
    return document(ROUTES)


async def docs(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A page that lists all paths and fields."""
    return Raw(page(document(ROUTES)).encode(), "text/html; charset=utf-8")


class _Name(PathConvertor):
    """The rest of a path, which may have slashes, as a hub id does, but is not empty."""

    regex = ".+"


register_url_convertor("name", _Name())

ROUTES = (
    Route("POST", "/v1/chat/completions", chat, ChatCompletion, ChatRequest, ChatChunk),
    Route("POST", "/v1/completions", complete, Completion, CompletionRequest, Completion),
    Route("POST", "/v1/embeddings", embed, EmbeddingList, EmbeddingRequest),
    Route("POST", "/v1/rerank", rerank, Ranking, RerankRequest),
    Route("POST", "/tokenize", tokenize, Tokens, TokenizeRequest),
    Route("POST", "/detokenize", detokenize, Text, DetokenizeRequest),
    Route("GET", "/v1/models", models, ModelList),
    Route("POST", "/v1/models/load", load, ModelBody, ModelRequest),
    Route("POST", "/v1/models/unload", unload, ModelBody, ModelRequest),
    Route("POST", "/v1/models/reload", reload, ModelBody, ModelRequest),
    Route("POST", "/v1/models/status", model_status, ModelBody, ModelRequest),
    Route("GET", "/v1/models/{model_id:name}", model, ModelBody),
    Route("GET", "/health", health, Raw),
    Route("GET", "/ready", ready, Readiness),
    Route("GET", "/metrics", metrics, Raw),
    Route("POST", "/re_isq", requantize, Requantized, RequantizeRequest),
    Route("GET", "/openapi.json", openapi, dict[str, Any]),
    Route("GET", "/docs", docs, Raw, media_type="text/html"),
    Route("GET", "/", chat_page, Raw, media_type="text/html"),
    Route("GET", "/page/{name}", page_file, Raw, media_type="text/javascript"),
    Route("GET", "/plan", plan, dict[str, Any]),
)


def starlette_routes(service: Service) -> list[StarletteRoute]:
    return [
        StarletteRoute(
            each.path,
            Endpoint(service, each.template, each.handle, each.request),
            methods=[each.method],
        )
        for each in ROUTES
    ]
