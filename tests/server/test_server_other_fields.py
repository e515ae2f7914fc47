"""Fields of vLLM's, llama.cpp's and TGI's requests are done or refused by name, never dropped."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import openai
import pytest
from running_server import RunningServer

from mrs.request.sampling import SETTINGS
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.schemas.unsupported import UNSUPPORTED

QUESTION = [{"role": "user", "content": "What is a KV cache?"}]
ON_OR_OFF = 'root ::= "on" | "off" [0-9]{2}\n'
SCHEMA = {"enum": ["on", "off"]}


def complete(server: RunningServer, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = server.http.post("/v1/completions", json={"prompt": prompt, **fields})
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    return body


def content(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def error_of(reply: httpx.Response) -> tuple[int, str | None, str]:
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["message"]


FORMS = [
    ({"guided_json": SCHEMA}, r'"(on|off)"'),
    ({"guided_json": json.dumps(SCHEMA)}, r'"(on|off)"'),
    ({"json_schema": SCHEMA}, r'"(on|off)"'),
    ({"guided_regex": "(on|off) [0-9]{2}"}, r"(on|off) [0-9]{2}"),
    ({"guided_choice": ["on", 'o"f\nf']}, r'on|o"f\nf'),
    ({"guided_grammar": ON_OR_OFF}, r"on|off[0-9]{2}"),
    ({"guided_grammar": 'start: "on" | "off"'}, r"on|off"),
    ({"grammar": ON_OR_OFF}, r"on|off[0-9]{2}"),
    ({"grammar": {"type": "gbnf", "value": ON_OR_OFF}}, r"on|off[0-9]{2}"),
    ({"structured_outputs": {"json": SCHEMA}}, r'"(on|off)"'),
    ({"structured_outputs": {"regex": "on|off"}}, r"on|off"),
    ({"structured_outputs": {"choice": ["on", "off"], "json": None}}, r"on|off"),
    ({"structured_outputs": {"grammar": ON_OR_OFF}}, r"on|off[0-9]{2}"),
    ({"response_format": {"type": "regex", "value": "on|off"}}, r"on|off"),
    ({"response_format": {"type": "json", "value": SCHEMA}}, r'"(on|off)"'),
    ({"response_format": {"type": "grammar", "grammar": ON_OR_OFF}}, r"on|off[0-9]{2}"),
]


@pytest.mark.few(8)
@pytest.mark.parametrize(("fields", "pattern"), FORMS)
def test_forms_of_other_servers(server: RunningServer, fields: Any, pattern: str) -> None:
    reply = server.openai().chat.completions.create(
        model="demo", messages=QUESTION, temperature=1.0, max_tokens=20, extra_body=fields
    )
    assert re.fullmatch(pattern, reply.choices[0].message.content or "")
    body = complete(server, "The light is", temperature=1.0, max_tokens=20, **fields)
    assert re.fullmatch(pattern, body["choices"][0]["text"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"guided_json": {"type": "nonsense"}}, "guided_json", "JSON schema"),
        ({"guided_json": [1]}, "guided_json", "object"),
        ({"guided_regex": "(?=a)"}, "guided_regex", "regular expression"),
        ({"guided_choice": []}, "guided_choice", "list of texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "list of texts"),
        ({"grammar": "root ::= nothing"}, "grammar", "GBNF"),
        ({"grammar": "start ::= 'a'"}, "grammar", "GBNF"),
        ({"structured_outputs": {}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "json, regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
        ({"guided_regex": "a", "json_schema": {}}, "json_schema", "exclude each other"),
        ({"guided_choice": ["a"], "response_format": {"type": "text"}}, "response_format",
         "exclude"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_named(server: RunningServer, fields: Any, param: str, words: str) -> None:
    status, field, message = error_of(server.chat(**fields))
    assert (status, field) == (400, param)
    assert words in message


ASKED = {name: ["something"] for name in UNSUPPORTED} | {"echo": True, "suffix": "x"}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(server: RunningServer, name: str) -> None:
    acting = {each: 1.5 for each in UNSUPPORTED[name].only_with}
    status, field, message = error_of(server.chat(**acting, **{name: ASKED[name]}))
    assert (status, field) == (400, name)
    assert f"{name} is not supported: " in message
    assert len(message) > len(f"{name} is not supported: ") + 5  # with what to do instead


def test_values_that_ask_for_nothing_are_taken_all_at_once(server: RunningServer) -> None:
    for fields in (
        dict.fromkeys(UNSUPPORTED),
        {name: refused.neutral[0] for name, refused in UNSUPPORTED.items() if refused.neutral},
    ):
        reply = server.chat(**fields, max_tokens=1)
        assert reply.status_code == 200, reply.text


@pytest.mark.full
def test_values_that_ask_for_nothing_are_taken(server: RunningServer) -> None:
    for name, refused in UNSUPPORTED.items():
        for value in (None, *refused.neutral):
            reply = server.chat(**{name: value}, max_tokens=1)
            assert reply.status_code == 200, (name, value, reply.text)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_every_protocol_refuses_them(server: RunningServer, path: str) -> None:
    bodies = {
        "/v1/completions": {"prompt": "Hi"},
        "/v1/messages": {"messages": QUESTION, "max_tokens": 3},
        "/v1/responses": {"input": "Hi"},
    }
    body = {**bodies[path], "mirostat": 2}
    reply = server.http.post(path, json=body)
    assert reply.status_code == 400
    assert "mirostat is not supported" in reply.text


def test_no_supported_field_is_in_the_table_of_refused_ones() -> None:
    known = set(ChatRequest.__struct_encode_fields__) | set(SETTINGS)
    aliases = {alias for setting in SETTINGS.values() for alias in setting.aliases}
    assert not (known | aliases) & UNSUPPORTED.keys()


def test_a_window_of_penalties_matters_only_with_penalties(server: RunningServer) -> None:
    assert server.chat(repeat_last_n=64, repeat_penalty=1.0).status_code == 200
    status, field, _ = error_of(server.chat(repeat_last_n=64, repeat_penalty=1.1))
    assert (status, field) == (400, "repeat_last_n")
    assert server.chat(repeat_last_n=-1, repeat_penalty=1.1).status_code == 200


def test_names_of_other_servers_mean_the_same(server: RunningServer) -> None:
    fields = {"temperature": 0, "ignore_eos": True}
    wanted = content(server.chat(**fields, repetition_penalty=1.7, max_tokens=9))
    body = {"messages": "What is a KV cache?", **fields, "repeat_penalty": 1.7, "n_predict": 9}
    assert content(server.http.post("/v1/chat/completions", json=body)) == wanted
    both = server.chat(repeat_penalty=1.7, repetition_penalty=1.2)
    assert error_of(both)[:2] == (400, "repeat_penalty")


def test_stop_tokens(server: RunningServer) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    whole = complete(server, "The KV cache", **fields)["choices"][0]["text"]
    tokens = server.http.post("/tokenize", json={"prompt": "The KV cache" + whole}).json()["tokens"]
    stop = tokens[-3]
    cut = complete(server, "The KV cache", **fields, stop_token_ids=[stop])["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert whole.startswith(cut["text"])
    assert len(cut["text"]) < len(whole)
    kept = complete(
        server, "The KV cache", **fields, stop_token_ids=[stop], include_stop_str_in_output=True
    )["choices"][0]["text"]
    piece = server.http.post("/detokenize", json={"tokens": [stop]}).json()["prompt"]
    assert kept == cut["text"] + piece


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_is_shown_if_asked_for(server: RunningServer, stream: bool) -> None:
    client = server.openai().completions
    whole = client.create(model="demo", prompt="The KV cache", temperature=0, max_tokens=30)
    text = whole.choices[0].text
    stop = text[10:14]
    reply: Any = client.create(
        model="demo", prompt="The KV cache", temperature=0, max_tokens=30, stop=stop, stream=stream,
        extra_body={"include_stop_str_in_output": True},
    )  # fmt: skip
    shown = "".join(each.choices[0].text for each in (reply if stream else [reply]))
    assert shown == text[: text.index(stop) + len(stop)]


def test_least_tokens(server: RunningServer) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    short = server.chat(**fields).json()["usage"]["completion_tokens"]
    assert short < 60
    longer = server.chat(**fields, min_tokens=short + 5).json()["usage"]["completion_tokens"]
    assert longer >= short + 5
    text = content(server.chat(**fields))
    stopped = server.chat(**fields, stop=text[:1], min_tokens=6).json()
    assert stopped["usage"]["completion_tokens"] >= 6
    assert error_of(server.chat(max_tokens=3, min_tokens=4))[:2] == (400, "min_tokens")
    with pytest.raises(openai.BadRequestError, match="at least 20 and at most 16"):
        server.openai().completions.create(model="demo", prompt="Hi", extra_body={"min_tokens": 20})


def test_control_tokens_are_shown_if_asked_for(server: RunningServer) -> None:
    mark = server.http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"][-1]
    fields: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True, "logit_bias": {str(mark): 1000}}
    assert content(server.chat(**fields)) == ""
    assert content(server.chat(**fields, skip_special_tokens=False)) == "<|im_end|>" * 2


def test_a_prompt_keeps_its_newest_tokens(server: RunningServer) -> None:
    ids = server.http.post("/tokenize", json={"prompt": "The KV cache holds keys"}).json()["tokens"]
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 3}
    cut = complete(server, ids, truncate_prompt_tokens=4, **fields)
    assert cut["usage"]["prompt_tokens"] == 4
    newest = complete(server, ids[-4:], **fields)
    assert cut["choices"][0]["text"] == newest["choices"][0]["text"]
    assert server.chat(truncate_prompt_tokens=5).json()["usage"]["prompt_tokens"] == 5
    long = complete(server, "word " * 3000, truncate_prompt_tokens=-1, **fields)
    assert long["usage"]["completion_tokens"] == 3


def test_the_last_message_is_continued(server: RunningServer) -> None:
    answer = content(server.chat(temperature=0, max_tokens=40))
    begun = " ".join(answer.split()[:6])
    messages = [
        {"role": "user", "content": "What is a KV cache?"},
        {"role": "assistant", "content": begun},
    ]
    rest = content(
        server.chat(messages=messages, continue_final_message=True, temperature=0, max_tokens=40)
    )
    assert (begun + rest).startswith(answer[: len(begun) + 10])
    both = server.chat(continue_final_message=True, add_generation_prompt=True)
    assert error_of(both)[:2] == (400, "continue_final_message")


def test_a_prompt_without_the_start_of_a_reply_is_shorter(server: RunningServer) -> None:
    tokens = [
        server.chat(add_generation_prompt=asked, max_tokens=1).json()["usage"]["prompt_tokens"]
        for asked in (True, False)
    ]
    assert tokens[0] > tokens[1]


def test_a_completion_without_special_tokens(server: RunningServer) -> None:
    counts = [
        complete(server, "Hi", add_special_tokens=asked, max_tokens=1)["usage"]["prompt_tokens"]
        for asked in (True, False)
    ]
    bare = server.http.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False}).json()
    assert counts[1] == bare["count"]
    assert counts[0] >= counts[1]


@pytest.mark.parametrize("value", ["", [""], ["a", ""]])
def test_an_empty_stop_text_is_refused(server: RunningServer, value: Any) -> None:
    assert error_of(server.chat(stop=value))[0] == 400


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_read_the_prompt_alone(server: RunningServer, stream: bool) -> None:
    client = server.openai().completions
    prompt = "A prompt that nobody has sent before, of more tokens than a block has. " * 3
    options: Any = {"stream_options": {"include_usage": True}} if stream else {}
    reply: Any = client.create(
        model="demo", prompt=prompt, max_tokens=0, n=2, echo=True, stream=stream, **options
    )
    chunks = list(reply) if stream else [reply]
    texts, reasons = ["", ""], []
    for choice in (each for chunk in chunks for each in chunk.choices):
        texts[choice.index] += choice.text
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert texts == [prompt, prompt]
    assert reasons == ["length", "length"]
    assert chunks[-1].usage.completion_tokens == 0
    assert content(server.chat(max_tokens=0)) == ""


def test_unknown_fields_within_objects_are_named(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    messages = [
        {"role": "system", "content": "Be brief.", "mood": "good", "audio": None},
        {"role": "user", "content": parts},
    ]
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = server.chat(messages=messages, stream=True, stream_options=options, max_tokens=1)
    assert set(reply.headers["x-ignored-fields"].split(", ")) == {
        "messages[0].mood",
        "messages[1].content[0].cache_control",
        "stream_options.continuous_usage_stats",
    }
