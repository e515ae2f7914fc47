"""Values of requests that ended other servers: each is answered, or refused by its field."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from running_server import CHAT, RunningServer, running

from mrs.request import ModelSource, RunRequest
from mrs.server.models.slot import ModelSlot

#: JSON texts, because some of these numbers have no value in Python.
OUT_OF_BOUNDS = {
    "temperature": ("1e400", "NaN", "-1"),
    "top_p": ("2", "-0.1"),
    "top_k": ("-5", "99999999999999999999"),
    "min_p": ("1.5",),
    "repetition_penalty": ("0", "1e-300", "1e300"),
    "presence_penalty": ("1e300",),
    "frequency_penalty": ("-1e300",),
    "logit_bias": ('{"-1": 1}', '{"99999999999": 1}', '{"1e3": 1}', '{"5": 1e300}'),
    "seed": ("-99999999999999999999", "18446744073709551616"),
    "max_tokens": ("-1", "99999999999999999999999"),
    "min_tokens": ("-1", "99999999"),
    "n": ("0", "-1", "100000"),
    "top_logprobs": ("-1", "100000"),
    "stop": ('[""]', json.dumps(["a"] * 1000), json.dumps(["a" * 10**5])),
    "stop_token_ids": ("[-1]", "[99999999999]"),
    "dry_allowed_length": ("-2147483648", "99999999999999"),
    "dry_base": ("1e308",),
    "dry_multiplier": ("1e308",),
    "truncate_prompt_tokens": ("-2",),
    "top_n_sigma": ("1e308",),
    "cache_salt": (json.dumps("a" * 10**5),),
    "prompt_embeds": ('"AAAA"',),
    "chat_template": ('"{{ 7 * 7 }}"',),
    "chat_template_kwargs": ('{"messages": []}', '{"chat_template": "{{ 7 * 7 }}"}'),
}


def asked(server: RunningServer, fields: str) -> dict[str, object]:
    """The reply to a short chat whose body has `fields` as well; its status is `status`."""
    body = f'{{"messages": "Hi", "max_completion_tokens": 2, {fields}}}'
    reply = server.http.post(CHAT, content=body.encode())
    return {"status": reply.status_code, "headers": reply.headers, **reply.json()}


@pytest.mark.parametrize("field", OUT_OF_BOUNDS)
def test_numbers_out_of_bounds_are_refused(server: RunningServer, field: str) -> None:
    for value in OUT_OF_BOUNDS[field]:
        reply = asked(server, f'"{field}": {value}')
        assert reply["status"] == 400, value
        error = reply["error"]
        assert isinstance(error, dict)
        assert "\n" not in error["message"]
        assert (error["param"] or error["code"]).startswith((field, "invalid_json")), value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}},
        {"type": "nonsense"},
        {"type": 5},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"enum": []},
    ],
)
def test_a_tool_that_no_call_can_match_is_refused(server: RunningServer, schema: object) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    reply = asked(server, f'"tool_choice": "required", "tools": [{json.dumps(tool)}]')
    assert reply["status"] == 400
    assert reply["error"]["param"] == "tools"  # type: ignore[index]


@pytest.mark.parametrize("value", ["1e-320", "5e-324"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "typical_p"])
def test_numbers_that_are_almost_nothing_are_answered(
    server: RunningServer, field: str, value: str
) -> None:
    assert asked(server, f'"{field}": {value}')["status"] == 200


def test_the_name_of_a_field_makes_no_header(server: RunningServer) -> None:
    reply = asked(server, '"a\\r\\nset-cookie: b": 1, "n_discard": -32')
    headers = reply["headers"]
    assert reply["status"] == 200
    assert "set-cookie" not in headers  # type: ignore[operator]
    assert headers["x-ignored-fields"] == "a%0D%0Aset-cookie:%20b, n_discard"  # type: ignore[index]


@pytest.fixture(scope="module")
def seeing() -> Iterator[RunningServer]:
    source = ModelSource("demo-vision", "safetensors")
    with running(slots=[ModelSlot(RunRequest(source, cpu=True, max_seqs=4))]) as made:
        yield made


@pytest.mark.full
def test_every_token_of_a_model_that_sees_is_read(seeing: RunningServer) -> None:
    """Those that stand for images too, where there is none."""
    for first in range(0, 768, 24):
        body = {"prompt": [[each] * 3 for each in range(first, first + 24)], "max_tokens": 1}
        assert seeing.http.post("/v1/completions", json=body).status_code == 200
    for outside in (-1, 768, 2**31, 2**63):
        body = {"prompt": [outside], "max_tokens": 1}
        assert seeing.http.post("/v1/completions", json=body).status_code == 400
    body = {"prompt": "<image>" * 40, "max_tokens": 1}
    assert seeing.http.post("/v1/completions", json=body).status_code == 200
