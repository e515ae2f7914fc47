"""A model that answers from a book, for tests of everything around the model.

`python tests/cli/fake_model.py ARGUMENTS` is `mrs ARGUMENTS` with that model.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence

from mrs.errors import ContextFull, NotReadable
from mrs.events import (
    DeviceMemoryUsage,
    Event,
    Finished,
    FinishReason,
    LoadProgress,
    OnProgress,
    ReplyUsage,
    TextDelta,
    ToolCallDelta,
)
from mrs.plan.plan import Plan
from mrs.request import AdapterRequest, Message, ModelSource, RunRequest, Sampling
from mrs.tools.tool_request import ToolRequest

LONG = "\n\n".join(f"Paragraph {number} of a reply longer than the screen." for number in range(60))
REPLIES = {
    "hello": "Hello! I am a **fake** model.",
    "poem": "Roses are red\nViolets are blue",
    "evil": "before\x1b[2J\x1b]0;owned\x07\x9b31mafter\rend",
    "long": LONG,
    "empty": "",
    "snow": "\u2603 snow, d\u00e9j\u00e0 vu",
    "think": "<think>\nIt is a *riddle*.\n</think>\n\nThe answer is `<think>`.",
}

#: What the model `warm` suggests.
SUGGESTED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


class FakeModel:
    """Answers the last message: from `REPLIES`, or with what it was asked.

    `forever` streams until it is stopped, `slow` waits long before the first word, `broken`
    raises an error, `history` says what messages it saw, `call NAME {ARGUMENTS}` calls a tool
    that is offered. Words are tokens; the model `small` has a context of 12.
    """

    summary = "fake: a book of answers on cpu, 1.00 MiB"

    def __init__(self, request: RunRequest, delay_s: float = 0.0) -> None:
        self.request = request
        self.summary = os.environ.get("FAKE_SUMMARY", self.summary)
        self.has_chat_template = request.source.model_id != "no-template"
        self.context_tokens = 12 if request.source.model_id == "small" else 4096
        self.asked: list[tuple[object, Sampling]] = []
        self.offered: list[list[str]] = []
        self.suggested_sampling = SUGGESTED if request.source.model_id == "warm" else {}
        self.closed = False
        self._delay_s = delay_s

    @property
    def adapters(self) -> Sequence[AdapterRequest]:
        return self.request.adapters

    @property
    def plan(self) -> Plan:
        from mrs.run.model_loader import ModelLoader

        return ModelLoader(RunRequest(ModelSource("demo", "safetensors"), cpu=True)).plan

    def memory(self) -> list[DeviceMemoryUsage]:
        return [DeviceMemoryUsage("cpu", 512 << 20, 4 << 30)]

    def require_replies(self) -> None:
        """It makes replies."""

    def prompt_tokens(
        self, messages: Sequence[Message], *, tools: ToolRequest | None = None
    ) -> int:
        return sum(len(message["content"].split()) for message in messages)

    def num_images(self, messages: Sequence[Message]) -> int:
        return sum(len(message.get("images", ())) for message in messages)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        tools: ToolRequest | None = None,
    ) -> Iterator[Event]:
        if self.prompt_tokens(messages) >= self.context_tokens:
            raise ContextFull(self.prompt_tokens(messages), self.context_tokens)
        self.asked.append((list(messages), sampling))
        self.offered.append([tool.name for tool in tools.tools] if tools else [])
        asked = next(each["content"] for each in reversed(messages) if each["role"] == "user")
        if tools is not None and asked.startswith("call "):
            calls = re.findall(r"call (\S+) (\{.*?\})", asked)
            if asked.endswith("cut off"):
                return iter([next(_calls(calls)), _finished("length")])
            if messages[-1]["role"] == "user" or asked.endswith("again and again"):
                return _calls(calls)
        return self._reply(messages[-1]["content"], messages)

    def stream_completion(self, prompt: str, sampling: Sampling) -> Iterator[Event]:
        self.asked.append((prompt, sampling))
        return self._reply(prompt, ())

    def close(self) -> None:
        self.closed = True

    def _reply(self, text: str, messages: Sequence[Message]) -> Iterator[Event]:
        if text == "slow":
            time.sleep(30)
        if text == "broken":
            raise NotReadable("a tensor is truncated", where="model.safetensors")
        if text == "bug":
            raise ZeroDivisionError("of the\nmodel")
        said = 0
        for word in self._words(text, messages):
            time.sleep(self._delay_s)
            said += 1
            yield TextDelta(word)
        yield Finished("stop", ReplyUsage(10, said, 0, 0.05, 0.5))

    def _words(self, text: str, messages: Sequence[Message]) -> Iterator[str]:
        if text == "forever":
            for number in itertools.count():
                time.sleep(0.01)
                yield f"{number} "
        if text == "history":
            text = " ".join(f"{m['role']}={m['content']}" for m in messages[:-1]) or "none"
        yield from re.findall(r"\s*\S+\s*$|\s*\S+", REPLIES.get(text, f"You said: {text}"))


def _calls(calls: Sequence[tuple[str, str]]) -> Iterator[Event]:
    """Calls of tools, in parts."""
    for index, (name, arguments) in enumerate(calls):
        yield ToolCallDelta(index, f"call-{index}", name)
        for half in (arguments[:3], arguments[3:]):
            yield ToolCallDelta(index, arguments=half)
    yield _finished("tool_calls")


def _finished(reason: FinishReason) -> Finished:
    return Finished(reason, ReplyUsage(10, 5, 0, 0.05, 0.5))


def load(request: RunRequest, on_progress: OnProgress | None = None) -> FakeModel:
    """Loads in three steps; some names of models behave in special ways."""
    if request.source.model_id == "missing":
        raise NotReadable("no such model", where="missing", hint="give a folder that exists")
    if request.source.model_id == "bug":
        raise ZeroDivisionError("a\nbug")
    if request.source.model_id in ("slow", "waits"):
        print("slow load begins", file=sys.stderr, flush=True)
        time.sleep(30 if request.source.model_id == "slow" else 0.5)
    for done in (0, 1 << 19, 1 << 20):
        if on_progress:
            on_progress(LoadProgress("cpu", done, 1 << 20))
    return FakeModel(request, float(os.environ.get("FAKE_DELAY_S", "0")))


if __name__ == "__main__":
    from mrs_cli.app import main
    from mrs_cli.environment import Environment

    sys.exit(main(environment=Environment.of_process(load)))
