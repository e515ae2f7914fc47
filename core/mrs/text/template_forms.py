"""The form in which a chat template wants messages, found by rendering short conversations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from mrs.errors import MrsError
from mrs.request import Message, text_of
from mrs.text import probe_messages as probe
from mrs.text.image_placeholders import ContentFormats, Placeholder, texts_around_images
from mrs.text.system_messages import count_systems, one_system, systems_in_user
from mrs.text.template import ChatTemplate, Endless
from mrs.text.thoughts import CLOSE, OPEN, split_thought
from mrs.text.tool_messages import (
    CallForm,
    ToolForm,
    call_fields,
    one_call_each,
    protected,
    text_before_calls,
    with_tools_in_system,
)


@dataclass(frozen=True)
class ThoughtForm:
    """How a template wants the thought of an assistant's message, if it shows any.

    field             the name of the field with the thought
    in_tags           or: it is in tags before the content
    beside_said_call  a thought, a text and calls may be in one message, else the text becomes part
                      of the thought
    """

    field: str | None = None
    in_tags: bool = False
    beside_said_call: bool = True


class TemplateForms:
    """The forms of one template; each is found when the first message needs it.

    A thought that the template shows in no form is left out, as are thoughts that it leaves out
    itself, such as those of earlier turns.
    """

    def __init__(
        self,
        template: ChatTemplate,
        special_tokens: Mapping[str, str],
        placeholder: Placeholder | None = None,
    ) -> None:
        self.template = template
        self._special_tokens = special_tokens
        self._contents = ContentFormats(template, placeholder, special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        protect: Callable[[str], str] = str,
        videos: Collection[int] = (),
        thinking: bool | None = None,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        begins_reply: bool = True,
    ) -> str:
        """The prompt for messages, with definitions of `tools` as OpenAI has them.

        All texts of messages, tools and variables pass through `protect`. The images at the
        indices `videos`, which count from 0, are videos. Further arguments and errors are those
        of `ChatTemplate.render`.
        """
        conversation: Sequence[Mapping[str, Any]]
        conversation = self._conversation(messages, protect, videos)
        definitions = [protected(tool, protect) for tool in tools]
        chosen = {name: protected(value, protect) for name, value in (variables or {}).items()}
        if tools and self.tools is not None and self.tools.in_system:
            conversation = with_tools_in_system(conversation, definitions, self.tools)
        return self.template.render(
            conversation,
            special_tokens=self._special_tokens,
            thinking=thinking,
            variables=chosen,
            tools=definitions,
            begins_reply=begins_reply,
        )

    @cached_property
    def calls(self) -> CallForm | None:
        """The form of calls; None if the template shows none."""
        for tools in ((), (probe.TOOL,)):
            nones = self._rendered([probe.ASKED], tools=tools).count("None")
            for chosen in product((True, False), (False, True), (False, True)):
                form = CallForm(*chosen)
                alone = self._with_calls(probe.called(None), form, tools)
                if probe.shows_calls(alone, 1) and alone.count("None") == nones:
                    rendered = self._with_calls(probe.called(probe.TEXT), form, tools)
                    both = self._with_calls(probe.called(None, 2), form, tools)
                    return replace(
                        form,
                        beside_text=probe.shows_calls(rendered, 1) and probe.TEXT in rendered,
                        in_parallel=probe.shows_calls(both, 2),
                    )
        return None

    @cached_property
    def thoughts(self) -> ThoughtForm:
        """The form of thoughts."""
        names = probe.named_thoughts(self.template.source)
        reply = Message(role="assistant", content=probe.TEXT)
        for turn in (probe.with_results(probe.called(None)), [reply]):
            for thinking in (None, True):
                rendered = self._rendered([probe.ASKED, *turn], more=names, thinking=thinking)
                field = probe.first_shown(rendered, names)
                if field is not None:
                    return ThoughtForm(field, beside_said_call=self._shows_all(field))
        tagged = self._rendered([probe.ASKED, _TAGGED], thinking=True)
        return ThoughtForm(in_tags=self.reads_tags and probe.THOUGHT in tagged)

    @cached_property
    def reads_tags(self) -> bool:
        """Whether the template itself finds a thought in tags in the content of a message."""
        if CLOSE not in self.template.source:
            return False
        reply = Message(role="assistant", content=probe.TEXT)
        for later in ([], [probe.ASKED]):
            rendered = self._rendered([probe.ASKED, reply, *later])
            as_text = rendered.replace(probe.TEXT, text_of(_TAGGED))
            if self._rendered([probe.ASKED, _TAGGED, *later]) != as_text:
                return True
        return False

    @cached_property
    def tools(self) -> ToolForm | None:
        """The form of definitions of tools; None if the template shows none."""
        if probe.shows_tool(self._rendered([probe.ASKED], tools=[probe.TOOL])):
            return ToolForm()
        for form in (ToolForm(in_system=True), ToolForm(in_system=True, as_text=True)):
            fields = [self._fields(probe.ASKED)]
            if probe.shows_tool(self._output(with_tools_in_system(fields, [probe.TOOL], form))):
                return form
        return None

    @cached_property
    def has_system(self) -> bool:
        """Whether the template shows a system message at the beginning."""
        return probe.TEXT in self._rendered([_SYSTEM, probe.ASKED])

    @cached_property
    def has_several_systems(self) -> bool:
        """Whether the template shows more than one system message at the beginning."""
        second = Message(role="system", content=probe.LATER)
        rendered = self._rendered([_SYSTEM, second, probe.ASKED])
        return probe.in_order(rendered, (probe.TEXT, probe.LATER))

    @cached_property
    def has_later_system(self) -> bool:
        """Whether the template shows a system message within the conversation."""
        later = Message(role="assistant", content=probe.LATER)
        return probe.TEXT in self._rendered([probe.ASKED, later, _SYSTEM, probe.ASKED])

    def _with_calls(
        self, called: Message, form: CallForm, tools: Sequence[Mapping[str, Any]]
    ) -> str:
        return self._rendered([probe.ASKED, *probe.with_results(called)], calls=form, tools=tools)

    def _shows_all(self, field: str) -> bool:
        """Whether a message may have a thought, a text and a call."""
        if self.calls is None or not self.calls.beside_text:
            return True
        turn = probe.with_results(probe.called(probe.TEXT))
        rendered = self._rendered([probe.ASKED, *turn], more={field: probe.THOUGHT})
        return probe.in_order(rendered, (probe.THOUGHT, probe.TEXT))

    def _rendered(
        self,
        messages: Sequence[Message],
        *,
        calls: CallForm | None = None,
        more: Mapping[str, str] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = None,
    ) -> str:
        """The prompt of a probe, of which messages of the assistant have `more` fields."""
        calls = calls or (self.calls if any("tool_calls" in each for each in messages) else None)
        fields = [self._fields(each, calls) for each in messages]
        more = more or {}
        return self._output(
            [{**more, **each} if each["role"] == "assistant" else each for each in fields],
            tools,
            thinking,
        )

    def _output(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = None,
    ) -> str:
        """What the template makes of a probe; nothing if it fails or refuses it.

        Raises Unsupported if it takes too much time or memory.
        """
        try:
            return self.template.render(
                conversation, special_tokens=self._special_tokens, thinking=thinking, tools=tools
            )
        except Endless:
            raise
        except MrsError:
            return ""

    def _conversation(
        self,
        messages: Sequence[Message],
        protect: Callable[[str], str],
        videos: Collection[int],
    ) -> list[dict[str, Any]]:
        """The messages as the template wants them."""
        calls = thoughts = None
        if any(each.get("tool_calls") for each in messages):
            calls = self.calls
        arranged = self._arranged(messages, calls or CallForm())
        if any(each.get("reasoning") for each in arranged):
            thoughts = self.thoughts
            if not thoughts.beside_said_call:
                arranged = list(map(_with_text_in_thought, arranged))
        conversation, number = [], 1
        for message in arranged:
            fields = self._fields(message, calls, thoughts, protect, number, videos)
            conversation.append(fields)
            number += len(message.get("images", ()))
        return conversation

    def _arranged(self, messages: Sequence[Message], calls: CallForm) -> list[Message]:
        """The messages, of which those that the template would not show are split or joined."""
        arranged = self._with_systems_shown(list(map(self._with_thought_apart, messages)))
        if not calls.in_parallel:
            arranged = one_call_each(arranged)
        if not calls.beside_text:
            arranged = [part for each in arranged for part in text_before_calls(each)]
        return arranged

    def _with_systems_shown(self, messages: list[Message]) -> list[Message]:
        """The messages, of which system messages that are not shown begin the next user's."""
        count = count_systems(messages)
        if count > 1 and not self.has_several_systems:
            messages, count = one_system(messages, count), 1
        hides_first = bool(count) and not self.has_system
        has_later = any(message["role"] == "system" for message in messages[count:])
        if hides_first or (has_later and not self.has_later_system):
            shown = 0 if hides_first else count
            return [*messages[:shown], *systems_in_user(messages[shown:])]
        return messages

    def _with_thought_apart(self, message: Message) -> Message:
        """A message whose content has no thought in tags, unless the template reads these."""
        if message["role"] != "assistant" or message.get("reasoning"):
            return message
        content = text_of(message)
        thought, answer = split_thought(content)
        if thought is None or (CLOSE in content and self.reads_tags):
            return message
        return {**message, "content": answer, "reasoning": thought}

    def _fields(
        self,
        message: Message,
        calls: CallForm | None = None,
        thoughts: ThoughtForm | None = None,
        protect: Callable[[str], str] = str,
        number: int = 1,
        videos: Collection[int] = (),
    ) -> dict[str, Any]:
        """A message as the template wants it; `number` is its first image's, from 1."""
        calls, thoughts = calls or CallForm(), thoughts or ThoughtForm()
        role, thought = message["role"], message.get("reasoning", "")
        texts = [protect(text) for text in texts_around_images(message)]
        fields: dict[str, Any] = {"role": role}
        if thought and thoughts.in_tags:
            texts[0] = f"{OPEN}\n{protect(thought.strip())}\n{CLOSE}\n\n{texts[0]}"
        elif thought and thoughts.field is not None:
            fields[thoughts.field] = protect(thought)
        has_text = len(texts) > 1 or bool(texts[0])
        if message.get("tool_calls") and not has_text and calls.keeps_none:
            fields["content"] = None
        else:
            fields["content"] = self._contents.content(role, texts, number, videos)
        return fields | call_fields(message, protect, calls)


_SYSTEM = Message(role="system", content=probe.TEXT)
_TAGGED = Message(role="assistant", content=f"{OPEN}{probe.THOUGHT}{CLOSE}{probe.TEXT}")


def _with_text_in_thought(message: Message) -> Message:
    """A message whose text is part of its thought, if it has a thought and calls, too."""
    thought, text = message.get("reasoning"), message["content"]
    if not (thought and text and message.get("tool_calls")) or message.get("images"):
        return message
    return {**message, "content": None, "reasoning": f"{thought}\n\n{text}"}
