"""OpenAI's Responses interface, as its official client reads it."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema
import msgspec
import openai
import pytest
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from running_server import RunningServer, running, until
from test_server_parts import picture
from test_server_tools import PARAMETERS

from mrs.request import ModelSource, VisionRequest
from mrs.server.replies.response_store import ResponseStore, StoredResponse
from mrs.server.schemas.responses_conversation import chat_messages, read_items
from mrs.server.schemas.responses_response import ResponseBody
from mrs.server.settings import ServerSettings

PATH = "/v1/responses"
QUESTION = "Who are you?"
ANSWER = "I am the **mrs demo model**, a toy with about 2 million parameters."
TOOLS: Any = [
    {"type": "function", "name": "set_light", "strict": True, "parameters": PARAMETERS},
    {"type": "web_search"},
]
NAMED: Any = {"type": "function", "name": "set_light"}


def create(server: RunningServer, given: Any = QUESTION, **fields: Any) -> Response:
    found = server.openai().responses.create(model="demo", input=given, **fields)
    assert isinstance(found, Response)
    return found


def streamed(server: RunningServer, given: Any = QUESTION, **fields: Any) -> tuple[Any, list[str]]:
    """The last response of a stream, and the types of its events."""
    with server.openai().responses.stream(model="demo", input=given, **fields) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response, [event.type for event in events]  # type: ignore[union-attr]


def test_a_response_is_that_of_a_chat_completion(server: RunningServer) -> None:
    found = create(server)
    assert found.output_text == ANSWER
    assert (found.status, found.object, found.error) == ("completed", "response", None)
    usage = server.chat(messages=QUESTION, max_tokens=40).json()["usage"]
    assert found.usage is not None
    assert found.usage.input_tokens == usage["prompt_tokens"]
    assert found.usage.output_tokens == usage["completion_tokens"]
    assert found.usage.total_tokens == usage["total_tokens"]


def test_a_stream_has_the_same_items(server: RunningServer) -> None:
    found, types = streamed(server)
    assert found.output_text == ANSWER
    begin = [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta",
    ]  # fmt: skip
    end = [
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert types[:5] == begin
    assert types[-5:] == end
    assert set(types[5:-5]) == {"response.output_text.delta"}


def test_a_reply_that_is_cut_is_incomplete(server: RunningServer) -> None:
    for found in (create(server, max_output_tokens=3), streamed(server, max_output_tokens=3)[0]):
        assert found.status == "incomplete"
        assert found.incomplete_details is not None
        assert found.incomplete_details.reason == "max_output_tokens"
        assert found.output[0].status == "incomplete"


def test_a_call_its_result_and_the_answer(server: RunningServer) -> None:
    found, types = streamed(server, tools=TOOLS, tool_choice=NAMED)
    [call] = found.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "set_light"
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    assert types.count("response.function_call_arguments.done") == 1
    whole = create(server, tools=TOOLS, tool_choice=NAMED).output[0]
    assert isinstance(whole, ResponseFunctionToolCall)
    assert whole.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It is on."}
    rest: Any = {"tools": TOOLS, "tool_choice": "none", "max_output_tokens": 9}
    by_items = create(server, [{"role": "user", "content": QUESTION}, call, result], **rest)
    by_id = create(server, [result], previous_response_id=found.id, **rest)
    assert by_items.output_text == by_id.output_text
    assert by_items.usage is not None
    assert by_id.usage is not None
    assert by_items.usage.input_tokens == by_id.usage.input_tokens
    assert by_id.previous_response_id == found.id


def test_only_allowed_tools_are_called(server: RunningServer) -> None:
    tools = [TOOLS[0], {"type": "function", "name": "stop", "parameters": None}]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
    found = create(server, tools=tools, tool_choice=choice, parallel_tool_calls=False)
    assert [getattr(each, "name", None) for each in found.output] == ["set_light"]


def test_a_conversation_of_stored_responses(server: RunningServer) -> None:
    """Instructions are those of one request, and everything else goes on."""
    first = create(server, "My name is Ada.", instructions="Be brief.", metadata={"a": "b"})
    assert first.instructions == "Be brief."
    assert first.metadata == {"a": "b"}
    second = create(server, "What is my name?", previous_response_id=first.id)
    talk = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = server.chat(messages=talk, max_tokens=...).json()
    assert second.output_text == chat["choices"][0]["message"]["content"]
    assert second.usage is not None
    assert second.usage.input_tokens == chat["usage"]["prompt_tokens"]
    client = server.openai()
    assert client.responses.retrieve(second.id).output == second.output
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(second.id)
    unstored = create(server, store=False)
    with pytest.raises(openai.BadRequestError, match="is stored"):
        create(server, previous_response_id=unstored.id)


def test_a_path_names_all_of_its_methods(server: RunningServer) -> None:
    reply = server.http.put(f"{PATH}/resp_1")
    assert reply.status_code == 405
    assert set(reply.headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
    assert server.http.head("/v1/models").status_code == 200


def test_keys_do_not_share_responses() -> None:
    with running(ServerSettings(api_keys=("one", "two"))) as locked:
        one, two = locked.openai("one").responses, locked.openai("two").responses
        found = one.create(model="demo", input=QUESTION, max_output_tokens=3)
        assert one.retrieve(found.id).id == found.id
        for ask in (two.retrieve, two.delete):
            with pytest.raises(openai.NotFoundError):
                ask(found.id)


def test_the_oldest_responses_are_dropped(server: RunningServer) -> None:
    found = server.http.post(PATH, json={"input": QUESTION}).content
    body = msgspec.json.decode(found, type=ResponseBody)
    store = ResponseStore(most_bytes=3 * len(found))
    stored = StoredResponse.of(body, b"[]")
    for number in range(6):
        store.add(b"", f"r{number}", stored)
    kept = [number for number in range(6) if store.body(b"", f"r{number}") is not None]
    assert kept in ([4, 5], [5])
    assert store.items(b"", "r0") is None
    assert [store.delete(b"", f"r{number}") for number in range(6)] == [n in kept for n in range(6)]
    store.add(b"", body.id, stored)
    assert store.body(b"", body.id) is not None


def test_a_reply_in_json(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["day", "night"]}},
              "required": ["kind"], "additionalProperties": False}  # fmt: skip
    form: Any = {"format": {"type": "json_schema", "name": "kind", "schema": schema}}
    found = create(server, text=form)
    jsonschema.validate(json.loads(found.output_text), schema)
    assert found.text is not None
    assert found.text.format is not None
    assert found.text.format.type == "json_schema"


def test_log_probabilities(server: RunningServer) -> None:
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    for found in (create(server, **asked), streamed(server, **asked)[0]):
        [message] = found.output
        assert isinstance(message, ResponseOutputMessage)
        logprobs = message.content[0].logprobs  # type: ignore[union-attr]
        assert logprobs is not None
        assert "".join(each.token for each in logprobs) == f"{ANSWER}<|im_end|>"
        assert all(len(each.top_logprobs) == 2 for each in logprobs)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "expected"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "no stored response"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
         "input[0].content[0].type", "input_file"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]},
         "input", "no earlier message"),
        ({"background": True}, "background", "not supported"),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", "not supported"),
        ({"n": 2}, "n", "not supported"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "is stored"),
        ({"text": {"format": {"type": "json_object"}}, "grammar": {"type": "regex", "value": "a"}},
         "grammar", "exclude each other"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice", "none of the"),
        ({"max_output_tokens": -1}, "max_output_tokens", "expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(server: RunningServer, fields: Any, param: str, words: str) -> None:
    reply = server.http.post(PATH, json={"input": "Hi", "max_output_tokens": 3, **fields})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_what_is_ignored_is_named(server: RunningServer) -> None:
    fields = {"tools": TOOLS, "text": {"verbosity": "low"}, "reasoning": {"summary": "auto"}}
    body = {"input": "Hi", "max_output_tokens": 3, "user": "ada", **fields}
    found = server.http.post(PATH, json=body).headers["x-ignored-fields"]
    assert found.split(", ") == ["user", "text.verbosity", "reasoning.summary", "tools[1]"]


@pytest.mark.usefixtures("later_steps_fail")
def test_an_error_is_the_last_event(server: RunningServer) -> None:
    body = {"input": QUESTION, "ignore_eos": True, "max_output_tokens": 100}
    with server.http.stream("POST", PATH, json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        *_, event, data, _, done, _ = lines
    assert event == "event: response.failed"
    failed = json.loads(data.removeprefix("data: "))["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "out_of_memory"
    assert done == "data: [DONE]"
    assert server.http.get(f"{PATH}/{failed['id']}").status_code == 404
    assert server.http.post(PATH, json=body).status_code == 503


@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_ends_its_reply(server: RunningServer) -> None:
    body = {"input": QUESTION, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", PATH, json=body) as stream:
        lines = stream.iter_lines()  # to drop it would close the connection
        next(lines)
        until(lambda: server.stats.running == 1)
    server.wait_until_idle()


def test_thoughts_are_items(thinker: RunningServer) -> None:
    found, types = streamed(thinker, max_output_tokens=6)
    [item] = found.output
    assert isinstance(item, ResponseReasoningItem)
    assert item.content
    assert item.content[0].text
    assert "response.reasoning_text.delta" in types
    assert "response.reasoning_text.done" in types
    assert found.usage.output_tokens_details.reasoning_tokens == 6
    off = create(thinker, reasoning={"effort": "none"}, max_output_tokens=6)
    assert off.output_text


def test_an_image_is_seen() -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    content = [
        {"type": "input_image", "image_url": url},
        {"type": "input_text", "text": "What is this?"},
    ]
    source = ModelSource("demo-vision", "safetensors")
    with running(source=source, vision=VisionRequest()) as viewer:
        found = viewer.openai().responses.create(
            model="default",
            input=[{"role": "user", "content": content}],  # type: ignore[list-item,misc]
        )
        assert "red" in found.output_text


def test_thoughts_a_text_and_calls_are_one_message() -> None:
    items = read_items(
        [
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "I call."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b",
             "output": [{"type": "input_text", "text": "2"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant", "content": "Really."},
        ]
    )  # fmt: skip
    system, user, call, one, two, done, really = chat_messages("Be brief.", items)
    assert (system.role, system.content) == ("system", "Be brief.")
    assert user.content == "Hi"
    assert (call.role, call.reasoning_content) == ("assistant", "hm")
    assert [getattr(part, "text", None) for part in call.parts] == ["I call."]
    assert [each["id"] for each in call.tool_calls or ()] == ["a", "b"]
    assert (one.role, one.tool_call_id, one.content) == ("tool", "a", "1")
    assert two.tool_call_id == "b"
    assert (done.reasoning_content, len(done.parts)) == ("so", 1)
    assert really.content == "Really."
