"""Text processing for a model: from conversations and prompts to token ids, and back to text."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mrs.errors import Unsupported, UsageError
from mrs.process.memory_room import MemoryRoom
from mrs.request import text_of
from mrs.source.tokenizer_files import TEKKEN, VOCABULARY_FILES
from mrs.text.gguf_tokenizer import read_gguf_tokenizer
from mrs.text.hf_tokenizer import read_hf_tokenizer
from mrs.text.image_placeholders import Placeholder, texts_around_images
from mrs.text.json_files import parse_object, read_object
from mrs.text.stream_decoder import StreamDecoder
from mrs.text.template import ChatTemplate, choose_template, read_template_text
from mrs.text.template_forms import TemplateForms
from mrs.text.thinking_template import ThinkingTemplate
from mrs.text.thought_splitter import UsualMarks
from mrs.text.thought_tokens import ChannelThoughts, MarkedThought, ThoughtTokens, controls_of
from mrs.text.thoughts import CLOSE, OPEN, USUAL, ThoughtMarks, split_thought
from mrs.text.tokenizer import Tokenizer
from mrs.text.tokenizer_settings import special_token_texts

if TYPE_CHECKING:
    from mrs.request import Container, Message

#: More tokens than any mark of thoughts has.
_MARK_TOKENS = 32


_logger = logging.getLogger(__name__)


#: Where a prompt ends: at the start of the reply, after the last message, or with its content,
#: which the reply continues.
PromptEnding = Literal["reply", "message", "continued"]
#: Marks the end of the content that is continued; private characters, which no message has.
_CONTENT_END = "\ue0f1\ue0f2"


class HasText(Protocol):
    """The parts of a checkpoint that text processing needs."""

    @property
    def container(self) -> Container: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def generation_config(self) -> Mapping[str, Any]: ...

    def read_text(self, name: str) -> str | None: ...

    def read_bytes(self, name: str) -> bytes | None: ...

    def label_of(self, name: str) -> str: ...


class TextProcessor:
    """Tokenizer and chat template of one model.

    `template` is None if neither the model nor the user gave one: then the prompt is the contents
    of the messages, one per line, for the model to continue. `placeholder` stands for an image in
    a rendered prompt; it is None for a model without vision support. `pair_frame` is the text of a
    reranker's GGUF file around `{query}` and `{document}`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        stop_ids: frozenset[int],
        special_tokens: Mapping[str, str] | None = None,
        placeholder: Placeholder | None = None,
        pair_frame: str | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.pair_frame = pair_frame
        self.stop_ids = stop_ids
        self._special_tokens = {**tokenizer.special_tokens, **(special_tokens or {})}
        self._placeholder = placeholder
        self._forms = {
            each: TemplateForms(each, self._special_tokens, placeholder)
            for each in (() if template is None else (template, template.with_tools))
        }

    @property
    def knows_pairs(self) -> bool:
        """Whether the chat template has roles for a question and a document."""
        source = "" if self.template is None else self.template.source
        return all(re.search(f"""["']{role}["']""", source) for role in ("query", "document"))

    @cached_property
    def _thinking(self) -> list[ThinkingTemplate]:
        return [ThinkingTemplate(each, self._special_tokens) for each in self._forms]

    @cached_property
    def _template_marks(self) -> ThoughtMarks | None:
        if self.template is None or self.tokenizer.is_harmony:
            return None
        return next(filter(None, (each.marks for each in self._thinking)), None)

    @cached_property
    def marks(self) -> ThoughtMarks | None:
        """What the model writes around its thoughts; None for channels and without thoughts.

        A vocabulary with the usual marks has them even if the template does not.
        """
        has_tokens = {OPEN, CLOSE} <= self.tokenizer.added_ids.keys()
        is_usual = has_tokens and self.template is not None and not self.tokenizer.is_harmony
        return self._template_marks or (USUAL if is_usual else None)

    @property
    def thinks(self) -> bool:
        """Whether replies may have thoughts that can be told from answers."""
        is_chat = self.template is not None and self.tokenizer.is_harmony
        return is_chat or self.marks is not None

    @cached_property
    def has_thinking_switch(self) -> bool:
        """Whether a chat template has a variable that switches thinking on or off."""
        return any(each.has_switch for each in self._thinking)

    @cached_property
    def effort_variable(self) -> str | None:
        """The variable of a chat template that says how long to think, if there is one."""
        return next(filter(None, (each.effort_variable for each in self._thinking)), None)

    def has_variable(self, name: str) -> bool:
        """Whether a chat template may read a variable."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return any(word.search(each.source) for each in self._forms)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        image_texts: Sequence[str] = (),
        videos: Collection[int] = (),
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        ending: PromptEnding = "reply",
        check: Callable[[str], None] = lambda text: None,
    ) -> list[int]:
        """Ids of a conversation up to the start of the reply, with definitions of `tools`.

        `variables` are more variables of the chat template; `check` sees what it rendered.
        `image_texts` are the control tokens that stand for each image, in order, with `{n}` for
        its number from 0; those at the indices `videos` stand for videos. Control tokens in the
        contents remain plain text.
        A message has the form that the template wants. Raises UsageError if the template renders
        fewer or more images than there are, Unsupported if the model has no vision support.
        """
        if ending == "continued":
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": text_of(last) + _CONTENT_END}]
        image_texts = [text.replace("{n}", str(number)) for number, text in enumerate(image_texts)]
        images = sum(len(texts_around_images(message)) - 1 for message in messages)
        if images and self._placeholder is None:
            raise Unsupported("the model has no vision support")
        if images != len(image_texts):
            raise UsageError(f"{len(image_texts)} images for {images} image marks")
        forms = self.forms(has_tools=bool(tools))
        if forms is None:
            text = self._unformatted(messages, image_texts).removesuffix(_CONTENT_END)
            check(text)
            return self.encode_raw(text)
        rendered = forms.render(
            messages,
            protect=self._protected,
            videos=videos,
            thinking=thinking,
            variables=variables,
            tools=tools,
            begins_reply=ending == "reply",
        )
        if ending == "continued":
            rendered, mark, _ = rendered.rpartition(_CONTENT_END)
            if not mark:
                raise UsageError(
                    "the chat template leaves out the last message, which cannot be continued"
                )
        if self._placeholder is not None:
            name = forms.template.name
            rendered = self._placeholder.fill(rendered, image_texts, videos, name=name)
        check(rendered)
        return self.tokenizer.encode_rendered(rendered)

    def forms(self, *, has_tools: bool) -> TemplateForms | None:
        """The forms of the template for requests with or without tools, if there is one."""
        if self.template is None:
            return None
        return self._forms[self.template.with_tools if has_tools else self.template]

    def framed_ids(self, query: str, document: str) -> list[int]:
        """Ids of a question and a document in the frame of a GGUF file."""
        assert self.pair_frame is not None
        texts = {"{query}": query, "{document}": document}
        marks = "|".join(map(re.escape, texts))
        framed = re.sub(marks, lambda mark: self._protected(texts[mark[0]]), self.pair_frame)
        return self.tokenizer.encode_rendered(framed)

    def pair_ids(
        self, query: str, document: str, instruction: str | None, *, begins_reply: bool
    ) -> list[int]:
        """Ids of a question and a document in a template with roles for them.

        The instruction is a system message. Raises UsageError and Unsupported.
        """
        texts = {"system": instruction, "query": query, "document": document}
        assert self.template is not None
        rendered = self.template.render(
            [
                {"role": role, "content": self._protected(text)}
                for role, text in texts.items()
                if text is not None
            ],
            special_tokens=self._special_tokens,
            begins_reply=begins_reply,
        )
        return self.tokenizer.encode_rendered(rendered)

    def _protected(self, text: str) -> str:
        text = self.tokenizer.protect(text)
        return text if self._placeholder is None else self._placeholder.protect(text)

    def _unformatted(self, messages: Sequence[Message], image_texts: Sequence[str]) -> str:
        """The contents, one per line, for a model without a template."""
        images, lines = iter(image_texts), []
        for message in messages:
            first, *rest = texts_around_images(message)
            if message["role"] == "assistant":
                _, first = split_thought(first)
            if self._placeholder is not None:
                self._placeholder.refuse_in([first, *rest])
            lines.append("".join((first, *(next(images) + text for text in rest))))
        return "\n".join(lines)

    def opening(self, prompt_ids: Sequence[int]) -> str:
        """The start of the reply that the prompt already contains: the opening mark of thoughts."""
        is_open = self.marks is not None and self._end(prompt_ids).endswith(self.marks.open.strip())
        return f"{OPEN}\n" if is_open else ""

    def may_think(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a reply to this prompt may begin with a thought in marks of the template."""
        marks = self._template_marks
        return marks is not None and not self._is_closed(prompt_ids, marks)

    def _is_closed(self, prompt_ids: Sequence[int], marks: ThoughtMarks) -> bool:
        """Whether the prompt has the whole thought already."""
        closings = marks.close, (marks.close + marks.after).rstrip()
        return self._end(prompt_ids).endswith(closings)

    def _end(self, prompt_ids: Sequence[int]) -> str:
        end = self.tokenizer.decode(prompt_ids[-_MARK_TOKENS:], show_control=True)
        return end.rstrip()

    def new_thoughts(
        self, prompt_ids: Sequence[int], *, has_calls: bool
    ) -> Callable[[], ThoughtTokens] | None:
        """Makes what follows the thoughts of replies to a conversation; None without thoughts."""
        tokenizer, marks = self.tokenizer, self.marks
        if self.template is not None and tokenizer.is_harmony:
            return partial(ChannelThoughts, tokenizer, has_calls=has_calls)
        if marks is None or self._is_closed(prompt_ids, marks):
            return None
        is_open = bool(self.opening(prompt_ids))
        return partial(MarkedThought, tokenizer, marks, is_open=is_open)

    def usual_marks(self, opening: str) -> UsualMarks | None:
        """What writes the usual marks in a reply after `opening`; None if it has them already."""
        if self.marks is None or self.marks.is_usual:
            return None
        return UsualMarks(self.marks, is_open=bool(opening))

    def thought_endings(self, message: str = "", *, has_calls: bool = False) -> list[list[int]]:
        """The tokens that end a thought, with `message` before: the first of these that fits.

        In the harmony format an answer follows, or first any message if it may be a call.
        """
        if self.marks is not None:
            ends = [self.marks.before + self.marks.close]
        else:
            next_message = "<|end|><|start|>assistant"
            ends = [f"{next_message}<|channel|>final<|message|>", next_message]
            ends = ends[::-1] if has_calls else ends
        message_ids = self.tokenizer.encode_next(message, allow_special=False)
        return [
            [*message_ids, *self.tokenizer.encode_next(each, allow_special=True)] for each in ends
        ]

    def encode_raw(self, prompt: str) -> list[int]:
        """Ids of a text to continue: with a bos token, and control tokens matched in the text."""
        return self.tokenizer.encode_prompt(prompt)

    def last_token(self, text: str) -> int:
        """The id of the last token of `text` when other text precedes it."""
        return self.tokenizer.encode(f"a{text}", allow_special=False)[-1]

    def stream_decoder(
        self, *, is_exact: bool = False, is_chat: bool = False, shown: frozenset[str] = frozenset()
    ) -> StreamDecoder:
        """A decoder for one reply; with `is_exact` it removes no space at the start.

        The control tokens `shown` are in the text, in a chat also those in the marks of thoughts.
        """
        continues_text = is_exact or self.template is None
        if is_chat and self.marks is not None:
            marks = controls_of(self.tokenizer, self.marks).values()
            shown = shown.union(each.decode() for each in marks)
        return StreamDecoder(self.tokenizer, continues_text=continues_text, shown=shown)


def read_text_processor(
    checkpoint: HasText,
    *,
    chat_template: str | None = None,
    jinja_explicit: str | None = None,
    placeholder: str | None = None,
    image_token_id: int | None = None,
    video_placeholder: str | None = None,
    video_token_id: int | None = None,
    image_edge: str | None = None,
    hears: bool = False,
    room: MemoryRoom | None = None,
) -> TextProcessor:
    """The tokenizer and chat template of a checkpoint.

    `chat_template` is a `.jinja` file, or a `.json` file in the form of tokenizer_config.json, and
    replaces the model's own template; `jinja_explicit` is a `.jinja` file that replaces both. For
    a GGUF file, a tokenizer.json and a template file that the user named replace those in its
    metadata.

    For a vision model, `placeholder` is the text that stands for an image in a rendered prompt,
    with `{n}` for the image's number, and `image_token_id` is the token that the image's
    embeddings replace; `video_placeholder` and `video_token_id` likewise for a video. `image_edge`
    is the token around images of which neighbours share one. For a model that `hears`, they are
    those of audio. Text that a user types never becomes
    one of them. Long texts share `room` while they are tokenized.
    """
    tokenizer = read_tokenizer(checkpoint)
    reserved: set[str] = set()
    if placeholder is not None:
        tokens = (tokenizer.text_of(token) for token in (image_token_id, video_token_id))
        reserved = {placeholder, *filter(None, (*tokens, image_edge))}
    tokenizer = tokenizer.reserving(reserved, room)
    special_tokens: Mapping[str, str] = {}
    if jinja_explicit is not None:
        template = choose_template(read_template_text(jinja_explicit), name=jinja_explicit)
    elif chat_template is not None:
        template, special_tokens = _named_by_user(chat_template)
    else:
        template = _template_of(checkpoint)
        if template is None and checkpoint.read_bytes(TEKKEN) is not None:
            _logger.warning(
                "%s has no chat template, which Mistral's own files leave to a library: messages "
                "are put one per line; give the model's template with -c FILE",
                TEKKEN,
            )
    return TextProcessor(
        tokenizer,
        template,
        stop_ids=tokenizer.end_ids | _configured_stops(checkpoint),
        special_tokens=special_tokens,
        placeholder=None
        if placeholder is None
        else Placeholder(placeholder, video_placeholder, image_edge, "audio" if hears else "image"),
        pair_frame=_pair_frame(checkpoint),
    )


def _pair_frame(checkpoint: HasText) -> str | None:
    frame = checkpoint.config.get("tokenizer.chat_template.rerank")
    return frame if checkpoint.container == "gguf" and isinstance(frame, str) else None


def read_tokenizer(checkpoint: HasText) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    if checkpoint.container == "gguf":
        given = (checkpoint.read_bytes(name) for name in VOCABULARY_FILES)
        if all(data is None for data in given):
            return read_gguf_tokenizer(checkpoint.config)
    return read_hf_tokenizer(checkpoint.read_text, checkpoint.read_bytes, checkpoint.label_of)


def _named_by_user(path: str) -> tuple[ChatTemplate | None, Mapping[str, str]]:
    text = read_template_text(path)
    if not path.endswith(".json"):
        return ChatTemplate(text, name=path), {}
    settings = parse_object(text, path)
    template = choose_template(settings.get("chat_template"), name=path)
    if template is None:
        raise UsageError("the file has no chat_template", where=path)
    return template, special_token_texts(settings)


def _template_of(checkpoint: HasText) -> ChatTemplate | None:
    """The model's template: a template file takes precedence over the tokenizer's settings."""

    def named(read: Callable[[str], Any], default: str, tool_use: str) -> dict[str, Any] | None:
        source, with_tools = read(default), read(tool_use)
        pairs = {"default": source} | ({} if with_tools is None else {"tool_use": with_tools})
        return None if source is None else pairs

    sources: dict[str, Callable[[], Any]] = {
        "chat_template.jinja": lambda: named(
            checkpoint.read_text, "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
        ),
        "chat_template.json": lambda: read_object(checkpoint.read_text, "chat_template.json").get(
            "chat_template"
        ),
        "tokenizer_config.json": lambda: read_object(
            checkpoint.read_text, "tokenizer_config.json"
        ).get("chat_template"),
        "tokenizer.chat_template": lambda: named(
            checkpoint.config.get, "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
        ),
    }
    for name, read in sources.items():
        template = choose_template(read(), name=name)
        if template is not None:
            return template
    return None


def _configured_stops(checkpoint: HasText) -> frozenset[int]:
    """The end-of-sequence ids in config.json and generation_config.json, each an int or a list."""
    stops: set[int] = set()
    for config in (checkpoint.config, checkpoint.generation_config):
        value = config.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if isinstance(token_id, int) and not isinstance(token_id, bool):
                stops.add(token_id)
    return frozenset(stops)
