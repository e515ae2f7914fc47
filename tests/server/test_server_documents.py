"""What the server says of itself: documents, metrics, lines of its log."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_server import RunningServer, until

from mrs.server.routes.table import ROUTES

GENERATED: dict[str, Any] = {
    "/v1/chat/completions": {"messages": "Hi", "logprobs": True, "max_tokens": 3},
    "/v1/completions": {"prompt": "Hi", "logprobs": 1, "max_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    "/v1/responses": {"input": "Hi", "top_logprobs": 1, "max_output_tokens": 3},
}


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return server.http.get("/openapi.json").json()


def test_the_document_has_every_route_and_no_other(document: Any) -> None:
    found = {(m.upper(), p) for p, methods in document["paths"].items() for m in methods}
    assert found == {(each.method, re.sub(r":\w+}", "}", each.path)) for each in ROUTES}
    names = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(set(names)) == len(names)
    assert all(op["summary"] for methods in document["paths"].values() for op in methods.values())


def schema_of(document: Any, method: str, path: str, media_type: str = "application/json") -> Any:
    content = document["paths"][path][method]["responses"]["200"]["content"]
    return {**content[media_type]["schema"], "components": document["components"]}


def test_responses_follow_the_document(server: RunningServer, document: Any) -> None:
    bodies: dict[str, Any] = {
        **GENERATED,
        "/v1/messages/count_tokens": GENERATED["/v1/messages"],
        "/v1/embeddings": {"input": "Hi"},
        "/tokenize": {"prompt": "Hi"},
        "/detokenize": {"tokens": [5]},
    }
    for path, body in bodies.items():
        reply = server.http.post(path, json=body).json()
        jsonschema.validate(reply, schema_of(document, "post", path))
        wrong = server.http.post(path, json={"model": 5}).json()
        error = document["paths"][path]["post"]["responses"]["default"]["content"]
        schema = {**error["application/json"]["schema"], "components": document["components"]}
        jsonschema.validate(wrong, schema)
    for path in ("/v1/models", "/ready", "/openapi.json"):
        jsonschema.validate(server.http.get(path).json(), schema_of(document, "get", path))


@pytest.mark.parametrize("path", GENERATED)
def test_events_follow_the_document(server: RunningServer, document: Any, path: str) -> None:
    data = schema_of(document, "post", path, "text/event-stream")["properties"]["data"]
    ends_with_done = "anyOf" in data
    content = (data["anyOf"][0] if ends_with_done else data)["contentSchema"]
    schema = {**content, "components": document["components"]}
    text = server.http.post(path, json={**GENERATED[path], "stream": True}).text
    events = [each.rpartition("data: ")[2] for each in text.removesuffix("\n\n").split("\n\n")]
    assert (events[-1] == "[DONE]") == ends_with_done
    for event in events[:-1] if ends_with_done else events:
        jsonschema.validate(json.loads(event), schema)


def test_the_page_lists_all_paths_and_needs_nothing_else(server: RunningServer) -> None:
    reply = server.http.get("/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert all(re.sub(r":\w+}", "}", each.path) in reply.text for each in ROUTES)
    assert "max_completion_tokens" in reply.text
    assert not re.search(r"(src|href)=\"?(https?:|//)", reply.text)


def metrics(server: RunningServer) -> dict[tuple[str, str], float]:
    text = server.http.get("/metrics").text
    return {
        (sample.name, sample.labels.get("finished_reason", sample.labels.get("status", ""))): value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
        if (value := sample.value) is not None
        if sample.labels.get("path", "/v1/chat/completions") == "/v1/chat/completions"
    }


def test_metrics_count_what_the_requests_say(server: RunningServer) -> None:
    before = metrics(server)
    usage = server.chat(max_tokens=5, messages="How are metrics counted here?").json()["usage"]
    server.chat(seed="wrong")
    until(lambda: metrics(server) != before)
    after = metrics(server)

    def grown(name: str, label: str = "") -> float:
        return after[f"mrs:{name}", label] - before.get((f"mrs:{name}", label), 0)

    assert grown("generation_tokens_total") == usage["completion_tokens"]
    assert grown("prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("request_success_total", "length") == 1
    assert grown("http_requests_total", "200") == 1
    assert grown("http_requests_total", "400") == 1
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("prefix_cache_hits_total") == usage["prompt_tokens_details"]["cached_tokens"]
    assert grown("prefix_cache_queries_total") == usage["prompt_tokens"]
    assert after["mrs:kv_cache_usage_perc", ""] == 0  # what is stored is free for others
    assert after["mrs:num_requests_running", ""] == 0


def test_metrics_name_a_route_as_the_document_does(server: RunningServer) -> None:
    assert server.http.get("/v1/models/default").status_code == 200
    found = 'path="/v1/models/{model_id}"'
    until(lambda: found in server.http.get("/metrics").text)


def test_each_request_has_a_line_with_its_figures(server: RunningServer) -> None:
    usage = server.http.post(
        "/v1/chat/completions",
        json={"messages": "Hi", "max_tokens": 3},
        headers={"x-request-id": "line-1"},
    ).json()["usage"]

    def line() -> Any:
        lines = [json.loads(text) for text in server.said if text.startswith("{")]
        return next((each for each in lines if each.get("id") == "line-1"), None)

    until(lambda: line() is not None)
    found = line()
    assert found["status"] == 200
    assert found["model"] == "demo"
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    assert found["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert found["completion_tokens"] == usage["completion_tokens"]
    assert found["finish"] == "length"
    assert 0 < found["first_token_s"] <= found["seconds"]


def test_probes_and_files_of_the_page_have_no_line(server: RunningServer) -> None:
    before = len(server.said)
    for path in ("/page/page.js", "/health", "/metrics", "/docs"):
        assert server.http.get(path).status_code == 200
    until(lambda: any('"/docs"' in line for line in server.said[before:]))
    paths = [json.loads(line).get("path", "") for line in server.said[before:]]
    assert not {"/page/page.js", "/health", "/metrics"} & {*paths}


def test_wrong_paths_and_methods_have_the_shape_of_errors(server: RunningServer) -> None:
    assert server.http.get("/nothing").json()["error"]["type"] == "not_found_error"
    reply = server.http.get("/v1/chat/completions")
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "method_not_allowed"
    assert reply.headers["x-request-id"]
    assert "GET" in reply.json()["error"]["message"]
    line = f'"id":"{reply.headers["x-request-id"]}"'
    until(lambda: any(line in said and '"status":405' in said for said in server.said))


def test_methods_that_nobody_knows_are_counted_as_one(server: RunningServer) -> None:
    for number in range(2):
        assert server.http.request(f"METHOD{number}", "/health").status_code == 405
    found = 'mrs:http_requests_total{method="other",path="refused",status="405"} 2.0'
    until(lambda: found in server.http.get("/metrics").text)
    assert "METHOD" not in server.http.get("/metrics").text


def test_every_array_of_the_document_says_what_its_items_are(document: Any) -> None:
    """openapi-python-client refuses tuples, and leaves out arrays of anything."""

    def arrays(schema: Any) -> Any:
        for each in schema.values() if isinstance(schema, dict) else schema:
            if isinstance(each, (dict, list)):
                yield from arrays(each)
        if isinstance(schema, dict) and schema.get("type") == "array":
            yield schema

    found = list(arrays(document))
    assert len(found) > 20
    for each in found:
        assert isinstance(each["items"], dict)
        assert "prefixItems" not in each
