"""Who may use the server: keys, hosts, origins."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from running_server import RunningServer, running, until

from mrs.server.settings import ServerSettings

KEYS = ("secret-one", "secret-two")
PAGE = "https://chat.example"


@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    settings = ServerSettings(api_keys=KEYS, allowed_origins=(PAGE,))
    with running(settings) as made:
        yield made


@pytest.fixture(scope="module")
def named() -> Iterator[RunningServer]:
    with running(ServerSettings(allowed_hosts=("model.example",))) as made:
        yield made


@pytest.fixture(scope="module")
def administered() -> Iterator[RunningServer]:
    with running(ServerSettings(api_keys=KEYS, admin_keys=("the-admin",))) as made:
        yield made


def asked(server: RunningServer, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.http.get("/v1/models", headers=names)


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens(locked: RunningServer, key: str) -> None:
    assert [model.id for model in locked.openai(key).models.list()] == ["demo"]
    assert asked(locked, x_api_key=key).status_code == 200


@pytest.mark.parametrize("key", ["", "secret", "secret-one ", "secret-onex", "SECRET-ONE", "ü"])
def test_no_other_key_opens(locked: RunningServer, key: str) -> None:
    wrong, before = f"{key}-wrong", len(locked.said)
    headers = [(b"authorization", f"Bearer {wrong}".encode())]
    reply = locked.http.get("/v1/models", headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "authentication_error"
    # The line of an earlier request may come as late as this one.
    until(lambda: any(json.loads(line)["status"] == 401 for line in locked.said[before:]))
    assert not any(wrong in line for line in locked.said[before:])


def test_the_sdk_raises_its_error_for_a_wrong_key(locked: RunningServer) -> None:
    with pytest.raises(openai.AuthenticationError):
        locked.openai("wrong").models.list()


def test_without_a_key_only_probes_are_answered(locked: RunningServer) -> None:
    assert locked.http.get("/v1/models").json()["error"]["code"] == "missing_api_key"
    assert locked.http.get("/metrics").status_code == 401
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert locked.http.get(path).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "1.2.3.4.x", "[", ""])
def test_a_name_bound_to_this_address_is_refused(server: RunningServer, host: str) -> None:
    reply = asked(server, host=host)
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:9", "10.0.0.1", "a.localhost"])
def test_addresses_and_names_of_this_machine_are_fine(server: RunningServer, host: str) -> None:
    assert asked(server, host=host).status_code == 200


def test_an_allowed_name_is_fine(named: RunningServer) -> None:
    assert asked(named, host="Model.example:80").status_code == 200
    assert asked(named, host="other.example").status_code == 403


def test_with_a_key_any_name_is_fine(locked: RunningServer) -> None:
    assert asked(locked, host="proxy.example", x_api_key=KEYS[0]).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_pages_of_other_origins_are_refused(server: RunningServer, origin: str) -> None:
    reply = asked(server, origin=origin)
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in reply.headers


def test_the_page_of_the_server_itself_may_call_it(server: RunningServer) -> None:
    assert asked(server, origin=server.url).status_code == 200


def test_an_allowed_page_passes_the_preflight_with_any_headers(locked: RunningServer) -> None:
    wanted = "authorization, x-stainless-lang, x-stainless-new-one"
    reply = locked.http.options(
        "/v1/chat/completions",
        headers={
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": wanted,
        },
    )
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert reply.headers["access-control-allow-headers"] == wanted
    answer = asked(locked, origin=PAGE, x_api_key=KEYS[0])
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = asked(locked, origin=PAGE)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE, "so that a page can read it"


#: What changes the models for all clients, by the paths of its requests.
MANAGING = {
    "/re_isq": {"ggml_type": "nonsense"},
    "/v1/models/load": {"model": "nonsense"},
    "/v1/models/unload": {"model": "nonsense"},
    "/v1/models/reload": {"model": "nonsense"},
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "b"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
}


@pytest.mark.parametrize("path", MANAGING)
def test_only_an_admin_key_manages_models(administered: RunningServer, path: str) -> None:
    def code(spelling: str, key: str | None) -> str:
        headers = {} if key is None else {"x-api-key": key}
        reply = administered.http.post(spelling, json=MANAGING[path], headers=headers)
        return str(reply.json()["error"]["code"])

    for spelling in (path, f"{path}/", path.replace("/v1/", "/")):
        assert code(spelling, None) == "missing_api_key"
        assert code(spelling, "wrong") == "invalid_api_key"
        assert code(spelling, KEYS[0]) == "admin_key_needed"
        assert code(spelling, "the-admin") not in ("missing_api_key", "admin_key_needed")


def test_an_admin_key_answers_as_any_other(administered: RunningServer) -> None:
    assert asked(administered, x_api_key="the-admin").status_code == 200
    assert asked(administered, x_api_key=KEYS[1]).status_code == 200
    assert asked(administered).status_code == 401


def test_without_keys_a_public_server_changes_its_models_for_nobody() -> None:
    with running(ServerSettings(host="0.0.0.0")) as public:
        for path, body in MANAGING.items():
            reply = public.http.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "admin_key_needed")
        assert asked(public).status_code == 200


def test_every_path_that_changes_models_is_listed() -> None:
    from mrs.server.routes.table import MANAGING as LISTED

    assert set(LISTED) == set(MANAGING)


def test_prompts_of_different_keys_share_no_prefix(locked: RunningServer) -> None:
    def cached(key: str, salt: str | None = None) -> int:
        reply = locked.http.post(
            "/v1/chat/completions",
            json={"messages": "long " * 100, "max_tokens": 1, "cache_salt": salt},
            headers={"x-api-key": key},
        )
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS[0]) == 0
    assert cached(KEYS[0]) > 90
    assert cached(KEYS[1]) == 0
    assert cached(KEYS[0], "salt") == 0
    assert cached(KEYS[0], "salt") > 90


def test_every_response_has_an_id(server: RunningServer) -> None:
    assert asked(server, x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    for bad in ("a b", "x" * 200, ""):
        made = asked(server, x_request_id=bad).headers["x-request-id"]
        assert made != bad
        assert made
    assert asked(server, host="evil.example").headers["x-request-id"]
