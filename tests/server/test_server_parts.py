"""Parts of the server by themselves: thoughts, forecasts, lines of the log."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from PIL import Image, ImageDraw
from running_server import CHAT, RunningServer, running

from mrs.engine.engine import EngineStats
from mrs.events import ReplyUsage, TextDelta
from mrs.request import ModelSource, VisionRequest
from mrs.server.http.errors import api_error
from mrs.server.log.lines import RequestLog
from mrs.server.log.record import RequestRecord
from mrs.server.replies.choice_text import ChoiceText
from mrs.server.replies.forecast import Forecast
from mrs.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("reply", "thoughts", "answer"),
    [
        ("plain\n\ntext", "", "plain\n\ntext"),
        ("<think>\nhm\n</think>\n\nyes <think> no", "hm\n", "yes <think> no"),
        ("<think>never closed", "never closed", ""),
        ("<think></think>a", "", "a"),
        ("\n\nleading", "", "\n\nleading"),
    ],
)
def test_thoughts_are_apart_however_the_text_is_cut(reply: str, thoughts: str, answer: str) -> None:
    for seed in range(10):
        chance, text, start = random.Random(seed), ChoiceText("apart"), 0
        pieces = []
        while start < len(reply):
            end = start + chance.randint(1, 6)
            pieces += text.feed(TextDelta(reply[start:end]))
            start = end
        pieces += text.finish()
        assert "".join(piece.text for piece in pieces if piece.is_thought) == thoughts
        assert "".join(piece.text for piece in pieces if not piece.is_thought) == answer


def test_thoughts_go_to_reasoning_content(thinker: RunningServer) -> None:
    reply = thinker.chat(max_tokens=6).json()
    message = reply["choices"][0]["message"]
    assert message["content"] == ""
    assert message["reasoning_content"]
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
    *events, _, _ = thinker.chat(max_tokens=6, stream=True).text.split("\n\n")
    deltas = [json.loads(each[6:])["choices"][0]["delta"] for each in events]
    found = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert found == message["reasoning_content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_thinking_can_be_turned_off(thinker: RunningServer, fields: dict[str, Any]) -> None:
    message = thinker.chat(**fields).json()["choices"][0]["message"]
    assert message["content"]
    assert "reasoning_content" not in message


def test_thoughts_of_earlier_replies_are_taken_and_dropped_for_this_template(
    thinker: RunningServer,
) -> None:
    def tokens(**assistant: str) -> int:
        messages = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", **assistant},
            {"role": "user", "content": "c"},
        ]
        return int(thinker.chat(messages=messages).json()["usage"]["prompt_tokens"])

    assert tokens(reasoning_content="many long thoughts") == tokens()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_missing_memory_is_named_and_passes(error: Exception) -> None:
    found = api_error(error)
    assert found.status == 503
    assert found.body.error.code == "out_of_memory"
    assert found.headers["retry-after"]


def test_forecasts_follow_what_is_measured() -> None:
    forecast = Forecast(0.1)
    assert forecast.next_free_s([], 100) == 1
    for _ in range(50):
        forecast.learn(ReplyUsage(10, 21, 0, 0.1, 10.0))
    assert forecast.step_s == pytest.approx(0.5, rel=0.01)
    assert forecast.reply_tokens == pytest.approx(21, rel=0.01)


def test_a_busy_server_says_what_it_does() -> None:
    lines: list[str] = []
    log = RequestLog(lines.append, as_json=True)
    for computed, running_now in ((0, 0), (0, 2), (5000, 2), (6000, 0), (6000, 0)):
        log.status("demo", EngineStats(running_now, 1 if running_now else 0, 50, computed, 0))
    found = [json.loads(line) for line in lines]
    assert [each["running"] for each in found] == [2, 2, 0], "and once more when it is idle again"
    assert found[1]["computed_tokens_per_s"] > 0


def test_a_path_adds_no_value_to_a_line() -> None:
    lines: list[str] = []
    log = RequestLog(lines.append, as_json=False)
    log.request(RequestRecord("1", "GET", '/x status=200 "seconds=0', status=404))
    log.request(RequestRecord("2", "GET", "/v1/models", status=200))
    assert r'path="/x status=200 \"seconds=0" status=404 seconds=' in lines[0]
    assert "path=/v1/models status=200 seconds=" in lines[1]


def picture() -> bytes:
    image = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(image).ellipse((16, 16, 48, 48), fill="red")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def viewer() -> Iterator[RunningServer]:
    source = ModelSource("demo-vision", "safetensors")
    settings = ServerSettings(allow_image_urls=True)
    with running(settings, source=source, vision=VisionRequest()) as made:
        yield made


def about(url: str) -> list[dict[str, Any]]:
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}]


def test_an_image_is_seen(viewer: RunningServer) -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    reply = viewer.chat(messages=about(url), max_tokens=30).json()
    assert "red" in reply["choices"][0]["message"]["content"]
    broken = viewer.chat(messages=about(url[:60]))
    assert broken.status_code == 400
    assert broken.json()["error"]["param"] == "messages"


def test_images_never_come_from_private_addresses(viewer: RunningServer) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(picture())

    with HTTPServer(("127.0.0.1", 0), Handler) as private:
        Thread(target=private.serve_forever, daemon=True).start()
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{private.server_port}/a.png"
            reply = viewer.http.post(CHAT, json={"messages": about(url), "max_tokens": 1})
            assert reply.status_code == 400
            assert "no public address" in reply.json()["error"]["message"]
        private.shutdown()
    assert asked == []
