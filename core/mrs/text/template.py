"""Chat templates: from a conversation to a prompt in the form that the model expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.source.reader import expanded
from mrs.text.template_process import Stopped, renderer_for

#: Variables that a conversation itself gives.
RENDERED = ("messages", "tools", "documents", "add_generation_prompt")
# The most characters that a template may output.
_BASE_CHARACTERS = 256 * 1024
_CHARACTERS_PER_INPUT_CHARACTER = 64
# The fixed cost of a message or part, in characters.
_MESSAGE_CHARACTERS = 100


class Endless(Unsupported):
    """A template takes too much time or memory: it would for any other conversation, too."""


class ChatTemplate:
    """A Jinja chat template. `name` is its origin, for errors.

    `with_tools` is the template for requests with tools: this one, unless there is another source.

    Renders as transformers does: blocks are trimmed, values are immutable, and `raise_exception`,
    `strftime_now`, `tojson`, `break` and `continue` are available. Raises Unsupported, with the
    line, for a template that does not compile, fails, or takes too much time or memory.
    """

    def __init__(self, source: str, *, name: str, source_with_tools: str | None = None) -> None:
        self.source = source
        self.name = name
        self.with_tools = self
        if source_with_tools is not None:
            self.with_tools = ChatTemplate(source_with_tools, name=f"{name}, tool_use")
        self._ask(None, 0)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: Mapping[str, str],
        thinking: bool | None = None,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        begins_reply: bool = True,
    ) -> str:
        """The prompt for `messages`, whose contents are texts, lists of parts or None.

        `tools` are definitions of functions as OpenAI has them; without any, `tools` is None.
        `special_tokens` become variables of the template, such as `bos_token` and `eos_token`.
        `thinking` sets `enable_thinking` and `thinking`; None leaves both undefined. Raises
        UsageError if the template calls `raise_exception`.
        `variables` are further ones; they replace none of the others. Unless it `begins_reply`, the
        prompt ends with the last message.
        """
        values: dict[str, Any] = {**(variables or {}), **special_tokens}
        if thinking is not None:
            values |= {"enable_thinking": thinking, "thinking": thinking}
        values |= {
            "messages": [dict(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": begins_reply,
        }
        characters = sum(map(_characters, messages)) + len(json.dumps(values["tools"]))
        return self._ask(values, characters)

    def _ask(self, variables: dict[str, Any] | None, input_characters: int) -> str:
        most_characters = _BASE_CHARACTERS + _CHARACTERS_PER_INPUT_CHARACTER * input_characters
        try:
            renderer = renderer_for(input_characters)
            reply = renderer.ask(self.source, variables, most_characters)
        except Stopped as error:
            raise self._failed("fails", str(error), None, Endless) from error
        if "text" in reply:
            return str(reply["text"])
        message, line = reply["message"], reply["line"]
        if reply["stage"] == "refuse":
            raise UsageError(
                f"the chat template refuses this conversation: {_one_line(message)}",
                where=self._origin(line),
            )
        what = "fails" if reply["stage"] == "render" else "cannot be compiled"
        raise self._failed(what, message, line)

    def _failed(
        self, what: str, message: str, line: int | None, kind: type[MrsError] = Unsupported
    ) -> MrsError:
        return kind(
            f"the chat template {what}: {_one_line(message)}",
            where=self._origin(line),
            hint="give another one with -c FILE",
        )

    def _origin(self, line: int | None) -> str:
        return f"{self.name}, line {line}" if line else self.name


def _characters(message: Mapping[str, Any]) -> int:
    """The size of a message in characters, with a fixed cost per part."""
    content = message["content"]
    parts = len(content) if isinstance(content, list) else 1
    return _MESSAGE_CHARACTERS * max(1, parts) + len(json.dumps(message, ensure_ascii=False))


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]


def choose_template(value: Any, *, name: str) -> ChatTemplate | None:
    """The template in a `chat_template` setting: a text, or named texts.

    From named texts, the one named `default` is chosen, or the only one; and `tool_use`, if there
    is one, for requests with tools. None gives None.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return ChatTemplate(value, name=name)
    named = _named_templates(value, name)
    source = named.get("default") or (next(iter(named.values())) if len(named) == 1 else None)
    if source is None:
        raise UsageError(
            f"the model has several chat templates and no default: {', '.join(sorted(named))}",
            where=name,
            hint="give the one to use with -c FILE",
        )
    return ChatTemplate(source, name=name, source_with_tools=named.get("tool_use"))


def _named_templates(value: Any, name: str) -> dict[str, str]:
    pairs: list[tuple[Any, Any]] = [(None, value)]
    if isinstance(value, list):
        pairs = [(e.get("name"), e.get("template")) for e in value if isinstance(e, dict)]
    elif isinstance(value, dict):
        pairs = list(value.items())
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise Unsupported("chat_template is neither a text nor named texts", where=name)
    return dict(pairs)


def read_template_text(path: str) -> str:
    """The text of a template file that the user named. Raises UsageError if it is unreadable."""
    try:
        return expanded(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the chat template: {reason}", where=path) from error
