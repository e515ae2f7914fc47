"""Each setting has the same bounds, default and meaning as a flag, in a chat, in Python, by HTTP.

The cases are made from the table of settings, so that one that is added is tested as well.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mrs.server
from mrs import ChatCompletionRequest, CompletionRequest
from mrs.api.checks import FIELD_NAMES
from mrs.errors import MrsError
from mrs.request import Sampling
from mrs.request.sampling import SETTINGS as ALL_SETTINGS
from mrs.request.setting_kinds import Biases, Number, Setting, Texts, Tokens
from mrs.server.http.errors import ApiError
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.completion_request import CompletionRequest as HttpCompletionRequest
from mrs.server.schemas.messages_request import MessagesRequest
from mrs.server.schemas.responses_request import ResponsesRequest

HELLO = [{"role": "user", "content": "Hello"}]
PAGE = Path(mrs.server.__file__).parent / "page" / "index.html"

#: Texts that are continued have no thoughts: tests/thoughts and test_server_thinking.py ask these.
SETTINGS = {name: each for name, each in ALL_SETTINGS.items() if not name.startswith("reasoning")}


def cases() -> Iterator[Any]:
    """(name, value as JSON, whether it is accepted)."""
    for name, setting in SETTINGS.items():
        values = dict.fromkeys(map(json.dumps, accepted(setting)), True)
        values |= dict.fromkeys(map(json.dumps, refused(setting)), False)
        for text, is_accepted in values.items():
            yield pytest.param(name, json.loads(text), is_accepted, id=f"{name}-{text:.40}")


def accepted(setting: Setting) -> list[Any]:
    kind = setting.kind
    if isinstance(kind, Number):
        return [kind.low, kind.high, max(kind.low, 1)]
    if isinstance(kind, Texts):
        return ["x", ["a b", "["], ["y"] * kind.most, "z" * kind.longest]
    if isinstance(kind, Tokens):
        return [[5], [0, 2**31 - 1]]
    assert isinstance(kind, Biases)
    return [{"5": 1e9}, {"0": -1e9, "2147483647": 0.5}]


def refused(setting: Setting) -> list[Any]:
    kind = setting.kind
    if isinstance(kind, Number):
        step: Any = 1 if kind.whole else 1e-4
        values = [kind.low - step, kind.high + max(step, step * kind.high), math.nan, math.inf]
        return values + ([2.5] if kind.whole else [])
    if isinstance(kind, Texts):
        return ["", ["a", ""], ["y"] * (kind.most + 1), "z" * (kind.longest + 1)]
    if isinstance(kind, Tokens):
        return [[-1], [2**31], [1] * (kind.most + 1)]
    return [{"5": 1.1e9}, {"-5": 1.0}, {"5": math.nan}, {"x": 1.0}, {"2147483648": 1.0}]


def flags(name: str, value: Any) -> list[str]:
    """A value as words of the command line."""
    setting = SETTINGS[name]
    flag = f"--{setting.flag or name.replace('_', '-')}"
    if isinstance(value, Mapping):
        return [f"{flag}={key}={each!r}" for key, each in value.items()]
    values = value if isinstance(value, list) else [value]
    return [f"{flag}={each if isinstance(each, str) else repr(each)}" for each in values]


def chat_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={each!r}" for key, each in value.items())
    if isinstance(value, str):
        return value
    return json.dumps(value)


def in_chat(run_mrs: Callable[..., Any], name: str, value: Any) -> Sampling:
    ran = run_mrs("-i", "plain", "-m", "x", stdin=f"\\set {name} {chat_text(value)}\nhello\n")
    if "error:" in ran.err:
        raise ApiError(400, ran.err)
    sampling: Sampling = ran.models[0].asked[0][1]
    return sampling


def by_flag(run_mrs: Callable[..., Any], name: str, value: Any) -> Sampling:
    ran = run_mrs(*flags(name, value), "plain", "-m", "x", "-P", "hello")
    if ran.code == 2:
        raise ApiError(400, ran.err)
    sampling: Sampling = ran.models[0].asked[0][1]
    return sampling


def by_python(name: str, value: Any) -> list[Sampling]:
    given = {FIELD_NAMES.get(name, name): value}
    return [
        request.samplings({})[0]
        for request in (ChatCompletionRequest(HELLO, **given), CompletionRequest("Hi", **given))
    ]


def by_http(name: str, value: Any) -> list[Sampling]:
    """What each protocol makes of a body, as msgspec converts it and as its endpoint reads it."""
    found = []
    for schema, field, text in (
        (ChatRequest, "messages", HELLO),
        (HttpCompletionRequest, "prompt", "Hi"),
        (MessagesRequest, "messages", HELLO),
        (ResponsesRequest, "input", "Hi"),
    ):
        room = {"max_tokens": 2**31 - 1} if name == "min_tokens" else {}
        request: Any = msgspec.convert({field: text, **room, name: value}, schema)
        request.check()
        if schema is MessagesRequest:
            request = request.for_chat()
        if schema is ResponsesRequest:
            request = request.for_chat([])
        found += request.all_samplings({})
    return found


@pytest.mark.few(48)
@pytest.mark.parametrize(("name", "value", "is_accepted"), list(cases()))
def test_a_setting_has_the_same_bounds_everywhere(run_mrs, name, value, is_accepted):
    surfaces: list[Callable[[], Any]] = [lambda: by_python(name, value)]
    surfaces.append(lambda: by_http(name, value))
    is_readable = value != "" and not (isinstance(value, list) and value == ["y"] * len(value))
    if is_readable or not is_accepted:
        surfaces.append(lambda: by_flag(run_mrs, name, value))
    if is_readable:  # "\\set stop" shows the setting
        surfaces.append(lambda: in_chat(run_mrs, name, value))
    for ask in surfaces:
        if not is_accepted:
            with pytest.raises((MrsError, ApiError, msgspec.ValidationError)):
                ask()
            continue
        made = ask()
        for sampling in made if isinstance(made, list) else [made]:
            assert getattr(sampling, name) == SETTINGS[name].kind.read(value)


def test_defaults_are_the_same_everywhere(run_mrs):
    prompted = run_mrs("plain", "-m", "x", "-P", "hello").models[0].asked[0][1]
    chatted = run_mrs("-i", "plain", "-m", "x", stdin="hello\n").models[0].asked[0][1]
    asked = [prompted, chatted, *by_python("seed", None), *by_http("seed", None)]
    limits = [dataclasses.replace(each, max_tokens=None) for each in asked]  # of completions: 16
    assert limits == [Sampling()] * len(limits)
    assert Sampling().temperature > 0


def test_what_the_model_suggests_is_the_same_everywhere(run_mrs):
    suggested = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    prompted = run_mrs("plain", "-m", "warm", "-P", "hello").models[0].asked[0][1]
    python = ChatCompletionRequest(HELLO).samplings(suggested)[0]
    http = msgspec.convert({"messages": HELLO}, ChatRequest).all_samplings(suggested)[0]
    assert prompted == python == http == dataclasses.replace(Sampling(), **suggested)


@pytest.mark.parametrize("request_type", [ChatCompletionRequest, CompletionRequest])
def test_requests_of_python_have_every_setting(request_type):
    names = {each.name for each in dataclasses.fields(request_type)}
    assert {FIELD_NAMES.get(name, name) for name in SETTINGS} - names == set()


def test_the_fields_are_documented_with_their_bounds():
    schema = msgspec.json.schema(ChatRequest)["$defs"]["ChatRequest"]["properties"]
    for name, setting in SETTINGS.items():
        assert setting.help in schema[name]["description"]
        if isinstance(setting.kind, Number):
            number = next(each for each in schema[name]["anyOf"] if each["type"] != "null")
            assert (number["minimum"], number["maximum"]) == (setting.kind.low, setting.kind.high)


def test_the_page_of_the_server_has_the_same_bounds():
    inputs = re.findall(r'<input type="number" name="(\w+)"([^>]*)>', PAGE.read_text())
    assert len(inputs) >= 9
    for name, attributes in inputs:
        kind = SETTINGS[name].kind
        assert isinstance(kind, Number)
        given = dict(re.findall(r'(\w+)="([^"]*)"', attributes))
        low, high = float(given.get("min", "-inf")), float(given.get("max", "inf"))
        assert low in (kind.low, -math.inf)
        assert high in (kind.high, math.inf)
        assert given["step"] == ("1" if kind.whole else "any")
        default = SETTINGS[name].default
        shown = given["placeholder"]
        assert default is None or shown == SETTINGS[name].kind.show(default)
