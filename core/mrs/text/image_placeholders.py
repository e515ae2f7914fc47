"""Images, videos and audio in a prompt: from marks in messages to the control tokens of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from mrs.errors import MrsError, UsageError
from mrs.request import IMAGE_MARK, Message, text_of
from mrs.text.control_tokens import TEXT_END, TEXT_START, mark_as_text
from mrs.text.template import ChatTemplate, Endless

#: A template outputs this text unchanged only if it outputs contents as text: not if it prints a
#: list, and not if it iterates over the characters of a text.
_PROBE = "one\ntwo"

Content = str | list[dict[str, str]]


class Placeholder:
    """The text that stands for one image or audio file in a rendered prompt, such as `<image>`.

    `{n}` in it is the image's number, from 1. `video` stands for a video, if the model takes any.
    What replaces it may begin and end with the token `edge`; two neighbours share one. `kind` is
    what it stands for, if not for a video.
    """

    def __init__(
        self,
        text: str,
        video: str | None = None,
        edge: str | None = None,
        kind: Literal["image", "audio"] = "image",
    ) -> None:
        self.text = text
        self.video = video
        self.edge = edge
        self.kind = kind

    def numbered(self, number: int, *, is_video: bool = False) -> str:
        text = self.video if is_video and self.video is not None else self.text
        return text.replace("{n}", str(number))

    @cached_property
    def _patterns(self) -> list[str]:
        """The pattern of an image and, if there is one, of a video."""
        image = re.escape(self.text).replace(re.escape("{n}"), r"\d+")
        return [image] if self.video is None else [image, re.escape(self.video)]

    @cached_property
    def _typed(self) -> re.Pattern[str]:
        return re.compile(f"(?<!{TEXT_START})(?:{'|'.join(self._patterns)})(?!{TEXT_END})")

    @cached_property
    def _any(self) -> re.Pattern[str]:
        # A template may remove one mark of a pair: the remaining one still marks typed text.
        marked = (f"{TEXT_START}{each}|{each}{TEXT_END}|({each})" for each in self._patterns)
        return re.compile("|".join(marked))

    def protect(self, content: str) -> str:
        """`content` with typed placeholders marked as text; its control tokens already are."""
        return self._typed.sub(lambda match: mark_as_text(match[0]), content)

    def refuse_in(self, contents: Iterable[str]) -> None:
        """Raises UsageError if one of `contents` contains a typed placeholder."""
        if any(self._typed.search(content) for content in contents):
            raise UsageError(
                f"a message contains {self.text}, which stands for an {self.kind}",
                hint="leave it out",
            )

    def count(self, rendered: str) -> int:
        """The number of images and videos in a rendered template."""
        return len(self._are_videos(rendered))

    def fill(
        self, rendered: str, texts: Sequence[str], videos: Collection[int] = (), *, name: str
    ) -> str:
        """`rendered` with the template's own placeholders replaced by `texts` in order.

        The `videos` are the indices of those. Raises UsageError, with the `name` of the template,
        if it has others.
        """
        are_videos = self._are_videos(rendered)
        if are_videos != [index in videos for index in range(len(texts))]:
            kinds = "audio files" if self.kind == "audio" else "images"
            if videos:
                kinds = "images and videos, or in another order"
            raise UsageError(
                f"the chat template renders {len(are_videos)} of {len(texts)} {kinds}",
                where=name,
                hint="give another one with -c FILE",
            )
        left = iter(texts)
        filled = self._any.sub(
            lambda match: match[0] if match.lastindex is None else next(left), rendered
        )
        return filled if self.edge is None else self._joined(filled, self.edge)

    def _joined(self, filled: str, edge: str) -> str:
        """`filled` with one edge between images, and a space before a text that follows."""
        filled = filled.replace(edge * 2, edge)
        return re.sub(rf"{re.escape(edge)}(?=[^\s<{TEXT_START}{TEXT_END}])", f"{edge} ", filled)

    def _are_videos(self, rendered: str) -> list[bool]:
        """For each of the template's own placeholders, whether it is that of a video."""
        kinds = (match.lastindex for match in self._any.finditer(rendered))
        return [kind == 2 for kind in kinds if kind is not None]


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

    def content(
        self, role: str, texts: Sequence[str], number: int, videos: Collection[int] = ()
    ) -> Content:
        """The content of a message with an image between each two of `texts`.

        `number` is the first image's number in the conversation, from 1. Those in `videos`, which
        count from 0, are videos instead.
        """
        if self._placeholder is None or len(texts) == 1:
            return "".join(texts) if self._takes_text(role) else _parts(texts)
        first, kind = number - 1, self._placeholder.kind
        if self._renders_images(self._placeholder, role) or not self._takes_text(role):
            return _parts(texts, {index - first for index in videos}, kind)
        content = texts[0]
        for index, text in enumerate(texts[1:], first):
            content += self._placeholder.numbered(index + 1, is_video=index in videos) + text
        return content

    def _takes_text(self, role: str) -> bool:
        if role not in self._text_roles:
            self._text_roles[role] = _PROBE in self._rendered(role, _PROBE) or (
                _PROBE not in self._rendered(role, _parts([_PROBE]))
            )
        return self._text_roles[role]

    def _renders_images(self, placeholder: Placeholder, role: str) -> bool:
        if role not in self._image_roles:
            rendered = self._rendered(role, _parts(["", _PROBE], kind=placeholder.kind))
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
        except Endless:
            raise
        except MrsError:
            return ""


def texts_around_images(message: Message) -> list[str]:
    """The content of a message, split at its images. Raises UsageError."""
    content, images = text_of(message), message.get("images", ())
    texts = content.split(IMAGE_MARK) if images else [content]
    if len(texts) - 1 != len(images):
        raise UsageError(f"a message has {len(images)} images but {len(texts) - 1} image marks")
    return texts


def _parts(
    pieces: Sequence[str], videos: Collection[int] = (), kind: str = "image"
) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = []
    for index, text in enumerate(pieces):
        if index:
            parts.append({"type": "video" if index - 1 in videos else kind})
        if text or len(pieces) == 1:
            parts.append({"type": "text", "text": text})
    return parts
