"""Whether and how long replies think: settings of a request, of the model, and of its template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mrs.errors import UsageError
from mrs.request import EFFORT_SHARES, NO_EFFORT, Effort, RunRequest, Sampling
from mrs.text.template import RENDERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mrs.engine.prompt import Prompt
    from mrs.text.text_processor import TextProcessor

#: Variables that do what they say if the template does not know them, too.
_TRANSLATED = {"enable_thinking", "thinking", "reasoning_effort", "thinking_budget"}


class ThinkingSettings:
    """Combines the settings of requests with those of the model.

    What a template has no variable for is done by a budget: thinking that is off has none, and an
    effort a share of the reply.
    """

    def __init__(self, text: TextProcessor, request: RunRequest) -> None:
        self._text = text
        self._request = request

    def check(self, thinking: bool | None) -> None:
        """Raise UsageError if thoughts are asked for, and the model has none."""
        if thinking and not self._text.thinks and not self._text.has_thinking_switch:
            raise UsageError(
                "the model does not think: its chat template has no thoughts",
                hint="ask it without thinking",
            )

    def check_variables(self, variables: Mapping[str, object]) -> None:
        """Raise UsageError for variables that the chat template does not read."""
        for name in variables:
            if name in RENDERED:
                raise UsageError(f"{name} is no variable to choose", hint="leave it out")
            if name not in _TRANSLATED and not self._text.has_variable(name):
                raise UsageError(
                    f"the chat template has no variable {name[:100]}", hint="leave it out"
                )

    def is_on(self, sampling: Sampling, thinking: bool | None) -> bool | None:
        """Whether the template is asked for thoughts; None leaves that to it.

        `thinking` is what the request says. Without a budget, a template that can switches
        thinking off. Raises UsageError if it asks for thoughts of a model without.
        """
        self.check(thinking)
        if thinking is None and sampling.reasoning_effort is not None:
            thinking = sampling.reasoning_effort not in NO_EFFORT
        if thinking is None:
            thinking = self._request.thinking
        is_spent = self._given_budget(sampling) == 0 and self._text.has_thinking_switch
        return False if thinking is None and is_spent else thinking

    def variables(self, sampling: Sampling, thinking: bool | None) -> Mapping[str, object]:
        """The variables of the template that say how long to think."""
        effort = self._effort(sampling)
        given: dict[str, object] = {}
        if effort is not None and thinking is not False:
            name = self._text.effort_variable
            given |= {} if name is None else {name: effort}
        budget = self._given_budget(sampling)
        if budget is not None and self._text.has_variable("thinking_budget"):
            given["thinking_budget"] = budget
        return given

    def limited(
        self,
        prompt: Prompt,
        sampling: Sampling,
        thinking: bool | None,
        *,
        room: int,
        has_calls: bool,
    ) -> Prompt:
        """`prompt` for replies whose thoughts have the budget, if there is any.

        `room` is the most tokens of a reply. Raises UsageError for a budget of a text that is
        continued.
        """
        if not prompt.is_chat:
            for name in ("reasoning_budget", "reasoning_budget_message", "reasoning_effort"):
                if getattr(sampling, name) is not None:
                    raise UsageError(
                        f"{name} is for chats: a text that is continued has no thoughts",
                        hint="leave it out",
                    )
            return prompt
        budget = self._budget(sampling, self.is_on(sampling, thinking), room)
        new_thoughts, new_form = prompt.new_thoughts, prompt.new_constraint
        if new_thoughts is None or budget is None:
            return prompt
        from mrs.engine.sampling.thought_budget import ThoughtBudget

        message = sampling.reasoning_budget_message
        message = self._request.reasoning_budget_message if message is None else message
        endings = self._text.thought_endings(message, has_calls=has_calls)

        def new_constraint() -> ThoughtBudget:
            return ThoughtBudget(new_thoughts(), budget, endings, new_form and new_form())

        return replace(prompt, new_constraint=new_constraint)

    def notes(self) -> Iterator[str]:
        """What the model's own settings do that nobody expects, for the log."""
        request, text = self._request, self._text
        effort, budget = request.reasoning_effort, request.reasoning_budget
        flag = "--thinking" if effort is None else "--reasoning-effort"
        knows_effort = effort is not None and text.effort_variable is not None
        if request.thinking is False and text.thinks and not text.has_thinking_switch:
            yield f"{flag} ends thoughts at once: the chat template cannot switch them off"
        elif effort in EFFORT_SHARES and text.thinks and not knows_effort:
            share = EFFORT_SHARES[effort]
            yield (
                f"--reasoning-effort {effort} lets thoughts have {share:.0%} of a reply's tokens: "
                "the chat template does not support it"
            )
        elif request.thinking is not None and not (text.has_thinking_switch or knows_effort):
            yield f"{flag} has no effect: the chat template does not support it"
        if budget is not None and not text.thinks:
            yield "--reasoning-budget has no effect: the chat template has no thoughts"

    def _effort(self, sampling: Sampling) -> Effort | None:
        return sampling.reasoning_effort or self._request.reasoning_effort

    def _given_budget(self, sampling: Sampling) -> int | None:
        """The budget that was given as one; None for no limit."""
        budget = sampling.reasoning_budget
        budget = self._request.reasoning_budget if budget is None else budget
        return None if budget is None or budget < 0 else budget

    def _budget(self, sampling: Sampling, thinking: bool | None, room: int) -> int | None:
        """The most tokens of a thought; None for no limit."""
        if thinking is False and not self._text.has_thinking_switch:
            return 0
        effort = self._effort(sampling)
        has_budget = not (
            sampling.reasoning_budget is None and self._request.reasoning_budget is None
        )
        if has_budget or effort not in EFFORT_SHARES or self._text.effort_variable is not None:
            return self._given_budget(sampling)
        return int(EFFORT_SHARES[effort] * min(room, sampling.max_tokens or room))
