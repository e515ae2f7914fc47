"""Replies of a loaded model at temperature 1, without any other setting."""

from __future__ import annotations

from typing import Any

from mrs.engine.reply import Reply
from mrs.events import Finished, TextDelta
from mrs.request import Grammar, Message, Sampling
from mrs.run.loaded_model import LoadedModel

QUESTION: list[Message] = [{"role": "user", "content": "What is a KV cache?"}]


def sampling_of(grammar: Grammar | None, **settings: Any) -> Sampling:
    plain = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "max_tokens": 120,
        "seed": 1,
        "grammar": grammar,
    }
    return Sampling(**{**plain, **settings})


def read(reply: Reply) -> tuple[str, Finished]:
    *deltas, end = reply
    assert isinstance(end, Finished)
    return "".join(each.text for each in deltas if isinstance(each, TextDelta)), end


def ask(model: LoadedModel, grammar: Grammar | None, **settings: Any) -> tuple[str, Finished]:
    return read(model.stream_chat(QUESTION, sampling_of(grammar, **settings)))
