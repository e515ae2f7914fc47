"""Replies of a given form, as the official client of OpenAI asks for them."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema
import openai
import pytest
from msgspec import convert
from pydantic import BaseModel, Field
from running_server import RunningServer, running

from mrs.server.schemas.chat_request import ChatRequest

QUESTION: Any = [{"role": "user", "content": "What is a KV cache?"}]


class Light(BaseModel, extra="forbid"):
    """What `parse` makes a schema of."""

    kind: Literal["day", "night"]
    level: int = Field(ge=1, le=9)
    is_on: bool


def asking_for(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "light", "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
def test_replies_match_their_schema(server: RunningServer, stream: bool) -> None:
    schema = Light.model_json_schema()
    create = server.openai().chat.completions.create
    reply: Any = create(
        model="demo", messages=QUESTION, response_format=asking_for(schema), temperature=1.0,
        seed=1, n=2, stream=stream,
    )  # fmt: skip
    texts = ["", ""]
    for chunk in reply if stream else [reply]:
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta if stream else choice.message).content or ""
            assert choice.finish_reason in (None, "stop")
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("system", [True, False])
def test_the_prompt_mentions_the_schema(system: bool) -> None:
    schema = Light.model_json_schema()
    given = [{"role": "system", "content": "Be brief."}, *QUESTION] if system else QUESTION
    body = {"messages": given, "response_format": asking_for(schema)}
    messages = convert(body, ChatRequest).take_conversation(
        allow_image_urls=False, check_media=lambda *_: None
    )
    asking, _, mentioned = messages[0]["content"].partition("\n\nAnswer in JSON ")
    assert asking == given[0]["content"]
    assert json.loads(mentioned.partition(": ")[2]) == schema
    assert messages[1:] == given[1:]
    for unmentioned in ({"type": "json_object"}, asking_for({"enum": ["a" * 5000]})):
        body["response_format"] = unmentioned
        assert (
            convert(body, ChatRequest).take_conversation(
                allow_image_urls=False, check_media=lambda *_: None
            )
            == given
        )


def test_parse_returns_an_object(server: RunningServer) -> None:
    parsed = server.openai().chat.completions.parse(
        model="demo", messages=QUESTION, response_format=Light, temperature=1.0, seed=2
    )
    light = parsed.choices[0].message.parsed
    assert isinstance(light, Light)


def test_a_json_object(server: RunningServer) -> None:
    body = {"messages": QUESTION, "response_format": {"type": "json_object"}, "max_tokens": 60}
    for seed in range(2):
        text = server.chat(**body, seed=seed, temperature=0.7).json()["choices"][0]
        assert text["message"]["content"].startswith("{")
        if text["finish_reason"] == "stop":
            assert isinstance(json.loads(text["message"]["content"]), dict)


def test_a_json_object_may_have_a_schema_as_other_servers_take_it(server: RunningServer) -> None:
    response_format = {"type": "json_object", "schema": {"enum": [{"a": 7}]}}
    text = server.chat(response_format=response_format, max_tokens=20).json()["choices"][0]
    assert json.loads(text["message"]["content"]) == {"a": 7}


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("regex", "(on|off) [0-9]{2}", r"(on|off) [0-9]{2}"),
        ("lark", 'start: "on" | "off"', r"on|off"),
        ("json_schema", {"enum": ["on", "off"]}, r'"(on|off)"'),
        ("llguidance", {"grammars": [{"lark_grammar": 'start: "o" "n"'}]}, "on"),
    ],
)
def test_grammars(server: RunningServer, kind: str, value: Any, pattern: str) -> None:
    grammar = {"type": kind, "value": value}
    chat = server.chat(grammar=grammar, temperature=1.0, max_tokens=20).json()["choices"][0]
    assert re.fullmatch(pattern, chat["message"]["content"])
    assert chat["finish_reason"] == "stop"
    body = {"prompt": "The light is", "grammar": grammar, "temperature": 1.0, "seed": 3}
    text = server.http.post("/v1/completions", json=body).json()["choices"][0]
    assert re.fullmatch(pattern, text["text"])
    assert text["finish_reason"] == "stop"


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": asking_for({"type": "object", "unevaluatedProperties": False})},
         "response_format", "unevaluatedProperties"),
        ({"response_format": asking_for({"type": "nonsense"})}, "response_format", "nonsense"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "lacks its schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {}}, "response_format", "json_object"),
        ({"grammar": {"type": "regex", "value": "(?=a)"}}, "grammar", "regular expression"),
        ({"grammar": {"type": "bnf", "value": "a"}}, "grammar", "lark"),
        ({"grammar": {"type": "regex"}}, "grammar", "not a string"),
        ({"grammar": {"type": "regex", "value": "a"}, "response_format": {"type": "text"}},
         "grammar", "exclude each other"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model="demo", messages=QUESTION, extra_body=fields)
    assert words in caught.value.message
    assert caught.value.param == param


def test_a_completion_names_the_field_as_well(server: RunningServer) -> None:
    body = {"prompt": "a", "grammar": {"type": "regex", "value": "("}}
    reply = server.http.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "grammar")


def test_no_request_waits_for_the_vocabulary_of_grammars() -> None:
    """Reading a large one stops all threads for a second."""
    with running() as server:
        assert server.model.prompts._grammars._read is not None
