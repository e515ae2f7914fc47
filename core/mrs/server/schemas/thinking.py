"""Fields that say whether and how long the model thinks, and where its thoughts are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Meta, Struct

from mrs.request import NO_EFFORT, Effort
from mrs.server.http.errors import ApiError
from mrs.server.schemas.structure import StructureFields, refuse

Value = TypeVar("Value")
#: The most tokens of a thought; -1 is no limit.
Budget = Annotated[int, Meta(ge=-1)]
#: Thoughts stand apart from the answer, before it in its text, or are left out.
ThoughtsShown = Literal["apart", "inline", "dropped"]
_WHERE: Mapping[str, ThoughtsShown] = {"none": "inline", "raw": "inline", "hidden": "dropped"}


class ThinkingConfig(Struct, kw_only=True):
    """Whether the model thinks before it answers; `adaptive` leaves that to the chat template.

    `budget_tokens` are the most of a thought; with the `display` omitted it is left out.
    """

    type: Literal["enabled", "adaptive", "auto", "disabled"]
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None
    display: Literal["summarized", "omitted", "full"] | None = None


class ReasoningConfig(Struct, kw_only=True):
    """How long the model thinks: an effort, none being not at all, or the most tokens.

    `exclude` leaves thoughts out of the reply.
    """

    effort: Effort | None = None
    summary: str | None = None
    max_tokens: Budget | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingFields(StructureFields, kw_only=True):
    """The fields of several interfaces for the same: those given have to agree.

    enable_thinking           whether the model may think before it answers
    thinking_budget           reasoning_budget, as are thinking_budget_tokens, max_thinking_tokens
    include_reasoning         false leaves thoughts out of the reply
    reasoning_format          none and raw: thoughts are a part of the text; hidden: left out
    separate_reasoning        false: thoughts are a part of the text, as with parse_reasoning false
    chat_template_kwargs      further variables of the chat template
    """

    enable_thinking: bool | None = None
    thinking_budget: Budget | None = None
    thinking_budget_tokens: Budget | None = None
    max_thinking_tokens: Budget | None = None
    reasoning: ReasoningConfig | None = None
    thinking: ThinkingConfig | None = None
    include_reasoning: bool | None = None
    reasoning_format: (
        Literal["auto", "deepseek", "parsed", "none", "raw", "hidden", "deepseek-legacy"] | None
    ) = None
    separate_reasoning: bool | None = None
    parse_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        _ = self.budget
        if self.is_thinking and self.effort in NO_EFFORT:
            raise ApiError(
                400,
                f"thinking is asked for, but the effort is {self.effort}: leave one of them out",
                "reasoning_effort",
                "invalid_value",
            )
        both = "thoughts apart and in the text"
        refuse("reasoning_format", both, self.reasoning_format == "deepseek-legacy")
        refuse("stream_reasoning", "thoughts in one piece", self.stream_reasoning is False)

    @property
    def is_thinking(self) -> bool | None:
        """Whether the model may think; None for the template's default. Raises ApiError."""
        kinds = {"enabled": True, "disabled": False}
        return _agreed(
            {
                "enable_thinking": self.enable_thinking,
                "thinking.type": kinds.get(self.thinking.type) if self.thinking else None,
                "reasoning.enabled": self.reasoning.enabled if self.reasoning else None,
                "chat_template_kwargs.enable_thinking": self._variable("enable_thinking", bool),
                "chat_template_kwargs.thinking": self._variable("thinking", bool),
            }
        )

    @property
    def effort(self) -> Effort | None:
        """How long the model thinks; None for the template's default. Raises ApiError."""
        variable = self._variable("reasoning_effort", str)
        return _agreed(
            {
                "reasoning_effort": self.reasoning_effort,
                "reasoning.effort": self.reasoning.effort if self.reasoning else None,
                "chat_template_kwargs.reasoning_effort": next(
                    (each for each in get_args(Effort) if each == variable), None
                ),
            }
        )

    @property
    def budget(self) -> int | None:
        """The most tokens of a thought, -1 for no limit; None if it is not given."""
        return _agreed(
            {
                "reasoning_budget": self.reasoning_budget,
                "thinking_budget": self.thinking_budget,
                "thinking_budget_tokens": self.thinking_budget_tokens,
                "max_thinking_tokens": self.max_thinking_tokens,
                "reasoning.max_tokens": self.reasoning.max_tokens if self.reasoning else None,
                "thinking.budget_tokens": self.thinking.budget_tokens if self.thinking else None,
                "chat_template_kwargs.thinking_budget": self._variable("thinking_budget", int),
            }
        )

    @property
    def thoughts_shown(self) -> ThoughtsShown:
        """Where the thoughts of replies are."""
        is_dropped = (
            self.include_reasoning is False
            or (self.reasoning is not None and bool(self.reasoning.exclude))
            or (self.thinking is not None and self.thinking.display == "omitted")
        )
        is_inline = self.separate_reasoning is False or self.parse_reasoning is False
        where = _WHERE.get(self.reasoning_format or "", "inline" if is_inline else "apart")
        return "dropped" if is_dropped else where

    def _variable(self, name: str, kind: type[Value]) -> Value | None:
        """A variable of the chat template, if it has this type."""
        given = (self.chat_template_kwargs or {}).get(name)
        return given if type(given) is kind else None


def _agreed(given: Mapping[str, Value | None]) -> Value | None:
    """The value of the fields that are given. Raises ApiError if they differ."""
    set_fields = {name: value for name, value in given.items() if value is not None}
    values = list(set_fields.values())
    if any(each != values[0] for each in values):
        raise ApiError(
            400,
            f"{', '.join(set_fields)} contradict each other: give one of them",
            next(iter(set_fields)),
            "invalid_value",
        )
    return values[0] if values else None
