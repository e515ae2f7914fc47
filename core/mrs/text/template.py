"""Chat templates: from a conversation to the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from mrs.errors import MrsError, Unsupported, UsageError

# What a message costs a template however short it is, as if it were that much longer.
_MESSAGE_CHARACTERS = 100


class ChatTemplate:
    """A Jinja chat template, compiled. `name` says in errors where it comes from.

    Renders as transformers does: blocks trimmed, `raise_exception`, `strftime_now`, `tojson`,
    `break` and `continue`, immutable values. Raises Unsupported, naming the line, for a template
    that cannot be compiled or fails.
    """

    def __init__(self, source: str, *, name: str) -> None:
        from mrs.text.sandbox import BoundedEnvironment

        self.source = source
        self.name = name
        self._environment = BoundedEnvironment()
        try:
            self._template = self._environment.from_string(source)
        except Exception as error:  # a template is somebody else's program
            raise self._failed("cannot be compiled", error) from error

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
        from mrs.text.sandbox import RaisedByTemplate

        variables: dict[str, Any] = {**special_tokens}
        if thinking is not None:
            variables |= {"enable_thinking": thinking, "thinking": thinking}
        self._environment.start(sum(_characters(message["content"]) for message in messages))
        try:
            return self._template.render(
                **variables,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except RaisedByTemplate as error:
            raise UsageError(
                f"the chat template refuses this conversation: {_one_line(str(error))}",
                where=self._place(error),
            ) from error
        except Exception as error:
            raise self._failed("fails", error) from error

    def _failed(self, what: str, error: Exception) -> MrsError:
        return Unsupported(
            f"the chat template {what}: {_one_line(str(error)) or type(error).__name__}",
            where=self._place(error),
            hint="give another one with -c FILE",
        )

    def _place(self, error: Exception) -> str:
        line = getattr(error, "lineno", None) or _template_line(error.__traceback__)
        return f"{self.name}, line {line}" if line else self.name


def _characters(content: str | Sequence[Mapping[str, str]]) -> int:
    """What a message costs a template."""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return _MESSAGE_CHARACTERS * max(1, len(texts)) + sum(map(len, texts))


def _one_line(message: str) -> str:
    return " ".join(message.split())[:300]


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost line of a template in a traceback that Jinja has translated."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


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
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the chat template: {reason}", where=path) from error
