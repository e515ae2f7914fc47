"""Where images belong in a prompt: from marks in messages to the text that stands for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from mrs.errors import MrsError, UsageError
from mrs.text.guard import CLOSE, OPEN, marked
from mrs.text.template import ChatTemplate

#: Comes out of a template as it is only where the template puts out the text itself: not where it
#: spells a list out, and not where it goes through the letters of a text.
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
        return re.compile(f"(?<!{OPEN}){self._pattern}(?!{CLOSE})")

    @cached_property
    def _any(self) -> re.Pattern[str]:
        # A template may cut one mark of a pair away: the text at the other one was still typed.
        return re.compile(f"{OPEN}{self._pattern}|{self._pattern}{CLOSE}|({self._pattern})")

    def protect(self, content: str) -> str:
        """`content`, of which the control tokens are marked, with what looks like a placeholder
        marked as text, too."""
        return self._typed.sub(lambda match: marked(match[0]), content)

    def refuse_in(self, contents: Iterable[str]) -> None:
        """Raises UsageError where one of `contents` spells a placeholder that nothing marks."""
        if any(self._typed.search(content) for content in contents):
            raise UsageError(
                f"a message spells {self.text}, which stands for an image", hint="leave it out"
            )

    def count(self, rendered: str) -> int:
        """How many images a rendered template shows."""
        return sum(match[1] is not None for match in self._any.finditer(rendered))

    def fill(self, rendered: str, image_texts: Sequence[str], *, name: str) -> str:
        """`rendered` with the template's own placeholders replaced, one by one and in order.

        Raises UsageError, with the `name` of the template, where there are fewer or more.
        """
        shown = self.count(rendered)
        if shown != len(image_texts):
            raise UsageError(
                f"the chat template shows {shown} of {len(image_texts)} images",
                where=name,
                hint="give another one with -c FILE",
            )
        texts = iter(image_texts)
        return self._any.sub(lambda match: match[0] if match[1] is None else next(texts), rendered)


class ContentForms:
    """How a template wants the contents of messages: as a text or as parts; found by trying.

    Some templates of models that see take parts alone, for every message.
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
        """The content of a message that has an image between each two of `texts`.

        `number` is that of the first of them in the conversation.
        """
        if self._placeholder is None or len(texts) == 1:
            return "".join(texts) if self._takes_text(role) else _parts(texts)
        if self._shows_images(self._placeholder, role) or not self._takes_text(role):
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

    def _shows_images(self, placeholder: Placeholder, role: str) -> bool:
        if role not in self._image_roles:
            rendered = self._rendered(role, _parts(["", _PROBE]))
            self._image_roles[role] = _PROBE in rendered and placeholder.count(rendered) == 1
        return self._image_roles[role]

    def _rendered(self, role: str, content: Content) -> str:
        """A short conversation with a message of this role, or nothing where that fails."""
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
