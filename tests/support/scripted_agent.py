"""A server whose replies are scripted, and the prompts of an agent's conversation with it.

The model is real: a grammar lets it write nothing but the script. So replies go through its
tokenizer, the splitting of thoughts, the parsing of calls and the wire of each protocol, as those
of a model that thinks and calls tools by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import transformers.utils.chat_template_utils as reference
from transformers import PreTrainedTokenizerFast

from mrs.engine.prompt import Prompt
from mrs.grammar.thought import Thought
from mrs.request import Grammar, Sampling
from mrs.run.prompt_reader import PromptReader
from mrs.tools.tool_caller import ToolCaller

FUNCTION: dict[str, Any] = {
    "name": "look",
    "description": "Looks up.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@dataclass(frozen=True)
class Turn:
    """A reply of the script: its thought, its text and the cities that its calls look up."""

    thought: str = ""
    text: str = ""
    cities: tuple[str, ...] = ()

    def message(self, no_text: str | None) -> dict[str, Any]:
        """The message in the form that transformers documents; `no_text` is an absent content."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text or no_text}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.cities:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": "look", "arguments": {"city": city}}}
                for city in self.cities
            ]
        return message

    @property
    def results(self) -> list[dict[str, Any]]:
        return [{"role": "tool", "content": result_of(city)} for city in self.cities]


#: Ten replies; a question of the user stands before the reply of its number.
SCRIPT = (
    Turn("Look at two.", cities=("Rome", "Oslo")),
    Turn("One more.", "I go on.", ("Bonn",)),
    Turn(cities=("Kyiv",)),
    Turn("Enough.", "Sunny."),
    Turn("Both again.", "Wait.", ("Lima", "Cali")),
    Turn("A third.", cities=("Riga",)),
    Turn("", "So far.", ("Nice", "Graz")),
    Turn("Nearly.", cities=("Bern",)),
    Turn("Done.", "Rain."),
    Turn("", "Bye."),
)
QUESTIONS = {0: "Weather?", 4: "And there?", 9: "Thanks."}


def result_of(city: str) -> str:
    return f"{city}: ok"


class ScriptedAgent:
    """The script for a template that trl ships; `prompts` are those that the model has got.

    `end` is what the template writes after a reply, and `no_text` the content of one with calls
    alone that it shows as nothing.
    """

    def __init__(self, template: str, end: str, no_text: str | None = None) -> None:
        spec = find_spec("trl")
        assert spec is not None
        assert spec.origin is not None
        self.template = Path(spec.origin).parent / "chat_templates" / f"{template}.jinja"
        self.prompts: list[list[int]] = []
        self._end, self._no_text = end, no_text

    def conversation(self, number: int) -> list[dict[str, Any]]:
        """What comes before reply `number`."""
        messages: list[dict[str, Any]] = []
        for index, turn in enumerate(SCRIPT[: number + 1]):
            if index in QUESTIONS:
                messages.append({"role": "user", "content": QUESTIONS[index]})
            if index < number:
                messages += [turn.message(self._no_text), *turn.results]
        return messages

    def expected(
        self, tokenizer: PreTrainedTokenizerFast, *, sends_thoughts: bool = True
    ) -> list[list[int]]:
        """The ids of all prompts as transformers makes them."""
        talks = [self.conversation(number) for number in range(len(SCRIPT))]
        if not sends_thoughts:
            for message in (message for talk in talks for message in talk):
                message.pop("reasoning_content", None)
        prompts = list(map(self._rendered, talks))
        return [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]

    def written(self, number: int) -> str:
        """Reply `number` as the template writes it."""
        before = self.conversation(number)
        begun = self._rendered(before)
        whole = self._rendered([*before, SCRIPT[number].message(self._no_text)], begins_reply=False)
        assert whole.startswith(begun)
        return whole.removeprefix(begun).partition(self._end)[0]

    def _rendered(self, messages: list[dict[str, Any]], *, begins_reply: bool = True) -> str:
        [rendered], _ = reference.render_jinja_template(
            [messages],
            tools=[{"type": "function", "function": FUNCTION}],
            chat_template=self.template.read_text(encoding="utf-8"),
            add_generation_prompt=begins_reply,
        )
        return str(rendered)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it, every model writes the script."""
        with mock.patch.object(PromptReader, "_with_form", self._with_form()):
            yield

    def _with_form(self) -> Callable[..., Prompt]:
        def with_form(
            prompts: PromptReader,
            prompt: Prompt,
            sampling: Sampling,
            thinking: bool | None,
            caller: ToolCaller | None,
            owner: bytes,
        ) -> Prompt:
            grammar = Grammar("regex", re.escape(self.written(len(self.prompts))))
            self.prompts.append(list(prompt.ids))
            masks = prompts._grammars.masks(grammar, Thought.NONE)
            calls = None if caller is None else caller.parser
            return replace(prompt, new_constraint=masks, new_calls=calls)

        return with_form
