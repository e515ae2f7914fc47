"""Makes prompts of what a loaded model is asked: conversations, texts, and pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from mrs.errors import ContextFull, UsageError, about
from mrs.request import Media, MediaKind, Message, Sampling
from mrs.text.shorten import max_prompt_tokens, newest_tokens, newest_turns

if TYPE_CHECKING:
    from mrs.architecture.model_spec import ModelSpec
    from mrs.architecture.vision_spec import TimedTranscripts, Transcripts
    from mrs.engine.image_input import ImageInput
    from mrs.engine.prompt import Prompt
    from mrs.grammar.compiler import GrammarCompiler
    from mrs.media.audio_pieces import AudioPiece
    from mrs.media.image_processors import Prepared
    from mrs.media.media_loader import MediaLoader, PreparedMedia
    from mrs.media.recording import Recording
    from mrs.run.ranker import RankingPrompts
    from mrs.run.thinking_settings import ThinkingSettings
    from mrs.run.transcription.speech_tokens import SpeechTokens
    from mrs.run.transcription.transcript import Transcript, TranscriptSettings
    from mrs.text.text_limit import TextLimit
    from mrs.text.text_processor import PromptEnding, TextProcessor
    from mrs.tools.tool_caller import ToolCaller
    from mrs.tools.tool_request import ToolRequest


class _TemplateInput(NamedTuple):
    """What a chat template gets besides the messages."""

    thinking: bool | None
    variables: Mapping[str, Any]
    caller: ToolCaller | None
    ending: PromptEnding

    @property
    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """The tools that it shows."""
        return self.caller.definitions if self.caller else ()


class PromptReader:
    """Reads what is asked, and makes a prompt of it; any thread may call it.

    Without a `media_loader` there are no images. Compiled grammars are kept in `grammar_bytes`. A
    model that has tokens of `speech` makes transcripts alone.
    """

    def __init__(
        self,
        spec: ModelSpec,
        text: TextProcessor,
        thinking: ThinkingSettings,
        context_tokens: int,
        media_loader: MediaLoader | None = None,
        grammar_bytes: int | None = None,
        speech: SpeechTokens | None = None,
    ) -> None:
        self.thinking = thinking
        #: The tokens of a model that does nothing but transcribe.
        self.speech = speech
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
        owner: bytes = b"",
    ) -> Prompt:
        """The prompt of a conversation, and the form of its replies.

        Other arguments are those of `LoadedModel.stream_chat`. `variables` are further variables of
        the chat template. Of a prompt of more than `most_tokens`, the newest stay. One that need
        not fit is only counted: its replies have no form. `TextLimit` says how much text is read.
        Grammars are remembered for their `owner`. Raises as `stream_chat` does, and NoRoom; errors
        may be about "variables", "thinking" or the "form" of replies, others are of the messages.
        """
        from mrs.engine.prompt import Prompt

        self._require_texts()
        with about("variables"):
            self.thinking.check_variables(variables or {})
        with about("thinking"):
            is_on = self.thinking.is_on(sampling, thinking)
        variables = {**self.thinking.variables(sampling, is_on), **(variables or {})}
        caller = self._caller(tools)
        template = _TemplateInput(is_on, variables, caller, ending)
        must_be_whole = must_fit and not truncate and most_tokens is None
        if truncate:
            messages = newest_turns(messages, self.text_limit.has_room)
        self.text_limit.check_messages(
            messages, template.definitions, variables, must_fit=must_be_whole
        )
        if truncate:
            ids, images = self._newest_turns(messages, template, sampling)
        else:
            ids, images = self._read(messages, template, must_fit=must_be_whole)
        if most_tokens is not None:
            ids = self._newest_tokens(ids, most_tokens, images)
        opening, placed = self.text.opening(ids), self._placed(ids, images)
        thoughts = self.text.new_thoughts(ids, has_calls=tools is not None)
        prompt = Prompt(ids, opening, placed, is_chat=True, new_thoughts=thoughts)
        return self._with_form(prompt, sampling, thinking, caller, owner) if must_fit else prompt

    def completion(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        *,
        truncate: bool = False,
        most_tokens: int | None = None,
        owner: bytes = b"",
    ) -> Prompt:
        """The prompt of a text, or of token ids, to continue, and the form of the replies.

        The newest `most_tokens` stay. Grammars are remembered for their `owner`. Raises as
        `LoadedModel.stream_completion` does, and NoRoom; errors may be about the "form" of replies.
        """
        from mrs.engine.prompt import Prompt

        self._require_texts()
        must_fit = not truncate and most_tokens is None
        if isinstance(prompt, str):
            self.text_limit.check(prompt, must_fit=must_fit)
            ids = self.text.encode_raw(prompt)
        elif must_fit and len(prompt) > self.context_tokens:
            raise ContextFull(len(prompt), self.context_tokens)
        else:
            ids = self.known_ids(prompt)
        if most_tokens is not None:
            ids = self._newest_tokens(ids, most_tokens)
        if truncate and len(ids) >= self.context_tokens:
            ids = self._newest_tokens(
                ids, max_prompt_tokens(self.context_tokens, sampling.max_tokens)
            )
        return self._with_form(Prompt(ids), sampling, None, None, owner)

    def prepare_grammars(self) -> None:
        """Do now what the first grammar of a reply would wait for. Raises MrsError."""
        if self._spec.pooler is None and self.speech is None:
            self._grammars.prepare()

    def embedding(
        self, text: str | Sequence[int], *, prompt_name: str | None = None, truncate: bool = False
    ) -> Prompt:
        """The tokens of a text to embed, or given token ids.

        The text follows the prompt of that name, by default the one that the model's files say.
        With `truncate`, one that exceeds the context loses its end. Raises UsageError.
        """
        from mrs.engine.prompt import Prompt

        pooler, most_tokens = self._spec.pooler, self.context_tokens if truncate else None
        if not isinstance(text, str):
            return Prompt(self.known_ids(text)[:most_tokens])
        if pooler is None:
            if prompt_name is not None:
                raise UsageError(f"the model has no prompt {prompt_name!r}")
            return self.completion(text, Sampling(max_tokens=1), truncate=truncate)
        text = pooler.prompted(text, prompt_name)
        self.text_limit.check(text, must_fit=not truncate)
        return Prompt(self.text.tokenizer.encode_whole(text, most_tokens=most_tokens).ids)

    def classification(
        self, text: str | Sequence[int], pair: str | None = None, *, truncate: bool = False
    ) -> Prompt:
        """The tokens of a text to classify, alone or with another one, or given token ids.

        With `truncate`, what exceeds the context loses its end. Raises UsageError.
        """
        from mrs.engine.prompt import Prompt

        if pair is None:
            return self.embedding(text, truncate=truncate)
        if not isinstance(text, str):
            raise UsageError("token ids cannot be a part of a pair", hint="give a text")
        self.text_limit.check(text, pair, must_fit=not truncate)
        most_tokens = self.context_tokens if truncate else None
        whole = self.text.tokenizer.encode_whole(text, pair, most_tokens=most_tokens)
        return Prompt(whole.ids, token_types=whole.types)

    @cached_property
    def ranking(self) -> RankingPrompts:
        """Makes prompts of questions and documents. Raises Unsupported if it does not rank."""
        from mrs.run.ranker import RankingPrompts

        return RankingPrompts(self.text, self._spec.pooler, self._spec.ranking, self.text_limit)

    def num_tokens(self, messages: Sequence[Message], tools: ToolRequest | None = None) -> int:
        """The number of prompt tokens of a conversation, with the tools that it describes."""
        return len(self.chat(messages, Sampling(), tools=tools, must_fit=False).ids)

    def num_images(self, messages: Sequence[Message]) -> int:
        """The images of a conversation, those into which its videos are cut included."""
        if self.speech is not None:  # a recording is no image, however long it is
            return 0
        media = self._media_loader.load(messages) if self._media_loader else []
        return sum(len(each.images) for each in media)

    def check_media(self, kind: MediaKind, name: str) -> None:
        """Raise UsageError or Unsupported for a file that the model cannot take.

        Its content need not have been read.
        """
        if self._media_loader is None:
            raise UsageError(
                "this model was loaded without vision or audio support",
                hint="if it sees or hears, load it with vision-plain",
            )
        self._media_loader.check_kind(kind, name)

    def cut_audio(self, audio: Media, most_seconds: int) -> list[AudioPiece]:
        """The pieces of a recording, none longer than `most_seconds`. Raises MrsError."""
        self.check_media(audio.kind, audio.name)
        assert self._media_loader is not None
        return self._media_loader.cut(audio, most_seconds)

    @property
    def transcripts(self) -> Transcripts | TimedTranscripts | None:
        """How the model transcribes, if it is made for that."""
        return None if self._spec.vision is None else self._spec.vision.transcripts

    def recording(self, audio: Media) -> Recording:
        """What is heard in a file. Raises MrsError."""
        self.check_media(audio.kind, audio.name)
        assert self._media_loader is not None
        return self._media_loader.recording(audio)

    def transcript(self, recording: Recording, settings: TranscriptSettings) -> Transcript:
        """A transcript to make, of a model that has tokens of `speech`. Raises UsageError."""
        from mrs.run.transcription.transcript import Transcript, check_settings

        assert self.speech is not None
        check_settings(settings, self.speech)
        self.text_limit.check(settings.text)
        return Transcript(
            recording, self.speech, self.text.tokenizer, self.context_tokens, settings
        )

    def _require_texts(self) -> None:
        """Raise UsageError for a model that replies to sound alone."""
        if self.speech is not None:
            raise UsageError(
                "this model only transcribes: it needs one recording, and replies to no text",
                hint="give --audio FILE, or send it to /v1/audio/transcriptions",
            )

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

    def _with_form(
        self,
        prompt: Prompt,
        sampling: Sampling,
        thinking: bool | None,
        caller: ToolCaller | None,
        owner: bytes,
    ) -> Prompt:
        """The prompt for replies that match the grammar of `sampling`, or call tools.

        Their thoughts have its budget. Raises UsageError and Unsupported for what cannot be
        enforced, and NoRoom.
        """
        with about("form"):
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

    def _newest_turns(
        self, messages: Sequence[Message], template: _TemplateInput, sampling: Sampling
    ) -> tuple[list[int], list[Prepared]]:
        """As `_read` a conversation, or its newest turns, or of one turn the newest tokens."""

        def read_if_fits(
            messages: Sequence[Message], most_tokens: int
        ) -> tuple[list[int], list[Prepared]] | None:
            try:
                whole = self._read(messages, template, must_fit=True)
            except ContextFull:  # only some of the tokens of a long text were counted
                return None
            return whole if len(whole[0]) <= most_tokens else None

        whole = read_if_fits(messages, self.context_tokens - 1)
        if whole is not None:
            return whole
        most = max_prompt_tokens(self.context_tokens, sampling.max_tokens)
        longest: tuple[list[int], list[Prepared]] | None = None

        def fits(turns: Sequence[Message]) -> bool:
            nonlocal longest
            prompt = read_if_fits(turns, most) if len(turns) < len(messages) else None
            longest = prompt or longest  # the search goes on to longer ones only
            return prompt is not None

        newest = newest_turns(messages, fits)
        if longest is not None:
            return longest
        ids, images = self._read(newest, template, must_fit=False)
        return self._newest_tokens(ids, most, images), images

    def _newest_tokens(
        self, ids: list[int], most_tokens: int, images: Sequence[Prepared] = ()
    ) -> list[int]:
        """The newest `most_tokens`. Raises UsageError for images, whose tokens cannot be cut."""
        if len(ids) <= most_tokens:
            return ids
        if images:
            raise UsageError("a prompt with images cannot be cut", hint="leave out messages")
        return newest_tokens(ids, most_tokens, self.text.tokenizer.bos_id)

    def _read(
        self, messages: Sequence[Message], template: _TemplateInput, *, must_fit: bool
    ) -> tuple[list[int], list[Prepared]]:
        """The prompt ids of a conversation, and its images.

        Raises UsageError for images that are not supported, and ContextFull for a long text that
        `must_fit`.
        """
        from mrs.tools.tool_caller import with_calls_shown

        caller = template.caller
        messages = caller.messages(messages) if caller else with_calls_shown(messages, self.text)
        media: list[PreparedMedia] = []
        if self._media_loader is not None:
            media = self._media_loader.load(messages)
        else:
            for each in (each for message in messages for each in message.get("images", ())):
                self.check_media(each.kind, each.name)
        prompt_ids = self.text.prompt_ids(
            messages,
            thinking=template.thinking,
            image_texts=[each.text for each in media],
            videos=[index for index, each in enumerate(media) if each.is_video],
            variables=template.variables,
            tools=template.definitions,
            ending=template.ending,
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
