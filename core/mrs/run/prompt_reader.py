"""Makes prompts of what a loaded model is asked: conversations, texts, and pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mrs.errors import ContextFull, UsageError
from mrs.request import MediaKind, Message, Sampling
from mrs.text.shorten import max_prompt_tokens, newest_tokens, newest_turns

if TYPE_CHECKING:
    from mrs.architecture.model_spec import ModelSpec
    from mrs.engine.image_input import ImageInput
    from mrs.engine.prompt import Prompt
    from mrs.grammar.compiler import GrammarCompiler
    from mrs.media.image_processors import Prepared
    from mrs.media.media_loader import MediaLoader, PreparedMedia
    from mrs.run.ranker import RankingPrompts
    from mrs.run.thinking_settings import ThinkingSettings
    from mrs.text.text_limit import TextLimit
    from mrs.text.text_processor import PromptEnding, TextProcessor
    from mrs.tools.tool_caller import ToolCaller
    from mrs.tools.tool_request import ToolRequest


class PromptReader:
    """Reads what is asked, and makes a prompt of it; any thread may call it.

    Without a `media_loader` there are no images. Compiled grammars are kept in `grammar_bytes`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        text: TextProcessor,
        thinking: ThinkingSettings,
        context_tokens: int,
        media_loader: MediaLoader | None = None,
        grammar_bytes: int | None = None,
    ) -> None:
        self.thinking = thinking
        self.context_tokens = context_tokens
        self._spec = spec
        self.text = text
        self._media_loader = media_loader
        self._grammar_bytes = grammar_bytes

    def chat(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        truncate: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: ToolRequest | None = None,
        ending: PromptEnding = "reply",
        most_tokens: int | None = None,
        must_fit: bool = True,
    ) -> Prompt:
        """The prompt of a conversation; arguments and errors are those of
        `LoadedModel.stream_chat`.

        `variables` are further variables of the chat template. Of a prompt of more than
        `most_tokens`, the newest stay. One that need not fit is only counted. `TextLimit` says how
        much text is read.
        """
        from mrs.engine.prompt import Prompt
        from mrs.tools.tool_caller import with_calls_shown

        thinking = self.thinking.is_on(sampling, thinking)
        variables = {**self.thinking.variables(sampling, thinking), **(variables or {})}
        caller = self._caller(tools)
        definitions = caller.definitions if caller else ()

        must_fit = must_fit and not truncate and most_tokens is None
        if truncate:
            messages = newest_turns(messages, self.text_limit.has_room)
        self.text_limit.check_messages(messages, definitions, variables, must_fit=must_fit)

        def read(
            messages: Sequence[Message], must_fit: bool = must_fit
        ) -> tuple[list[int], list[Prepared]]:
            shown = caller.messages(messages) if caller else with_calls_shown(messages, self.text)
            return self._read(shown, thinking, variables, definitions, ending, must_fit)

        def read_if_fits(
            messages: Sequence[Message], most_tokens: int
        ) -> tuple[list[int], list[Prepared]] | None:
            try:
                whole = read(messages, must_fit=True)
            except ContextFull:  # only some of the tokens of a long text were counted
                return None
            return whole if len(whole[0]) <= most_tokens else None

        fitting = read_if_fits(messages, self.context_tokens - 1) if truncate else None
        if truncate and fitting is None:
            most = most_tokens = max_prompt_tokens(self.context_tokens, sampling.max_tokens)
            messages = newest_turns(messages, lambda turns: read_if_fits(turns, most) is not None)
        prompt_ids, images = fitting or read(messages)
        if not images:  # the tokens of an image cannot be cut
            prompt_ids = self._cut(prompt_ids, sampling, truncate, most_tokens)
        elif most_tokens is not None and len(prompt_ids) > most_tokens:
            raise UsageError("a prompt with images cannot be cut", hint="leave out messages")
        opening, placed = self.text.opening(prompt_ids), self._placed(prompt_ids, images)
        thoughts = self.text.new_thoughts(prompt_ids, has_calls=tools is not None)
        return Prompt(prompt_ids, opening, placed, is_chat=True, new_thoughts=thoughts)

    def completion(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        truncate: bool = False,
        most_tokens: int | None = None,
    ) -> Prompt:
        """The prompt of a text, or of token ids, to continue; the newest `most_tokens` stay."""
        from mrs.engine.prompt import Prompt

        must_fit = not truncate and most_tokens is None
        if isinstance(prompt, str):
            self.text_limit.check(prompt, must_fit=must_fit)
            prompt_ids = self.text.encode_raw(prompt)
        elif must_fit and len(prompt) > self.context_tokens:
            raise ContextFull(len(prompt), self.context_tokens)
        else:
            prompt_ids = self.known_ids(prompt)
        return Prompt(self._cut(prompt_ids, sampling, truncate, most_tokens))

    def with_form(
        self,
        prompt: Prompt,
        sampling: Sampling,
        *,
        thinking: bool | None = None,
        tools: ToolRequest | None = None,
        owner: bytes = b"",
    ) -> Prompt:
        """The prompt for replies that match the grammar of `sampling`, or call some of `tools`.

        Their thoughts have its budget. Grammars are remembered for their `owner`. Raises
        UsageError and Unsupported for what cannot be enforced, and NoRoom.
        """
        caller = self._caller(tools)
        grammar = caller.grammar(sampling.grammar) if caller else sampling.grammar
        if grammar is not None:
            from mrs.grammar.thought import thought_after

            thought = thought_after(
                self.text,
                prompt.ids if prompt.is_chat else None,
                self.thinking.is_on(sampling, thinking),
                has_channel=grammar.kind == "tool_calls",
            )
            masks = self._grammars.masks(
                grammar, thought, is_greedy=sampling.temperature == 0, owner=owner
            )
            calls = caller.parser if caller else None
            prompt = replace(prompt, new_constraint=masks, has_grammar=True, new_calls=calls)
        room = self.context_tokens - len(prompt.ids)
        return self.thinking.limited(
            prompt, sampling, thinking, room=room, has_calls=caller is not None
        )

    def prepare_grammars(self) -> None:
        """Do now what the first grammar of a reply would wait for. Raises MrsError."""
        if self._spec.readout is None:
            self._grammars.prepare()

    def embedding(
        self, text: str | Sequence[int], *, prompt_name: str | None = None, truncate: bool = False
    ) -> Prompt:
        """The tokens of a text to embed, or given token ids.

        The text follows the prompt of that name, by default the one that the model's files say.
        With `truncate`, one that exceeds the context loses its end. Raises UsageError.
        """
        from mrs.engine.prompt import Prompt

        readout, most_tokens = self._spec.readout, self.context_tokens if truncate else None
        if not isinstance(text, str):
            return Prompt(self.known_ids(text)[:most_tokens])
        if readout is None:
            if prompt_name is not None:
                raise UsageError(f"the model has no prompt {prompt_name!r}")
            return self.completion(text, Sampling(max_tokens=1), truncate=truncate)
        text = readout.prompted(text, prompt_name)
        self.text_limit.check(text, must_fit=not truncate)
        return Prompt(self.text.tokenizer.encode_whole(text, most_tokens=most_tokens).ids)

    @cached_property
    def ranking(self) -> RankingPrompts:
        """Makes prompts of questions and documents. Raises Unsupported if it does not rank."""
        from mrs.run.ranker import RankingPrompts

        return RankingPrompts(self.text, self._spec.readout, self._spec.ranking, self.text_limit)

    def num_tokens(self, messages: Sequence[Message]) -> int:
        """The number of prompt tokens of a conversation."""
        sampling = Sampling()
        self.text_limit.check_messages(messages, must_fit=False)
        thinking = self.thinking.is_on(sampling, None)
        variables = self.thinking.variables(sampling, thinking)
        return len(self._read(messages, thinking, variables, must_fit=False)[0])

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those into which its videos are cut included."""
        media = self._media_loader.load(messages) if self._media_loader else []
        return sum(len(each.images) for each in media)

    def check_media(self, kind: MediaKind, name: str) -> None:
        """Raise UsageError or Unsupported for an image or a video that the model cannot take.

        Its content need not have been read.
        """
        if self._media_loader is None:
            raise UsageError(
                "this model was loaded without vision support",
                hint="if it is a vision model, load it with vision-plain",
            )
        self._media_loader.check_kind(kind, name)

    @cached_property
    def text_limit(self) -> TextLimit:
        """How much text is read for the model's context."""
        from mrs.text.text_limit import TextLimit

        return TextLimit(self.text.tokenizer, self.context_tokens)

    def known_ids(self, ids: Sequence[int]) -> list[int]:
        """The given token ids. Raises UsageError for one that the model does not have."""
        count = self._spec.vocab_size + self._spec.extra_tokens
        if ids and (min(ids) < 0 or max(ids) >= count):
            wrong = next(each for each in ids if not 0 <= each < count)
            raise UsageError(
                f"there is no token {wrong}: the model has the tokens 0 to {count - 1}",
                hint="give ids of this model's own tokens",
            )
        return list(ids)

    def _cut(
        self, prompt_ids: list[int], sampling: Sampling, truncate: bool, most_tokens: int | None
    ) -> list[int]:
        if most_tokens is not None and len(prompt_ids) > most_tokens:
            prompt_ids = newest_tokens(prompt_ids, most_tokens, self.text.tokenizer.bos_id)
        if not truncate or len(prompt_ids) < self.context_tokens:
            return prompt_ids
        most_tokens = max_prompt_tokens(self.context_tokens, sampling.max_tokens)
        return newest_tokens(prompt_ids, most_tokens, self.text.tokenizer.bos_id)

    def _read(
        self,
        messages: Sequence[Message],
        thinking: bool | None,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        ending: PromptEnding = "reply",
        must_fit: bool = True,
    ) -> tuple[list[int], list[Prepared]]:
        """The prompt ids of a conversation, and its images.

        Raises UsageError for images that are not supported, and ContextFull for a long text that
        `must_fit`.
        """
        media: list[PreparedMedia] = []
        if self._media_loader is not None:
            media = self._media_loader.load(messages)
        else:
            for each in (each for message in messages for each in message.get("images", ())):
                self.check_media(each.kind, each.name)
        prompt_ids = self.text.prompt_ids(
            messages,
            thinking=thinking,
            image_texts=[each.text for each in media],
            videos=[index for index, each in enumerate(media) if each.is_video],
            variables=variables,
            tools=tools,
            ending=ending,
            check=self.text_limit.check_count if must_fit else lambda text: None,
        )
        return prompt_ids, [image for each in media for image in each.images]

    def _caller(self, tools: ToolRequest | None) -> ToolCaller | None:
        if tools is None:
            return None
        from mrs.tools.tool_caller import ToolCaller

        return ToolCaller(tools, self.text)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        from mrs.grammar.compiler import GrammarCompiler

        vocab_size, marks = self._spec.vocab_size, self.text.marks
        compiler = GrammarCompiler(self.text.tokenizer, vocab_size, self.text.stop_ids, marks)
        if self._grammar_bytes is not None:
            compiler.limit(self._grammar_bytes)
        return compiler

    def _placed(self, prompt_ids: Sequence[int], images: Sequence[Prepared]) -> list[ImageInput]:
        from mrs.engine.image_input import place_images

        vision = self._spec.vision
        return place_images(vision, prompt_ids, images) if vision is not None else []
