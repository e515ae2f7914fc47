"""Images in a prompt: from marks in messages to the control tokens of each image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from mrs.errors import MrsError, UsageError
from mrs.text.control_tokens import TEXT_END, TEXT_START, mark_as_text
from mrs.text.template import ChatTemplate

#: A template outputs this text unchanged only if it outputs contents as text: not if it prints a
#: list, and not if it iterates over the characters of a text.
_PROBE = "one\ntwo"

Content = str | list[dict[str, str]]


class Placeholder:
    """The text that stands for one image in a rendered prompt, such as `<image>`.

    `{n}` in it is the image's number, from 1.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def numbered(self, number: int) -> str:
        return self.text.replace("{n}", str(number))

    @cached_property
    def _pattern(self) -> str:
        return re.escape(self.text).replace(re.escape("{n}"), r"\d+")

    @cached_property
    def _typed(self) -> re.Pattern[str]:
        return re.compile(f"(?<!{TEXT_START}){self._pattern}(?!{TEXT_END})")

    @cached_property
    def _any(self) -> re.Pattern[str]:
        # A template may remove one mark of a pair: the remaining one still marks typed text.
        return re.compile(
            f"{TEXT_START}{self._pattern}|{self._pattern}{TEXT_END}|({self._pattern})"
        )

    def protect(self, content: str) -> str:
        """`content` with typed placeholders marked as text; its control tokens already are."""
        return self._typed.sub(lambda match: mark_as_text(match[0]), content)

    def refuse_in(self, contents: Iterable[str]) -> None:
        """Raises UsageError if one of `contents` contains a typed placeholder."""
        if any(self._typed.search(content) for content in contents):
            raise UsageError(
                f"a message contains {self.text}, which stands for an image", hint="leave it out"
            )

    def count(self, rendered: str) -> int:
        """The number of images in a rendered template."""
        return sum(match[1] is not None for match in self._any.finditer(rendered))

    def fill(self, rendered: str, image_texts: Sequence[str], *, name: str) -> str:
        """`rendered` with the template's own placeholders replaced by `image_texts` in order.

        Raises UsageError, with the `name` of the template, if their numbers differ.
        """
        count = self.count(rendered)
        if count != len(image_texts):
            raise UsageError(
                f"the chat template renders {count} of {len(image_texts)} images",
                where=name,
                hint="give another one with -c FILE",
            )
        texts = iter(image_texts)
        return self._any.sub(lambda match: match[0] if match[1] is None else next(texts), rendered)


class ContentFormats:
    """Finds out by rendering whether a template expects contents as a text or as a list of parts.

    Some templates of vision models accept only parts, for every message.
    """

    def __init__(
        self,
        template: ChatTemplate,
        placeholder: Placeholder | None,
        special_tokens: Mapping[str, str],
    ) -> None:
        self._template = template
        self._placeholder = placeholder
        self._special_tokens = special_tokens
        self._text_roles: dict[str, bool] = {}
        self._image_roles: dict[str, bool] = {}

    def content(self, role: str, texts: Sequence[str], number: int) -> Content:
        """The content of a message with an image between each two of `texts`.

        `number` is the first image's number in the conversation, from 1.
        """
        if self._placeholder is None or len(texts) == 1:
            return "".join(texts) if self._takes_text(role) else _parts(texts)
        if self._renders_images(self._placeholder, role) or not self._takes_text(role):
            return _parts(texts)
        content = texts[0]
        for later, text in enumerate(texts[1:]):
            content += self._placeholder.numbered(number + later) + text
        return content

    def _takes_text(self, role: str) -> bool:
        if role not in self._text_roles:
            self._text_roles[role] = _PROBE in self._rendered(role, _PROBE) or (
                _PROBE not in self._rendered(role, _parts([_PROBE]))
            )
        return self._text_roles[role]

    def _renders_images(self, placeholder: Placeholder, role: str) -> bool:
        if role not in self._image_roles:
            rendered = self._rendered(role, _parts(["", _PROBE]))
            self._image_roles[role] = _PROBE in rendered and placeholder.count(rendered) == 1
        return self._image_roles[role]

    def _rendered(self, role: str, content: Content) -> str:
        """A rendered short conversation with a message of this role; empty if rendering fails."""
        conversation = [{"role": role, "content": content}]
        if role != "user":
            asked = {"role": "user", "content": self.content("user", ["?"], 1)}
            conversation.insert(len(conversation) if role == "system" else 0, asked)
        try:
            return self._template.render(conversation, special_tokens=self._special_tokens)
        except MrsError:
            return ""


def _parts(pieces: Sequence[str]) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for index, text in enumerate(pieces):
        if index:
            parts.append({"type": "image"})
        if text or len(pieces) == 1:
            parts.append({"type": "text", "text": text})
    return parts
