"""What a program asks a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrs.errors import Unsupported, UsageError
from mrs.request import IMAGE_MARK, Message, Sampling


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """How a reply is made. What is not given is off; without a temperature, the likeliest token
    is taken each time.

    `logprobs` asks for each token's probability, `top_logprobs` for those of that many likeliest
    tokens too. `logit_bias` adds to the logits of token ids. Of `n_choices` replies each draws its
    own chances. With `stream`, chunks come as they are made.
    """

    model: str = "default"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_seqs: Sequence[str] | None = None
    logit_bias: Mapping[int, float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    n_choices: int = 1
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    stream: bool = False

    def samplings(self) -> list[Sampling]:
        """The settings of every choice. Raises UsageError for values that make no sense."""
        self._check()
        return [self._sampling(choice) for choice in range(self.n_choices)]

    def _sampling(self, choice: int) -> Sampling:
        usual = Sampling()
        stops = [self.stop_seqs] if isinstance(self.stop_seqs, str) else self.stop_seqs
        breakers = self.dry_sequence_breakers
        return Sampling(
            temperature=_or(self.temperature, 0.0),
            top_k=self.top_k,
            top_p=_or(self.top_p, 1.0),
            min_p=_or(self.min_p, 0.0),
            repetition_penalty=_or(self.repetition_penalty, 1.0),
            frequency_penalty=_or(self.frequency_penalty, 0.0),
            presence_penalty=_or(self.presence_penalty, 0.0),
            max_tokens=self.max_tokens,
            stop=tuple(stops or ()),
            logprobs=(self.top_logprobs or 0) if self.logprobs or self.top_logprobs else None,
            logit_bias=tuple((self.logit_bias or {}).items()),
            dry_multiplier=_or(self.dry_multiplier, usual.dry_multiplier),
            dry_base=_or(self.dry_base, usual.dry_base),
            dry_allowed_length=int(_or(self.dry_allowed_length, usual.dry_allowed_length)),
            dry_sequence_breakers=(
                usual.dry_sequence_breakers if breakers is None else tuple(breakers)
            ),
            variant=choice,
        )

    def _check(self) -> None:
        _check_range("max_tokens", self.max_tokens, 1)
        _check_range("n_choices", self.n_choices, 1)
        _check_range("temperature", self.temperature, 0)
        _check_range("top_k", self.top_k, 0)
        _check_range("top_p", self.top_p, 0, 1)
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("top_logprobs", self.top_logprobs, 0)
        _check_range("dry_multiplier", self.dry_multiplier, 0)
        _check_range("dry_base", self.dry_base, 1)
        _check_range("dry_allowed_length", self.dry_allowed_length, 1)
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < math.inf:
            raise UsageError(f"repetition_penalty {self.repetition_penalty} is not above 0")


@dataclass(frozen=True, kw_only=True)
class ChatCompletionRequest(_Settings):
    """A conversation for the model to go on with: messages of a `role` and a `content`.

    A content is a text, or a list of parts: `{"type": "text", "text": …}` and `{"type":
    "image_url", "image_url": {"url": …}}`, with a path, a file://, http:// or https:// address, or
    a data: URI in base64. A single string is a prompt that is taken as it is, without a chat
    template.
    """

    messages: Sequence[Mapping[str, Any]] | str
    enable_thinking: bool | None = None

    def conversation(self) -> list[Message]:
        """The messages, with their images. Raises UsageError and Unsupported."""
        if not self.messages:
            raise UsageError("a request has no messages", hint="give it at least one")
        return [_message(dict(each)) for each in self.messages if not isinstance(each, str)]


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(_Settings):
    """A text for the model to go on with; `echo_prompt` puts it before the reply."""

    prompt: str
    echo_prompt: bool = False


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _check_range(name: str, value: float | None, low: float, high: float = math.inf) -> None:
    if value is not None and not (low <= value <= high and value < math.inf):
        wanted = f"from {low:g} up" if high == math.inf else f"from {low:g} to {high:g}"
        raise UsageError(f"{name} {value} is out of range", hint=f"give a number {wanted}")


def _message(given: dict[str, Any]) -> Message:
    if not isinstance(given.get("role"), str) or "content" not in given:
        raise UsageError("a message lacks its role or content", hint='{"role": …, "content": …}')
    content = given["content"]
    if isinstance(content, str):
        return Message(role=given["role"], content=content)
    if not isinstance(content, list):
        raise UsageError(f"the content of a message is {type(content).__name__}, no text")
    images = [_image(part) for part in content if _kind(part) == "image_url"]
    text = "".join(map(_text, content))
    if not images:
        return Message(role=given["role"], content=text)
    return Message(role=given["role"], content=text, images=images)


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "image_url"):
        raise Unsupported("a message shows something beside text and images", hint="leave it out")
    return str(kind)


def _text(part: Mapping[str, Any]) -> str:
    """What the part adds to the content of its message."""
    if part["type"] == "image_url":
        return IMAGE_MARK
    return str(part.get("text", "")).replace(IMAGE_MARK, "")


def _image(part: Mapping[str, Any]) -> str:
    address = part.get("image_url")
    if isinstance(address, Mapping):
        address = address.get("url")
    if not isinstance(address, str) or not address:
        raise UsageError("an image lacks its address", hint='{"image_url": {"url": …}}')
    return address
