"""A server shows a model the videos of requests."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import RunningServer, running

from mrs.media.read_media import read_media
from mrs.request import IMAGE_MARK, ModelSource, RunRequest, Sampling, VisionRequest
from mrs.run.model_loader import ModelLoader
from mrs.server.models.slot import ModelSlot
from support.tiny_qwen3_vl import write_qwen3_vl
from support.video_files import video

GREEDY: dict[str, Any] = {"temperature": 0, "frequency_penalty": 0, "presence_penalty": 0}
TOKENS = 8


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> RunRequest:
    folder = tmp_path_factory.mktemp("qwen3_vl")
    write_qwen3_vl(folder)
    source = ModelSource(str(folder), "safetensors")
    return RunRequest(source, cpu=True, dtype="f32", vision=VisionRequest())


@pytest.fixture(scope="module")
def seeing(request_: RunRequest) -> Iterator[RunningServer]:
    with running(slots=[ModelSlot(request_)]) as made:
        yield made


def asked(content: bytes) -> list[dict[str, Any]]:
    url = f"data:video/mp4;base64,{base64.b64encode(content).decode()}"
    parts = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What?"}]
    return [{"role": "user", "content": parts}]


@pytest.mark.full
def test_a_reply_is_that_without_a_server(
    seeing: RunningServer, request_: RunRequest, tmp_path: Path
) -> None:
    content = video(3.0)
    (tmp_path / "a.mp4").write_bytes(content)
    message = {
        "role": "user",
        "content": f"{IMAGE_MARK}What?",
        "images": [read_media(str(tmp_path / "a.mp4"))],
    }
    loaded = ModelLoader(request_).load()
    sampling = Sampling(**GREEDY, max_tokens=TOKENS)
    expected = "".join(getattr(e, "text", "") for e in loaded.stream_chat([message], sampling))
    count = loaded.prompt_tokens([message])
    loaded.close()
    for _ in range(2):  # the second time, from the prefix cache
        answer = seeing.chat(messages=asked(content), max_tokens=TOKENS, **GREEDY).json()
        assert answer["choices"][0]["message"]["content"] == expected
        assert answer["usage"]["prompt_tokens"] == count
    streamed = seeing.openai().chat.completions.create(
        model="default", messages=asked(content), max_tokens=TOKENS, stream=True, **GREEDY
    )
    deltas = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
    assert "".join(deltas) == expected
    other = seeing.chat(messages=asked(video(5.0)), max_tokens=TOKENS, **GREEDY).json()
    assert other["usage"]["prompt_tokens"] > count


def test_a_model_opens_images_in_the_memory_of_its_server(seeing: RunningServer) -> None:
    loader = seeing.model.prompts._media_loader
    assert loader is not None
    assert loader._memory is seeing.server.memory.requests.media


def test_what_is_no_video_is_refused(seeing: RunningServer) -> None:
    answer = seeing.chat(messages=asked(b"no video"))
    assert answer.status_code == 400
    assert "video" in answer.json()["error"]["message"]
