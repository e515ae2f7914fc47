"""Writes replies that may call tools under their grammar, and reads what was written."""

from __future__ import annotations

import json
import random
import re
import sys
from collections import abc
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tool_cases import CASES, CONVERSATION, TOOLS

from mrs.events import TextDelta, ToolCallDelta
from mrs.grammar.compiler import GrammarCompiler
from mrs.grammar.thought import thought_after
from mrs.request import Grammar
from mrs.text.text_processor import TextProcessor, read_text_processor
from mrs.tools.tool_caller import ToolCaller
from mrs.tools.tool_request import read_tools

sys.path.append(str(Path(__file__).parents[1] / "text"))
NINE = re.compile(r"[a-z0-9]{9}")
QUESTION = CONVERSATION[:1]


@lru_cache
def processor(name: str, *, with_tokens: bool = True) -> TextProcessor:
    """The text processor of a case, or of one whose template handles thoughts: `NAME thinks`."""
    case = CASES[name.removesuffix(" thinks")]
    template = case.template + ("{# </think> #}" if name.endswith(" thinks") else "")
    return processor_of(template, case.tokens if with_tokens else ())


@lru_cache
def processor_of(template: str, tokens: abc.Sequence[str]) -> TextProcessor:
    """A byte-level tokenizer with control tokens, and a template."""
    from text_checkpoints import BACKEND, TextCheckpoint

    settings = json.loads(BACKEND.to_str())
    first = max(token["id"] for token in settings["added_tokens"]) + 1
    known = {token["content"] for token in settings["added_tokens"]}
    for index, token in enumerate(sorted(set(tokens) - known)):
        added = {**settings["added_tokens"][0], "id": first + index, "content": token}
        settings["added_tokens"].append(added)
    files = {
        "tokenizer.json": json.dumps(settings),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "eos_token": "<|im_end|>"}),
        "chat_template.jinja": template,
    }
    return read_text_processor(TextCheckpoint(files=files))


class Writer:
    """Writes a reply under the grammar of some tools, token by token."""

    def __init__(
        self, name: str | TextProcessor, tools: Any = TOOLS, choice: Any = "auto", **settings: Any
    ) -> None:
        with_tokens = settings.pop("with_tokens", True)
        self.text = processor(name, with_tokens=with_tokens) if isinstance(name, str) else name
        free: Grammar | None = settings.pop("free", None)
        request = read_tools(tools, choice, **settings)
        assert request is not None
        self.caller = ToolCaller(request, self.text)
        tokenizer = self.text.tokenizer
        self.vocab_size = tokenizer.backend.get_vocab_size()
        prompt = self.text.prompt_ids(QUESTION)
        self.thought = thought_after(self.text, prompt, None, has_channel=True)
        compiler = GrammarCompiler(tokenizer, self.vocab_size, self.text.stop_ids)
        self.mask = compiler.mask(self.caller.grammar(free), self.thought)
        self.written: list[int] = []

    def allowed(self) -> list[int]:
        logits = np.zeros(self.vocab_size, np.float32)
        self.mask(logits)
        return np.flatnonzero(np.isfinite(logits)).tolist()

    def write(self, reply: str) -> bool:
        """Whether the grammar allows a reply from here on."""
        for token in self.text.tokenizer.encode(reply, allow_special=True):
            if token not in self.allowed():
                return False
            self.add(token)
        return True

    def stuck(self) -> str:
        """What was written, and what may follow."""
        tokenizer = self.text.tokenizer
        text = tokenizer.decode(self.written, show_control=True)
        following = [tokenizer.decode([token], show_control=True) for token in self.allowed()[:20]]
        return f"{text!r}, then one of {following}"

    def may_end(self) -> bool:
        return self.mask.is_complete or bool(self.text.stop_ids & set(self.allowed()))

    def add(self, token: int) -> None:
        self.mask.append(token)
        self.written.append(token)

    def write_at_random(self, seed: int) -> None:
        """Tokens at random, of which those that close something are preferred."""
        numbers, tokenizer = random.Random(seed), self.text.tokenizer
        for _ in range(500):
            if self.mask.is_complete:
                return
            allowed = self.allowed()
            if self.text.stop_ids & set(allowed) and numbers.random() < 0.3:
                return
            allowed = [token for token in allowed if token not in self.text.stop_ids]
            closing = [t for t in allowed if re.match(rb'["\n<}\])]', tokenizer.piece(t) or b"<")]
            self.add(numbers.choice(closing if closing and numbers.random() < 0.6 else allowed))

    def parsed(self, size: int = 1, *, any_id: bool = False) -> tuple[str, list[tuple[str, Any]]]:
        """Content and calls of what was written, decoded `size` tokens at a time."""
        parser = self.caller.parser()
        decoder = self.text.stream_decoder(is_exact=True, shown=parser.shown)
        pieces = [decoder.push(token) for token in self.written]
        return joined([d for piece in groups(pieces, size) for d in parser.push(piece)]
                      + parser.finish(), any_id=any_id)  # fmt: skip


def groups(pieces: abc.Sequence[str], size: int) -> list[str]:
    return ["".join(pieces[start : start + size]) for start in range(0, len(pieces), size)]


def joined(
    deltas: abc.Sequence[TextDelta | ToolCallDelta], *, any_id: bool = False
) -> tuple[str, list[tuple[str, Any]]]:
    """Content and calls; ids are nine letters and digits, unless the model wrote them."""
    content, calls = "", []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            content += delta.text
        elif delta.name is not None:
            assert delta.index == len(calls)
            assert any_id or NINE.fullmatch(delta.id or "")
            calls.append([delta.name, ""])
        else:
            assert delta.index == len(calls) - 1
            assert delta.id is None
            calls[-1][1] += delta.arguments
    return content, [(name, json.loads(arguments)) for name, arguments in calls]
