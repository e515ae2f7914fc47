"""Type checkers know what a request's answer is, and accept the snippets of the manual."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "man").glob("*.md")))
ANSWERS = """
from typing import assert_type

from mrs import (
    AsyncRunner,
    ChatCompletionChunkResponse,
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionChunkResponse,
    CompletionRequest,
    CompletionResponse,
    Runner,
    Which,
)
from mrs.api.async_runner import AsyncChunkStream
from mrs.api.chunk_stream import ChunkStream

runner = Runner(Which.Plain("demo"))
chat = [{"role": "user", "content": "Hi"}]
assert_type(
    runner.send_chat_completion_request(ChatCompletionRequest(chat)), ChatCompletionResponse
)
assert_type(
    runner.send_chat_completion_request(ChatCompletionRequest(chat, stream=False)),
    ChatCompletionResponse,
)
assert_type(
    runner.send_chat_completion_request(ChatCompletionRequest(chat, stream=True)),
    ChunkStream[ChatCompletionChunkResponse],
)
assert_type(runner.send_completion_request(CompletionRequest("Once")), CompletionResponse)
assert_type(
    runner.send_completion_request_to_model(CompletionRequest("Once", stream=True), "demo"),
    ChunkStream[CompletionChunkResponse],
)


def later(stream: bool) -> None:
    assert_type(
        runner.send_completion_request(CompletionRequest("Once", stream=stream)),
        CompletionResponse | ChunkStream[CompletionChunkResponse],
    )


async def awaited() -> None:
    model = AsyncRunner(runner)
    assert_type(
        await model.send_chat_completion_request(ChatCompletionRequest(chat)),
        ChatCompletionResponse,
    )
    assert_type(
        await model.send_completion_request(CompletionRequest("Once", stream=True)),
        AsyncChunkStream[CompletionChunkResponse],
    )


def kept(request: ChatCompletionRequest) -> str | None:
    return runner.send_chat_completion_request(request).choices[0].message.content
"""


@pytest.mark.full
def test_mypy_knows_the_answers_and_accepts_every_snippet(tmp_path: Path) -> None:
    snippets = [
        snippet
        for page in PAGES
        for snippet in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(snippets) >= 3
    files = []
    for index, text in enumerate((ANSWERS, *snippets)):
        files.append(tmp_path / f"snippet_{index}.py")
        files[-1].write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
