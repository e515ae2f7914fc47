"""What a program asks a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from mrs.api.checks import ROLES, check_fields, check_keys, one_of, require
from mrs.errors import Unsupported, UsageError
from mrs.request import IMAGE_MARK, Message, Sampling


class _Settings:
    """How a reply is made. What is not given is off; without a temperature, the likeliest token
    is taken each time.

    `logprobs` asks for each token's probability, `top_logprobs` for those of that many likeliest
    tokens too. `logit_bias` adds to the logits of token ids. Of `n_choices` replies each draws its
    own chances. With `stream`, chunks come as they are made. With `truncate_sequence`, what is
    oldest in a prompt that is too long is left out; with `ignore_eos`, no token ends a reply.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    stop_seqs: Sequence[str] | None
    logit_bias: Mapping[int, float] | None
    logprobs: bool
    top_logprobs: int | None
    n_choices: int
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_sequence_breakers: Sequence[str] | None
    ignore_eos: bool

    def __post_init__(self) -> None:
        check_fields(self, {})

    def samplings(self) -> list[Sampling]:
        """The settings of every choice."""
        return [self._sampling(choice) for choice in range(self.n_choices)]

    def _sampling(self, choice: int) -> Sampling:
        usual = Sampling()
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
            stop=_texts(self.stop_seqs or ()),
            logprobs=(self.top_logprobs or 0) if self.logprobs or self.top_logprobs else None,
            logit_bias=tuple((self.logit_bias or {}).items()),
            dry_multiplier=_or(self.dry_multiplier, usual.dry_multiplier),
            dry_base=_or(self.dry_base, usual.dry_base),
            dry_allowed_length=int(_or(self.dry_allowed_length, usual.dry_allowed_length)),
            dry_sequence_breakers=(
                usual.dry_sequence_breakers if breakers is None else _texts(breakers)
            ),
            ignore_eos=self.ignore_eos,
            variant=choice,
        )


@dataclass(frozen=True)
class ChatCompletionRequest(_Settings):
    """A conversation for the model to go on with: messages of a `role` and a `content`.

    A content is a text, or a list of parts: `{"type": "text", "text": …}` and `{"type":
    "image_url", "image_url": {"url": …}}`, with a path, a file://, http:// or https:// address, or
    a data: URI in base64. A single string is a prompt that is taken as it is, without a chat
    template. The other fields are those of the peer, in its order; what is not supported may have
    its default value only. Raises UsageError and Unsupported.
    """

    messages: Sequence[Mapping[str, Any]] | str
    model: str = "default"
    logprobs: bool = False
    n_choices: int = 1
    logit_bias: Mapping[int, float] | None = None
    top_logprobs: int | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop_seqs: Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool = False
    grammar: None = None
    grammar_type: None = None
    min_p: float | None = None
    tool_schemas: None = None
    tool_choice: None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    web_search_options: None = None
    enable_thinking: bool | None = None
    truncate_sequence: bool = False
    reasoning_effort: str | None = None
    max_tool_rounds: None = None
    tool_dispatch_url: None = None
    enable_code_execution: bool = False
    enable_shell: bool = False
    shell_skills: None = None
    agent_permission: None = None
    agent_approval_callback: Callable[..., Any] | None = None
    code_execution_permission: None = None
    session_id: None = None
    files: None = None
    input_files: None = None
    ignore_eos: bool = False
    _: KW_ONLY
    adapter: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.messages:
            raise UsageError("a request has no messages", hint="give it at least one")
        if self.enable_thinking and self.reasoning_effort is not None:
            raise UsageError(
                f"enable_thinking is True and reasoning_effort {self.reasoning_effort}",
                hint="leave one of them out",
            )

    @property
    def thinking(self) -> bool | None:
        """Whether the model shall think; None leaves that to it."""
        return self.enable_thinking if self.reasoning_effort is None else False

    def conversation(self) -> list[Message]:
        """The messages, with their images. Raises UsageError and Unsupported."""
        if isinstance(self.messages, str):
            raise UsageError("the messages are a text", hint="which is a prompt as it is")
        return [_message(each) for each in self.messages]


@dataclass(frozen=True)
class CompletionRequest(_Settings):
    """A text for the model to go on with; `echo_prompt` puts it before the reply.

    The fields are those of the peer, in its order, and more by name; what is not supported may
    have its default value only. Raises UsageError and Unsupported.
    """

    prompt: str
    model: str = "default"
    best_of: int = 1
    echo_prompt: bool = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    max_tokens: int | None = None
    n_choices: int = 1
    stop_seqs: Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    suffix: None = None
    top_k: int | None = None
    grammar: None = None
    grammar_type: None = None
    min_p: float | None = None
    tool_schemas: None = None
    tool_choice: None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    truncate_sequence: bool = False
    ignore_eos: bool = False
    _: KW_ONLY
    adapter: None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    stream: bool = False


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _texts(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _message(given: Mapping[str, Any]) -> Message:
    if not {"role", "content"} <= given.keys():
        raise UsageError("a message lacks its role or content", hint='{"role": …, "content": …}')
    check_keys("a message", given, ("role", "content"))
    role, content = given["role"], given["content"]
    require("the role of a message", role, one_of(*ROLES))
    if isinstance(content, str):
        return Message(role=role, content=content)
    if not isinstance(content, list):
        raise UsageError(
            f"the content of a message is {type(content).__name__}",
            hint="give a text or a list of parts",
        )
    images = [_image(part) for part in content if _kind(part) == "image_url"]
    text = "".join(map(_text, content))
    if not images:
        return Message(role=role, content=text)
    return Message(role=role, content=text, images=images)


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "image_url"):
        raise Unsupported("a message shows something beside text and images", hint="leave it out")
    return str(kind)


def _text(part: Mapping[str, Any]) -> str:
    """What the part adds to the content of its message."""
    if part["type"] == "image_url":
        return IMAGE_MARK
    text = part.get("text")
    if not isinstance(text, str):
        raise UsageError("a part of a message lacks its text", hint='{"type": "text", "text": …}')
    return text.replace(IMAGE_MARK, "")


def _image(part: Mapping[str, Any]) -> str:
    address = part.get("image_url")
    if isinstance(address, Mapping):
        address = address.get("url")
    if not isinstance(address, str) or not address:
        raise UsageError("an image lacks its address", hint='{"image_url": {"url": …}}')
    return address
