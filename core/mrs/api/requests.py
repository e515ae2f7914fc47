"""Requests of Python programs: chat completions and completions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Generic, Literal

from mrs.api.checks import FIELD_NAMES, check_fields
from mrs.api.given_fields import GivenFields
from mrs.api.read_messages import read_message
from mrs.errors import UsageError
from mrs.grammar.request_fields import grammar_of, grammar_of_response_format
from mrs.request import NO_EFFORT, Effort, Grammar, Message, Sampling
from mrs.request.sampling import SETTINGS, chosen_sampling
from mrs.tools.read_messages import with_tool_names
from mrs.tools.tool_request import ToolRequest, read_tools

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: A request's `stream`, which says whether its answer is whole or in chunks.
    Streams_co = TypeVar(
        "Streams_co", Literal[False], Literal[True], bool, default=Literal[False], covariant=True
    )
else:
    from typing import TypeVar

    Streams_co = TypeVar("Streams_co", covariant=True)

#: The default of `stream`; type checkers have that of the type variable.
_NO_STREAM: Any = False


class _Settings(GivenFields):
    """How replies are generated. A setting that is None is as the model's files suggest.

    If they suggest nothing, it has the default of `mrs.request.sampling.Sampling`, as in the chat.

    logit_bias         token id -> value that is added to its logit
    logprobs           return the log probability of each token of the reply
    top_logprobs       return those of that many most likely tokens too
    prompt_logprobs    return those of the prompt's tokens, and of that many most likely ones
    n_choices          number of replies, each sampled independently
    stream             return chunks as they are generated
    truncate_sequence  drop the oldest part of a prompt that is too long
    ignore_eos         no token of the model ends a reply; stop_seqs and stop_token_ids do
    skip_special_tokens         False shows the text of control tokens
    include_stop_str_in_output  the text or token that ended a reply is part of it
    grammar            what replies must match, of the `grammar_type` regex, json_schema, lark,
                       gbnf or llguidance
    response_format    the same in OpenAI's form, of the type text, json_object or json_schema
    adapter            the LoRA adapter with this alias
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
    prompt_logprobs: int | None
    stream: bool
    n_choices: int
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_sequence_breakers: Sequence[str] | None
    seed: int | None
    min_tokens: int | None
    stop_token_ids: Sequence[int] | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    ignore_eos: bool
    grammar: str | Mapping[str, Any] | None
    grammar_type: str | None
    response_format: Mapping[str, Any] | None
    adapter: str | None

    def __post_init__(self) -> None:
        check_fields(self, {})
        self.samplings({})
        if self.stream and self.prompt_logprobs is not None:
            raise UsageError("a stream has no prompt_logprobs", hint="leave out one of them")

    @property
    def _grammar(self) -> Grammar | None:
        if (self.grammar is None) != (self.grammar_type is None):
            raise UsageError("grammar and grammar_type belong together", hint="give both")
        if self.grammar is None:
            form = self.response_format
            return None if form is None else grammar_of_response_format(form)
        if self.response_format is not None:
            raise UsageError("grammar and response_format are both given", hint="give one of them")
        return grammar_of(self.grammar_type, self.grammar)

    def samplings(self, suggested: Mapping[str, float]) -> list[Sampling]:
        """The settings of each of the `n_choices` replies; the model suggests some, by name."""
        return [self._sampling(choice, suggested) for choice in range(self.n_choices)]

    def _sampling(self, choice: int, suggested: Mapping[str, float]) -> Sampling:
        given = {name: getattr(self, FIELD_NAMES.get(name, name), None) for name in SETTINGS}
        return chosen_sampling(
            given,
            suggested,
            logprobs=(self.top_logprobs or 0) if self.logprobs or self.top_logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            ignore_eos=self.ignore_eos,
            shows_control=not self.skip_special_tokens,
            keeps_stop=self.include_stop_str_in_output,
            grammar=self._grammar,
            variant=choice,
            adapter=self.adapter,
        )


@dataclass(frozen=True, repr=False)
class ChatCompletionRequest(_Settings, Generic[Streams_co]):
    """Asks for the next message of a conversation, given as messages with `role` and `content`.

    `content` is a string, or a list of parts: `{"type": "text", "text": …}` and
    `{"type": "image_url", "image_url": {"url": …}}`, where the URL is a path, a file://, http:// or
    https:// URL, or a base64 data: URI. If `messages` is a string, it is the prompt itself, and no
    chat template is applied. The fields and their order are those of the Python package mistralrs;
    a field that is not supported accepts its default value only. Raises UsageError and Unsupported.

    A thought ends after `reasoning_budget` tokens (-1 is no limit), with `reasoning_budget_message`
    before its end. `reasoning_effort` is none, off, minimal, low, medium, high or xhigh; a template
    without levels has a budget for each: 10 % of a reply's tokens for minimal, then 20, 50, 80, 95.

    `tool_schemas` are tools in OpenAI's form, each an object or its JSON, and `tool_choice` is
    none, auto, required or {"type": "function", "function": {"name": …}}.
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
    stream: Streams_co = _NO_STREAM
    grammar: str | Mapping[str, Any] | None = None
    grammar_type: str | None = None
    min_p: float | None = None
    tool_schemas: Sequence[str | Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: Sequence[str] | None = None
    web_search_options: None = None
    enable_thinking: bool | None = None
    truncate_sequence: bool = False
    reasoning_effort: Effort | None = None
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
    seed: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Sequence[int] | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    adapter: str | None = None
    response_format: Mapping[str, Any] | None = None
    reasoning_budget: int | None = None
    reasoning_budget_message: str | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.tools
        if not self.messages:
            raise UsageError("the request has no messages", hint="give at least one")
        effort, thinking = self.reasoning_effort, self.enable_thinking
        if effort is not None and thinking is (effort in NO_EFFORT):
            raise UsageError(
                f"enable_thinking is {thinking}, but reasoning_effort is {effort!r}",
                hint="leave one of them out",
            )

    @property
    def thinking(self) -> bool | None:
        """Whether the model may think before it answers; None for the template's default."""
        return self.enable_thinking

    def conversation(self) -> list[Message]:
        """The messages for the model. Raises UsageError, and NotReadable for an image."""
        if isinstance(self.messages, str):
            raise UsageError("`messages` is a string", hint="that is a prompt, not a conversation")
        return with_tool_names([read_message(each) for each in self.messages])

    @property
    def tools(self) -> ToolRequest | None:
        """The tools that a reply may call, if any. Raises UsageError."""
        schemas = [
            json.loads(each) if isinstance(each, str) else each for each in self.tool_schemas or ()
        ]
        return read_tools(schemas, self.tool_choice)


@dataclass(frozen=True, repr=False)
class CompletionRequest(_Settings, Generic[Streams_co]):
    """Asks for the continuation of a text, or of token ids; `echo_prompt` returns the text before.

    With `max_tokens` 0 only the prompt is computed, for its `prompt_logprobs`.

    The fields and their order are those of the Python package mistralrs, and some more as keyword
    arguments; a field that is not supported accepts its default value only. Raises UsageError and
    Unsupported.
    """

    prompt: str | Sequence[int]
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
    grammar: str | Mapping[str, Any] | None = None
    grammar_type: str | None = None
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
    seed: int | None = None
    min_tokens: int | None = None
    stop_token_ids: Sequence[int] | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    adapter: str | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    stream: Streams_co = _NO_STREAM
    response_format: Mapping[str, Any] | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, repr=False)
class EmbeddingRequest(GivenFields):
    """Asks for the embeddings of a text or token ids, or of several of them.

    The first fields and their order are those of the Python package mistralrs. The texts follow
    the prompt of the model's files that `prompt_name` names, such as `query`; with
    `dimensions`, only that many first values are returned, if the model's files allow it. Raises
    UsageError and Unsupported.
    """

    input: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
    truncate_sequence: bool = False
    _: KW_ONLY
    prompt_name: str | None = None
    dimensions: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, {})

    @property
    def inputs(self) -> list[str | Sequence[int]]:
        """Each text, or the token ids of each."""
        whole: Any = self.input
        is_one = isinstance(whole, str) or all(isinstance(each, Integral) for each in whole)
        return [whole] if is_one else list(whole)
