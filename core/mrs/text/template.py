"""Chat templates: from a conversation to the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrs.errors import MrsError, Unsupported, UsageError
from mrs.source.reader import expanded
from mrs.text.template_process import Stopped, renderer

# What a template puts out at most.
_LEAST_CHARACTERS = 4 * 1024**2
_CHARACTERS_PER_INPUT_CHARACTER = 64
# What a message costs a template however short it is, as if it were that much longer.
_MESSAGE_CHARACTERS = 100


class ChatTemplate:
    """A Jinja chat template. `name` says in errors where it comes from.

    Renders as transformers does: blocks trimmed, `raise_exception`, `strftime_now`, `tojson`,
    `break` and `continue`, immutable values. Raises Unsupported, naming the line, for a template
    that cannot be compiled, fails, or takes too much time or memory.
    """

    def __init__(self, source: str, *, name: str) -> None:
        self.source = source
        self.name = name
        self._ask(None, 0)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        special_tokens: Mapping[str, str],
        thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for `messages`, whose contents are texts or lists of parts.

        `special_tokens` become variables of the template, as `bos_token` and `eos_token`.
        `thinking` becomes `enable_thinking` and `thinking`; None leaves both undefined. Raises
        UsageError where the template refuses the conversation.
        """
        variables: dict[str, Any] = {**special_tokens}
        if thinking is not None:
            variables |= {"enable_thinking": thinking, "thinking": thinking}
        variables |= {
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self._ask(variables, sum(_characters(message["content"]) for message in messages))

    def _ask(self, variables: dict[str, Any] | None, input_characters: int) -> str:
        most_characters = _LEAST_CHARACTERS + _CHARACTERS_PER_INPUT_CHARACTER * input_characters
        try:
            reply = renderer.ask(self.source, variables, most_characters)
        except Stopped as error:
            raise self._failed("fails", str(error), None) from error
        if "text" in reply:
            return str(reply["text"])
        message, line = reply["message"], reply["line"]
        if reply["stage"] == "refuse":
            raise UsageError(
                f"the chat template refuses this conversation: {_one_line(message)}",
                where=self._place(line),
            )
        what = "fails" if reply["stage"] == "render" else "cannot be compiled"
        raise self._failed(what, message, line)

    def _failed(self, what: str, message: str, line: int | None) -> MrsError:
        return Unsupported(
            f"the chat template {what}: {_one_line(message)}",
            where=self._place(line),
            hint="give another one with -c FILE",
        )

    def _place(self, line: int | None) -> str:
        return f"{self.name}, line {line}" if line else self.name


def _characters(content: str | Sequence[Mapping[str, str]]) -> int:
    """What a message costs a template."""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return _MESSAGE_CHARACTERS * max(1, len(texts)) + sum(map(len, texts))


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]


def choose_template(value: Any, *, name: str) -> ChatTemplate | None:
    """The template that a `chat_template` setting holds: a text, or a list of named ones.

    Of a list the one named `default` is taken, or the only one. None stays None.
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
    return ChatTemplate(source, name=name)


def _named_templates(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, list):
        value = {
            entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)
        }
    if not isinstance(value, dict) or not all(
        isinstance(text, str) for pair in value.items() for text in pair
    ):
        raise Unsupported("chat_template is neither a text nor named texts", where=name)
    return value


def read_template_text(path: str) -> str:
    """The text of a template file that a person named; UsageError if it cannot be read."""
    try:
        return expanded(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the chat template: {reason}", where=path) from error
