"""`/v1/completions`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import UNSET

from mrs.engine.prompt import Prompt
from mrs.events import TokenLogprob
from mrs.request import Sampling
from mrs.run.loaded_model import LoadedModel
from mrs.server.endpoints.after_loading import after_loading
from mrs.server.endpoints.identity import Identity, new_identity
from mrs.server.endpoints.starter import ReplyStarter, adapted
from mrs.server.http.errors import errors_of
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw, raw_json
from mrs.server.models.slot import ModelSlot
from mrs.server.replies.choice_text import ReplyPiece
from mrs.server.replies.reader import ChoiceEnd, ReplyReader
from mrs.server.schemas.completion_request import CompletionRequest
from mrs.server.schemas.completion_response import (
    Completion,
    TextChoice,
    TextLogprobs,
    text_logprobs,
)
from mrs.server.schemas.prompt_logprobs import prompt_logprobs
from mrs.server.service import Service


async def complete(
    service: Service, exchange: Exchange, request: CompletionRequest
) -> Completion | Raw | AsyncIterator[Completion]:
    """The continuation of each prompt, or its chunks. Choices of a prompt are consecutive."""
    slot = service.slot_of(exchange, request.model, takes_adapters=True)
    request.check()
    identity = new_identity("cmpl-", exchange, slot)

    async def chunks() -> AsyncIterator[Completion]:
        reader = await _start(service, exchange, slot, request)
        begins = await _begins(service, exchange, slot.model, request)
        return _chunks(service, exchange, reader, request, identity, begins)

    if request.wants_progress:
        empty = Completion(choices=[], **identity._asdict())
        return after_loading(service.loading(exchange, slot), empty, chunks)
    model = await service.use(exchange, slot)
    if request.stream:
        return await chunks()
    reader = await _start(service, exchange, slot, request)
    replies, reasons = await reader.read_all()
    begins = await _begins(service, exchange, model, request)
    answer = partial(_answer, reader, request, identity, begins, replies, reasons)
    if not request.echo and request.logprobs is None and request.scores is None:
        return answer()
    # Long prompts, or twenty candidates for each token, take so long that others would wait.
    return await service.in_thread(exchange, lambda: raw_json(answer()))


async def _start(
    service: Service, exchange: Exchange, slot: ModelSlot, request: CompletionRequest
) -> ReplyReader:
    """The replies, of a model that is in use."""
    model = slot.model
    samplings = list[Sampling]()
    service.admit(exchange, slot, len(request.prompts) * request.made)  # before texts are read

    def read() -> Iterator[Prompt]:
        samplings[:] = adapted(exchange, request.all_samplings(model.suggested_sampling))
        yield from completion_prompts(model, request, samplings[0], exchange.salt)

    prompts = await service.in_turns(exchange, read())
    start = ReplyStarter(exchange, model, request, "prompt")
    starts = [start(prompt, each) for prompt in prompts for each in samplings]
    group = await service.start(exchange, slot, starts)
    finish = service.on_finish(exchange, slot)
    return ReplyReader(group, finish, choices=len(samplings), thoughts="inline")


def completion_prompts(
    model: LoadedModel, request: CompletionRequest, sampling: Sampling, owner: bytes = b""
) -> Iterator[Prompt]:
    """Every prompt of a request. Raises ApiError."""
    for each in request.prompts:
        yield _prompt(model, request, each, sampling, owner)


def _prompt(
    model: LoadedModel,
    request: CompletionRequest,
    given: str | list[int],
    sampling: Sampling,
    owner: bytes,
) -> Prompt:
    with errors_of("suffix" if request.suffix else "prompt", form=request.form_field):
        text = _whole(model, request, given)
        return model.prompts.completion(text, sampling, **request.cut, owner=owner)


def _whole(
    model: LoadedModel, request: CompletionRequest, prompt: str | list[int]
) -> str | list[int]:
    """The prompt, with the suffix if there is one. Raises ContextFull before it is read."""
    texts = [each for each in (prompt, request.suffix) if isinstance(each, str)]
    model.prompts.text_limit.check(*texts, must_fit=not any(request.cut.values()))
    if not request.suffix:
        if isinstance(prompt, str) and request.add_special_tokens is False:
            return model.tokenizer.encode(prompt, allow_special=True)
        return prompt
    from mrs.text.infill import infill_ids

    return infill_ids(model.tokenizer, prompt, request.suffix)


async def _begins(
    service: Service, exchange: Exchange, model: LoadedModel, request: CompletionRequest
) -> list[str]:
    """The text that each choice begins with."""
    prompts = request.prompts
    if not request.echo:
        return [""] * (len(prompts) * request.made)
    decode = partial(model.tokenizer.decode, show_control=True)
    texts = await service.in_turns(
        exchange, (each if isinstance(each, str) else decode(each) for each in prompts)
    )
    return [text for text in texts for _ in range(request.made)]


async def _chunks(
    service: Service,
    exchange: Exchange,
    reader: ReplyReader,
    request: CompletionRequest,
    identity: Identity,
    begins: Sequence[str],
) -> AsyncIterator[Completion]:
    usage: Any = None if request.wants_usage else UNSET
    unscored = set(range(len(begins))) if request.echoes_logprobs else set()

    def chunk(index: int, text: str, **more: Any) -> Completion:
        choice = TextChoice(index=index, text=text, **more)
        return Completion(choices=[choice], usage=usage, **identity._asdict())

    for index, text in enumerate(begins):
        if text and not unscored:
            yield chunk(index, text)
    async for index, event in reader.read():
        if index in unscored:  # its prompt is computed only now
            unscored.remove(index)
            scored = partial(_logprobs, request, reader, index, begins[index], [])
            logprobs = await service.in_thread(exchange, scored)
            yield chunk(index, begins[index], logprobs=logprobs)
        if isinstance(event, ChoiceEnd):
            yield chunk(index, "", finish_reason=event.reason)
        else:
            logprobs = text_logprobs(event.logprobs, len(begins[index]))
            yield chunk(index, event.text, logprobs=logprobs)
    if request.wants_usage:
        yield Completion(choices=[], usage=reader.usage, **identity._asdict())


def _answer(
    reader: ReplyReader,
    request: CompletionRequest,
    identity: Identity,
    begins: Sequence[str],
    replies: Sequence[Sequence[ReplyPiece]],
    reasons: Sequence[str],
) -> Completion:
    is_scored = request.prompt_logprobs is not None
    choices = [
        TextChoice(
            index=index,
            text=begins[reply] + "".join(piece.text for piece in replies[reply]),
            logprobs=_logprobs(request, reader, reply, begins[reply], _tokens(replies[reply])),
            finish_reason=reasons[reply],
            prompt_logprobs=prompt_logprobs(reader.events_of(reply)) if is_scored else UNSET,
        )
        for index, reply in enumerate(_returned(request, replies))
    ]
    return Completion(choices=choices, usage=reader.usage, **identity._asdict())


def _logprobs(
    request: CompletionRequest,
    reader: ReplyReader,
    reply: int,
    begin: str,
    tokens: Sequence[TokenLogprob],
) -> TextLogprobs | None:
    """Log probabilities of a reply's tokens, after those of its prompt if the text has that.

    None if they are not asked for.
    """
    if request.logprobs is None:
        return None
    reply_logprobs = text_logprobs(tokens, len(begin))
    if not request.echo:
        return reply_logprobs
    prompts = request.prompts
    given = prompts[reply // request.made]
    events = reader.events_of(reply)
    scores = events.prompt_logprobs(given if isinstance(given, str) else None) or ()
    top = [replace(each, top=each.top[: request.logprobs]) for each in scores]
    first = events.tokenizer.label(events.sequence.token_ids[0])
    ahead = text_logprobs(top, first=first)
    return ahead if reply_logprobs is None or ahead is None else ahead.followed_by(reply_logprobs)


def _returned(request: CompletionRequest, replies: Sequence[Sequence[ReplyPiece]]) -> list[int]:
    """The indices of the replies to return: of each prompt's, those with the likeliest tokens."""
    every, per_prompt = list(range(len(replies))), request.made
    if per_prompt == request.choices:
        return every
    prompts = [every[first : first + per_prompt] for first in range(0, len(every), per_prompt)]
    return [
        index
        for indices in prompts
        for index in sorted(indices, key=lambda reply: -_likelihood(_tokens(replies[reply])))[
            : request.choices
        ]
    ]


def _likelihood(tokens: Sequence[TokenLogprob]) -> float:
    """The mean log probability of a token."""
    return sum(each.logprob for each in tokens) / len(tokens) if tokens else -math.inf


def _tokens(pieces: Sequence[ReplyPiece]) -> list[TokenLogprob]:
    return [each for piece in pieces for each in piece.logprobs]
